"""Which engine of a GPU should be awake, and when that changes. Pure logic: time is an argument.

The engine that is awake keeps the GPU while it has work, so that requests for it are answered
together. It gives way to the engine whose request has waited longest

* when it has had nothing to do for `idle_s`, or
* after `awake_s` at least, when that must be, so that no request waits for longer than `patience_s`
  and one swap: of n engines that are waited for, the last gets its turn after n - 1 others, each of
  which takes a swap and `awake_s`; so the first begins that much sooner than its patience ends.

The promise holds where `patience_s` is at least (n - 1) * (swap + `awake_s`) and engines have room
for what waits for them. Engines that never ran are started while nobody asks for anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from forebay.gateway.placement.power import CHANGING, RESTING, Power


class SwapRule(Protocol):
    """What the file says of a GPU."""

    @property
    def idle_s(self) -> float:
        """For which an engine that has nothing to do stays awake, where another is waited for."""

    @property
    def patience_s(self) -> float:
        """For which a request waits while another engine has work."""

    @property
    def awake_s(self) -> float:
        """For which an engine that has work is awake at least."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine of the GPU, now."""

    name: str
    power: Power
    since: float  # when that began
    running: int = 0  # requests at the engine
    idle_since: float = 0.0  # when it last had one
    waiting_since: float | None = None  # the oldest of those that wait for it; None: there is none
    is_new: bool = False  # it is off, has never run, and should, to be woken sooner later on


class Swap(NamedTuple):
    """What to do: first one engine goes to sleep, then another is woken."""

    sleeps: str  # empty: none
    wakes: str  # empty: none
    why: str


class SwapDecision(NamedTuple):
    """What to do now, and when to ask again if nothing changes before."""

    swap: Swap | None
    again: float = math.inf


_NOTHING: Final = SwapDecision(None)


def decide(views: Sequence[EngineView], rule: SwapRule, swap_s: float, now: float) -> SwapDecision:
    """What to do with a GPU on which a swap takes `swap_s`."""
    if any(view.power in CHANGING for view in views):
        return _NOTHING
    awake = [view for view in views if view.power is Power.AWAKE]
    if len(awake) > 1:
        return SwapDecision(Swap(_least_wanted(awake).name, "", "another is awake too"))
    waited_for = [view for view in views if view.power in RESTING]
    wanted = sorted(
        (since, view.name) for view in waited_for if (since := view.waiting_since) is not None
    )
    current = awake[0] if awake else None
    if not wanted:
        return _start_ahead(views, current, rule, now)
    name = wanted[0][1]
    if current is None:
        return SwapDecision(Swap("", name, "no other is awake"))
    must = _latest_start([since for since, _ in wanted], rule, swap_s)
    least = current.since + rule.awake_s
    quiet = _quiet_from(current, rule)
    at = min(quiet, max(least, must))
    if now < at:
        return SwapDecision(None, at)
    why = f"{current.name} has nothing to do" if quiet <= now else "a request has waited long"
    return SwapDecision(Swap(current.name, name, why))


def _least_wanted(awake: Sequence[EngineView]) -> EngineView:
    return min(awake, key=lambda view: (view.waiting_since is not None, view.running, view.name))


def _quiet_from(view: EngineView, rule: SwapRule) -> float:
    """When an engine will have had nothing to do for long enough, if nothing comes."""
    is_busy = view.running > 0 or view.waiting_since is not None
    return math.inf if is_busy else view.idle_since + rule.idle_s


def _latest_start(since: Sequence[float], rule: SwapRule, swap_s: float) -> float:
    """When the first of these has to begin, so that each of them begins within its patience."""
    turn_s = swap_s + rule.awake_s
    return min(arrived + rule.patience_s - at * turn_s for at, arrived in enumerate(since))


def _start_ahead(
    views: Sequence[EngineView], current: EngineView | None, rule: SwapRule, now: float
) -> SwapDecision:
    new = next((view for view in views if view.power is Power.OFF and view.is_new), None)
    if new is None:
        return _NOTHING
    why = "it is started ahead"
    if current is None:
        return SwapDecision(Swap("", new.name, why))
    at = max(current.since, _quiet_from(current, rule))
    if now < at:
        return SwapDecision(None, at)
    return SwapDecision(Swap(current.name, new.name, why))
