"""One step of a load: so many clients at once, each with its sessions, turn by turn.

Between two turns of a session its client has those of all others it holds, so that a cache which is
too small for all of them has lost each one when it comes back.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from forebay.bench.load import client
from forebay.bench.load.client import Answer, Failed, Target
from forebay.bench.load.script import Session

GIVES_UP_AFTER = 3  # failures in a row; a server that is gone would be asked for everything else


@dataclass(frozen=True, slots=True)
class Taken:
    """One request that was made, and what came of it."""

    session: str
    turn: int  # from 0
    outcome: Answer | Failed


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who asks, and for how long."""

    clients: int
    hold: int = 1  # sessions a client holds at once
    rounds: int | None = None  # turns of each session at most; None: until it is over
    seconds: float | None = None  # after that no request begins
    patience: int = GIVES_UP_AFTER  # failures in a row until a client gives up


@dataclass(frozen=True, slots=True)
class Driven:
    """What came of a step."""

    taken: tuple[Taken, ...]  # in the order of the answers
    seconds: float  # from the first request to the last answer
    skipped: int = 0  # clients' requests that were not made any more
    late: int = 0  # requests sent behind their time


@dataclass(slots=True)
class _Step:
    """A step under way. Used by one event loop."""

    target: Target
    queue: Iterator[Session]
    crowd: Crowd
    heard: Callable[[Taken], None]
    begun: float = field(default_factory=time.perf_counter)
    taken: list[Taken] = field(default_factory=list)
    skipped: int = 0
    late: int = 0

    async def client(self) -> None:
        """One client, until nothing is left for it."""
        held: list[tuple[Session, int]] = []  # and how many turns it has had
        failed = 0
        while failed < self.crowd.patience and not self._is_late():
            while len(held) < self.crowd.hold and (more := next(self.queue, None)) is not None:
                held.append((more, 0))
            if not held:
                return
            session, turns = held.pop(0)
            if turns == self.crowd.rounds or not session.left():
                continue
            outcome = await self._one(session)
            failed = failed + 1 if isinstance(outcome, Failed) else 0
            held.append((session, turns + 1))
        self.skipped += sum(session.left() for session, _ in held)

    async def _one(self, session: Session) -> Answer | Failed:
        ask = session.ask()
        if ask.pause_s:
            await asyncio.sleep(ask.pause_s)
        if ask.at_s:
            wait_s = self.begun + ask.at_s - time.perf_counter()
            self.late += wait_s < 0
            await asyncio.sleep(max(0.0, wait_s))
        outcome = await client.ask(self.target, ask.messages, ask.answer_tokens)
        session.answered(outcome.text if isinstance(outcome, Answer) else "")
        taken = Taken(session.name, ask.turn, outcome)
        self.taken.append(taken)
        self.heard(taken)
        return outcome

    def _is_late(self) -> bool:
        limit = self.crowd.seconds
        return limit is not None and time.perf_counter() - self.begun >= limit


async def drive(
    target: Target, queue: Iterator[Session], crowd: Crowd, heard: Callable[[Taken], None]
) -> Driven:
    """Have every client ask for what it has; `heard` is told of each outcome as it comes."""
    # What everybody begins with is made before the clock starts: words take time.
    ready = list(islice(queue, crowd.clients * crowd.hold))
    step = _Step(target, chain(ready, queue), crowd, heard)
    async with asyncio.TaskGroup() as clients:
        for _ in range(crowd.clients):
            clients.create_task(step.client())
    seconds = time.perf_counter() - step.begun
    step.skipped += sum(session.left() for session in step.queue)  # where everybody gave up
    return Driven(tuple(step.taken), seconds, step.skipped, step.late)
