"""Reads dialogs back from drives before they are asked for, as their policies say.

It uses only what nobody else needs: a read begins only if no other read and no write to the nearest
tier is in flight and no engine waits for room, at most `READS_MAX` at once; an ask that comes
meanwhile goes first, and joins what is being read. The slot is a free one, or that of the chunk
which the tenant's own policy gives up for it: no other tenant loses anything, and quotas hold. Only
drives are read, where a request costs nothing: a chunk whose nearest copy is in a store is skipped.
After a failed read, what would have followed it is not read either.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from forebay.metrics.catalog import PrefetchMetrics
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.loading.read_ahead import ReadAhead
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.tenants.policies import NamedRead
from forebay.record.header import ROOT, RecordName
from forebay.tiers.contract import EvictionCause

READS_MAX: Final = 2  # at once
LOOK_S: Final = 1.0  # pause after nothing was worth reading
NAMED_MAX: Final = 1 << 16  # chains remembered; as many as a policy watches
_LOOKED_AT_MAX: Final = 16  # chunks looked at in one step


class _ChainName(NamedTuple):
    """What all record names of a chain have in common, beside the tenant."""

    namespace: bytes
    group: int


class DialogReads:
    """All reads of dialogs. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts, read_ahead: ReadAhead) -> None:
        self._dram, self._stack, self._tenants = parts.dram, parts.stack, parts.tenants
        self._metrics: PrefetchMetrics = parts.metrics.prefetch
        self._read_ahead = read_ahead
        self._names: OrderedDict[bytes, _ChainName] = OrderedDict()  # by a chain's last key
        self._reading: dict[Chunk, int] = {}  # chunk → the tier that it is read from
        self._look_at = 0.0
        self._is_closed = False

    def looked_up(self, last_key: bytes, namespace: bytes, group: int) -> None:
        """A chain with this last key was looked up."""
        self._names.pop(last_key, None)
        self._names[last_key] = _ChainName(namespace, group)
        if len(self._names) > NAMED_MAX:
            self._names.popitem(last=False)

    def close(self) -> None:
        """Begin no more reads."""
        self._is_closed = True

    def step(self, now: float, *, is_writing: bool) -> None:
        """Count what has arrived, and begin what may begin now."""
        self._end_reads()
        if self._is_closed or now < self._look_at:
            return
        for _ in range(_LOOKED_AT_MAX):
            if is_writing or not self._may_begin():
                return
            found = self._dram.policies.next_read(now, self._has_room)
            if found is None:
                self._look_at = now + LOOK_S
                return
            if not self._begin(found):
                self._dram.policies.of(found.tenant).read_failed(found.key)

    def _end_reads(self) -> None:
        for chunk in [chunk for chunk in self._reading if chunk.state is not SlotState.LOADING]:
            self._metrics.fetched(self._stack.name_of(self._reading.pop(chunk)), chunk.length)
        table = self._dram.chunks
        for chunk in [chunk for chunk in self._reading if table.get(chunk.key) is not chunk]:
            del self._reading[chunk]
            self._dram.policies.of(chunk.name.tenant).read_failed(chunk.key)

    def _may_begin(self) -> bool:
        """Whether one more read may begin now, since no engine wants anything."""
        read_ahead, own = self._read_ahead, len(self._reading)
        is_in_the_way = read_ahead.reads_in_flight > own or not read_ahead.may_fetch_ahead
        if is_in_the_way:  # verify: demand first
            return False
        return own < READS_MAX

    def _has_room(self, tenant: bytes, slot_bytes: int) -> bool:
        return self._dram.has_free_slot(tenant, slot_bytes)

    def _begin(self, found: NamedRead) -> bool:
        """Begin to read a chunk; False if that is not possible, or not wanted."""
        chain, table = self._names.get(found.chain), self._dram.chunks
        if chain is None or table.get(found.key) is not None:
            return False
        if self._tenants.with_id(found.tenant) is None:  # verify: a forgotten tenant reads nothing
            return False
        tier = min(self._stack.tiers_of(found.key), default=-1)
        length = self._stack.length_of(found.key)
        if tier < 0 or self._stack.comes_back(tier) or not length:
            return False
        if found.victim is not None and not self._dram.evict(found.victim, EvictionCause.SPACE):
            return False
        name = RecordName(chain.namespace, chain.group, found.key, ROOT, found.tenant)
        chunk = self._read_ahead.fetch_ahead(name, length)
        if chunk is None:
            return False
        chunk.prefetched_from = tier
        self._reading[chunk] = tier
        return True
