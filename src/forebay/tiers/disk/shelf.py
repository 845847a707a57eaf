"""The shelf: the regions of one directory, filled one after another and evicted oldest first.

Only the writer threads of the directory change it. `_lock` guards the open region, the list of
sealed ones and the byte count; the I/O of opening the next region happens outside it, by one
writer at a time, while the others wait for `_rolled`.
"""

import errno
import threading
from collections import deque
from typing import Final, NamedTuple

from forebay.record.header import RecordHeader, record_bytes
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.world import World
from forebay.tiers.contract import DropReason
from forebay.tiers.disk import region as regions
from forebay.tiers.disk.catalog import Catalog
from forebay.tiers.disk.directory import OpenDirectory, region_name
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.region import Region

FULL: Final = {errno.ENOSPC, errno.EDQUOT}


class Room(NamedTuple):
    """What a shelf may take."""

    drive: int  # the directory's number in the tier
    usable_bytes: int  # for all regions together
    region_bytes: int  # for a new one


class Shelf:
    """Gives records their places and makes room for them."""

    def __init__(
        self,
        directory: OpenDirectory,
        catalog: Catalog,
        options: Options,
        world: World,
        room: Room,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._options = options
        self._disk, self._clock = world.disk, world.clock
        self._room = room
        self._rolled = threading.Condition()
        self._is_rolling = False
        self._open: Region | None = None
        self._sealed: deque[Region] = deque()  # oldest first; whole, but for what evicts them
        self._generation = 0
        self._full_until = 0.0
        self.allocated_bytes = 0
        self.evicted_regions = 0

    @property
    def drive(self) -> int:
        """The directory's number in the tier."""
        return self._room.drive

    def adopt(self, region: Region, *, resume: bool) -> None:
        """Take a region found at start, oldest first; the last may be filled further."""
        self._generation = max(self._generation, region.generation, int(region.name[-16:], 16))
        self.allocated_bytes += region.size_bytes
        if resume:
            self._open = region
        else:
            region.full = True
            self._sealed.append(region)

    def reserve_generation(self, generation: int, size_bytes: int) -> None:
        """Count a file that is left alone: neither its name nor its bytes are given away."""
        self._generation = max(self._generation, generation)
        self.allocated_bytes += size_bytes

    def numbers(self) -> list[int]:
        """The numbers of all regions here."""
        with self._rolled:
            found = [region.number for region in self._sealed]
            return [*found, self._open.number] if self._open is not None else found

    def fits(self, length: int) -> bool:
        """Whether a record of this payload can ever have a place here."""
        return record_bytes(length) + 3 * PAGE_BYTES <= self._room.region_bytes

    def place(self, length: int) -> tuple[Region, int] | DropReason:
        """Give a record its place, opening the next region if it must be; on a writer thread."""
        while True:
            with self._rolled:
                while self._is_rolling:
                    self._rolled.wait()
                region = self._open
                offset = region.place(length) if region is not None else None
                if region is not None and offset is not None:
                    return region, offset
                if region is not None:
                    region.full = True
                    self._open = None
                    self._sealed.append(region)
                seal_now = region is not None and region.writing == 0
                self._is_rolling = True
            if region is not None and seal_now:
                self._seal(region)
            refused = self._roll()
            if refused is not None:
                return refused

    def written(self, region: Region, header: RecordHeader | None) -> None:
        """A placed record is on the medium, or failed (None)."""
        with self._rolled:
            sealable = region.written(header)
        if sealable:
            self._seal(region)

    def close(self) -> None:
        """Seal the open region; no writer is left."""
        with self._rolled:
            region, self._open = self._open, None
        if region is not None and region.writing == 0:
            self._seal(region)
            self._sealed.append(region)

    def descriptors(self) -> list[int]:
        """The descriptors of all regions here."""
        with self._rolled:
            return [region.descriptor for region in self._sealed]

    def _seal(self, region: Region) -> None:
        """Write the table of contents; without it the region is walked at the next start."""
        try:
            regions.seal(self._disk, region)
        except OSError:
            pass
        finally:
            region.contents = bytearray()

    def _roll(self) -> DropReason | None:
        """Open the next region; the reason if that cannot be done now."""
        opened: Region | DropReason = DropReason.IO_ERROR
        try:
            opened = self._next_region()
        except OSError as error:
            opened = DropReason.NO_SPACE if error.errno in FULL else DropReason.IO_ERROR
            self._full_until = self._clock.monotonic() + self._options.full_pause_s
        finally:
            with self._rolled:
                self._is_rolling = False
                if isinstance(opened, Region):
                    self._open = opened
                self._rolled.notify_all()
        return None if isinstance(opened, Region) else opened

    def _next_region(self) -> Region | DropReason:
        if self._clock.monotonic() < self._full_until:
            return DropReason.NO_SPACE
        if self.allocated_bytes + self._room.region_bytes <= self._room.usable_bytes:
            region = self._create()
        else:
            recycled = self._recycle()
            if recycled is None:
                return DropReason.BUSY
            region = recycled
        self._catalog.add_region(region)
        return region

    def _create(self) -> Region:
        """A new file, every block of it allocated before its first record."""
        name = region_name(self._generation + 1)
        place = self._directory.descriptor
        descriptor = self._disk.open(
            place, name, create=True, direct=self._directory.direct, write=True
        )
        try:
            self._disk.preallocate(descriptor, self._room.region_bytes)
            region = self._begin(name, descriptor, self._room.region_bytes)
        except OSError:
            self._disk.close(descriptor)
            self._disk.unlink(place, name)
            raise
        self.allocated_bytes += self._room.region_bytes
        return region

    def _recycle(self) -> Region | None:
        """The oldest region's file under a new name; its records are forgotten first."""
        with self._rolled:
            oldest = self._sealed[0] if self._sealed else None
            if oldest is None or oldest.writing:
                return None
        if oldest.number:
            self._catalog.drop_region(oldest)
            oldest.number = 0  # forgotten, if the following fails and is tried again
            self.evicted_regions += 1
        name = region_name(self._generation + 1)
        self._disk.rename(self._directory.descriptor, oldest.name, name)
        oldest.name = name
        self._generation += 1
        region = self._begin(name, oldest.descriptor, oldest.size_bytes)
        with self._rolled:
            self._sealed.popleft()
        return region

    def _begin(self, name: str, descriptor: int, size_bytes: int) -> Region:
        generation = int(name[-16:], 16)
        self._generation = max(self._generation, generation)
        number = self._catalog.number()
        region = Region(number, name, generation, descriptor, size_bytes)
        region.drive = self._room.drive
        regions.write_header(self._disk, region)
        return region
