"""A table of other hosts' records: sorted columns in shared memory, 20 bytes a record.

The child builds it, since sorting a million rows in the pool would keep the interpreter from the
pool's thread; the pool maps and searches it, some microseconds a key. It is never changed. A row
only says where to look: what is found there is verified like any other record.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from forebay.record.region import FIRST_RECORD
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.remote.index.published import ENTRY_BYTES, PublishedPack
from forebay.tiers.remote.packs import PackPlace, pack_name

_HEADER: Final = struct.Struct("<QQQQ")  # rows, packs, bytes of names, 0
_KEY: Final = struct.Struct("<Q")
_ENTRY_WORDS: Final = ENTRY_BYTES // 8  # of a published entry: key, key's second half, place
_LENGTH_BIT: Final = 32  # of a place: the page lies below it, the payload's length above
_PAGE_MASK: Final = (1 << _LENGTH_BIT) - 1


class TableNames(msgspec.Struct, array_like=True, frozen=True):
    """What packs are named after, and what is known of them beyond their rows."""

    hosts: list[str]
    namespaces: list[bytes]
    deleted: list[int]  # sequences of packs that other tables may still list


class TableRow(NamedTuple):
    """A record of another host."""

    place: PackPlace
    host: str


def build(hosts: Sequence[tuple[str, Sequence[PublishedPack]]], deleted: Sequence[int]) -> bytes:
    """A table of these hosts' packs."""
    namespaces: dict[bytes, int] = {}
    sequences, owners, spaces = array("Q"), array("I"), array("I")  # a pack each
    entries: list[bytes] = []
    numbers = array("I")  # the pack of each row
    for host, (_, published) in enumerate(hosts):
        for namespace, sequence, packed in published:
            numbers.extend([len(sequences)] * (len(packed) // ENTRY_BYTES))
            sequences.append(sequence)
            owners.append(host)
            spaces.append(namespaces.setdefault(namespace, len(namespaces)))
            entries.append(packed)
    words = memoryview(b"".join(entries)).cast("Q")
    keys, places = array("Q", words[::_ENTRY_WORDS]), array("Q", words[2::_ENTRY_WORDS])
    order = sorted(range(len(keys)), key=keys.__getitem__)
    columns = [
        array("Q", map(keys.__getitem__, order)),
        array("Q", map(places.__getitem__, order)),
        sequences,
        array("I", map(numbers.__getitem__, order)),
        owners,
        spaces,
    ]
    names = TableNames([host for host, _ in hosts], list(namespaces), list(deleted))
    blob = msgspec.msgpack.encode(names)
    header = _HEADER.pack(len(keys), len(sequences), len(blob), 0)
    return b"".join([header, *(column.tobytes() for column in columns), blob])


class RecordTable:
    """A table as the pool sees it; any thread may search it."""

    def __init__(self, view: memoryview) -> None:
        """Of what `build` made."""
        rows, packs, blob, _ = _HEADER.unpack_from(view)
        self.rows: int = rows
        self.size_bytes = view.nbytes
        at = _HEADER.size
        columns = []
        for count in (rows, rows, packs):
            columns.append(view[at : at + 8 * count].cast("Q"))
            at += 8 * count
        for count in (rows, packs, packs):
            columns.append(view[at : at + 4 * count].cast("I"))
            at += 4 * count
        self._keys, self._places, self._sequences, self._packs, self._hosts, self._spaces = columns
        self.names = msgspec.msgpack.decode(view[at : at + blob], type=TableNames)

    def rows_of(self, key: bytes) -> range:
        """The rows of records whose key begins like this one."""
        (wanted,) = _KEY.unpack_from(key)
        keys, rows = self._keys, self.rows
        first = end = bisect_left(keys, wanted)
        while end < rows and keys[end] == wanted:
            end += 1
        return range(first, end)

    def sequence(self, row: int) -> int:
        """The pack of a row."""
        return self._sequences[self._packs[row]]

    def sequences_of(self, digits: str) -> set[int]:
        """The packs of namespaces whose hex digits begin so."""
        names = enumerate(self.names.namespaces)
        spaces = {number for number, name in names if name.hex().startswith(digits)}
        packs = zip(self._sequences, self._spaces, strict=True)
        return {sequence for sequence, space in packs if space in spaces}

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


EMPTY: Final = build([], [])
