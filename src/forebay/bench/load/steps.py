"""A server under rising load, step by step, until the last one or until the SLA is long broken."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from forebay.bench.load import server
from forebay.bench.load.client import Completion, Failed, Target
from forebay.bench.load.clients import ClientGroup, ClientsResult, FinishedRequest, run_clients
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.load.workloads import Workload
from forebay.bench.result.compare import load_of, sla_of
from forebay.bench.result.format import LoadResult, LoadStep, PoolFigures, ServerFigures, SlaBounds
from forebay.bench.result.summary import step_of

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
Counted = Callable[[], PoolFigures | None]  # what a pool has counted since the last call
LONG_BROKEN_STEPS: Final = 3
LONG_BROKEN_FACTOR: Final = 4.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is asked of a server."""

    clients: tuple[int, ...]  # ascending
    workload: Workload
    bounds: SlaBounds = field(default_factory=SlaBounds)
    seed: str = "0"
    seconds: float | None = None  # of a step; after that no request begins
    stops_early: bool = True  # once the SLA is long broken


@dataclass(slots=True)
class LoadRun:
    """What was measured so far; of use at any time, also after Ctrl-C."""

    begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    measured: dict[int, ClientsResult] = field(default_factory=dict)  # by clients
    servers: dict[int, ServerFigures | None] = field(default_factory=dict)
    pools: dict[int, PoolFigures | None] = field(default_factory=dict)
    ended: str = ""

    def step(self, clients: int) -> LoadStep:
        """The figures of one step."""
        return step_of(
            clients, [self.measured[clients]], self.servers.get(clients), self.pools.get(clients)
        )

    def answers(self) -> dict[tuple[int, str, int], str]:
        """Every answer by its clients, session and turn."""
        return {
            (clients, each.session, each.turn): each.outcome.text
            for clients, measured in self.measured.items()
            for each in measured.finished
            if isinstance(each.outcome, Completion)
        }


def no_pool() -> None:
    """Where there is no pool."""
    return


async def measure(
    target: Target, plan: LoadPlan, run: LoadRun, show: Show, counted: Counted = no_pool
) -> None:
    """Fill `run` step by step; a StartupError only if the server does not answer at all."""
    words = await server.text_of(target)
    await measure_with(words, target, plan, run, show, counted)


async def measure_with(  # noqa: PLR0917 - each is another thing
    words: SyntheticText, target: Target, plan: LoadPlan, run: LoadRun, show: Show, counted: Counted
) -> None:
    """The same with text whose token count is known."""
    begun = time.perf_counter()
    counted()
    for place, clients in enumerate(plan.clients):
        on_finished = _Progress(show, _named(clients), place, len(plan.clients))
        queue = plan.workload.queue(words, clients, f"{plan.seed}/{clients}")
        group = ClientGroup(clients, plan.workload.hold, seconds=plan.seconds)
        async with server.watched(target.endpoint) as watch:
            run.measured[clients] = await run_clients(target, queue, group, on_finished)
        run.servers[clients] = watch.figures()
        run.pools[clients] = counted()
        run.seconds = round(time.perf_counter() - begun, 1)
        run.ended = _why_end(run, plan, clients)
        if run.ended:
            return


def result_of(runs: Sequence[LoadRun], plan: LoadPlan, target: Target, name: str) -> LoadResult:
    """All runs of one server together: each step is over the requests of all of them."""
    steps = []
    for clients in plan.clients:
        having = [run for run in runs if clients in run.measured]
        if having:
            # What a server or a pool says of itself cannot be summed: the last run's stands.
            last = having[-1]
            said = last.servers.get(clients), last.pools.get(clients)
            steps.append(step_of(clients, [run.measured[clients] for run in having], *said))
    return LoadResult(
        steps=tuple(steps),
        name=name,
        url=target.endpoint.url,
        model=target.model,
        workload={**plan.workload.options(), "seed": plan.seed},
        begun=runs[0].begun,
        seconds=round(sum(run.seconds for run in runs), 1),
        ended=next((run.ended for run in runs if run.ended), ""),
        notes=_notes(runs),
    )


def _why_end(run: LoadRun, plan: LoadPlan, clients: int) -> str:
    """Why there is no use in more clients; empty if there is, or if these were the last."""
    step = run.step(clients)
    if not step.requests:
        kinds = ", ".join(f"{count} {kind}" for kind, count in step.errors_by_kind.items())
        return f"nothing was answered at {_named(clients)} ({kinds or 'nothing was asked'})"
    if clients == plan.clients[-1] or not plan.stops_early:
        return ""
    sla = sla_of(plan.bounds)
    latest = [run.step(count) for count in list(run.measured)[-LONG_BROKEN_STEPS:]]
    is_far = step.tpot_ms is not None and step.tpot_ms.mean > LONG_BROKEN_FACTOR * sla.tpot_ms
    is_long = len(latest) == LONG_BROKEN_STEPS and not any(load_of(s).meets(sla) for s in latest)
    return f"the SLA was long broken at {_named(clients)}" if is_far or is_long else ""


def _named(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _notes(runs: Sequence[LoadRun]) -> tuple[str, ...]:
    answers = [
        each.outcome
        for run in runs
        for measured in run.measured.values()
        for each in measured.finished
        if isinstance(each.outcome, Completion)
    ]
    if all(answer.has_usage for answer in answers):
        return ()
    return ("the server reports no usage: pieces of its stream are counted as tokens",)


@dataclass(slots=True)
class _Progress:
    """Tells whoever watches how far a step is."""

    show: Show
    what: str
    place: int
    steps: int
    answered: int = 0
    failed: int = 0

    def __call__(self, finished: FinishedRequest) -> None:
        """A request is over."""
        if isinstance(finished.outcome, Failed):
            self.failed += 1
        else:
            self.answered += 1
        failed = f", {self.failed} failed" if self.failed else ""
        self.show(f"{self.what}: {self.answered} answers{failed}", self.place / self.steps)
