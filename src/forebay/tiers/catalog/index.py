"""The index: from a short key to a record's place, with the tree that the chunks form.

Columns of plain numbers, one row per record: the garbage collector sees nothing of it, so millions
of records cost it nothing. Not thread-safe; the catalog is.

A row begins *pending*, while its record is being written, so that a child written beside its
parent is not an orphan; only a settled row is found. Removing a row removes all that continue it.

A record that is evicted while another tier has its chunk leaves a *gap*: a row without a record
that keeps its place in the tree, as long as something here continues it.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from forebay.record.header import DEFAULT_TENANT
from forebay.record.region import SHORT_KEY_BYTES, ContentsEntry
from forebay.tiers.contract import EvictionCause, Removed
from forebay.tiers.namespaces import NamespaceTable

NO_PARENT: Final = bytes(SHORT_KEY_BYTES)  # short(ROOT)
_NONE: Final = -1
_FREE: Final = -1  # in the extent column: the row is unused
_PENDING: Final = -2  # in the extent column: the record is being written
_GAP: Final = -3  # in the extent column: the record is gone, another tier has the chunk
_GROWTH: Final = 1024  # rows added at once
_NONES: Final = array("i", [_NONE]) * _GROWTH


class RecordPlace(NamedTuple):
    """Where a record is."""

    extent: int  # the extent's number, unique in this process
    offset: int  # bytes from the extent's start to the header
    length: int  # payload bytes


class Index:
    """All records of a tier."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._made = 0  # number of rows ever used; further rows are prepared
        self._extent = array("i")
        self._offset = array("Q")
        self._length = array("I")
        self._namespace = array("I")
        self._read = bytearray()  # 1: loaded since it was settled
        self._used_at = array("f")  # when its chunk was last used, monotonic; 0: not known
        self._turn = array("Q")  # turn of the request that last asked for it; 0: none yet
        self._depth = array("I")  # number of records before it in its chain
        self._parent = array("i")
        self._first_child = array("i")
        self._next_sibling = array("i")
        self._previous_sibling = array("i")
        self._free = array("i")
        self.namespaces = NamespaceTable()  # counts settled records
        self.stored_at: dict[int, float] = {}  # extent → when it was begun, monotonic, if known
        self.tenant_of: dict[int, bytes] = {}  # extent → its tenant, if not the default one
        self.records = 0  # settled
        self.payload_bytes = 0  # of settled records

    def has(self, key: bytes) -> bool:
        """Whether a settled record is here; any thread may call, without the catalog's lock."""
        row = self._rows.get(key)
        return row is not None and self._extent[row] >= 0

    def __contains__(self, key: bytes) -> bool:
        """Whether a record is here or being written."""
        row = self._rows.get(key)
        return row is not None and self._extent[row] != _GAP

    def find(self, key: bytes) -> RecordPlace | None:
        """Where a settled record lies; None if there is none."""
        row = self._rows.get(key)
        if row is None or self._extent[row] < 0:
            return None
        return RecordPlace(self._extent[row], self._offset[row], self._length[row])

    def prefix(self, keys: Sequence[bytes], unavailable: frozenset[int]) -> int:
        """How many keys, counted from the first, are settled in extents not in `unavailable`."""
        rows, extent = self._rows, self._extent
        for count, key in enumerate(keys):
            row = rows.get(key[:SHORT_KEY_BYTES])
            if row is None or extent[row] < 0 or (unavailable and extent[row] in unavailable):
                return count
        return len(keys)

    def reserve(self, key: bytes, parent: bytes | None, namespace: bytes) -> bool:
        """Add a pending row; False if the parent is not here. The key must not be here yet."""
        gap = self._rows.get(key)
        if gap is not None:
            assert self._extent[gap] == _GAP
            self._extent[gap] = _PENDING
            return True
        parent_row = _NONE
        if parent is not None:
            parent_row = self._rows.get(parent, _NONE)
            if parent_row == _NONE:
                return False
        row = self._new_row(key)
        self._extent[row] = _PENDING
        self._namespace[row] = self.namespaces.refer(namespace)
        if parent_row != _NONE:
            self._link(row, parent_row)
        return True

    def settle(self, key: bytes, place: RecordPlace) -> int | None:
        """Give a pending row its place; returns the row, or None if it is gone or settled."""
        row = self._rows.get(key)
        if row is None or self._extent[row] != _PENDING:
            return None
        return self._fill(row, place)

    def _fill(self, row: int, place: RecordPlace) -> int:
        """Give a row without a record one; returns the row."""
        self._extent[row], self._offset[row], self._length[row] = place
        self._count(row, 1)
        self._add_bytes(row, place.length)
        return row

    def restore(self, extent: int, entry: ContentsEntry) -> int | None:
        """Settle a record found at start; its row, or None if its parent is not here (yet).

        A key that is here already moves to this record, unless it is being stored; a gap is filled.
        Written without helper calls, since a warm start spends its time here.
        """
        full_key, namespace, parent, offset, length, _ = entry
        key = full_key[:SHORT_KEY_BYTES]
        rows = self._rows
        if key in rows:
            row = rows[key]
            if self._extent[row] == _PENDING:  # it is being stored now
                return row
            place = RecordPlace(extent, offset, length)
            return self._fill(row, place) if self._extent[row] == _GAP else self.move(key, place)
        parent_row = _NONE
        if parent != NO_PARENT:
            parent_row = rows.get(parent, _NONE)
            if parent_row == _NONE:
                return None
        row = self._new_row(key)
        self._extent[row] = extent
        self._offset[row] = offset
        self._length[row] = length
        number = self.namespaces.refer(namespace)
        self._namespace[row] = number
        if parent_row != _NONE:
            self._link(row, parent_row)
        self.records += 1
        self.payload_bytes += length
        self.namespaces.payload_bytes[number] += length
        self.namespaces.records[number] += 1
        return row

    def move(self, key: bytes, place: RecordPlace) -> int:
        """Point a settled row to another record of the same key; returns the row."""
        row = self._rows[key]
        assert self._extent[row] >= 0
        self._add_bytes(row, place.length - self._length[row])
        self._extent[row], self._offset[row], self._length[row] = place
        return row

    def mark_read(self, key: bytes, now: float) -> float | None:
        """A record was loaded; returns when it was last used, if known.

        `Removed.was_read` tells later that it was.
        """
        row = self._rows.get(key)
        if row is None:
            return None
        self._read[row] = 1
        before, self._used_at[row] = self._used_at[row], now
        return before or None

    def ask(self, keys: Sequence[bytes], turn: int) -> dict[int, int]:
        """A request asked for these keys: returns the lowest depth asked for, by extent."""
        found: dict[int, int] = {}
        for key in keys:
            row = self._rows.get(key)
            if row is not None and self._extent[row] >= 0:
                self._turn[row] = turn
                extent, depth = self._extent[row], self._depth[row]
                found[extent] = min(depth, found.get(extent, depth))
        return found

    def turn_before(self, row: int) -> int:
        """The turn of a row's parent; 0 if it has none, or was never asked for."""
        parent = self._parent[row]
        return 0 if parent == _NONE else self._turn[parent]

    def stored_in(self, row: int, turn: int) -> int:
        """Count a record that was settled as asked for in this turn; returns its depth."""
        self._turn[row] = turn
        return self._depth[row]

    def mark_used(self, key: bytes, at: float) -> None:
        """A record's chunk was used in another tier."""
        row = self._rows.get(key)
        if row is not None:
            self._used_at[row] = at

    def remove(self, key: bytes) -> list[Removed]:
        """Forget a record and all that continue it; returns those that were settled."""
        row = self._rows.get(key)
        return [] if row is None else self._remove_tree(row)

    def evict(self, row: int, extent: int, holds: Callable[[bytes], bool]) -> list[Removed]:
        """Forget the record in a row, if it is still in `extent`; returns what left the index.

        What continues it stays if `holds` says that another tier has the chunk, and goes otherwise.
        """
        if self._extent[row] != extent:
            return []
        if self._first_child[row] == _NONE or not holds(self._keys[row]):
            return self._remove_tree(row)
        removed = self._uncount(row)
        self._extent[row], self._read[row] = _GAP, 0
        return removed

    def abandon(self, key: bytes, holds: Callable[[bytes], bool]) -> list[Removed]:
        """Forget a pending record that will not be written; for the rest see `evict`."""
        row = self._rows.get(key)
        return [] if row is None else self.evict(row, _PENDING, holds)

    def close_gap(self, key: bytes) -> list[Removed]:
        """No other tier has this chunk: if it is a gap here, drop what continues it."""
        row = self._rows.get(key)
        return self._remove_tree(row) if row is not None and self._extent[row] == _GAP else []

    def keys_of(self, namespace: bytes | None) -> Iterator[bytes]:
        """The keys of one namespace, or of all; the index must not change meanwhile."""
        number = None if namespace is None else self.namespaces.numbers.get(namespace, _NONE)
        for key, row in self._rows.items():
            if number is None or self._namespace[row] == number:
                yield key

    def _count(self, row: int, count: int) -> None:
        self.records += count
        self.namespaces.records[self._namespace[row]] += count

    def _add_bytes(self, row: int, count: int) -> None:
        self.payload_bytes += count
        self.namespaces.payload_bytes[self._namespace[row]] += count

    def _new_row(self, key: bytes) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = self._made
            self._made += 1
            if row == len(self._keys):
                self._grow()
        self._keys[row] = key
        self._rows[key] = row
        return row

    def _grow(self) -> None:
        """Add many rows at once, since adding one costs an append to every column."""
        self._keys.extend([b""] * _GROWTH)
        self._read.extend(bytes(_GROWTH))
        self._used_at.frombytes(bytes(_GROWTH * self._used_at.itemsize))
        self._offset.frombytes(bytes(_GROWTH * self._offset.itemsize))
        self._turn.frombytes(bytes(_GROWTH * self._turn.itemsize))
        for column in (self._length, self._namespace, self._depth):
            column.frombytes(bytes(_GROWTH * column.itemsize))
        for column in (self._extent, *self._links()):
            column.extend(_NONES)

    def _links(self) -> tuple["array[int]", ...]:
        return (self._parent, self._first_child, self._next_sibling, self._previous_sibling)

    def _link(self, row: int, parent: int) -> None:
        sibling = self._first_child[parent]
        self._parent[row] = parent
        self._depth[row] = self._depth[parent] + 1
        self._next_sibling[row] = sibling
        self._first_child[parent] = row
        if sibling != _NONE:
            self._previous_sibling[sibling] = row

    def _unlink(self, row: int) -> None:
        parent, following = self._parent[row], self._next_sibling[row]
        previous = self._previous_sibling[row]
        if previous != _NONE:
            self._next_sibling[previous] = following
        elif parent != _NONE:
            self._first_child[parent] = following
        if following != _NONE:
            self._previous_sibling[following] = previous

    def _remove_tree(self, top: int) -> list[Removed]:
        top = self._highest(top)
        self._unlink(top)
        removed: list[Removed] = []
        stack = [top]
        while stack:
            row = stack.pop()
            child = self._first_child[row]
            while child != _NONE:
                stack.append(child)
                child = self._next_sibling[child]
            removed += self._uncount(row)
            self._free_row(row)
        return removed

    def _uncount(self, row: int) -> list[Removed]:
        """Subtract a row's settled record from the counts; returns it, if there is one."""
        if self._extent[row] < 0:
            return []
        self._count(row, -1)
        self._add_bytes(row, -self._length[row])
        extent = self._extent[row]
        stored_at, tenant = self.stored_at.get(extent), self.tenant_of.get(extent, DEFAULT_TENANT)
        was_read = self._read[row] == 1
        cause = EvictionCause.SPACE  # the catalog sets the real cause
        return [Removed(self._keys[row], self._length[row], was_read, cause, stored_at, tenant)]

    def _highest(self, row: int) -> int:
        """The row, or the highest of the gaps above it that nothing else continues."""
        parent = self._parent[row]
        while parent != _NONE and self._extent[parent] == _GAP and self._is_only_child(row):
            row, parent = parent, self._parent[parent]
        return row

    def _is_only_child(self, row: int) -> bool:
        return self._next_sibling[row] == self._previous_sibling[row] == _NONE

    def _free_row(self, row: int) -> None:
        del self._rows[self._keys[row]]
        self.namespaces.release(self._namespace[row])
        self._keys[row] = b""
        self._extent[row] = _FREE
        self._read[row], self._used_at[row] = 0, 0.0
        self._turn[row] = self._depth[row] = 0
        for column in self._links():
            column[row] = _NONE
        self._free.append(row)
