"""Loads of one engine: blocks are allocated, the workers are told part by part, the load ends.

A load is told to the workers as its chunks arrive; slots of a part that is over make room in the
pool for what follows. The engine goes on when all of it is coming, a moment before it is over: only
then does the pool get the last slots back. A load that fails, or whose chunks have not come in
time, ends too: vLLM then computes what is missing. Where the session is lost, the workers go on
with what they were told and are told no more of it; the session tells the pool when they are done.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from forebay.engines.copies.contract import LoadPart
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.lookups import Lookups
from forebay.engines.scheduling.request import Loading, TrackedRequest
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Promise, Release
from forebay.record.region import short

_LOAD_S: Final = 30.0  # a load that has not all arrived by then has failed


class EngineLoads:
    """What is on its way into the KV cache. Owned by the scheduler's thread."""

    def __init__(
        self, pool: PoolSession, shape: Geometry, asking: Lookups, counts: Counter[str]
    ) -> None:
        self._pool = pool
        self._shape = shape
        self._asking = asking
        self._counts = counts
        self._copying: dict[bytes, str] = {}  # keys on their way into the KV cache → request
        self._serials = 0  # of what the workers are told
        self._parts: dict[int, tuple[int, list[int]]] = {}  # serial → (lookup, chunks)
        self._landing: Counter[int] = Counter()  # lookup → parts that are not over
        self._received: set[int] = set()  # lookups of which the engine has all that it will get

    def __len__(self) -> int:
        return len(self._copying)

    @property
    def is_landing(self) -> bool:
        """Whether slots are read for a load that the engine has heard of."""
        return bool(self._received) or self._pool.has_lost_reads

    @property
    def copying(self) -> Mapping[bytes, str]:
        """Keys that are being copied in, and for which request."""
        return self._copying

    def allocated(self, tracked: TrackedRequest, blocks: list[int], external: int) -> None:
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

    def told(self, all_tracked: Mapping[str, TrackedRequest]) -> Iterator[LoadPart]:
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
                # The last part's are released with the lookup.
                self._parts[self._serials] = (tracked.number, [] if last else chunks)
                self._landing[tracked.number] += 1
                self._pool.begin_read(self._serials)
                yield LoadPart(request_id, loading.generation, pieces, last, failed, self._serials)

    def over(self, serials: Iterable[int]) -> None:
        """Parts are in the KV cache, or will not be: their slots make room for what follows."""
        for serial in serials:
            self._pool.end_read(serial)
            number, chunks = self._parts.pop(serial, (0, []))
            self._landing[number] -= 1
            if number in self._asking and chunks:
                self._pool.post(Release(number, chunks))
            self._release(number)

    def received(self, tracked: TrackedRequest, *, failed: bool) -> bool:
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
        number = self._asking.loaded(tracked)
        if number:
            self._received.add(number)
            self._release(number)
        return not failed

    def pool_changed(self) -> None:
        """A pool was joined or lost: parts that were told go on, but have no lookup any more."""
        self._parts.clear()
        self._landing.clear()
        self._received.clear()

    def _release(self, number: int) -> None:
        """All that was promised is the pool's again once nobody reads it any more."""
        if self._landing[number] > 0:
            return
        del self._landing[number]
        if number in self._received:
            self._received.remove(number)
            self._pool.post(Release(number, []))
