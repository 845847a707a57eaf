"""What this host believes other hosts have: two tables, minus what proved to be wrong.

One table is made from snapshots, the other from tails. A record that was asked for and was missing,
or not as published, is not believed for a while; a host with several damaged records is not read
from.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from forebay.record.region import short
from forebay.tiers.remote.index import table
from forebay.tiers.remote.index.table import EMPTY, RecordTable, TableRow
from forebay.tiers.remote.options import RemoteOptions

_FORGOTTEN_MAX: Final = 1 << 16  # keys, and as many packs, remembered as missing
_BLOCK_MIN: Final = 16  # number of keys looked up at once, at first
_Forgotten = TypeVar("_Forgotten")


class _Tables(NamedTuple):
    tails: RecordTable
    snapshots: RecordTable


class OtherHosts:
    """Any thread may search it, without a lock; only the tier's thread changes it."""

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        empty = RecordTable(memoryview(EMPTY))
        self._tables = _Tables(empty, empty)
        self._forgotten: dict[bytes, float] = {}  # short key → until when
        self._forgotten_packs: dict[int, float] = {}  # sequence → until when
        self._gone: set[int] = set()  # sequences of missing packs, and of deleted ones
        self._bad: dict[str, int] = {}  # damaged records, by host
        self._is_wary = False  # some host is not read from

    @property
    def entries(self) -> int:
        """How many records are known."""
        return self._tables.tails.rows + self._tables.snapshots.rows

    @property
    def size_bytes(self) -> int:
        """The size of the tables."""
        return self._tables.tails.size_bytes + self._tables.snapshots.size_bytes

    def learn(self, tails: RecordTable, snapshots: RecordTable | None, now: float) -> None:
        """Use newer tables; without snapshots, the old snapshot table stays."""
        _drop_late(self._forgotten, now)
        _drop_late(self._forgotten_packs, now)
        self._gone = {*tails.names.deleted, *self._forgotten_packs}
        self._tables = _Tables(tails, snapshots or self._tables.snapshots)

    def has(self, key: bytes) -> bool:
        """Whether some host is believed to have a record; the key may be short."""
        return self._usable(short(key)) is not None

    def prefix(self, keys: Sequence[bytes], at: int = 0) -> int:
        """The index, from `at` on, of the first short key that no host is believed to have."""
        block = _BLOCK_MIN  # keys looked up at once; doubled while all are found
        while at < len(keys):
            some = keys[at : at + block]
            found = self._run(some)
            at += found
            if found < len(some):
                break
            block *= 2
        return at

    def _run(self, keys: Sequence[bytes]) -> int:
        """How many of these short keys, counted from the first, some host is believed to have.

        Runs in the tables answer for most; `_usable` decides about the rest.
        """
        tables, forgotten, gone = self._tables, self._forgotten, self._gone
        heads, at, end = table.heads_of(keys), 0, len(keys)
        if forgotten:
            end = next((number for number, key in enumerate(keys) if key in forgotten), end)
        del heads[end:]
        while at < end:
            before = at
            if not self._is_wary:
                at = tables.snapshots.end_of_run(heads, at, gone)
                at = tables.tails.end_of_run(heads, at, gone)
            if at == before:
                if self._usable(keys[at]) is None:
                    break
                at += 1
        return at

    def find(self, key: bytes) -> TableRow | None:
        """Where a record is; the key may be short."""
        found = self._usable(short(key))
        return None if found is None else found[0].record(found[1])

    def packs(self) -> Counter[bytes]:
        """How many packs other hosts have of each namespace."""
        tables, gone = self._tables, self._gone
        found = tables.tails.packs() | tables.snapshots.packs()
        return Counter(name for sequence, name in found.items() if sequence not in gone)

    def _usable(self, key: bytes) -> tuple[RecordTable, int] | None:
        """A table and row of this short key that nothing speaks against."""
        tables, gone, bad = self._tables, self._gone, self._bad
        if key in self._forgotten:  # verify: a record that was not there
            return None
        for each in (tables.tails, tables.snapshots):
            for row in each.rows_of(key):
                if each.sequence(row) in gone:
                    continue
                if self._is_wary and bad.get(each.host(row), 0) >= self._options.bad_records_max:
                    continue
                return each, row
        return None

    def forget(self, key: bytes, now: float) -> None:
        """A record, given by its short key, is missing."""
        if len(self._forgotten) < _FORGOTTEN_MAX:
            self._forgotten[key] = now + self._options.forgotten_s

    def forget_pack(self, sequence: int, now: float) -> None:
        """A pack is missing."""
        if len(self._forgotten_packs) < _FORGOTTEN_MAX:
            self._forgotten_packs[sequence] = now + self._options.forgotten_s
            self._gone.add(sequence)

    def damaged(self, row: TableRow, key: bytes, now: float) -> bool:
        """A record was not as published; True if its host is not read from any more."""
        self.forget(short(key), now)
        self._bad[row.host] = self._bad.get(row.host, 0) + 1
        is_over = self._bad[row.host] == self._options.bad_records_max
        self._is_wary = self._is_wary or is_over
        return is_over


def _drop_late(forgotten: dict[_Forgotten, float], now: float) -> None:
    """Believe again what was forgotten long enough ago."""
    for each in [each for each, until in list(forgotten.items()) if until <= now]:
        del forgotten[each]
