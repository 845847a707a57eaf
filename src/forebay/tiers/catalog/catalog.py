"""The catalog of a tier: the index of records, and the extents they lie in, behind one lock.

The lock guards the index, the table of extents and the set of unavailable ones; no I/O happens
under it, and no call holds it for more than `_BATCH` rows.
"""

import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

from forebay.record.header import DEFAULT_TENANT, RecordName
from forebay.record.region import ContentsEntry, short
from forebay.tiers.catalog.extent import Extent
from forebay.tiers.catalog.index import NO_PARENT, Index, RecordPlace
from forebay.tiers.contract import (
    DropReason,
    EvictionCause,
    LargestNamespaces,
    NamespaceUsage,
    Removed,
    TierListener,
)
from forebay.tiers.eviction_order import EvictionOrder

_BATCH: Final = 512
E = TypeVar("E", bound=Extent)


class Catalog(Generic[E]):
    """What the tier holds, and where.

    The listener is told, on any thread, which records left. It is asked, on any thread and under
    the lock, whether another tier has a chunk: it must answer at once and may not call back.
    """

    def __init__(self, listener: TierListener | None = None) -> None:
        self._listener = listener or TierListener()
        self._lock = threading.Lock()
        self._index = Index()
        self._extents: dict[int, E] = {}
        self._rows: dict[int, array[int]] = {}  # extent number → rows settled in it
        self._unavailable: frozenset[int] = frozenset()  # extents on drives that are off
        self._numbers = 0
        self._order = EvictionOrder()

    def number(self) -> int:
        """A new extent number, never given before."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def prefix(self, keys: Sequence[bytes]) -> int:
        """How many keys, counted from the first, can be loaded."""
        with self._lock:
            return self._index.prefix(keys, self._unavailable)

    def has(self, key: bytes) -> bool:
        """Whether a record can be found here; takes no lock, since other tiers ask under theirs."""
        return self._index.has(key)

    def find(self, key: bytes) -> tuple[E, RecordPlace] | None:
        """Where a record can be loaded from; None if it cannot."""
        with self._lock:
            place = self._index.find(key)
            return None if place is None else (self._extents[place.extent], place)

    def reserve(self, name: RecordName) -> DropReason | None:
        """Announce a record that is about to be written, or say why it must not be."""
        key, parent = short(name.key), short(name.parent)
        with self._lock:
            if key in self._index:
                return DropReason.DUPLICATE
            known = self._index.reserve(
                key, None if parent == NO_PARENT else parent, name.namespace
            )
            return None if known else DropReason.ORPHAN

    def settle(self, key: bytes, place: RecordPlace) -> bool:
        """A record has been written; False if its prefix left meanwhile."""
        with self._lock:
            row = self._index.settle(key, place)
            if row is None:
                return False
            self._rows[place.extent].append(row)
            turn = self._order.turn_of_stored(self._index.turn_before(row))
            self._order.asked(place.extent, turn, self._index.stored_in(row, turn))
            return True

    def asked(self, keys: Sequence[bytes]) -> None:
        """A request asked for these records, or for those of them that are here."""
        with self._lock:
            turn = self._order.begin_turn()
        for first in range(0, len(keys), _BATCH):
            with self._lock:
                found = self._index.ask(keys[first : first + _BATCH], turn)
                for extent, depth in found.items():
                    self._order.asked(extent, turn, depth)

    def first_to_go(self, extents: Sequence[E]) -> E | None:
        """The extent to evict first, of these, given oldest first; None if there are none."""
        by_number = {extent.number: extent for extent in extents}
        with self._lock:
            first = self._order.first(by_number)
        return None if first is None else by_number[first]

    def mark_read(self, key: bytes, now: float) -> float | None:
        """A record was loaded; returns when it was last used before, if that is known."""
        with self._lock:
            return self._index.mark_read(key, now)

    def mark_used(self, key: bytes, at: float) -> None:
        """A record's chunk was used in DRAM. Takes no lock: at worst a statistic is wrong."""
        self._index.mark_used(key, at)

    def forget(
        self,
        key: bytes,
        place: RecordPlace | None = None,
        cause: EvictionCause = EvictionCause.CLEARED,
    ) -> None:
        """Drop a record and all that continue it; if `place` is given, only if it lies there."""
        removed: list[Removed] = []
        with self._lock:
            if place is None or self._index.find(key) == place:
                removed = self._index.remove(key)
        self._tell(_because(cause, removed))

    def abandon(self, key: bytes) -> None:
        """A record that was reserved will not be written."""
        with self._lock:
            removed = self._index.abandon(key, self._listener.holds)
        self._tell(_because(EvictionCause.PREFIX, removed))

    def lost(self, key: bytes) -> None:
        """No other tier has this chunk any more; to be called after `holds` has begun to say so.

        Eviction asks `holds` under the same lock, so either a gap is found here, or none is made.
        """
        with self._lock:
            removed = self._index.close_gap(key)
        self._tell(_because(EvictionCause.PREFIX, removed))

    def forget_namespace(self, namespace: bytes | None) -> None:
        """Drop all records of a namespace, or of all, including those being written."""
        removed: list[Removed] = []
        with self._lock:
            for key in list(self._index.keys_of(namespace)):
                removed += self._index.remove(key)
        self._tell([each._replace(cause=EvictionCause.CLEARED) for each in removed])

    def _tell(self, removed: list[Removed]) -> None:
        if removed:
            self._listener.removed(removed)

    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """The usage of every namespace that has records here, or lately had."""
        with self._lock:
            return self._index.namespaces.usage()

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """The usage of each of these namespaces."""
        with self._lock:
            return self._index.namespaces.usage_of(namespaces)

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """The namespaces with the most bytes; costs the same however many there are."""
        with self._lock:
            table = self._index.namespaces
            return LargestNamespaces(table.largest(limit), len(table))

    def add_extent(self, extent: E) -> None:
        """Records may be settled in this extent from now on."""
        with self._lock:
            self._extents[extent.number] = extent
            self._rows[extent.number] = array("i")
            if extent.begun_at is not None:
                self._index.stored_at[extent.number] = extent.begun_at
            if extent.tenant != DEFAULT_TENANT:  # verify: whose an extent is
                self._index.tenant_of[extent.number] = extent.tenant

    def drop_extent(self, extent: E, cause: EvictionCause) -> int:
        """Forget an extent's records, and what continues them unless another tier has the chunk.

        Returns how many records left.
        """
        count = 0
        rows = self._rows[extent.number]
        while rows:
            removed: list[Removed] = []
            with self._lock:
                for _ in range(min(_BATCH, len(rows))):
                    gone = self._index.evict(rows.pop(), extent.number, self._listener.holds)
                    removed += _because(cause, gone)
            count += len(removed)
            self._listener.removed(removed)
        with self._lock:
            del self._rows[extent.number], self._extents[extent.number]
            self._order.forget(extent.number)
            self._index.stored_at.pop(extent.number, None)
            self._index.tenant_of.pop(extent.number, None)
        return count

    def set_unavailable(self, extents: Iterable[int]) -> None:
        """Do not count records of these extents in prefixes, until the next call."""
        with self._lock:
            self._unavailable = frozenset(extents)

    def counts(self) -> tuple[int, int]:
        """The number of records, and their payload bytes."""
        with self._lock:
            return self._index.records, self._index.payload_bytes

    def restore(self, found: Iterable[tuple[E, Iterable[ContentsEntry]]]) -> int:
        """Fill the catalog at start, oldest extent first; how many records lack their parent.

        A parent may lie in a later extent than its child, so children wait for it. Of two records
        with one key, the one in the later extent counts.
        """
        waiting: dict[bytes, list[tuple[int, ContentsEntry]]] = {}
        restore = self._index.restore
        for extent, entries in found:
            self.add_extent(extent)
            number = extent.number
            with self._lock:
                rows = self._rows[number]
                for entry in entries:
                    row = restore(number, entry)
                    if row is None:
                        waiting.setdefault(entry.parent, []).append((number, entry))
                        continue
                    rows.append(row)
                    if waiting:
                        self._restore_waiting(short(entry.key), waiting)
        return sum(map(len, waiting.values()))

    def _restore_waiting(
        self, key: bytes, waiting: dict[bytes, list[tuple[int, ContentsEntry]]]
    ) -> None:
        """Index the records that waited for this one, and those that waited for them."""
        ready = waiting.pop(key, None)
        while ready:
            number, entry = ready.pop()
            row = self._index.restore(number, entry)
            assert row is not None, "its parent was restored before it"
            self._rows[number].append(row)
            ready.extend(waiting.pop(short(entry.key), ()))


def _because(cause: EvictionCause, removed: list[Removed]) -> list[Removed]:
    """The first of these left for this cause, the others because they continue it."""
    causes = [cause] + [EvictionCause.PREFIX] * (len(removed) - 1)
    return [each._replace(cause=because) for each, because in zip(removed, causes, strict=False)]
