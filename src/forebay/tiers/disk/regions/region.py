"""One region: a preallocated file, filled once from the front, and evicted as a whole.

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
        super().__init__(number, name, size_bytes)  # size in whole pages
        self.generation = generation  # in the header of each of its records
        self.descriptor = descriptor
        self.drive = 0  # the number of its directory in the tier
        self.file_bytes = size_bytes  # size that counts; more if the file ends within a page
        self.end = layout.FIRST_RECORD  # where the next record goes
        self.placed = 0  # number of records that were given a place
        self.users = 0  # writes and erasures under way, during which it is not evicted
        self.full = False  # it takes no more records
        self.is_gone = False  # its file is removed, about to be, or reused
        self.is_sealing = False  # its table of contents is being written
        self.is_sealed = False  # its table of contents is written
        self.in_flight: dict[int, int] = {}  # offset → bytes of records that are being written
        self.contents = bytearray()  # packed entries of written records; emptied when sealed

    @property
    def is_sparse(self) -> bool:
        """Whether the file lacks blocks, so that writing to it may take more of them."""
        return self.file_bytes < self.size_bytes

    def begin_sealing(self) -> None:
        """Begin to seal: until it has ended, nothing else may use the file."""
        self.users += 1
        self.is_sealing = True

    def end_sealing(self) -> None:
        """The region goes away without a table of contents."""
        self.users -= 1
        self.is_sealing = False

    def place(self, length: int) -> int | None:
        """Give a record a place; None if the region is too full for its payload."""
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
        """A write to `offset`, or an erasure, has ended; True if the region can be sealed now."""
        self.users -= 1
        self.in_flight.pop(offset or 0, None)
        assert self.users >= 0
        return self.full and self.users == 0 and not self.is_sealed

    def gaps(self, listed: bytes, wiped: Container[int]) -> list[tuple[int, int]]:
        """(start, end) of everything between header and footer that holds no record.

        `listed`: the region's entries before an erasure; `wiped`: offsets whose header was
        overwritten, which stay as they are. In a sparse file only what was wiped: the rest must not
        get blocks.
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
    """(start, end) of everything outside these (offset, size), after the header."""
    found = []
    at = layout.FIRST_RECORD
    for offset, size in sorted(used):
        if at < min(offset, stop):
            found.append((at, min(offset, stop)))
        at = max(at, offset + size)
    return [*found, (at, stop)] if at < stop else found


def write_header(disk: Disk, region: Region) -> None:
    """Begin a region's generation: earlier generations' records in the file do not count."""
    page = memory.allocate(PAGE_BYTES)
    page[:] = layout.pack_header(
        layout.RegionHeader(region.generation, region.size_bytes, region.tenant)
    )
    write_whole(disk, region.descriptor, [page], 0)


def seal(disk: Disk, region: Region) -> None:
    """Write the table of contents, then the footer that proves it."""
    table_end = region.end + memory.padded(len(region.contents))
    if table_end + PAGE_BYTES > region.size_bytes:  # a truncated file may have no room
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
    """Wipe the footer of a region that is to take more records."""
    offset = region.size_bytes - PAGE_BYTES
    write_whole(disk, region.descriptor, [memory.allocate(PAGE_BYTES)], offset)


def wipe(disk: Disk, region: Region, *, scrub: bool = False) -> None:
    """Wipe a whole region; if killed at any point, the next start knows whose the rest is.

    The footer goes first, so that no table lists records that are gone; the header, which names the
    tenant, goes last. `scrub` overwrites the blocks.
    """
    erase = overwrite_whole if scrub else zero_whole
    unseal(disk, region)
    erase(disk, region.descriptor, PAGE_BYTES, region.size_bytes - PAGE_BYTES)
    erase(disk, region.descriptor, 0, PAGE_BYTES)
