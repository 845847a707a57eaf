"""Puts a server under rising load, step by step, until the last step or well beyond the SLA."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from forebay.bench.load import server
from forebay.bench.load.client import Completion, Target
from forebay.bench.load.clients import ClientGroup, ClientsResult, FinishedRequest, run_clients
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.load.workloads import Workload
from forebay.bench.report.formatting import clients_of
from forebay.bench.result.format import LoadResult, LoadStep, PoolFigures, PoolSample
from forebay.bench.result.summary import step_of
from forebay.plan.measured import Sla

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
LONG_BROKEN_STEPS: Final = 3
LONG_BROKEN_FACTOR: Final = 4.0
_SAMPLE_S: Final = 1.0  # between two looks at a pool's counters
_SAMPLES_MAX: Final = 3600  # of a step


class Counted(Protocol):
    """What a pool has counted since the last call; None where there is no pool."""

    def __call__(self) -> PoolFigures | None:
        """The counts since the last call; the next one counts from here."""

    def so_far(self) -> PoolFigures | None:
        """The counts since the last call; the next one still counts from there."""


class NoPool:
    """Counts of a server without a pool."""

    def __call__(self) -> PoolFigures | None:
        return None

    def so_far(self) -> PoolFigures | None:
        return None


NO_POOL: Final = NoPool()


@dataclass(frozen=True, slots=True)
class LoadPlan:
    clients: tuple[int, ...]  # ascending
    workload: Workload
    bounds: Sla = field(default_factory=Sla)
    seed: str = "0"
    seconds: float | None = None  # of a step; after that no request begins
    stops_early: bool = True  # once the SLA is long broken


@dataclass(slots=True)
class LoadRun:
    """What was measured so far; of use at any time, also after Ctrl-C."""

    begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    measured: dict[int, ClientsResult] = field(default_factory=dict)  # by clients
    ended: str = ""

    def step(self, clients: int) -> LoadStep:
        return step_of(clients, [self.measured[clients]])

    def answers(self) -> dict[tuple[int, str, int], str]:
        """Every answer by its clients, session and turn."""
        return {
            (clients, each.session, each.turn): each.outcome.text
            for clients, measured in self.measured.items()
            for each in measured.finished
            if isinstance(each.outcome, Completion)
        }


async def measure(  # noqa: PLR0917 - each is another thing
    words: SyntheticText,
    target: Target,
    plan: LoadPlan,
    run: LoadRun,
    show: Show,
    counted: Counted = NO_POOL,
) -> None:
    """Fill `run` step by step, with made-up text as `server.text_of` sized it."""
    begun = time.perf_counter()
    counted()
    for place, clients in enumerate(plan.clients):
        on_finished = _shown(show, clients_of(clients), place / len(plan.clients))
        queue = plan.workload.queue(words, clients, f"{plan.seed}/{clients}")
        lanes = plan.workload.lanes(clients)
        group = ClientGroup(lanes, plan.workload.hold, seconds=plan.seconds)
        async with server.watched(target.endpoint) as watch, sampled(counted) as samples:
            found = await run_clients(target, queue, group, on_finished)
        run.measured[clients] = replace(
            found, server=watch.figures(), pool=counted(), pool_samples=tuple(samples)
        )
        run.seconds = round(time.perf_counter() - begun, 1)
        run.ended = _why_end(run, plan, clients)
        if run.ended:
            return


@contextlib.asynccontextmanager
async def sampled(counted: Counted) -> AsyncIterator[list[PoolSample]]:
    """Look at a pool's counters every second, off this loop, which has requests to time."""
    samples: list[PoolSample] = []
    begun, over = time.perf_counter(), asyncio.Event()

    async def keep_looking() -> None:
        while len(samples) < _SAMPLES_MAX and (found := await asyncio.to_thread(counted.so_far)):
            samples.append(_sample(time.perf_counter() - begun, found))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _SAMPLE_S)
            if over.is_set():
                return

    looking = asyncio.create_task(keep_looking())
    try:
        yield samples
    finally:
        over.set()
        await looking
        if samples and (found := counted.so_far()):
            samples.append(_sample(time.perf_counter() - begun, found))


def _sample(at_s: float, found: PoolFigures) -> PoolSample:
    names = ("stored_bytes", "written_bytes", "read_nvme_bytes", "read_dram_bytes")
    return PoolSample(round(at_s, 2), **{name: getattr(found, name) for name in names})


def result_of(runs: Sequence[LoadRun], plan: LoadPlan, target: Target, name: str) -> LoadResult:
    """All runs of one server together: each step is over the requests of all of them."""
    steps = [
        step_of(clients, having, sla=plan.bounds)
        for clients in plan.clients
        if (having := [run.measured[clients] for run in runs if clients in run.measured])
    ]
    return LoadResult(
        steps=tuple(steps),
        name=name,
        url=target.endpoint.url,
        model=target.model,
        workload={**plan.workload.options(), "seed": plan.seed},
        sla=plan.bounds,
        begun=runs[0].begun,
        seconds=round(sum(run.seconds for run in runs), 1),
        ended=next((run.ended for run in runs if run.ended), ""),
        notes=_notes(runs),
    )


def _why_end(run: LoadRun, plan: LoadPlan, clients: int) -> str:
    """Why more clients would be of no use; empty if they are, or if these were the last."""
    step = run.step(clients)
    if not step.requests:
        kinds = ", ".join(f"{count} {kind}" for kind, count in step.errors_by_kind.items())
        return f"nothing was answered at {clients_of(clients)} ({kinds or 'nothing was asked'})"
    if clients == plan.clients[-1] or not plan.stops_early:
        return ""
    sla = plan.bounds
    latest = [run.step(count) for count in list(run.measured)[-LONG_BROKEN_STEPS:]]
    tpot_ms = sla.of(step.tpot_ms)
    is_far = tpot_ms is not None and tpot_ms > LONG_BROKEN_FACTOR * sla.tpot_ms
    is_long = len(latest) == LONG_BROKEN_STEPS and not any(s.meets(sla) for s in latest)
    return f"the SLA was long broken at {clients_of(clients)}" if is_far or is_long else ""


def _notes(runs: Sequence[LoadRun]) -> tuple[str, ...]:
    finished = [each for run in runs for step in run.measured.values() for each in step.finished]
    if all(each.outcome.has_usage for each in finished if isinstance(each.outcome, Completion)):
        return ()
    return ("the server reports no usage: pieces of its stream are counted as tokens",)


def _shown(show: Show, what: str, share: float) -> Callable[[FinishedRequest], None]:
    """Tells whoever watches how far a step is."""
    counts = {True: 0, False: 0}  # answered, failed

    def on_finished(finished: FinishedRequest) -> None:
        counts[isinstance(finished.outcome, Completion)] += 1
        failed = f", {counts[False]} failed" if counts[False] else ""
        show(f"{what}: {counts[True]} answers{failed}", share)

    return on_finished
