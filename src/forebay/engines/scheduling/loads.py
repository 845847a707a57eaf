"""Loads of one engine: workers are told part by part what to copy, until the load ends.

The workers are told of a load's chunks as they arrive, one part a step; when a part is copied, its
slots make room in the pool for what follows. The engine continues with the request when all of the
load is coming, a moment before the last byte is there, so the pool gets the last slots back only
when every part is copied. A load that fails, or whose chunks have not arrived in time, ends too:
the engine then computes what is missing. If the session is lost, the workers finish the parts they
know and are told of no more; the session tells the pool when these are done.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.decisions import Decision
from forebay.engines.copies.contract import LoadPart
from forebay.engines.geometry import Geometry
from forebay.engines.groups import hit_of
from forebay.engines.scheduling.lookups import Lookups
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.scheduling.request_load import FAILED, LOADING, LoadProgress, LoadTarget
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Promise, Release, in_batches
from forebay.record.region import short

_LOAD_S: Final = 30.0  # a load that has not all arrived by then has failed


class _Part(NamedTuple):
    """A part that workers were told of and have not all reported as copied."""

    lookup: int
    records: list[int]  # positions to release when it is copied; the last part's go with the lookup


@dataclass(slots=True)
class _Landing:
    """A lookup whose promised chunks are being copied into the KV cache."""

    parts: int = 0  # parts that are not copied yet
    has_ended: bool = False  # the engine continues: release the lookup after the last part


class EngineLoads:
    """What is on its way into the KV cache. Owned by the scheduler's thread."""

    def __init__(
        self, pool: PoolSession, shape: Geometry, lookups: Lookups, counts: Counter[str]
    ) -> None:
        self._pool = pool
        self._shape = shape
        self._lookups = lookups
        self._counts = counts
        self._copying: dict[bytes, str] = {}  # keys on their way into the KV cache → request
        self._serials = 0  # serial of the last part
        self._parts: dict[int, _Part] = {}  # by serial
        self._landing: dict[int, _Landing] = {}  # by lookup
        self._over: dict[int, set[int]] = {}  # serial → ranks that have copied that part

    def __len__(self) -> int:
        return len(self._copying)

    @property
    def is_landing(self) -> bool:
        """Whether slots are still being read for a load that the engine takes for done."""
        ended = any(landing.has_ended for landing in self._landing.values())
        return ended or self._pool.has_lost_reads

    @property
    def copying(self) -> Mapping[bytes, str]:
        """Keys that are being copied into the KV cache, each with its request."""
        return self._copying

    def allocated(
        self, tracked: TrackedRequest, tables: Sequence[Sequence[int]], external: int
    ) -> None:
        """The scheduler has given a request blocks, of which `external` tokens are to be loaded."""
        load = tracked.load
        deadline = time.monotonic() + _LOAD_S
        nothing = Promise(load.number, self._pool.generation, 0, 0, [], [], b"")
        is_promised, stop = load.promise is not None, load.computed + external
        hit = (
            load.asked_hit if is_promised else hit_of(self._shape, stop // self._shape.chunk_tokens)
        )
        target = LoadTarget(self._shape, hit, tables, load.computed, stop, load.raw)
        progress = LoadProgress(load.promise or nothing, target, deadline)
        if not is_promised or progress.first * self._shape.chunk_tokens > load.computed:
            progress.fail(0)  # verify: no hole before what is loaded
        load.begin(progress)
        chunks = min(progress.stop, hit.chunks)
        tracked.store.has(chunks)
        tracked.store.local_offered = max(tracked.store.local_offered, chunks)
        for chunk in range(progress.first, chunks):
            self._copying[short(tracked.keys[chunk])] = tracked.request.request_id
        self._counts["loads"] += 1
        self._counts["loaded.tokens"] += external
        tracked.attribution.begin_load(time.monotonic(), load.computed)

    def next_parts(self, requests: Mapping[str, TrackedRequest]) -> Iterator[LoadPart]:
        """The parts that the workers have to load in this step."""
        now = time.monotonic()
        for request_id, tracked in requests.items():
            load = tracked.load
            if load.state is not LOADING:
                continue
            progress = load.progress
            assert progress is not None
            progress.take(load.streamed)
            if now > progress.deadline:
                progress.fail_missing()
            pieces, records = progress.take_pieces()
            is_last = progress.is_complete
            if is_last:
                load.take_told()
            if pieces or is_last:
                self._serials += 1
                self._parts[self._serials] = _Part(load.number, [] if is_last else records)
                self._landing.setdefault(load.number, _Landing()).parts += 1
                self._pool.begin_read(self._serials)
                failed = progress.failed_blocks()
                yield LoadPart(
                    request_id, progress.generation, pieces, is_last, failed, self._serials
                )

    def copied(self, over: Mapping[int, set[int]]) -> None:
        """Workers have copied parts; a part that all have copied makes room for what follows."""
        for serial, ranks in over.items():
            done = self._over.setdefault(serial, set())
            done |= ranks
            if len(done) < self._shape.ranks:  # verify: all ranks
                continue
            del self._over[serial]
            self._pool.end_read(serial)
            part = self._parts.pop(serial, None)
            if part is None:
                continue  # it belongs to a lost session
            self._landing[part.lookup].parts -= 1
            if part.lookup in self._lookups:
                for records in in_batches(part.records):
                    self._pool.post(Release(part.lookup, records))
            self._release(part.lookup)

    def ended(self, tracked: TrackedRequest, *, failed: bool) -> bool:
        """A load has ended and the engine continues; returns whether the load succeeded."""
        progress = tracked.load.end(failed=failed)
        owner = tracked.request.request_id
        self._copying = {key: each for key, each in self._copying.items() if each != owner}
        has_failed = tracked.load.state is FAILED
        if has_failed:
            tracked.store.lacks(min(progress.stop, progress.target.hit.chunks))
            self._counts[f"misses.{Decision.LOAD_FAILED}"] += 1
        loaded = _tokens_by_tier(progress, tracked.load.sources)
        tracked.attribution.end_load(time.monotonic(), loaded, failed=has_failed)
        number = self._lookups.end(tracked)
        if number:
            self._landing.setdefault(number, _Landing()).has_ended = True
            self._release(number)
        return not has_failed

    @staticmethod
    def expected(tracked: TrackedRequest) -> Counter[int]:
        """The tokens that a load which has just begun takes from each tier.

        Chunks that a stream has yet to bring are counted for the tier that the last chunk from
        below DRAM came from or, if none did, for the first lower tier.
        """
        load, progress = tracked.load, tracked.load.progress
        if progress is None:
            return Counter()
        below = next((tier for _, tier in sorted(load.sources.items(), reverse=True) if tier), 1)
        coming = range(max(progress.first, load.ready), progress.stop)
        likely = {chunk: below for chunk in coming if chunk not in progress.arrived}
        return _tokens_by_tier(progress, {**likely, **load.sources})

    def session_changed(self) -> None:
        """A pool was joined or lost: parts that workers know go on, without a lookup."""
        self._parts.clear()
        self._landing.clear()

    def _release(self, number: int) -> None:
        """Release the whole promise once every part of it is copied."""
        landing = self._landing[number]
        if landing.parts:
            return
        if landing.has_ended:
            self._pool.post(Release(number, []))
        del self._landing[number]


def _tokens_by_tier(progress: LoadProgress, sources: Mapping[int, int]) -> Counter[int]:
    """The tokens loaded from each tier; a hit of several groups counts whole or not at all."""
    target, found = progress.target, Counter[int]()
    size = target.shape.chunk_tokens
    if progress.failed and target.shape.local:
        return found

    def tokens_in(first: int, stop: int) -> int:
        return max(0, min(stop * size, target.stop) - max(first * size, target.computed))

    chunks = range(progress.first, min(progress.stop, target.hit.chunks))
    found[0] = tokens_in(chunks.start, chunks.stop)
    for chunk, tier in sources.items():
        if tier and chunk in chunks:
            tokens = tokens_in(chunk, chunk + 1)
            found[tier] += tokens
            found[0] -= tokens
    return found
