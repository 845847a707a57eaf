"""Loads of one engine: blocks are allocated, the workers are told part by part, the load ends.

A load is told to the workers as its chunks arrive; slots of a part that is copied make room in the
pool for what follows. One that fails, or whose chunks have not come in time, ends too: vLLM then
computes what is missing.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from forebay.engines.vllm.copies.contract import Load
from forebay.engines.vllm.pages import Geometry
from forebay.engines.vllm.scheduling.asking import Asking
from forebay.engines.vllm.scheduling.membership import Membership
from forebay.engines.vllm.scheduling.tracked import Loading, Tracked
from forebay.engines.vllm.step import Report
from forebay.pool.messages import Promise, Release
from forebay.record.region import short

_LOAD_S: Final = 30.0  # a load that has not all arrived by then has failed


class Loads:
    """What is on its way into the KV cache. Owned by the scheduler's thread."""

    def __init__(
        self, pool: Membership, shape: Geometry, asking: Asking, counts: Counter[str]
    ) -> None:
        self._pool = pool
        self._shape = shape
        self._asking = asking
        self._counts = counts
        self._copying: dict[bytes, str] = {}  # keys on their way into the KV cache → request
        self._serials = 0  # of what the workers are told
        self._parts: dict[int, tuple[int, list[int]]] = {}  # serial → (lookup, chunks of a stream)

    def __len__(self) -> int:
        return len(self._copying)

    @property
    def copying(self) -> Mapping[bytes, str]:
        """Keys that are being copied in, and for which request."""
        return self._copying

    def allocated(self, tracked: Tracked, blocks: list[int], external: int) -> None:
        """The scheduler has given blocks to a request, `external` tokens of them to be loaded."""
        size, promise = self._shape.block_tokens, tracked.promise
        from_block, stop_block = tracked.computed // size, (tracked.computed + external) // size
        deadline = time.monotonic() + _LOAD_S
        nothing = Promise(tracked.number, self._pool.generation, 0, 0, [], [], b"")
        loading = Loading(promise or nothing, blocks[:stop_block], from_block, deadline)
        if promise is None or promise.first * self._shape.chunk_tokens > tracked.computed:
            loading.fail(0)  # verify: no hole before what is loaded
        tracked.loading = loading
        tracked.stored = max(tracked.stored, loading.stop)
        for chunk in range(loading.first, loading.stop):
            self._copying[short(tracked.keys[chunk])] = tracked.request.request_id
        self._counts["loads"] += 1
        self._counts["loaded.tokens"] += external

    def told(self, all_tracked: Mapping[str, Tracked]) -> Iterator[Load]:
        """What the workers have to load in this step."""
        now = time.monotonic()
        for request_id, tracked in all_tracked.items():
            loading = tracked.loading
            if loading is None or loading.is_told:
                continue
            loading.take(tracked.streamed)
            if now > loading.deadline:
                loading.fail_missing()
            pieces, chunks = loading.take_pieces(self._shape)
            if pieces or loading.is_told:
                self._serials += 1
                last, failed = loading.is_told, loading.failed_blocks(self._shape)
                if not last:
                    self._parts[self._serials] = (tracked.number, chunks)
                yield Load(request_id, loading.generation, pieces, last, failed, self._serials)

    def copied(self, report: Report) -> None:
        """Parts of streams are in the KV cache: their slots make room for what follows."""
        for serial in report.copied:
            number, chunks = self._parts.pop(serial, (0, []))
            if number in self._asking:
                self._pool.post(Release(number, chunks))

    def received(self, tracked: Tracked, *, failed: bool) -> bool:
        """A load has ended; whether it went well."""
        loading, tracked.loading = tracked.loading, None
        assert loading is not None
        owner = tracked.request.request_id
        self._copying = {key: each for key, each in self._copying.items() if each != owner}
        failed = failed or loading.failed
        if failed:
            tracked.failed = True
            tracked.stored = tracked.offered = min(tracked.stored, loading.stop)
            self._counts["misses.load_failed"] += 1
        self._asking.loaded(tracked)
        return not failed

    def pool_changed(self) -> None:
        """Loads in flight go on; their slots are nobody's to give back."""
        self._parts.clear()
