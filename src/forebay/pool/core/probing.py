"""Proves the data path: a record is written, read and verified in DRAM and in every volume.

In DRAM it is a free slot that is filled, hashed and wiped; if none is free, a chunk that is there
is hashed again, so that no chunk has to leave. Lower tiers do it their own way; see `Tier.probe`.
Nothing is looked up, counted as a load, or left behind.
"""

import secrets
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from forebay.metrics.labels import DRAM
from forebay.pool.core.chunks import Chunk
from forebay.pool.core.hashing import Hasher, payload_of
from forebay.pool.core.parts import CoreParts
from forebay.pool.session import ProbeResult, ProbeTold
from forebay.record.header import payload_hash
from forebay.sys.memory import PAGE_BYTES, zero
from forebay.tiers.contract import MissReason, VolumeProbe

_LOOKED_AT: Final = 64  # chunks looked at to find one that can be hashed


class Prober:
    """Begins probes. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts, hasher: Hasher, damaged: Callable[[Chunk], None]) -> None:
        self._dram, self._stack = parts.dram, parts.stack
        self._hasher, self._damaged = hasher, damaged

    def begin(self, told: ProbeTold) -> list[tuple[str, int]]:
        """Probe every tier; returns the tier and volume of each result that will be told."""
        begun = [(DRAM, 0)]
        self._probe_dram(told)
        for name, tier in self._stack.tiers():
            count = tier.probe(partial(_tell, told, name))
            begun += [(name, volume) for volume in range(count)]
        return begun

    def _probe_dram(self, told: ProbeTold) -> None:
        offset = self._dram.slab.take(PAGE_BYTES)
        if offset is not None:
            is_exact = self._is_exact(offset)
            self._dram.slab.give(offset)
            told(ProbeResult(DRAM, 0, "" if is_exact else MissReason.CORRUPT))
            return
        chunks = self._dram.chunks
        ready = (each for each in islice(chunks, _LOOKED_AT) if chunks.is_ready(each.key))
        chunk = next(ready, None)
        if chunk is None:  # every slot is being filled or loaded, so DRAM works
            told(ProbeResult(DRAM, 0, ""))
            return
        self._dram.pin(chunk)
        hashed = partial(self._hashed, chunk, told)
        self._hasher.submit([payload_of(self._dram, chunk)], hashed)

    def _is_exact(self, offset: int) -> bool:
        """Whether a free slot keeps what is written into it."""
        payload = secrets.token_bytes(PAGE_BYTES)
        slot = self._dram.slab.payload(offset, PAGE_BYTES)
        slot[:] = payload
        is_exact = payload_hash(slot) == payload_hash(memoryview(payload))
        zero(slot)
        return is_exact

    def _hashed(self, chunk: Chunk, told: ProbeTold, digests: list[bytes]) -> None:
        self._dram.unpin(chunk)
        is_exact = digests == [chunk.digest]
        if not is_exact:
            self._damaged(chunk)
        told(ProbeResult(DRAM, 0, "" if is_exact else MissReason.CORRUPT))


def _tell(told: ProbeTold, tier: str, probed: VolumeProbe) -> None:
    told(ProbeResult(tier, *probed))
