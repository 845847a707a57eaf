"""Makes one engine sleep and wake, through its developer endpoints; nothing else uses those.

Never uses `mode=abort`, which ends answers as if they were complete. Failures are values: a
sentence that says why, or an empty text after success.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from forebay.gateway.http.client import EngineClient
from forebay.gateway.http.messages import Unanswered
from forebay.gateway.swap.plan import Rest

SLEEP_S: Final = 300.0  # an engine's first sleep pins host memory, which takes seconds
WAKE_S: Final = 300.0
RELOAD_S: Final = 1800.0  # loads weights from a disk, or over a network
PROBE_S: Final = 120.0
_PIECES_S: Final = 0.25  # between two looks at answers under way, during a probe
_LOOK_S: Final = 10.0
_BYTES_MAX: Final = 64 << 20
_LEVELS: Final = {Rest.LEVEL_1: 1, Rest.LEVEL_2: 2}
# One token, given by number: needs no tokenizer, and every model has token 1.
_PROBES: Final = (
    ("/v1/completions", {"prompt": [1], "max_tokens": 1, "temperature": 0}),
    ("/v1/embeddings", {"input": [1]}),
    ("/pooling", {"input": [1]}),
)


class SleepControl:
    """Has one engine sleep and wake."""

    def __init__(self, url: str, model: str, client: EngineClient) -> None:
        self._url, self._model, self._client = url, model, client

    async def is_sleeping(self) -> bool | Unanswered:
        """Whether it sleeps, or its scheduler is paused."""
        found = await self._client.fetch(f"{self._url}/is_sleeping", _BYTES_MAX, _LOOK_S)
        if isinstance(found, Unanswered):
            return found
        said = _json(found)
        return bool(said.get("is_sleeping")) if isinstance(said, dict) else Unanswered("no JSON")

    async def sleep(self, rest: Rest, mode: str, timeout_s: float = SLEEP_S) -> str:
        """Have it sleep; depending on `mode`, answers under way are kept, or it waits for them."""
        found = await self._post(f"/sleep?level={_LEVELS[rest]}&mode={mode}", timeout_s)
        return found.why if isinstance(found, Unanswered) else ""

    async def resume(self) -> None:
        """Have it schedule again after a sleep that failed. No effect if it sleeps nevertheless."""
        await self._post("/wake_up?tags=scheduling", WAKE_S)

    async def wake(self, rest: Rest, weights_sha256: str = "") -> str:
        """Wake it from the level at which it sleeps; from level 2 only if its weights are these.

        They are compared before it has a KV cache again: from then on it computes, and what it
        stores counts as these weights' KV. If the gateway ends in between, it still reports that it
        sleeps.
        """
        steps: list[tuple[str, object, float]] = [("/wake_up", None, WAKE_S)]
        if rest is Rest.LEVEL_2:
            reload = {"method": "reload_weights"}
            steps = [
                ("/wake_up?tags=weights", None, WAKE_S),
                ("/collective_rpc", reload, RELOAD_S),
                ("/wake_up?tags=kv_cache", None, WAKE_S),
            ]
        for path, body, timeout_s in steps:
            found = await self._post(path, timeout_s, body)
            if isinstance(found, Unanswered):
                return f"it did not wake: {found.why}"
            is_loaded = path == "/collective_rpc"
            if is_loaded and await self.weights_digest() != weights_sha256:  # verify: weights
                return "its weights are not what they were"
        is_sleeping = await self.is_sleeping()
        if isinstance(is_sleeping, Unanswered):
            return f"it did not wake: {is_sleeping.why}"
        return "it sleeps on" if is_sleeping else ""

    async def probe(self, pieces: Callable[[], int] = lambda: 0) -> str:
        """Have it compute one token, since even an engine that sleeps reports that it is healthy.

        Answers that it has kept may leave no room for that. A further piece of them proves as much;
        `pieces` counts them.
        """
        before, asked = pieces(), asyncio.ensure_future(self._compute())
        try:
            while pieces() == before and not asked.done():
                await asyncio.wait([asked], timeout=_PIECES_S)
            return "" if pieces() != before else asked.result()
        finally:
            asked.cancel()

    async def _compute(self) -> str:
        why = "it has no endpoint for a probe"
        for path, body in _PROBES:
            found = await self._post(path, PROBE_S, {**body, "model": self._model})
            if not isinstance(found, Unanswered):
                return ""
            if not found.is_ill:  # nobody answered, or not in time
                return f"the probe failed: {found.why}"
            why = f"the probe failed: {found.why}"
        return why

    async def weights_digest(self) -> str:
        """A hash of its weights; empty if it cannot tell."""
        body = {"method": "compute_weight_checksums"}
        found = await self._post("/collective_rpc", RELOAD_S, body)
        if isinstance(found, Unanswered):
            return ""
        results = _json(found)
        if not isinstance(results, dict) or not isinstance(results.get("results"), list):
            return ""
        said = msgspec.json.encode(results["results"], order="deterministic")
        return hashlib.sha256(said).hexdigest()

    async def _post(self, path: str, timeout_s: float, body: Any = None) -> bytes | Unanswered:  # noqa: ANN401
        data = b"" if body is None else msgspec.json.encode(body)
        return await self._client.fetch(f"{self._url}{path}", _BYTES_MAX, timeout_s, posted=data)


def _json(content: bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
