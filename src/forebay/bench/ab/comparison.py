"""The same load on every variant, one after the other; repeats turn the order round.

Every variant and every repeat begins with empty caches where we start the server; where we do not,
no text is asked twice. All variants are asked the same text.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from forebay.bench.ab.counters import together
from forebay.bench.ab.variants import OpenServer, Variant
from forebay.bench.load import server, steps
from forebay.bench.load.client import Target
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.load.steps import LoadPlan, LoadRun, Show
from forebay.bench.load.workloads import Stateless, Workload
from forebay.bench.result.format import AbResult, EqualAnswers, LoadResult, RepeatOrder, ResultPair
from forebay.errors import StartupError

OFF: Final = "off"
ON: Final = "on"


@dataclass(frozen=True, slots=True)
class AbPlan:
    """What is compared, and how."""

    load: LoadPlan
    variants: dict[str, Variant]  # off, on, and further ones by their names
    repeats: int = 1
    stateless: Workload | None = field(default_factory=Stateless)  # None: left out
    stateless_clients: int = 1


@dataclass(slots=True)
class _MeasuredVariant:
    """One variant over all repeats."""

    target: Target | None = None
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    runs: list[LoadRun] = field(default_factory=list)
    stateless: list[LoadRun] = field(default_factory=list)


Kept = Callable[[str, LoadResult], None]  # a variant is measured: its name, and its result so far


@dataclass(slots=True)
class _Comparison:
    """A comparison under way."""

    plan: AbPlan
    show: Show
    kept: Kept
    variants: dict[str, _MeasuredVariant]
    words: SyntheticText | None = (
        None  # by the count of the server that was first; all hear the same
    )
    orders: list[tuple[str, ...]] = field(default_factory=list)
    done: int = 0

    def say(self, what: str, share: float = 0.0) -> None:
        """For whoever watches."""
        total = self.plan.repeats * len(self.variants)
        self.show(what, (self.done + share) / total)

    def repeat(self, number: int) -> None:
        """Every variant once."""
        names = list(self.variants)
        order = tuple(names if number % 2 == 0 else reversed(names))
        for name in order:
            variant = self.plan.variants[name]
            with variant.opened(self.say) as opened:
                self.measure(name, opened, number)
            self.done += 1
            self.kept(name, self.result(name))
        self.orders.append(order)

    def measure(self, name: str, opened: OpenServer, number: int) -> None:
        """One variant's steps, and then the stateless workload."""
        label = self.plan.variants[name].name

        def show(what: str, share: float) -> None:
            self.say(f"{label}, {what}", share)

        measured = self.variants[name]
        measured.target, measured.commands = opened.target, opened.commands
        measured.notes += opened.notes
        load = replace(self.plan.load, seed=f"{self.plan.load.seed}/{number}")
        run = LoadRun()
        measured.runs.append(run)
        asyncio.run(self.ask(opened, load, run, show))
        if self.plan.stateless is None or not _is_alive(run):
            return
        boundary = replace(
            load, workload=self.plan.stateless, clients=(self.plan.stateless_clients,)
        )
        alone = LoadRun()
        asyncio.run(
            self.ask(opened, boundary, alone, lambda what, _: show(f"stateless, {what}", 1.0))
        )
        if _is_alive(alone):
            measured.stateless.append(alone)

    async def ask(self, opened: OpenServer, load: LoadPlan, run: LoadRun, show: Show) -> None:
        """One load, after a first question that warms the server up."""
        words = await server.text_of(opened.target)
        self.words = self.words or words
        await steps.measure_with(self.words, opened.target, load, run, show, opened.counted)

    def result(self, name: str) -> LoadResult:
        """One variant, over all repeats so far."""
        return self._result(name, self.variants[name].runs, self.plan.load)

    def stateless(self) -> ResultPair | None:
        """The stateless results, where both variants have them."""
        workload = self.plan.stateless
        pair = [self.variants[name].stateless for name in (OFF, ON)]
        if workload is None or not all(pair):
            return None
        load = replace(self.plan.load, workload=workload, clients=(self.plan.stateless_clients,))
        return ResultPair(
            *(self._result(name, self.variants[name].stateless, load) for name in (OFF, ON))
        )

    def ab(self) -> AbResult:
        """Everything."""
        on = self.variants[ON].runs
        return AbResult(
            off=self.result(OFF),
            on=self.result(ON),
            sla=self.plan.load.bounds,
            others=tuple(self.result(name) for name in self.variants if name not in {OFF, ON}),
            equal=equal(self.variants[OFF].runs, on),
            stateless=self.stateless(),
            pool=together(pool for run in on for pool in run.pools.values()),
            repeats=self._repeats() if len(self.orders) > 1 else (),
        )

    def _repeats(self) -> tuple[RepeatOrder, ...]:
        return tuple(
            RepeatOrder(
                order,
                {
                    name: self._result(name, [self.variants[name].runs[n]], self.plan.load)
                    for name in order
                },
            )
            for n, order in enumerate(self.orders)
        )

    def _result(self, name: str, runs: Sequence[LoadRun], load: LoadPlan) -> LoadResult:
        measured = self.variants[name]
        assert measured.target is not None
        found = steps.result_of(runs, load, measured.target, self.plan.variants[name].name)
        notes = (*found.notes, *measured.notes)
        return msgspec.structs.replace(found, commands=measured.commands, notes=notes)


def run(plan: AbPlan, show: Show, kept: Kept) -> AbResult:
    """Measure every variant; a StartupError if one cannot begin in the first round."""
    variants = {name: _MeasuredVariant() for name in plan.variants}
    comparison = _Comparison(plan, show, kept, variants)
    for number in range(plan.repeats):
        try:
            comparison.repeat(number)
        except StartupError as error:
            if not comparison.orders:
                raise
            return _noted(comparison.ab(), f"repeat {number + 1} could not be measured: {error}")
    return comparison.ab()


def equal(off: Sequence[LoadRun], on: Sequence[LoadRun]) -> EqualAnswers:
    """How many answers of both variants were the same, word for word."""
    pairs = [
        (text, other[place])
        for one, two in zip(off, on, strict=False)
        for other in [two.answers()]
        for place, text in one.answers().items()
        if place in other
    ]
    return EqualAnswers(len(pairs), sum(one == other for one, other in pairs))


def _is_alive(run: LoadRun) -> bool:
    """Whether the last step had an answer."""
    last = next(reversed(run.measured), None)
    return last is not None and bool(run.step(last).requests)


def _noted(ab: AbResult, note: str) -> AbResult:
    on = msgspec.structs.replace(ab.on, notes=(*ab.on.notes, note))
    return msgspec.structs.replace(ab, on=on)
