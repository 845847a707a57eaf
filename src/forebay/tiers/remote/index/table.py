"""A table of other hosts' records: sorted columns in shared memory.

The child builds it: sorting a million rows in the pool would keep the interpreter lock from the
pool's thread. The pool maps and searches it, and never changes it. Keys are hashes, and their first
bits select the few rows to search; if a host chose its keys so that they share these bits, all rows
are searched again. A row only tells where to look: what is found there is verified like any other
record.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec

from forebay.record.region import FIRST_RECORD, SHORT_KEY_BYTES
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.remote.index.published import ENTRY_BYTES, PublishedPack
from forebay.tiers.remote.packs import PackPlace, pack_name

_HEADER: Final = struct.Struct("<QQQQ")  # rows, packs, bytes of names, bits of a bucket's number
_KEY: Final = struct.Struct("<Q")
_KEY_BITS: Final = 8 * _KEY.size
_ENTRY_WORDS: Final = ENTRY_BYTES // 8  # of a published entry: key, key's second half, place
_SORTED_BITS: Final = 12  # log2 of rows, about half of which are sorted at a time
_LENGTH_BIT: Final = 32  # bits of a place: the page below this one, the payload's length above
_PAGE_MASK: Final = (1 << _LENGTH_BIT) - 1


class TableNames(msgspec.Struct, array_like=True, frozen=True):
    """What the packs are called, and what else is known of them beside their rows."""

    hosts: list[str]
    namespaces: list[bytes]
    deleted: list[int]  # sequences of deleted packs that other tables may still list


class TableRow(NamedTuple):
    """A record of another host."""

    place: PackPlace
    host: str


class _Rows(NamedTuple):
    """Columns of which each has a number for every row."""

    keys: "array[int]"
    places: "array[int]"
    packs: "array[int]"


def build(hosts: Sequence[tuple[str, Sequence[PublishedPack]]], deleted: Sequence[int]) -> bytes:
    """A table of these hosts' packs."""
    namespaces: dict[bytes, int] = {}
    sequences, owners, spaces = array("Q"), array("I"), array("I")  # a pack each
    rows = _Rows(array("Q"), array("Q"), array("I"))
    for host, (_, published) in enumerate(hosts):
        for namespace, sequence, packed, _ in published:
            words = memoryview(packed).cast("Q")
            rows.keys.extend(words[::_ENTRY_WORDS])
            rows.places.extend(words[2::_ENTRY_WORDS])
            rows.packs.extend([len(sequences)] * (len(packed) // ENTRY_BYTES))
            sequences.append(sequence)
            owners.append(host)
            spaces.append(namespaces.setdefault(namespace, len(namespaces)))
    keys, places, packs = _in_order(rows)
    bits = max(0, len(keys).bit_length() - 2)
    starts = _bucket_starts(keys, bits)
    columns = [keys, places, sequences, packs, owners, spaces, starts]
    names = TableNames([host for host, _ in hosts], list(namespaces), list(deleted))
    blob = msgspec.msgpack.encode(names)
    header = _HEADER.pack(len(keys), len(sequences), len(blob), bits)
    return b"".join([header, *(column.tobytes() for column in columns), blob])


def parts_to_sort(keys: "array[int]") -> list[list[int]]:
    """Row numbers grouped by the first bits of keys, so that few are sorted at a time."""
    bits = max(0, len(keys).bit_length() - _SORTED_BITS)
    shift = _KEY_BITS - bits
    parts: list[list[int]] = [[] for _ in range(1 << bits)]
    for row, key in enumerate(keys):
        parts[key >> shift].append(row)
    return parts


def _in_order(rows: _Rows) -> _Rows:
    """The same rows sorted by key.

    Sorting all at once would hold the interpreter lock for seconds, in a process that serves loads.
    """
    ordered = _Rows(array("Q"), array("Q"), array("I"))
    for part in parts_to_sort(rows.keys):
        part.sort(key=rows.keys.__getitem__)
        for column, target in zip(rows, ordered, strict=True):
            target.extend(map(column.__getitem__, part))
        part.clear()
    return ordered


def _bucket_starts(keys: "array[int]", bits: int) -> "array[int]":
    """The first row of each bucket (keys with the same first bits), and the last one's end."""
    starts, row = array("I", [0]), 0
    for bucket in range(1, 1 << bits):
        row = bisect_left(keys, bucket << (_KEY_BITS - bits), row)
        starts.append(row)
    starts.append(len(keys))
    return starts


class RecordTable:
    """A table as the pool uses it; any thread may search it."""

    def __init__(self, view: memoryview) -> None:
        """Use a table made by `build`."""
        rows, packs, blob, bits = _HEADER.unpack_from(view)
        self.rows: int = rows
        self._shift: int = _KEY_BITS - bits
        self.size_bytes = view.nbytes
        at = _HEADER.size
        columns = []
        for count in (rows, rows, packs):
            columns.append(view[at : at + 8 * count].cast("Q"))
            at += 8 * count
        for count in (rows, packs, packs, (1 << bits) + 1):
            columns.append(view[at : at + 4 * count].cast("I"))
            at += 4 * count
        self._keys, self._places, self._sequences = columns[:3]
        self._packs, self._hosts, self._spaces, self._starts = columns[3:]
        self.names = msgspec.msgpack.decode(view[at : at + blob], type=TableNames)

    def rows_of(self, key: bytes) -> range:
        """The range of rows whose key begins like this one."""
        (wanted,) = _KEY.unpack_from(key)
        keys, bucket = self._keys, wanted >> self._shift
        stop = self._starts[bucket + 1]
        first = end = bisect_left(keys, wanted, self._starts[bucket], stop)
        while end < stop and keys[end] == wanted:
            end += 1
        return range(first, end)

    def end_of_run(self, heads: Sequence[int], at: int, gone: AbstractSet[int]) -> int:
        """The first of these, from `at` on, without a row, or whose first row is in a gone pack.

        `heads` are the first bytes of keys, from `heads_of`.
        """
        keys, starts, shift = self._keys, self._starts, self._shift
        sequences, packs = self._sequences, self._packs
        for number in range(at, len(heads)):
            head = heads[number]
            bucket = head >> shift
            stop = starts[bucket + 1]
            row = bisect_left(keys, head, starts[bucket], stop)
            if row == stop or keys[row] != head:
                return number
            if gone and sequences[packs[row]] in gone:
                return number
        return len(heads)

    def sequence(self, row: int) -> int:
        """The pack of a row, by its sequence."""
        return self._sequences[self._packs[row]]

    def packs(self) -> dict[int, bytes]:
        """The namespace of every pack, by its sequence."""
        names = self.names.namespaces
        packs = zip(self._sequences, self._spaces, strict=True)
        return {sequence: names[space] for sequence, space in packs}

    def host(self, row: int) -> str:
        """The host of a row."""
        return self.names.hosts[self._hosts[self._packs[row]]]

    def record(self, row: int) -> TableRow:
        """What a row says."""
        namespace = self.names.namespaces[self._spaces[self._packs[row]]]
        host, sequence, place = self.host(row), self.sequence(row), self._places[row]
        offset = max(FIRST_RECORD, (place & _PAGE_MASK) * PAGE_BYTES)
        name = pack_name(namespace, host, sequence)
        return TableRow(PackPlace(name, sequence, offset, place >> _LENGTH_BIT), host)


def heads_of(keys: Sequence[bytes]) -> list[int]:
    """The first bytes of short keys, as numbers to search a table for."""
    words = memoryview(b"".join(keys)).cast("Q")
    return words[:: SHORT_KEY_BYTES // _KEY.size].tolist()


EMPTY: Final = build([], [])
