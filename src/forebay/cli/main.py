"""The front door: parse, run one command, turn what went wrong into one sentence.

Exit status: 0 done, 1 the command found what it looks for (damage, a violation), 2 it could not
begin, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from forebay import __version__
from forebay.cli import plan
from forebay.errors import StartupError

# One module a command, in the order of the help text.
_MODULES: tuple[ModuleType, ...] = (plan,)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, every command with its help."""
    parser = argparse.ArgumentParser(
        prog="forebay",
        description="A shared, verified KV-cache pool beneath the GPUs of LLM inference servers.",
    )
    parser.add_argument("--version", action="version", version=f"forebay {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _MODULES:
        module.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit status."""
    parsed = build_parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except StartupError as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("forebay: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; what remains in the buffer must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
