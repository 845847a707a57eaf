"""Creates everything for swapping when a gateway starts."""

import asyncio
from collections.abc import Awaitable, Callable

from forebay.gateway.config import GatewayConfig
from forebay.gateway.http.client import EngineClient
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.seen import GatewayMetrics
from forebay.gateway.swap.children import OwnedEngine, StateDirectory
from forebay.gateway.swap.gpu import GpuTurns
from forebay.gateway.swap.lifecycle import EngineLifecycle
from forebay.gateway.swap.plan import rests


class SharedGpus:
    """All shared GPUs of a gateway; used on the event loop."""

    def __init__(self, config: GatewayConfig) -> None:
        """Lock the state directory, if one is needed; StartupError if that fails."""
        self._config = config
        is_starting = any(engine.command for engine in config.engines)
        self._state = StateDirectory(config.state_dir) if is_starting else None
        self._gpus: list[GpuTurns] = []

    def begin(
        self,
        dispatcher: Dispatcher,
        client: EngineClient,
        metrics: GatewayMetrics,
        look: Callable[[EngineState], Awaitable[None]],
    ) -> None:
        """Take charge of the engines: from now on they are given requests only while awake."""
        for gpu in self._config.gpus:
            engines = []
            for name, rest in rests(gpu, self._config.engines).items():
                engine, owned = dispatcher.engines[name], None
                if engine.setting.command:
                    assert self._state is not None
                    owned = OwnedEngine(engine.setting, self._state)
                engines.append(EngineLifecycle(engine, rest, client, owned))
            self._gpus.append(GpuTurns(gpu, engines, dispatcher, metrics, look))
        dispatcher.on_change = self._changed

    def _changed(self) -> None:
        for gpu in self._gpus:
            gpu.changed()

    async def run(self) -> None:
        """Swap engines until cancelled; then they stay as they are."""
        async with asyncio.TaskGroup() as tasks:
            for gpu in self._gpus:
                tasks.create_task(gpu.run())

    def close(self) -> None:
        """Unlock the state directory for another gateway; engines' processes go on."""
        if self._state is not None:
            self._state.close()
