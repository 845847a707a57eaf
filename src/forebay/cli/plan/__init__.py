"""`forebay plan`: what to buy. `questions` has the arguments, `inputs` reads, `tables` shows."""

from forebay.cli.plan.questions import add

__all__ = ["add"]
