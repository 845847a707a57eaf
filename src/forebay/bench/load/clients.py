"""One step of a load: a number of concurrent clients, each working through its sessions.

Between two turns of a session, its client has turns of all other sessions that it holds, so that a
cache that is too small for all of them has lost each one when it comes back.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from forebay.bench.load import client
from forebay.bench.load.client import Completion, Failed, Target
from forebay.bench.load.sessions import ChatSession
from forebay.bench.result.format import PoolFigures, PoolSample, ServerFigures

GIVES_UP_AFTER = 3  # failures in a row: a server may be gone


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    session: str
    turn: int  # from 0
    outcome: Completion | Failed
    at_s: float = 0.0  # when it was sent, since the step began


@dataclass(frozen=True, slots=True)
class ClientGroup:
    clients: int
    hold: int = 1  # sessions a client holds at once
    rounds: int | None = None  # turns of each session at most; None: until it is over
    seconds: float | None = None  # after that no request begins
    patience: int = GIVES_UP_AFTER  # failures in a row until a client gives up


@dataclass(frozen=True, slots=True)
class ClientsResult:
    finished: tuple[FinishedRequest, ...]  # in the order of the answers
    seconds: float  # from the first request to the last answer
    skipped: int = 0  # clients' requests that were not made any more
    late: int = 0  # requests sent behind their time
    server: ServerFigures | None = None  # what the server said of itself meanwhile
    pool: PoolFigures | None = None  # and a pool beneath it
    pool_samples: tuple[PoolSample, ...] = ()  # the same, second by second


@dataclass(slots=True)
class _ClientsRun:
    """A step under way. Used by one event loop."""

    target: Target
    queue: Iterator[ChatSession]
    group: ClientGroup
    on_finished: Callable[[FinishedRequest], None]
    begun: float = field(default_factory=time.perf_counter)
    finished: list[FinishedRequest] = field(default_factory=list)
    skipped: int = 0
    late: int = 0

    async def client(self) -> None:
        """One client, until nothing is left for it."""
        held: list[tuple[ChatSession, int]] = []  # and how many turns it has had
        failed = 0
        while failed < self.group.patience and not self._is_late():
            while len(held) < self.group.hold and (more := next(self.queue, None)) is not None:
                held.append((more, 0))
            if not held:
                return
            session, turns = held.pop(0)
            if turns == self.group.rounds or not session.remaining():
                continue
            outcome = await self._one(session)
            failed = failed + 1 if isinstance(outcome, Failed) else 0
            held.append((session, turns + 1))
        self.skipped += sum(session.remaining() for session, _ in held)

    async def _one(self, session: ChatSession) -> Completion | Failed:
        ask = session.request()
        if ask.pause_s:
            await asyncio.sleep(ask.pause_s)
        if ask.at_s:
            wait_s = self.begun + ask.at_s - time.perf_counter()
            self.late += wait_s < 0
            await asyncio.sleep(max(0.0, wait_s))
        sent_s = time.perf_counter() - self.begun
        outcome = await client.ask(self.target, ask.messages, ask.answer_tokens)
        session.add_answer(outcome.text if isinstance(outcome, Completion) else "")
        finished = FinishedRequest(session.name, ask.turn, outcome, round(sent_s, 3))
        self.finished.append(finished)
        self.on_finished(finished)
        return outcome

    def _is_late(self) -> bool:
        limit = self.group.seconds
        return limit is not None and time.perf_counter() - self.begun >= limit


async def run_clients(
    target: Target,
    queue: Iterator[ChatSession],
    group: ClientGroup,
    on_finished: Callable[[FinishedRequest], None],
) -> ClientsResult:
    """Run all clients until nothing is left to ask; `on_finished` is told of each outcome."""
    # What everybody begins with is made before the clock starts: words take time.
    ready = list(islice(queue, group.clients * group.hold))
    step = _ClientsRun(target, chain(ready, queue), group, on_finished)
    async with asyncio.TaskGroup() as clients:
        for _ in range(group.clients):
            clients.create_task(step.client())
    seconds = time.perf_counter() - step.begun
    step.skipped += sum(session.remaining() for session in step.queue)  # where everybody gave up
    return ClientsResult(tuple(step.finished), seconds, step.skipped, step.late)
