"""Reads a region file: its table of contents, and its records one after the other.

`RegionReader.records` is the only way through a region's records: recovery, erasure and audit use
it. It yields the records that a table of contents lists or, without a table, those that a walk
finds: from the front, trying page by page where there is no sound record. A record is recognised by
its own hash, generation and offset, so one of an earlier generation of the file does not count.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

import xxhash

from forebay.record import region as layout
from forebay.record.header import (
    DEFAULT_TENANT,
    HEADER_BYTES,
    Damage,
    RecordHeader,
    is_erased,
    joined_hash,
    mismatch,
    record_bytes,
)
from forebay.record.region import ContentsEntry, Position
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.transfer import read_whole

_WINDOW_BYTES: Final = 4 << 20
_SMALL_STEP_BYTES: Final = 64 << 10  # step size after something was unreadable
_UNREADABLE_MAX: Final = 32  # reads of one walk that may fail before the rest is given up
_ASKED_MAX: Final = 64  # records whose headers are read to find the tenant
_NO_RECORD: Final = {Damage.NOT_A_RECORD, Damage.PLACE}  # no record of this generation begins here

# A sound record's header; or why it is not sound, or unreadable; or None: it was erased.
FoundRecord = RecordHeader | Damage | OSError | None


class RegionContents(NamedTuple):
    """What a region file holds."""

    generation: int
    packed: bytes  # its entries, as a table of contents has them
    end: int  # where the next record would go
    is_sealed: bool  # read from the region's own table of contents
    tenant: bytes = DEFAULT_TENANT  # whose records they are

    def entries(self) -> Iterator[ContentsEntry]:
        """One for each record."""
        return layout.unpack_entries(self.packed)


class RegionReader:
    """Reads one region file; not thread-safe."""

    def __init__(self, disk: Disk, descriptor: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes  # whole pages
        self._disk = disk
        self._descriptor = descriptor
        self._window = _Window(disk, descriptor)

    def first_page(self) -> memoryview:
        """The page with the region's header; shorter if the file is. OSError if unreadable."""
        page = memory.allocate(PAGE_BYTES)
        return page[: read_whole(self._disk, self._descriptor, [page], 0)]

    def contents(self, generation: int) -> RegionContents:
        """What the region holds, by its table or, if that cannot be used, by a walk."""
        try:
            table = self.table(generation)
        except OSError:
            table = None  # the records themselves may be readable
        if isinstance(table, RegionContents):
            return table
        packed = bytearray()
        end = layout.FIRST_RECORD
        for offset, found in self.records(generation):
            if isinstance(found, RecordHeader):
                packed += layout.pack_entry(found, offset)
                end = offset + record_bytes(found.length)
        return RegionContents(generation, bytes(packed), end, is_sealed=False)

    def table(self, generation: int) -> RegionContents | Damage | None:
        """What the region's table says; its records are not checked.

        None: it was not sealed in this generation. Damage: the table cannot be trusted. OSError: it
        cannot be read.
        """
        page = memory.allocate(PAGE_BYTES)
        at = self.size_bytes - PAGE_BYTES
        count = read_whole(self._disk, self._descriptor, [page], at)
        footer = layout.unpack_footer(page[:count])
        if isinstance(footer, Damage):
            return footer if any(page[:count]) else None
        own = (generation, self.size_bytes)
        if (footer.generation, footer.size_bytes) != own:  # verify: footer place
            return None
        used = footer.records * layout.ENTRY_BYTES
        contents = memory.allocate(used)
        if read_whole(self._disk, self._descriptor, [contents], footer.contents_offset) < used:
            return Damage.CUT
        if isinstance(damage := layout.unpack_contents(contents, footer), Damage):
            return damage
        packed = bytes(contents[:used])
        return RegionContents(generation, packed, footer.contents_offset, is_sealed=True)

    def tenant(self, found: RegionContents) -> bytes | None:
        """The tenant of the region's records, by the first sound header; None if there is none."""
        page = memory.allocate(PAGE_BYTES)
        for entry in islice(found.entries(), _ASKED_MAX):
            try:
                count = read_whole(self._disk, self._descriptor, [page], entry.offset)
            except OSError:
                continue
            header = layout.unpack_record(page[:count], Position(found.generation, entry.offset))
            if isinstance(header, RecordHeader):
                return header.name.tenant
        return None

    def records(
        self, generation: int, table: RegionContents | None = None
    ) -> Iterator[tuple[int, FoundRecord]]:
        """Yields each record's offset and verified header, in the order of the file.

        These are the records that `table` lists or, without one, all that a walk finds. What a walk
        cannot read is skipped, a few times only: a failing drive takes seconds for each.
        """
        if table is not None:
            for entry in sorted(table.entries(), key=lambda entry: entry.offset):
                yield entry.offset, self._listed(entry, table)
            return
        at = layout.FIRST_RECORD
        unreadable = 0
        while at + PAGE_BYTES <= self.size_bytes and unreadable < _UNREADABLE_MAX:
            found = self._record(Position(generation, at), self.size_bytes)
            unreadable += isinstance(found, OSError)
            if found not in _NO_RECORD:
                yield at, found
            at += record_bytes(found.length) if isinstance(found, RecordHeader) else PAGE_BYTES

    def _listed(self, entry: ContentsEntry, table: RegionContents) -> FoundRecord:
        """The record that a table lists."""
        end = entry.offset + record_bytes(entry.length)
        if end > table.end:
            return Damage.LENGTH
        found = self._record(Position(table.generation, entry.offset), table.end)
        if not isinstance(found, RecordHeader):
            return found
        name = replace(found.name, namespace=entry.namespace, group=entry.group, key=entry.key)
        wrong = mismatch(found, name, entry.length)
        if wrong is None and layout.short(found.name.parent) != entry.parent:
            wrong = Damage.KEY
        return wrong or found

    def _record(self, position: Position, limit: int) -> FoundRecord:
        """The record at a position, which must end before `limit`."""
        try:
            return self._verified(position, limit)
        except OSError as error:
            return error

    def _verified(self, position: Position, limit: int) -> RecordHeader | Damage | None:
        at = position.offset
        page = self._window.view(at, HEADER_BYTES)
        if is_erased(page):
            return None
        header = layout.unpack_record(page, position)
        if isinstance(header, Damage):
            # A damaged header of an earlier generation does not count as damage.
            is_here = header is Damage.NOT_A_RECORD or layout.is_for(page, position)
            return header if is_here else Damage.PLACE
        if at + record_bytes(header.length) > limit:  # verify: walked length
            return Damage.LENGTH
        digest = self._window.hash(at + HEADER_BYTES, header.length, header.shards)
        if digest != header.payload_hash:  # verify: walked hash
            return Damage.PAYLOAD_HASH
        return header


class _Window:
    """A file read in large steps, whatever the size of its records."""

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._buffer: memoryview | None = None  # allocated when it is needed
        self._step_bytes = _WINDOW_BYTES
        self._start = self._stop = 0

    def view(self, at: int, size: int) -> memoryview:
        """Up to `size` bytes at `at`; fewer at the end of window or file. OSError if unreadable."""
        if self._buffer is None:
            self._buffer = memory.allocate(_WINDOW_BYTES)
        if not self._start <= at < self._stop:
            self._read(self._buffer, at, size)
        return self._buffer[at - self._start : min(at + size, self._stop) - self._start]

    def hash(self, at: int, length: int, shards: int) -> bytes:
        """The payload hash of these bytes; if the file ends early, of fewer, so that it differs."""
        size = length // shards
        return joined_hash([self._hash(at + number * size, size) for number in range(shards)])

    def _hash(self, at: int, length: int) -> bytes:
        digest = xxhash.xxh3_128()
        stop = at + length
        while at < stop:
            part = self.view(at, stop - at)
            if not part:
                break
            digest.update(part)
            at += len(part)
        return digest.digest()

    def _read(self, buffer: memoryview, at: int, size: int) -> None:
        self._start = self._stop = at
        try:
            step = buffer[: self._step_bytes]
            self._stop += read_whole(self._disk, self._descriptor, [step], at)
        except OSError:
            # What is unreadable may lie after what is wanted.
            self._step_bytes = _SMALL_STEP_BYTES
            wanted = buffer[: memory.padded(size)]
            self._stop += read_whole(self._disk, self._descriptor, [wanted], at)
