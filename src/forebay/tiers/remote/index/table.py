"""A table of other hosts' records: sorted columns in shared memory, 20 bytes a record.

The child builds it, since sorting a million rows in the pool would keep the interpreter from the
pool's thread; the pool maps and searches it, some microseconds a key. It is never changed. A row
only says where to look: what is found there is verified like any other record.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from forebay.record.region import FIRST_RECORD
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.remote.index.published import PublishedPack
from forebay.tiers.remote.packs import PackPlace, pack_name

_HEADER: Final = struct.Struct("<QQQQ")  # rows, packs, bytes of names, 0
_ENTRY: Final = struct.Struct("<Q8sII")  # the key's first half, its second, page, payload length
_KEY: Final = struct.Struct("<Q")


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
    packs: list[tuple[int, int, int]] = []  # sequence, host, namespace
    rows: list[tuple[int, int, int, int]] = []  # key, pack, page, length
    for host, (_, published) in enumerate(hosts):
        for namespace, sequence, entries in published:
            number = namespaces.setdefault(namespace, len(namespaces))
            at = len(packs)
            packs.append((sequence, host, number))
            unpacked = _ENTRY.iter_unpack(entries)
            rows += [(key, at, page, length) for key, _, page, length in unpacked]
    rows.sort()
    names = TableNames([host for host, _ in hosts], list(namespaces), list(deleted))
    blob = msgspec.msgpack.encode(names)
    columns = [
        *_columns(rows, "QIII"),
        *_columns(packs, "QII"),
    ]
    wide = [data for code, data in columns if code == "Q"]
    narrow = [data for code, data in columns if code != "Q"]
    header = _HEADER.pack(len(rows), len(packs), len(blob), 0)
    return b"".join([header, *wide, *narrow, blob])


def _columns(rows: Sequence[tuple[int, ...]], codes: str) -> Iterator[tuple[str, bytes]]:
    for position, code in enumerate(codes):
        yield code, array(code, (row[position] for row in rows)).tobytes()


class RecordTable:
    """A table as the pool sees it; any thread may search it."""

    def __init__(self, view: memoryview) -> None:
        """Of what `build` made."""
        rows, packs, blob, _ = _HEADER.unpack_from(view)
        self.rows: int = rows
        self.size_bytes = view.nbytes
        at = _HEADER.size
        columns = []
        for count in (rows, packs):
            columns.append(view[at : at + 8 * count].cast("Q"))
            at += 8 * count
        for count in (rows, rows, rows, packs, packs):
            columns.append(view[at : at + 4 * count].cast("I"))
            at += 4 * count
        self._keys, self._sequences, self._pack, self._page, self._length = columns[:5]
        self._host, self._namespace = columns[5:]
        self.names = msgspec.msgpack.decode(view[at : at + blob], type=TableNames)

    def find(self, key: bytes) -> Iterator[TableRow]:
        """Every record whose short key begins like this one."""
        (wanted,) = _KEY.unpack_from(key)
        keys = self._keys
        row = bisect_left(keys, wanted)
        while row < self.rows and keys[row] == wanted:
            yield self._row(row)
            row += 1

    def _row(self, row: int) -> TableRow:
        pack = self._pack[row]
        host = self.names.hosts[self._host[pack]]
        namespace = self.names.namespaces[self._namespace[pack]]
        sequence = self._sequences[pack]
        offset = max(FIRST_RECORD, self._page[row] * PAGE_BYTES)
        name = pack_name(namespace, host, sequence)
        return TableRow(PackPlace(name, sequence, offset, self._length[row]), host)


EMPTY: Final = build([], [])
