"""One engine of a shared GPU: makes it sleep, wake, start and stop, and reports the result.

Every way to rest is tried before its process is ended, and answers under way are never aborted:
sleep with `keep`, again, with `wait`, then stop. After each wake it computes a token before it is
given requests. Failures are reported as a sentence; nothing is raised.
"""

import asyncio
import logging
from typing import Final

import msgspec

from forebay.gateway.http.client import EngineClient
from forebay.gateway.http.messages import Unanswered
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.power import Power
from forebay.gateway.swap.children import OwnedEngine
from forebay.gateway.swap.control import SLEEP_S, SleepControl
from forebay.gateway.swap.plan import Rest

_LADDER: Final = ("keep", "keep", "wait")
_LOOK_S: Final = 0.25  # between two looks at an engine that starts
_HEALTH_S: Final = 5.0
_EXPECTED_S: Final = {Rest.LEVEL_1: 3.0, Rest.LEVEL_2: 6.0, Rest.STOP: 60.0}  # until measured
_SMOOTH: Final = 0.3
_log: Final = logging.getLogger(__name__)


class EngineLifecycle:
    """One engine of a GPU, awake or at rest."""

    def __init__(
        self, engine: EngineState, rest: Rest, client: EngineClient, owned: OwnedEngine | None
    ) -> None:
        self.engine, self.rest, self.owned = engine, rest, owned
        self.name = engine.setting.name
        self.is_new = rest is not Rest.STOP and owned is not None
        self.retry_at = 0.0  # if it is broken
        self.failures = 0  # in a row
        self._client = client
        self._control = SleepControl(engine.setting.url, engine.setting.model, client)
        engine.wake_s = _EXPECTED_S[rest]
        engine.rest = rest.value

    async def learn(self) -> tuple[Power, str]:
        """Find out the engine's power state, and what is wrong if it is broken."""
        if self.owned is not None:
            is_same = self.owned.find() if not self.owned.is_running else True
            if self.owned.is_running and not is_same:
                _log.info("engine %s runs with another command, and is stopped", self.name)
                await self.owned.stop()
            if not self.owned.is_running:
                await self.owned.stop()
                return Power.OFF, ""
            if why := await self._come_up():
                await self.owned.stop()
                return Power.BROKEN, why
            self.is_new = False
        found = await self._control.is_sleeping()
        if isinstance(found, Unanswered):
            said = "it answers nothing at /is_sleeping: start it with VLLM_SERVER_DEV_MODE=1"
            return Power.BROKEN, said if found.is_ill else found.why
        if found:
            return Power.ASLEEP, ""
        # An engine that was broken has computed nothing since; others may be busy for long.
        why = await self._control.probe() if self.engine.power is Power.BROKEN else ""
        if why and self.owned is None:
            await self._sleep_if_awake()
        return (Power.BROKEN if why else Power.AWAKE), why

    async def is_awake(self) -> bool:
        """Whether the engine reports that it is awake, whether or not it answers requests."""
        return await self._control.is_sleeping() is False

    async def prepare(self) -> None:
        """Note how it will sleep, before it drains; if it may not sleep, it will be stopped."""
        if self.rest is not Rest.STOP and not await self._note_sleep():
            self.rest = Rest.STOP
            self.engine.rest = self.rest.value

    async def fall_asleep(self) -> tuple[Power, list[str]]:
        """Put the engine to rest; returns its state then, and each way that failed."""
        failed: list[str] = []
        if self.rest is not Rest.STOP:
            for mode in _LADDER:
                why = await self._control.sleep(self.rest, mode, SLEEP_S)
                if not why:
                    return Power.ASLEEP, failed
                failed.append(f"{mode}: {why}")
                await self._control.resume()
        if self.owned is not None:
            await self.owned.stop()
            return Power.OFF, failed
        # It may have fallen asleep after we gave up waiting, and would then answer nothing.
        if why := await self._control.wake(self.rest):
            return Power.BROKEN, [*failed, f"wake: {why}"]
        return Power.AWAKE, failed

    async def wake(self, *, is_asleep: bool) -> str:
        """Wake or start the engine; returns why that failed, or an empty text."""
        if is_asleep and not self._has_ended():
            why = await self._wake_up()
            if why and self.owned is None:
                await self._sleep_if_awake()
            if not why or self.owned is None:
                return why
            _log.warning("engine %s is started anew: %s", self.name, why)
        assert self.owned is not None, "nothing else is off"
        await self.owned.stop()
        return await self._start()

    def woke(self, seconds: float) -> None:
        """Note how long waking took."""
        self.engine.wake_s += _SMOOTH * (seconds - self.engine.wake_s)

    def _has_ended(self) -> bool:
        return self.owned is not None and not self.owned.is_running

    async def _wake_up(self) -> str:
        rest = self.rest
        note = self.owned.note if self.owned is not None else None
        if note is not None:
            rest = Rest(note.rest)
        if why := await self._control.wake(rest, "" if note is None else note.weights_sha256):
            return why
        return await self._control.probe(lambda: self.engine.pieces)

    async def _sleep_if_awake(self) -> None:
        """Try to put an engine to sleep that computes nothing and cannot be stopped."""
        if await self.is_awake():
            await self._control.sleep(self.rest, _LADDER[0], SLEEP_S)

    async def _start(self) -> str:
        assert self.owned is not None
        self.is_new = False
        url = f"{self.engine.setting.url}/health"
        found = await self._client.fetch(url, 1 << 20, _HEALTH_S)
        if not (isinstance(found, Unanswered) and found.is_gone):
            return "another process listens at its address"
        if why := self.owned.start():
            return why
        why = await self._come_up() or await self._control.probe()
        if why:
            await self.owned.stop()  # the GPU is for engines that serve
        return why

    async def _come_up(self) -> str:
        """Wait until its process is healthy; returns why it is not, or an empty text."""
        assert self.owned is not None
        clock = asyncio.get_running_loop().time
        until = clock() + self.engine.setting.start_s
        url = f"{self.engine.setting.url}/health"
        while clock() < until:
            if not self.owned.is_running:
                return f"its process ended; see {self.owned.log}"
            found = await self._client.fetch(url, 1 << 20, _HEALTH_S)
            if not isinstance(found, Unanswered):
                return ""
            await asyncio.sleep(_LOOK_S)
        return f"it did not come up in {self.engine.setting.start_s} s; see {self.owned.log}"

    async def _note_sleep(self) -> bool:
        """Note how it will sleep, so that any gateway can wake it; False if it may not sleep.

        Level 2 needs weights that can be compared after they are loaded again: the KV in the pool
        is only valid for the same weights.
        """
        if self.owned is None or self.owned.note is None:
            return True
        before = self.owned.note
        digest = before.weights_sha256
        if self.rest is Rest.LEVEL_2 and not digest:
            digest = await self._control.weights_digest()
            if not digest:
                _log.warning("engine %s cannot tell its weights, and is stopped instead", self.name)
                return False
        note = msgspec.structs.replace(before, rest=self.rest.value, weights_sha256=digest)
        try:
            if note != before:
                self.owned.write(note)
        except OSError as error:
            _log.warning("engine %s: its sleep cannot be noted (%s)", self.name, error.strerror)
            return self.rest is Rest.LEVEL_1
        return True
