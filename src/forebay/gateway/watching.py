"""Watches the engines: which are up, which models they serve, how much KV they hold.

A gateway starts without any knowledge of its engines and learns all of it here, so that it can be
killed and started again at any time. An engine that is slow to answer keeps its state: it counts as
down only if nobody listens at its address, or if it answers with an error.
"""

import asyncio
import logging
import math
import re
from typing import Final

import msgspec

from forebay.gateway.http.client import EngineClient
from forebay.gateway.http.messages import Unanswered
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.power import Power

WHILE_UP_S: Final = 10.0  # between two checks of an engine that is used
WHILE_DOWN_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 8 << 20
_MODELS_MAX: Final = 256  # of one engine
_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL: Final = re.compile(rb'(block_size|num_gpu_blocks)="(\d{1,9})"')
_log: Final = logging.getLogger(__name__)


class _ListedModels(msgspec.Struct):
    data: list[dict[str, object]] = []


_models: Final = msgspec.json.Decoder(_ListedModels)


class EngineWatch:
    """Looks at all engines, one task each."""

    def __init__(self, dispatcher: Dispatcher, client: EngineClient) -> None:
        self._dispatcher, self._client = dispatcher, client

    async def run(self) -> None:
        """Watch all engines until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self._dispatcher.engines.values():
                tasks.create_task(self._watch(engine))

    async def look(self, engine: EngineState) -> None:
        """Check an engine's health and models once, and update its state."""
        before = engine.condition
        found = await self._client.fetch(f"{engine.setting.url}/health", _BYTES_MAX, _TIMEOUT_S)
        listed: bytes | Unanswered = found
        if not isinstance(found, Unanswered):
            url = f"{engine.setting.url}/v1/models"
            listed = await self._client.fetch(url, _BYTES_MAX, _TIMEOUT_S)
        if isinstance(listed, Unanswered):
            is_awake = engine.power is Power.AWAKE  # else it was put to rest meanwhile
            if is_awake and (listed.is_gone or listed.is_ill):
                engine.take_down(listed.why)
        else:
            engine.models = _listed(listed)
            engine.found_healthy()
            if not engine.kv_tokens:
                await self._learn_size(engine)
        if engine.condition is not before:
            why = f": {engine.why}" if engine.why else ""
            _log.info("engine %s is %s%s", engine.setting.name, engine.condition, why)
        if engine.is_used:
            self._dispatcher.add_models(engine)
        else:
            self._dispatcher.dispatch(engine)

    async def _watch(self, engine: EngineState) -> None:
        looked = -math.inf
        while True:
            now = self._dispatcher.now()
            is_due = not engine.is_used or now - looked >= WHILE_UP_S
            if engine.power is Power.AWAKE and is_due:
                looked = now
                await self.look(engine)
            await asyncio.sleep(WHILE_DOWN_S)

    async def _learn_size(self, engine: EngineState) -> None:
        """Learn how many tokens its KV cache holds, if its metrics tell."""
        text = await self._client.fetch(f"{engine.setting.url}/metrics", _BYTES_MAX, _TIMEOUT_S)
        if isinstance(text, Unanswered) or (found := _CACHE.search(text)) is None:
            return
        labels = {name: int(value) for name, value in _LABEL.findall(found[1])}
        engine.kv_tokens = labels.get(b"block_size", 0) * labels.get(b"num_gpu_blocks", 0)


def _listed(content: bytes) -> dict[str, dict[str, object]]:
    try:
        models = _models.decode(content).data[:_MODELS_MAX]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return {each["id"]: each for each in models if isinstance(each.get("id"), str)}  # type: ignore[misc]
