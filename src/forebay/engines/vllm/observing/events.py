"""KV events for the pool's chunks, so that routers see DRAM and disk beside GPU memory.

An event has the fields of vLLM's own event for the same blocks (hashes, parent, tokens, adapter,
extra keys) and another medium: CPU is the pool's DRAM, STORAGE its disks and stores. A chunk is
announced when this engine has stored it, and when a lookup finds it, whoever stored it; it is
announced again later, for routers that were started later. The pool does not tell engines what it
evicts, so a chunk is said to be removed when a lookup misses it, when the pool is lost, when the
engine's cache is reset, and when too many have been announced after it. So for a while a router may
take a chunk for present that is gone; the result is a miss.

Of a model with several groups only the blocks of group 0 are announced. Owned by the scheduler's
thread; created only if vLLM publishes events.
"""

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from vllm.distributed import kv_events
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.vllm import versions
from forebay.record.region import short

ANNOUNCED_MAX: Final = 1 << 16  # chunks remembered as announced; 0.7 KB each
REPEAT_S: Final = 600.0  # how soon a chunk that is found again is announced again
_WAITING_MAX: Final = 1 << 16  # events not taken by vLLM yet
_TAKEN_MAX: Final = 1 << 10  # events taken at a time, so that no step waits for them
_HASHES_MAX: Final = 1 << 10  # hashes in one event of removal
_LOCALITY: Final = "LOCAL"
CPU: Final = kv_events.MEDIUM_CPU
STORAGE: Final = versions.storage_medium(kv_events)
_MEDIA: Final = (CPU, STORAGE)


@dataclass(slots=True)
class _Announced:
    """One chunk that was announced to routers."""

    hashes: list[Any]  # of its blocks, as vLLM's events name them
    media: dict[str, float]  # medium → when it was last announced there (monotonic)


class PoolEvents:
    """Events about the pool, for routers."""

    def __init__(self, shape: Geometry, cache: Any, counts: Counter[str]) -> None:
        self._shape = shape
        self._counts = counts
        sizes = [group.block_tokens for group in shape.groups]
        # vLLM hashes runs of tokens of which the blocks of every group are multiples.
        hashed = getattr(cache, "hash_block_size", None) or math.gcd(*sizes)
        self._hashes_a_block = shape.block_tokens // hashed
        self._group = shape.tables[0]
        spec = cache.kv_cache_groups[self._group].kv_cache_spec
        self._kind = get_kv_cache_spec_kind(spec).value
        self._announced: OrderedDict[bytes, _Announced] = OrderedDict()  # oldest first, by key
        self._waiting: deque[Any] = deque()

    def stored(self, chunks: Iterable[tuple[TrackedRequest, int]]) -> None:
        """Chunks of group 0 that this engine has just stored: they are in the pool's DRAM."""
        runs: list[tuple[TrackedRequest, range]] = []
        for tracked, chunk in chunks:
            if runs and runs[-1][0] is tracked and runs[-1][1].stop == chunk:
                runs[-1] = (tracked, range(runs[-1][1].start, chunk + 1))
            else:
                runs.append((tracked, range(chunk, chunk + 1)))
        for tracked, run in runs:
            self._announce(tracked, run, CPU)

    def found(self, tracked: TrackedRequest, known: int, ready: int) -> None:
        """The pool has the first `known` chunks of a request, the first `ready` of them in DRAM."""
        now, keys = time.monotonic(), tracked.keys
        for medium, chunks in ((CPU, range(ready)), (STORAGE, range(ready, known))):
            for run in self._unheard(tracked, chunks, medium, now):
                self._announce(tracked, run, medium)
        asked_at = tracked.load.looked_up_at
        gone: dict[str, list[Any]] = {medium: [] for medium in _MEDIA}
        for chunk in range(ready, len(keys)):
            heard = self._announced.get(short(keys[chunk]))
            if heard is None:
                continue
            for medium in _MEDIA if chunk >= known else (CPU,):
                # What was announced after the pool was asked may be there.
                if heard.media.get(medium, math.inf) < asked_at:
                    del heard.media[medium]
                    gone[medium] += heard.hashes
            if not heard.media:
                del self._announced[short(keys[chunk])]
        self._remove(gone)

    def lost(self) -> None:
        """Announce the removal of everything: none of it can be loaded any more."""
        gone: dict[str, list[Any]] = {medium: [] for medium in _MEDIA}
        for heard in self._announced.values():
            for medium in heard.media:
                gone[medium] += heard.hashes
        self._announced.clear()
        self._remove(gone)

    def take(self) -> list[Any]:
        """The events to publish with this step."""
        count = min(len(self._waiting), _TAKEN_MAX)
        return [self._waiting.popleft() for _ in range(count)]

    def _unheard(
        self, tracked: TrackedRequest, chunks: range, medium: str, now: float
    ) -> Iterator[range]:
        """Runs of these chunks that were never announced in this medium, or not lately."""
        start = chunks.start
        for chunk in chunks:
            heard = self._announced.get(short(tracked.keys[chunk]))
            if heard is None or now - heard.media.get(medium, -math.inf) >= REPEAT_S:
                continue
            self._announced.move_to_end(short(tracked.keys[chunk]))
            if start < chunk:
                yield range(start, chunk)
            start = chunk + 1
        if start < chunks.stop:
            yield range(start, chunks.stop)

    def _announce(self, tracked: TrackedRequest, chunks: range, medium: str) -> None:
        request: Any = tracked.request
        each, scale = self._shape.chunk_blocks, self._hashes_a_block
        raw, convert = request.block_hashes, kv_cache_utils.maybe_convert_block_hash
        first, stop = chunks.start * each, min(chunks.stop * each, len(raw) // scale)
        stop -= stop % each  # vLLM has not hashed the last block yet
        if first >= stop:
            return
        hashes = [convert(raw[(block + 1) * scale - 1]) for block in range(first, stop)]
        size, adapter = self._shape.block_tokens, request.lora_request
        self._wait(
            kv_events.BlockStored(
                block_hashes=hashes,
                parent_block_hash=convert(raw[first * scale - 1]) if first else None,
                token_ids=list(request.all_token_ids[first * size : stop * size]),
                block_size=size,
                lora_id=adapter.adapter_id if adapter else None,
                medium=medium,
                lora_name=adapter.name if adapter else None,
                extra_keys=self._extra_keys(request, range(first, stop)),
                group_idx=self._group,
                kv_cache_spec_kind=self._kind,
                locality=_LOCALITY,
            )
        )
        now = time.monotonic()
        for number in range((stop - first) // each):
            key = short(tracked.keys[chunks.start + number])
            mine = hashes[number * each : (number + 1) * each]
            heard = self._announced.setdefault(key, _Announced(mine, {}))
            heard.media[medium] = now
            self._announced.move_to_end(key)
        self._forget_oldest()

    def _extra_keys(self, request: Any, blocks: range) -> list[Any] | None:
        """What vLLM's hashes cover beside tokens, by block."""
        size, image, found = self._shape.block_tokens, 0, []
        for block in blocks:
            extra, image = kv_cache_utils.generate_block_hash_extra_keys(
                request, block * size, (block + 1) * size, image
            )
            found.append(extra)
        return versions.event_keys(found)

    def _forget_oldest(self) -> None:
        gone: dict[str, list[Any]] = {medium: [] for medium in _MEDIA}
        while len(self._announced) > ANNOUNCED_MAX:
            _, heard = self._announced.popitem(last=False)
            for medium in heard.media:
                gone[medium] += heard.hashes
        self._remove(gone)

    def _remove(self, gone: dict[str, list[Any]]) -> None:
        for medium, hashes in gone.items():
            for at in range(0, len(hashes), _HASHES_MAX):
                some = hashes[at : at + _HASHES_MAX]
                self._wait(
                    kv_events.BlockRemoved(
                        block_hashes=some, medium=medium, group_idx=self._group, locality=_LOCALITY
                    )
                )

    def _wait(self, event: Any) -> None:
        if len(self._waiting) < _WAITING_MAX:
            self._waiting.append(event)
        else:
            self._counts["dropped.events"] += 1
