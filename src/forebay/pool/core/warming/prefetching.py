"""At a warm start, loads what hosts use most into free slots of DRAM.

A courtesy: it takes free slots and evicts nothing, begins no read while an engine reads or waits
for room, has two reads at a time and a limit of bytes a second, and ends for good when DRAM is
full. What it has loaded can leave like everything else. A store that accepts no stores at the
moment, for lack of requests for example, is not read either. An operator who clears, resizes or
forgets ends it, and so does the end of the pool.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from forebay.metrics.catalog import PrefetchMetrics
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.loading.read_ahead import ReadAhead
from forebay.pool.core.parts import CoreParts
from forebay.record.header import ROOT, RecordName
from forebay.tiers.contract import UsedRecord, WarmStart
from forebay.tiers.dram.slab import slot_bytes_for

READS_MAX: Final = 2  # at once, so that a store has lanes left for engines
_LOOKED_AT_MAX: Final = 64  # records looked at in one step
_CATCH_UP_S: Final = 0.1  # how much of the rate a late step may make up for


@dataclass(slots=True, eq=False)
class _WarmOffer:
    """What is left to fetch from one tier."""

    tier: int
    records: deque[UsedRecord]
    left_bytes: int
    bytes_a_s: int
    next_at: float = -math.inf  # when the rate allows the next read


class Prefetching:
    """All prefetching. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts, read_ahead: ReadAhead) -> None:
        self._dram, self._stack, self._tenants = parts.dram, parts.stack, parts.tenants
        self._metrics: PrefetchMetrics = parts.metrics.prefetch
        self._read_ahead = read_ahead
        self._offers: deque[_WarmOffer] = deque()
        self._is_closed = False
        self._reading: dict[Chunk, int] = {}  # chunk → the tier that it is read from

    def begin(self, tier: int, offered: WarmStart) -> None:
        """A tier offers these records, the most used first."""
        if self._is_closed:
            return
        records = deque(offered.records)
        self._offers.append(_WarmOffer(tier, records, offered.limit_bytes, offered.bytes_a_s))

    def stop(self) -> None:
        """Fetch nothing more of what was offered."""
        self._offers.clear()

    def close(self) -> None:
        """Fetch nothing more, even if more is offered."""
        self._is_closed = True
        self.stop()

    @property
    def is_waiting(self) -> bool:
        """Whether a read is to begin soon."""
        return self._first_offer() is not None

    def step(self, now: float) -> None:
        """Count what has arrived, and begin what may begin now."""
        for chunk in [chunk for chunk in self._reading if self._has_ended(chunk)]:
            tier = self._reading.pop(chunk)
            if chunk.state is SlotState.READY:
                self._metrics.fetched(self._stack.name_of(tier), chunk.length)
        for _ in range(_LOOKED_AT_MAX):
            offer = self._first_offer()
            if offer is None or not self._may_begin(offer, now):
                break
            if not offer.records or not self._begin(offer, offer.records.popleft(), now):
                self._offers.remove(offer)

    def _first_offer(self) -> _WarmOffer | None:
        """The first offer of a store that takes stores now: one that fails blocks no other."""
        takes = self._stack.takes_stores
        return next((offer for offer in self._offers if takes(offer.tier)), None)

    def _has_ended(self, chunk: Chunk) -> bool:
        is_here = self._dram.chunks.get(chunk.key) is chunk
        return chunk.state is SlotState.READY or not is_here

    def _may_begin(self, offer: _WarmOffer, now: float) -> bool:
        """Whether one more read may begin now, since no engine is loading anything."""
        read_ahead, own = self._read_ahead, len(self._reading)
        is_in_the_way = read_ahead.reads_in_flight > own or not read_ahead.may_fetch_ahead
        if is_in_the_way:  # verify: loads first
            return False
        return own < READS_MAX and now >= offer.next_at

    def _begin(self, offer: _WarmOffer, record: UsedRecord, now: float) -> bool:
        """Begin to read a record, or skip it; False if nothing more is to be read."""
        length = self._length(offer, record)
        if length is None:
            return True
        if length > offer.left_bytes:  # verify: limit of what is fetched ahead
            return False
        name = RecordName(record.namespace, record.group, record.key, ROOT, record.tenant)
        chunk = self._read_ahead.fetch_ahead(name, length)
        if chunk is None:
            return False  # DRAM is full, or too small for this
        chunk.prefetched_from = offer.tier
        self._reading[chunk] = offer.tier
        offer.left_bytes -= length
        offer.next_at = max(offer.next_at, now - _CATCH_UP_S) + length / offer.bytes_a_s
        return True

    def _length(self, offer: _WarmOffer, record: UsedRecord) -> int | None:
        """The payload size of a record that only this tier has and that may be loaded, or None."""
        if self._dram.chunks.get(record.key) is not None:
            return None
        if self._tenants.with_id(record.tenant) is None:  # verify: nobody's, or a forgotten tenant
            return None
        tiers = self._stack.tiers_of(record.key)
        length = self._stack.length_of(record.key) if min(tiers, default=-1) == offer.tier else None
        if not length or not self._dram.slab.fits(length):
            return None
        is_allowed = self._dram.quotas.fits(record.tenant, slot_bytes_for(length))
        return length if is_allowed else None
