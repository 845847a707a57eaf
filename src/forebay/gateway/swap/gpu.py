"""Carries out the policy's decisions for one GPU: drain, sleep, wake, one at a time.

Promised: an engine is given requests only while it is awake and has computed a token since it woke;
answers under way are kept while it sleeps, and it is woken again for them; what fails is tried
again later, and meanwhile the other engines of the GPU can serve. Assumed: nobody else makes these
engines sleep, wake, start or stop.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from forebay.gateway.config import GpuSetting
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import Condition, EngineState
from forebay.gateway.placement.power import RESTING, Power
from forebay.gateway.seen import GatewayMetrics
from forebay.gateway.swap import policy
from forebay.gateway.swap.demand import waiting_since
from forebay.gateway.swap.lifecycle import EngineLifecycle
from forebay.gateway.swap.plan import Rest
from forebay.gateway.swap.policy import EngineView, Swap

LOOK_S: Final = 1.0  # between two checks, if nothing happens
RETRY_S: Final = 1.0  # after a first failure; twice as long after each further one
RETRY_S_MAX: Final = 60.0
_FORGET: Final = 0.9  # the longest swap's time is multiplied by this at each shorter one
_log: Final = logging.getLogger(__name__)


class GpuTurns:
    """One GPU and its engines."""

    def __init__(
        self,
        setting: GpuSetting,
        engines: Sequence[EngineLifecycle],
        dispatcher: Dispatcher,
        metrics: GatewayMetrics,
        look: Callable[[EngineState], Awaitable[None]],
    ) -> None:
        self._setting = setting
        self._engines = {lifecycle.name: lifecycle for lifecycle in engines}
        self._dispatcher, self._metrics, self._look = dispatcher, metrics, look
        self._changed = asyncio.Event()
        self._paused: dict[str, float] = {}  # engines that sleep with answers under way → since
        self._swap_s = max((lifecycle.engine.wake_s for lifecycle in engines), default=0.0)
        for lifecycle in engines:
            self._set_power(lifecycle, Power.UNKNOWN, "not asked yet")

    def changed(self) -> None:
        """Note that a request waits, or has ended, somewhere in the gateway."""
        self._changed.set()

    async def run(self) -> None:
        """Check, decide and swap until cancelled."""
        while True:
            self._changed.clear()
            await self._check()
            now = self._dispatcher.now()
            decision = policy.decide(self._views(), self._setting, self._swap_s, now)
            if decision.swap is not None:
                await self._swap(decision.swap)
            else:
                await self._wait_for_change(min(decision.again - now, LOOK_S))

    async def _check(self) -> None:
        """Find out unknown states, and notice engines that have ended or do not serve any more."""
        for lifecycle in self._engines.values():
            engine, owned = lifecycle.engine, lifecycle.owned
            is_lost = engine.power is Power.AWAKE and engine.condition is Condition.DOWN
            if engine.power in RESTING:
                engine.clear_down()  # answers that broke off when it was stopped are not its fault
            if engine.power is Power.UNKNOWN or (
                engine.power is Power.BROKEN and self._dispatcher.now() >= lifecycle.retry_at
            ):
                await self._learn(lifecycle)
            elif owned is not None and engine.power in {Power.AWAKE, Power.ASLEEP}:
                if not owned.is_running:
                    await owned.stop()
                    self._ended(lifecycle)
            elif (
                is_lost
                and not await lifecycle.is_awake()  # else it has the GPU, and can be put to sleep
                and engine.condition is Condition.DOWN
            ):
                self._broken(lifecycle, engine.why)

    async def _learn(self, lifecycle: EngineLifecycle) -> None:
        power, why = await lifecycle.learn()
        if power is Power.BROKEN:
            self._broken(lifecycle, why)
            return
        lifecycle.engine.clear_down()
        self._set_power(lifecycle, power, "found so")
        if power is Power.AWAKE:
            await self._look(lifecycle.engine)
        self._dispatcher.dispatch(lifecycle.engine)

    def _ended(self, lifecycle: EngineLifecycle) -> None:
        _log.warning("engine %s: its process has ended", lifecycle.name)
        lifecycle.engine.take_down("its process has ended")
        lifecycle.engine.clear_down()  # it can be started
        lifecycle.is_new = lifecycle.rest is not Rest.STOP
        self._set_power(lifecycle, Power.OFF, "its process has ended")

    def _broken(self, lifecycle: EngineLifecycle, why: str) -> None:
        wait_s = min(RETRY_S * 2.0**lifecycle.failures, RETRY_S_MAX)
        lifecycle.failures = min(lifecycle.failures + 1, 16)
        lifecycle.retry_at = self._dispatcher.now() + wait_s
        if lifecycle.engine.power is not Power.BROKEN:
            _log.warning("engine %s is not used: %s", lifecycle.name, why)
        lifecycle.engine.take_down(why)
        self._set_power(lifecycle, Power.BROKEN, why)
        self._dispatcher.dispatch(
            lifecycle.engine
        )  # refuses requests that no other engine can answer

    def _views(self) -> list[EngineView]:
        return [
            EngineView(
                name,
                lifecycle.engine.power,
                lifecycle.engine.power_since,
                lifecycle.engine.running,
                lifecycle.engine.idle_since,
                self._waiting_since(lifecycle),
                is_new=lifecycle.is_new,
            )
            for name, lifecycle in self._engines.items()
        ]

    def _waiting_since(self, lifecycle: EngineLifecycle) -> float | None:
        """Since when a request waits for an engine, to begin or to go on; None if none does."""
        engine = lifecycle.engine
        since = waiting_since(self._dispatcher, engine)
        paused = self._paused.get(lifecycle.name, math.inf)
        if engine.power not in RESTING or not engine.running:
            paused = math.inf
        found = min(math.inf if since is None else since, paused)
        return None if found == math.inf else found

    async def _wait_for_change(self, duration_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(duration_s, 0.0)):
                await self._changed.wait()

    async def _swap(self, swap: Swap) -> None:
        begun = self._dispatcher.now()
        if swap.sleeps and not await self._put_to_sleep(swap):
            return
        if swap.wakes:
            await self._wake(self._engines[swap.wakes], swap.why, begun)

    async def _put_to_sleep(self, swap: Swap) -> bool:
        lifecycle = self._engines[swap.sleeps]
        why = f"for {swap.wakes}: {swap.why}" if swap.wakes else swap.why
        self._set_power(lifecycle, Power.DRAINING, why)
        await lifecycle.prepare()
        if not await self._drain(lifecycle, swap):
            self._set_power(lifecycle, Power.AWAKE, "nobody waits for another any more")
            self._dispatcher.dispatch(lifecycle.engine)
            return False
        self._set_power(lifecycle, Power.FALLING_ASLEEP, why)
        power, failed = await lifecycle.fall_asleep()
        for each in failed:
            self._metrics.swap_failed.add(labels=(lifecycle.name, each.partition(":")[0]))
            _log.warning("engine %s did not sleep: %s", lifecycle.name, each)
        if power is Power.BROKEN:
            self._broken(lifecycle, failed[-1])
            return False
        if power is Power.AWAKE:
            self._set_power(lifecycle, power, f"it did not sleep: {failed[-1]}")
            self._dispatcher.dispatch(lifecycle.engine)
            return False
        if lifecycle.engine.running:
            self._metrics.kept.add(lifecycle.engine.running, (lifecycle.name,))
            self._paused[lifecycle.name] = self._dispatcher.now()
        self._set_power(lifecycle, power, why)
        return True

    async def _drain(self, lifecycle: EngineLifecycle, swap: Swap) -> bool:
        """Wait `drain_s` at most for answers under way; False if the swap is not needed any more.

        If the engine can only be stopped, wait until all its answers have ended.
        """
        until = self._dispatcher.now() + self._setting.drain_s
        wakes = self._engines.get(swap.wakes)
        was_wanted = wakes is not None and self._waiting_since(wakes) is not None
        while lifecycle.engine.running:
            left_s = until - self._dispatcher.now()
            if left_s <= 0 and lifecycle.rest is not Rest.STOP:
                break
            self._changed.clear()
            await self._wait_for_change(min(left_s, LOOK_S) if left_s > 0 else LOOK_S)
            if was_wanted and wakes is not None and self._waiting_since(wakes) is None:
                return False
        return True

    async def _wake(self, lifecycle: EngineLifecycle, why: str, begun: float) -> None:
        is_asleep = lifecycle.engine.power is Power.ASLEEP
        woken = self._dispatcher.now()
        self._set_power(lifecycle, Power.WAKING, why)
        if failure := await lifecycle.wake(is_asleep=is_asleep):
            self._metrics.swap_failed.add(labels=(lifecycle.name, "wake"))
            self._broken(lifecycle, failure)
            return
        now = self._dispatcher.now()
        lifecycle.failures = 0
        if is_asleep or lifecycle.rest is Rest.STOP:  # else it was its first start
            lifecycle.woke(now - woken)
            self._swap_s = max(now - begun, self._swap_s * _FORGET)
        self._paused.pop(lifecycle.name, None)
        self._metrics.swaps.add(labels=(lifecycle.name,))
        self._metrics.wake_s.observe(now - woken, (lifecycle.name,))
        lifecycle.engine.clear_down()
        lifecycle.engine.succeeded()
        self._set_power(lifecycle, Power.AWAKE, why)
        await self._look(lifecycle.engine)
        self._dispatcher.dispatch(lifecycle.engine)

    def _set_power(self, lifecycle: EngineLifecycle, power: Power, why: str) -> None:
        before = lifecycle.engine.power
        lifecycle.engine.set_power(power, why, self._dispatcher.now())
        if before is not power:
            _log.info("engine %s is %s%s", lifecycle.name, power, f": {why}" if why else "")
