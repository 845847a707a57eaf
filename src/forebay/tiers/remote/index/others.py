"""What other hosts have, as this host believes it: two tables, less what proved to be wrong.

One table is of the snapshots, the other of the tails. What was asked for and was not there, or not
what was published, is not believed for a while; a host of several damaged records is not read from.
"""

from typing import Final, NamedTuple

from forebay.record.region import short
from forebay.tiers.remote.index.table import EMPTY, RecordTable, TableRow
from forebay.tiers.remote.options import RemoteOptions

_FORGOTTEN_MAX: Final = 1 << 16  # keys and packs that are remembered as not to be had


class _Tables(NamedTuple):
    tails: RecordTable
    snapshots: RecordTable
    deleted: frozenset[int]


class OtherHosts:
    """Searched by any thread, without a lock; changed by the tier's thread alone."""

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        empty = RecordTable(memoryview(EMPTY))
        self._tables = _Tables(empty, empty, frozenset())
        self._forgotten: dict[bytes | int, float] = {}  # short key or sequence → until when
        self._bad: dict[str, int] = {}  # damaged records, by host

    @property
    def entries(self) -> int:
        """How many records are known."""
        return self._tables.tails.rows + self._tables.snapshots.rows

    @property
    def size_bytes(self) -> int:
        """What the tables take."""
        return self._tables.tails.size_bytes + self._tables.snapshots.size_bytes

    def learn(self, tails: RecordTable, snapshots: RecordTable | None, now: float) -> None:
        """Newer tables; without snapshots, the ones that are here hold."""
        deleted = frozenset(tails.names.deleted)
        self._tables = _Tables(tails, snapshots or self._tables.snapshots, deleted)
        late = [each for each, until in list(self._forgotten.items()) if until <= now]
        for each in late:
            del self._forgotten[each]

    def has(self, key: bytes) -> bool:
        """Whether a record is believed to be somewhere; the key may be short."""
        return self._usable(short(key)) is not None

    def find(self, key: bytes) -> TableRow | None:
        """Where a record is; the key may be short."""
        found = self._usable(short(key))
        return None if found is None else found[0].record(found[1])

    def packs_of(self, digits: str) -> int:
        """How many packs other hosts have of namespaces whose hex digits begin so."""
        tables = self._tables
        found = tables.tails.sequences_of(digits) | tables.snapshots.sequences_of(digits)
        return len(found - tables.deleted)

    def _usable(self, key: bytes) -> tuple[RecordTable, int] | None:
        """A row of this short key that nothing speaks against."""
        tables, forgotten, bad = self._tables, self._forgotten, self._bad
        if key in forgotten:
            return None
        for table in (tables.tails, tables.snapshots):
            for row in table.rows_of(key):
                sequence = table.sequence(row)
                if sequence in tables.deleted or sequence in forgotten:
                    continue
                if bad and bad.get(table.host(row), 0) >= self._options.bad_records_max:
                    continue
                return table, row
        return None

    def forget(self, what: bytes | int, now: float) -> None:
        """A record, by its short key, or a pack, by its sequence, is not to be had."""
        if len(self._forgotten) < _FORGOTTEN_MAX:
            self._forgotten[what] = now + self._options.forgotten_s

    def damaged(self, row: TableRow, key: bytes, now: float) -> bool:
        """A record was not what was published; True if its host is not read from any more."""
        self.forget(short(key), now)
        self._bad[row.host] = self._bad.get(row.host, 0) + 1
        return self._bad[row.host] == self._options.bad_records_max
