"""Runs the same load on every variant, one after the other; the order alternates per repeat.

If we start the server, every variant and every repeat begins with empty caches; if we do not, no
text is used twice. All variants get the same text.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from forebay.bench.ab.counters import together
from forebay.bench.ab.variants import OpenServer, Variant
from forebay.bench.load import server, steps
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.load.steps import LoadPlan, LoadRun, Show
from forebay.bench.result.format import AbResult, EqualAnswers, LoadResult, RepeatOrder, ResultPair
from forebay.errors import StartupError

OFF: Final = "off"
ON: Final = "on"


@dataclass(frozen=True, slots=True)
class AbPlan:
    load: LoadPlan
    variants: dict[str, Variant]  # off, on, and further ones by their names
    repeats: int = 1
    stateless: LoadPlan | None = None  # of the stateless workload after the load; None: left out


@dataclass(slots=True)
class _MeasuredVariant:
    """One variant over all repeats."""

    variant: Variant
    opened: OpenServer | None = None  # the server of the last repeat
    notes: tuple[str, ...] = ()
    runs: list[LoadRun] = field(default_factory=list)
    stateless: list[LoadRun] = field(default_factory=list)

    def result(self, load: LoadPlan, runs: Sequence[LoadRun]) -> LoadResult:
        assert self.opened is not None
        found = steps.result_of(runs, load, self.opened.target, self.variant.name)
        notes = (*found.notes, *self.notes)
        return msgspec.structs.replace(found, commands=self.opened.commands, notes=notes)


Kept = Callable[[str, LoadResult], None]  # called with a measured variant and its result so far


@dataclass(slots=True)
class _Comparison:
    """A comparison under way."""

    plan: AbPlan
    show: Show
    kept: Kept
    variants: dict[str, _MeasuredVariant]
    words: SyntheticText | None = None  # sized by the first server; all variants get the same
    orders: list[tuple[str, ...]] = field(default_factory=list)
    done: int = 0

    def say(self, what: str, share: float = 0.0) -> None:
        total = self.plan.repeats * len(self.variants)
        self.show(what, (self.done + share) / total)

    def repeat(self, number: int) -> None:
        names = list(self.variants)
        order = tuple(names if number % 2 == 0 else reversed(names))
        for name in order:
            measured = self.variants[name]
            with measured.variant.opened(self.say) as measured.opened:
                measured.notes += measured.opened.notes
                self.measure(measured, number)
            self.done += 1
            self.kept(name, measured.result(self.plan.load, measured.runs))
        self.orders.append(order)

    def measure(self, measured: _MeasuredVariant, number: int) -> None:
        """Measure one variant's steps, and then the stateless workload if it still answers."""
        label = measured.variant.name

        def ask(load: LoadPlan, run: LoadRun, show: Show) -> bool:
            opened = measured.opened
            assert opened is not None
            words = asyncio.run(server.text_of(opened.target))  # warms it up, too
            self.words = self.words or words
            fresh = replace(load, seed=f"{load.seed}/{number}")
            asyncio.run(steps.measure(self.words, opened.target, fresh, run, show, opened.counted))
            return _is_alive(run)

        measured.runs.append(LoadRun())
        is_alive = ask(
            self.plan.load,
            measured.runs[-1],
            lambda what, share: self.say(f"{label}, {what}", share),
        )
        boundary, alone = self.plan.stateless, LoadRun()
        if (
            boundary is not None
            and is_alive
            and ask(boundary, alone, lambda what, _: self.say(f"{label}, stateless, {what}", 1.0))
        ):
            measured.stateless.append(alone)

    def ab(self) -> AbResult:
        load, boundary = self.plan.load, self.plan.stateless
        results = {name: each.result(load, each.runs) for name, each in self.variants.items()}
        off, on = self.variants[OFF], self.variants[ON]
        stateless = None
        if boundary is not None and off.stateless and on.stateless:
            stateless = ResultPair(*(each.result(boundary, each.stateless) for each in (off, on)))
        repeats = [
            RepeatOrder(
                order,
                {
                    name: self.variants[name].result(load, [self.variants[name].runs[n]])
                    for name in order
                },
            )
            for n, order in enumerate(self.orders)
        ]
        return AbResult(
            off=results.pop(OFF),
            on=results.pop(ON),
            sla=load.bounds,
            others=tuple(results.values()),
            equal=equal(off.runs, on.runs),
            stateless=stateless,
            pool=together(step.pool for run in on.runs for step in run.measured.values()),
            repeats=tuple(repeats) if len(repeats) > 1 else (),
        )


def run(plan: AbPlan, show: Show, kept: Kept) -> AbResult:
    """Measure every variant; StartupError if one cannot start in the first round."""
    variants = {name: _MeasuredVariant(variant) for name, variant in plan.variants.items()}
    comparison = _Comparison(plan, show, kept, variants)
    for number in range(plan.repeats):
        try:
            comparison.repeat(number)
        except StartupError as error:
            if not comparison.orders:
                raise
            variants[ON].notes += (f"repeat {number + 1} could not be measured: {error}",)
            break
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
