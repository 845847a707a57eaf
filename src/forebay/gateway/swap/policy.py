"""Which engine of a GPU should be awake, and when that changes. Pure logic: time is an argument.

The engine that is awake keeps the GPU while it has work, so that requests for it are answered
together. It gives way to the engine whose request has waited longest:

* when it has had no work for `idle_s`, or
* after `awake_s` or later, as soon as that is necessary so that no request waits longer than
  `patience_s` and one swap: if n engines are waited for, the last gets its turn after n - 1 others,
  each of which takes a swap and `awake_s`; so the first turn begins by that much earlier.

This holds if `patience_s` is at least (n - 1) * (swap + `awake_s`) and engines have room for the
requests that wait for them. Engines that never ran are started while no request waits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from forebay.gateway.placement.power import CHANGING, RESTING, Power


class SwapRule(Protocol):
    """The part of a GPU's setting that is used here."""

    @property
    def idle_s(self) -> float:
        """How long an engine without work stays awake while requests wait for another one."""

    @property
    def patience_s(self) -> float:
        """How long a request waits while another engine has work."""

    @property
    def awake_s(self) -> float:
        """How long an engine that has work stays awake at least."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """The state of one engine of the GPU, now."""

    name: str
    power: Power
    since: float  # when this power state began
    running: int = 0  # requests at the engine
    idle_since: float = 0.0  # when it last had one
    waiting_since: float | None = None  # when the oldest waiting request came; None: none waits
    is_new: bool = False  # it has never run, and is to be started ahead so that it wakes faster


class Swap(NamedTuple):
    """One engine goes to sleep, then another one is woken."""

    sleeps: str  # empty: none
    wakes: str  # empty: none
    why: str


class SwapDecision(NamedTuple):
    """What to do now, and when to decide again if nothing changes before."""

    swap: Swap | None
    again: float = math.inf


_NOTHING: Final = SwapDecision(None)


def decide(views: Sequence[EngineView], rule: SwapRule, swap_s: float, now: float) -> SwapDecision:
    """Decide for a GPU on which a swap takes `swap_s`."""
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
    """When an engine will have been without work for `idle_s`, if no request comes."""
    is_busy = view.running > 0 or view.waiting_since is not None
    return math.inf if is_busy else view.idle_since + rule.idle_s


def _latest_start(since: Sequence[float], rule: SwapRule, swap_s: float) -> float:
    """When the first of these engines' turns must begin so that each begins within `patience_s`."""
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
