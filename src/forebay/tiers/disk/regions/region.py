"""One region: a preallocated file that is filled once, from the front, and then evicted whole.

    [0, PAGE)              header
    [PAGE, end)            records that were given a place; the writer of each owns its bytes
    [end, size - PAGE)     free; must stay large enough for the table of contents
    [size - PAGE, size)    footer, once sealed

Not thread-safe: the drive that owns the region guards it.
"""

import errno
from collections.abc import Container

from forebay.record import region as layout
from forebay.record.header import record_bytes
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.transfer import overwrite_whole, write_whole, zero_whole
from forebay.tiers.catalog import Extent


class Region(Extent):
    """A region file that is open in this process."""

    __slots__ = (
        "contents",
        "descriptor",
        "drive",
        "end",
        "file_bytes",
        "full",
        "generation",
        "in_flight",
        "is_gone",
        "is_sealed",
        "is_sealing",
        "placed",
        "users",
    )

    def __init__(
        self, number: int, name: str, generation: int, descriptor: int, size_bytes: int
    ) -> None:
        super().__init__(number, name, size_bytes)  # whole pages
        self.generation = generation  # in the header of each of its records
        self.descriptor = descriptor
        self.drive = 0  # the number of its directory in the tier
        self.file_bytes = size_bytes  # what it counts for; more where a file ends within a page
        self.end = layout.FIRST_RECORD  # where the next record goes
        self.placed = 0  # records that were given a place, written or not
        self.users = 0  # writes and erasures under way: while there are any it is not evicted
        self.full = False  # takes no more records
        self.is_gone = False  # its file is removed, about to be, or another region's
        self.is_sealing = False  # its table of contents is being written
        self.is_sealed = False  # it has been
        self.in_flight: dict[int, int] = {}  # offset → bytes of records that are being written
        self.contents = bytearray()  # packed entries of what was written; emptied when sealed

    @property
    def is_sparse(self) -> bool:
        """Whether the file has fewer blocks than it is long: writing to it may take more."""
        return self.file_bytes < self.size_bytes

    def begin_sealing(self) -> None:
        """Until it is sealed nothing else may use the file."""
        self.users += 1
        self.is_sealing = True

    def end_sealing(self) -> None:
        """It goes without a table of contents."""
        self.users -= 1
        self.is_sealing = False

    def place(self, length: int) -> int | None:
        """Give a record of this payload a place; None if the region is too full for it."""
        size = record_bytes(length)
        contents = memory.padded((self.placed + 1) * layout.ENTRY_BYTES)
        if self.end + size + contents + PAGE_BYTES > self.size_bytes:
            return None
        offset = self.end
        self.end += size
        self.placed += 1
        self.users += 1
        self.in_flight[offset] = size
        return offset

    def end_use(self, offset: int | None = None) -> bool:
        """The write to `offset`, or an erasure, has ended; True if the region can be sealed now."""
        self.users -= 1
        self.in_flight.pop(offset or 0, None)
        assert self.users >= 0
        return self.full and self.users == 0 and not self.is_sealed

    def gaps(self, listed: bytes, wiped: Container[int]) -> list[tuple[int, int]]:
        """Start and end of what holds no record, between header and footer.

        `listed`: the entries that the region had; `wiped`: where a header was written over, which
        stays as it is. Of a sparse file only what is wiped: the rest must not be given blocks.
        """
        stop = self.size_bytes - PAGE_BYTES
        was_here = [each for each in layout.unpack_entries(listed) if each.offset in wiped]
        if self.is_sparse:
            ends = [min(stop, each.offset + record_bytes(each.length)) for each in was_here]
            return [
                (each.offset + PAGE_BYTES, end) for each, end in zip(was_here, ends, strict=True)
            ]
        entries = layout.unpack_entries(listed if self.is_sealed else self.contents)
        used = [(entry.offset, record_bytes(entry.length)) for entry in entries]
        used += self.in_flight.items()
        used += [(entry.offset, PAGE_BYTES) for entry in was_here]
        if self.is_sealed:
            used.append((self.end, memory.padded(len(listed))))  # the table
        return _complement(used, stop)

    def drop_entries(self, offsets: Container[int]) -> None:
        """Remove the entries of records that are gone from the medium."""
        assert not self.is_sealed
        size = layout.ENTRY_BYTES
        kept = [
            self.contents[number * size : (number + 1) * size]
            for number, entry in enumerate(layout.unpack_entries(self.contents))
            if entry.offset not in offsets
        ]
        self.contents = bytearray().join(kept)


def _complement(used: list[tuple[int, int]], stop: int) -> list[tuple[int, int]]:
    """Start and end of what lies between these (offset, size), from the first record's place."""
    found = []
    at = layout.FIRST_RECORD
    for offset, size in sorted(used):
        if at < min(offset, stop):
            found.append((at, min(offset, stop)))
        at = max(at, offset + size)
    return [*found, (at, stop)] if at < stop else found


def write_header(disk: Disk, region: Region) -> None:
    """Begin a region's generation: records of earlier ones in the file count no more."""
    page = memory.allocate(PAGE_BYTES)
    page[:] = layout.pack_header(
        layout.RegionHeader(region.generation, region.size_bytes, region.tenant)
    )
    write_whole(disk, region.descriptor, [page], 0)


def seal(disk: Disk, region: Region) -> None:
    """Write the table of contents, then the footer that vouches for it."""
    table_end = region.end + memory.padded(len(region.contents))
    if table_end + PAGE_BYTES > region.size_bytes:  # a file that was cut short may have no room
        raise OSError(errno.ENOSPC, "no room for a table of contents")
    contents = memory.allocate(len(region.contents))
    contents[: len(region.contents)] = region.contents
    page = memory.allocate(PAGE_BYTES)
    page[:] = layout.pack_footer(
        layout.Footer(
            region.generation,
            region.size_bytes,
            region.end,
            len(region.contents) // layout.ENTRY_BYTES,
            layout.contents_hash(bytes(region.contents)),
        )
    )
    if region.contents:
        write_whole(disk, region.descriptor, [contents], region.end)
    write_whole(disk, region.descriptor, [page], region.size_bytes - PAGE_BYTES)


def unseal(disk: Disk, region: Region) -> None:
    """Wipe the footer of a region that will take more records."""
    offset = region.size_bytes - PAGE_BYTES
    write_whole(disk, region.descriptor, [memory.allocate(PAGE_BYTES)], offset)


def wipe(disk: Disk, region: Region, *, scrub: bool = False) -> None:
    """Wipe a whole region. Killed at any point, the next start knows whose the rest is.

    The footer goes first, so that no table lists records that are gone, and the header last: it
    names the tenant. With `scrub` the blocks are overwritten.
    """
    erase = overwrite_whole if scrub else zero_whole
    unseal(disk, region)
    erase(disk, region.descriptor, PAGE_BYTES, region.size_bytes - PAGE_BYTES)
    erase(disk, region.descriptor, 0, PAGE_BYTES)
