"""Dialogs being held: so many users at once, each dialog's turns in order, everyone's turn by turn.

Between two turns of a dialog all others have theirs, so that a cache which is too small for all of
them has lost each one when it comes back.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.bench.dialog import client
from forebay.bench.dialog.client import Answer, Endpoint, Failed
from forebay.bench.dialog.script import Dialog
from forebay.errors import StartupError


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one dialog."""

    dialog: str
    number: int  # from 0
    answer: Answer


@dataclass(frozen=True, slots=True)
class Held:
    """What was said, in the order of the answers, and how long all of it took."""

    turns: tuple[Turn, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Load:
    """How a server is asked."""

    endpoint: Endpoint
    model: str
    answer_tokens: int
    users: int = 1  # requests at a time


def hold(load: Load, dialogs: Sequence[Dialog], rounds: int, heard: Callable[[Turn], None]) -> Held:
    """So many further turns of every dialog; `heard` is told of each answer. Blocks.

    A StartupError ends it where a request failed.
    """
    return asyncio.run(_hold(load, dialogs, rounds, heard))


async def _hold(
    load: Load, dialogs: Sequence[Dialog], rounds: int, heard: Callable[[Turn], None]
) -> Held:
    turns: list[Turn] = []
    begun = time.perf_counter()
    for _ in range(rounds):
        waiting = list(reversed(dialogs))

        async def user(waiting: list[Dialog] = waiting) -> None:
            while waiting:
                turn = await _one(load, waiting.pop())
                turns.append(turn)
                heard(turn)

        await asyncio.gather(*(user() for _ in range(load.users)))
    return Held(tuple(turns), time.perf_counter() - begun)


def ask_again(load: Load, dialog: Dialog) -> Answer:
    """The last turn of a dialog once more; nothing is added to it. Blocks."""
    return asyncio.run(_ask(load, dialog, dialog.turn - 1))


async def _one(load: Load, dialog: Dialog) -> Turn:
    number = dialog.turn
    answer = await _ask(load, dialog, number)
    dialog.answered(answer.text)
    return Turn(dialog.name, number, answer)


async def _ask(load: Load, dialog: Dialog, turn: int) -> Answer:
    messages = dialog.messages_of(turn)
    answer = await client.ask(load.endpoint, load.model, messages, load.answer_tokens)
    if isinstance(answer, Failed):
        raise StartupError(f"a request failed: {answer.why}.")
    return answer
