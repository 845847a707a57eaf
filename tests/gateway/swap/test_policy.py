"""Which engine is awake, by a clock that is set: few swaps, patience is kept, nobody starves."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.gateway.config import GpuSetting
from forebay.gateway.placement.power import CHANGING, RESTING, Power
from forebay.gateway.swap.policy import EngineView, Swap, SwapDecision, decide

RULE = GpuSetting("g", patience_s=60, idle_s=5, awake_s=10)
ROUNDING_S = 1e-6


def view(name: str, power: Power, **more: float) -> EngineView:
    return EngineView(name, power, **{"since": 0.0, **more})  # type: ignore[arg-type]


@dataclass
class Outcome:
    """What became of all requests."""

    waits: dict[str, list[float]]  # by engine
    swaps: int

    @property
    def worst(self) -> float:
        return max(wait for waits in self.waits.values() for wait in waits)


class SimulatedGpu:
    """A GPU, its engines and its requests, each of which takes `serve_s` and needs no room."""

    def __init__(self, names: str, rule: GpuSetting, swap_s: float, serve_s: float) -> None:
        self.rule, self.swap_s, self.serve_s = rule, swap_s, serve_s
        self.now = 0.0
        self.powers = dict.fromkeys(names, Power.ASLEEP)
        self.since = dict.fromkeys(names, 0.0)
        self.idle_since = dict.fromkeys(names, 0.0)
        self.waiting: dict[str, list[float]] = {name: [] for name in names}
        self.ends: dict[str, list[float]] = {name: [] for name in names}
        self.waits: dict[str, list[float]] = {name: [] for name in names}
        self.swaps = 0
        self.waking: tuple[str, float] | None = None

    def views(self) -> list[EngineView]:
        return [
            EngineView(
                name,
                power,
                self.since[name],
                len(self.ends[name]),
                self.idle_since[name],
                min(self.waiting[name], default=None),
            )
            for name, power in self.powers.items()
        ]

    def run(self, arrivals: list[tuple[float, str]]) -> Outcome:
        """All of them, to the last answer."""
        ahead = sorted(arrivals)
        while True:
            again = self._step()
            if not (ahead or self.waking or any(self.waiting.values()) or any(self.ends.values())):
                return Outcome(self.waits, self.swaps)
            times = [again, *(ends for each in self.ends.values() for ends in each)]
            times += [ahead[0][0]] if ahead else []
            times += [self.waking[1]] if self.waking else []
            self.now = max(self.now, min(times))
            assert self.now < math.inf, "nothing will ever happen"
            while ahead and ahead[0][0] <= self.now:
                at, name = ahead.pop(0)
                self.waiting[name].append(at)

    def _step(self) -> float:
        for name, ends in self.ends.items():
            if ends and max(ends) <= self.now:
                self.idle_since[name] = max(ends)
            self.ends[name] = [end for end in ends if end > self.now]
        if self.waking and self.waking[1] <= self.now:
            name = self.waking[0]
            self.waking = None
            self.powers[name], self.since[name] = Power.AWAKE, self.now
            self.idle_since[name] = self.now
        self._serve()
        decision = decide(self.views(), self.rule, self.swap_s, self.now)
        if decision.swap is not None:
            self._swap(decision.swap)
        return decision.again

    def _serve(self) -> None:
        for name, power in self.powers.items():
            if power is Power.AWAKE and self.waiting[name]:
                self.waits[name] += [self.now - at for at in self.waiting[name]]
                self.ends[name] += [self.now + self.serve_s] * len(self.waiting[name])
                self.waiting[name].clear()

    def _swap(self, swap: Swap) -> None:
        assert swap.wakes, "one is awake at a time"
        if swap.sleeps:
            assert self.powers[swap.sleeps] is Power.AWAKE
            is_idle = not self.ends[swap.sleeps] and not self.waiting[swap.sleeps]
            assert is_idle or self.now - self.since[swap.sleeps] >= self.rule.awake_s - ROUNDING_S
            self.powers[swap.sleeps] = Power.ASLEEP
        assert self.powers[swap.wakes] in RESTING
        assert self.waiting[swap.wakes], "it is waited for"
        self.powers[swap.wakes] = Power.WAKING
        self.waking = (swap.wakes, self.now + self.swap_s)
        self.swaps += 1


def first_come_first_served(arrivals: list[tuple[float, str]]) -> int:
    """How many swaps that takes."""
    names = [name for _, name in sorted(arrivals, key=lambda each: each[0])]
    return sum(name != before for name, before in zip(names, ["", *names], strict=False))


@pytest.mark.parametrize("gap_s", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("swap_s", [0.5, 3.0, 10.0])
def test_abcabc_is_collated(gap_s: float, swap_s: float) -> None:
    """30 requests in turn: at most 0.3 of the swaps of first come first served, waits bounded.

    An engine stays awake between two requests of its own: these are less than `idle_s` apart.
    """
    rule = replace(RULE, idle_s=max(RULE.idle_s, 4 * gap_s))
    arrivals = [(at * gap_s, "ABC"[at % 3]) for at in range(30)]
    found = SimulatedGpu("ABC", rule, swap_s, serve_s=0.5).run(arrivals)
    assert found.swaps <= 0.3 * first_come_first_served(arrivals), found
    assert found.worst <= RULE.patience_s + swap_s + ROUNDING_S


@example([(0.0, "B"), (0.0, "A"), (1.0, "A")], 0.0, 0.0, 0.0, 0.0)
@given(
    st.lists(st.tuples(st.floats(0, 200), st.sampled_from("ABCD")), min_size=1, max_size=60),
    st.floats(0, 8),
    st.floats(0, 60),
    st.floats(0, 20),
    st.floats(0, 5),
)
def test_nobody_waits_for_longer_than_patience_and_a_swap(
    arrivals: list[tuple[float, str]], swap_s: float, extra_s: float, awake_s: float, serve_s: float
) -> None:
    patience_s = 3 * (swap_s + awake_s) + extra_s
    rule = replace(RULE, patience_s=patience_s, awake_s=awake_s)
    found = SimulatedGpu("ABCD", rule, swap_s, serve_s).run(arrivals)
    assert sum(map(len, found.waits.values())) == len(arrivals), "every request was served once"
    assert found.worst <= patience_s + swap_s + ROUNDING_S
    # Of requests that come at once, the policy has its own order: by name.
    orders = (arrivals, sorted(arrivals))
    assert found.swaps <= max(1, *map(first_come_first_served, orders))


def test_an_engine_that_always_has_work_gives_way() -> None:
    """Requests for A every second for ten minutes, and one for B at the beginning."""
    arrivals = [(at * 1.0, "A") for at in range(600)] + [(5.0, "B")]
    found = SimulatedGpu("AB", RULE, 2.0, serve_s=3.0).run(arrivals)
    assert found.waits["B"] == [RULE.patience_s + 2.0]
    assert max(found.waits["A"]) <= RULE.awake_s + RULE.idle_s + 2 * 2.0 + ROUNDING_S


def test_an_engine_without_work_gives_way_soon_and_not_at_once() -> None:
    asleep = view("b", Power.ASLEEP, waiting_since=99.0)
    idle = view("a", Power.AWAKE, idle_since=98.0)
    assert decide([idle, asleep], RULE, 3.0, 100.0) == SwapDecision(None, 103.0)
    found = decide([idle, asleep], RULE, 3.0, 103.0)
    assert found.swap == Swap("a", "b", "a has nothing to do")


def test_an_engine_with_work_is_awake_for_a_while_however_long_others_wait() -> None:
    asleep = view("b", Power.ASLEEP, waiting_since=1.0)
    busy = view("a", Power.AWAKE, since=100.0, running=1)
    assert decide([busy, asleep], RULE, 3.0, 100.0) == SwapDecision(None, 110.0)


def test_the_first_of_several_begins_sooner_than_its_patience_ends() -> None:
    """Two wait: the second must begin at 170, and the first's turn takes 13 s."""
    busy = view("a", Power.AWAKE, running=1)
    waiting = [
        view("b", Power.ASLEEP, waiting_since=109.0),
        view("c", Power.OFF, waiting_since=110),
    ]
    assert decide([busy, *waiting], RULE, 3.0, 120.0) == SwapDecision(None, 157.0)
    found = decide([busy, *waiting], RULE, 3.0, 157.0)
    assert found.swap == Swap("a", "b", "a request has waited long")


@pytest.mark.parametrize("power", sorted(CHANGING))
def test_nothing_begins_while_something_changes(power: Power) -> None:
    wanted = view("b", Power.ASLEEP, waiting_since=0.0)
    assert decide([view("a", power), wanted], RULE, 3.0, 1000.0) == SwapDecision(None)


def test_a_broken_engine_keeps_nobody_from_serving() -> None:
    views = [view("a", Power.BROKEN, waiting_since=0), view("b", Power.ASLEEP, waiting_since=5)]
    assert decide(views, RULE, 3.0, 10.0).swap == Swap("", "b", "no other is awake")


def test_of_two_that_are_awake_the_one_without_work_sleeps() -> None:
    views = [view("a", Power.AWAKE, running=1), view("b", Power.AWAKE), view("c", Power.ASLEEP)]
    assert decide(views, RULE, 3.0, 10.0).swap == Swap("b", "", "another is awake too")


def test_new_engines_are_started_while_nobody_asks() -> None:
    off = [EngineView(name, Power.OFF, 0.0, is_new=name != "c") for name in "abc"]
    assert decide(off, RULE, 3.0, 0.0).swap == Swap("", "a", "it is started ahead")
    off[0] = view("a", Power.AWAKE, running=1)
    assert decide(off, RULE, 3.0, 100.0) == SwapDecision(None)
    off[0] = view("a", Power.AWAKE, idle_since=98.0)
    assert decide(off, RULE, 3.0, 100.0) == SwapDecision(None, 103.0)
    assert decide(off, RULE, 3.0, 103.0).swap == Swap("a", "b", "it is started ahead")
    off[1] = view("b", Power.ASLEEP)
    assert decide(off, RULE, 3.0, 103.0) == SwapDecision(None), "c is started when it is asked for"
