"""Erasure: records that are deleted for good, wherever a copy of them lies.

The index knows the last copy of a key only; older ones, forgotten but not evicted yet, would come
back with a later start. So every region's table of contents is gone through. Records are wiped
first and the table follows: after a crash in between, a table lists what is gone, which a load
notices, or is not believed any more, and then the region is walked. Erasing again finishes it.

Payloads are zeroed with their headers, and so is everything between records: there lie payloads of
records that were evicted, or whose writes were cut off, in a file that is used again. Zeroing has
the file system say that pages are zeros; a scrub writes zeros over their blocks, and flushes. What
a drive keeps beneath its file system is beyond reach.
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
    """Erases in one directory; on a thread that may wait for the medium."""

    region_log: RegionLog
    catalog: Catalog[Region]
    disk: Disk
    failed: Callable[[], None]  # hears of each record that the medium refuses to lose
    scrub: bool = False  # write zeros and flush, where else blocks may keep what they had

    def erase(self, namespace: bytes | None) -> int:
        """Wipe a namespace's records, or all; how many. What was refused can be erased again."""
        count = 0
        with self.region_log.erasing():
            for region in self.region_log.regions():
                if not self.region_log.pin(region):
                    continue  # evicted meanwhile, and its records with it
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
                unseal(self.disk, region)  # before its table goes with the gaps
            self._erase_gaps(region, contents, wiped)
        except OSError as error:
            self.failed()
            _log.warning("%s keeps erased bytes (%s); try again", region.name, error.strerror)
        if refused := len(doomed) - len(wiped):
            _log.warning("%d records in %s could not be erased; try again", refused, region.name)
        return len(wiped)

    def _erase_one(self, region: Region, entry: ContentsEntry) -> bool:
        # A record that was stored since the erasure began must not be promised any more.
        place = RecordPlace(region.number, entry.offset, entry.length)
        self.catalog.forget(short(entry.key), place)
        try:
            wipe_header(self.disk, region, entry.offset)
        except OSError:
            self.failed()
            return False
        return True

    def _erase_gaps(self, region: Region, contents: bytes, wiped: set[int]) -> None:
        """Zero what no record lies in: it may hold one that was forgotten, evicted or cut off."""
        with self.region_log.gaps(region, contents, wiped) as gaps:
            for start, end in gaps:
                size_bytes = end - start
                wipe = overwrite_whole if self.scrub else zero_whole
                wipe(self.disk, region.descriptor, start, size_bytes)  # verify: erased bytes
        if self.scrub:
            self.disk.sync(region.descriptor)


def wipe_header(disk: Disk, region: Region, offset: int) -> None:
    """Write over a record's header; OSError if that cannot be done."""
    page = memory.allocate(PAGE_BYTES)
    page[:] = erased_page()
    write_whole(disk, region.descriptor, [page], offset)
