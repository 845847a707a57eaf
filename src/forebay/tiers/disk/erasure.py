"""Erasure: deletes records for good, wherever a copy of them lies.

The index knows only the last copy of a key; older copies, forgotten but not evicted yet, would come
back at a later start. So every region's table of contents is searched. Records are wiped first and
the table afterwards: after a crash in between, a table lists records that are gone, which a load
notices, or it is not believed any more and the region is walked. Erasing again finishes it.

Payloads are zeroed with their headers, and so is everything between records: in a reused file there
lie payloads of records that were evicted, or whose writes were cut off. Zeroing has the file system
note that pages are zeros; a scrub writes zeros over their blocks, and flushes. What a drive keeps
below its file system is out of reach.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.record.header import erased_page
from forebay.record.region import ContentsEntry, short, unpack_entries
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.transfer import overwrite_whole, write_whole, zero_whole
from forebay.tiers.catalog import Catalog, RecordPlace
from forebay.tiers.disk.regions.reader import RegionReader
from forebay.tiers.disk.regions.region import Region, unseal
from forebay.tiers.disk.regions.region_log import RegionLog

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Eraser:
    """Erases records in one directory, on a thread that may wait for the medium."""

    region_log: RegionLog
    catalog: Catalog[Region]
    disk: Disk
    failed: Callable[[], None]  # called for each record that the medium refuses to delete
    scrub: bool = False  # write zeros and flush, so that blocks do not keep their bytes

    def erase(self, namespace: bytes | None) -> int:
        """Wipe a namespace's records, or all; returns how many. Failed ones can be erased again."""
        count = 0
        with self.region_log.erasing():
            for region in self.region_log.regions():
                if not self.region_log.pin(region):
                    continue  # evicted meanwhile, with its records
                try:
                    count += self._erase_in(region, namespace)
                finally:
                    self.region_log.unpin(region)
        return count

    def _erase_in(self, region: Region, namespace: bytes | None) -> int:
        contents = self.region_log.contents(region)
        was_sealed = contents is None
        if contents is None:
            reader = RegionReader(self.disk, region.descriptor, region.size_bytes)
            contents = reader.contents(region.generation).packed
        doomed = [
            entry
            for entry in unpack_entries(contents)
            if namespace is None or entry.namespace == namespace
        ]
        wiped = {entry.offset for entry in doomed if self._erase_one(region, entry)}
        try:
            if wiped:
                self.region_log.drop_entries(region, wiped, contents)
            if wiped and was_sealed:
                unseal(self.disk, region)  # before its table is zeroed with the gaps
            self._erase_gaps(region, contents, wiped)
        except OSError as error:
            self.failed()
            _log.warning("%s keeps erased bytes (%s); try again", region.name, error.strerror)
        if refused := len(doomed) - len(wiped):
            _log.warning("%d records in %s could not be erased; try again", refused, region.name)
        return len(wiped)

    def _erase_one(self, region: Region, entry: ContentsEntry) -> bool:
        # Even a record stored since the erasure began must not be promised any more.
        place = RecordPlace(region.number, entry.offset, entry.length)
        self.catalog.forget(short(entry.key), place)
        try:
            wipe_header(self.disk, region, entry.offset)
        except OSError:
            self.failed()
            return False
        return True

    def _erase_gaps(self, region: Region, contents: bytes, wiped: set[int]) -> None:
        """Zero everything between records, where forgotten or cut-off records may lie."""
        with self.region_log.gaps(region, contents, wiped) as gaps:
            for start, end in gaps:
                size_bytes = end - start
                wipe = overwrite_whole if self.scrub else zero_whole
                wipe(self.disk, region.descriptor, start, size_bytes)  # verify: erased bytes
        if self.scrub:
            self.disk.sync(region.descriptor)


def wipe_header(disk: Disk, region: Region, offset: int) -> None:
    """Overwrite a record's header; OSError if that fails."""
    page = memory.allocate(PAGE_BYTES)
    page[:] = erased_page()
    write_whole(disk, region.descriptor, [page], offset)
