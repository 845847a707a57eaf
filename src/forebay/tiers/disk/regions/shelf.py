"""The shelf: the regions of one directory, filled one after another and evicted oldest first.

Only the writer threads of the directory change it. `_lock` guards the open region, the list of
sealed ones and the byte count; the I/O of opening the next region happens outside it, by one
writer at a time, while the others wait for `_rolled`.
"""

import errno
import logging
import threading
from collections import deque
from collections.abc import Container
from typing import Final, NamedTuple

from forebay.record import region as layout
from forebay.record.header import RecordHeader, record_bytes
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.world import World
from forebay.tiers.contract import DropReason
from forebay.tiers.disk.catalog import Catalog
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.regions import region as regions
from forebay.tiers.disk.regions.directory import OpenDirectory, generation_in, region_name
from forebay.tiers.disk.regions.region import Region

_log: Final = logging.getLogger(__name__)
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
        self._pause = (DropReason.NO_SPACE, 0.0)  # why, and until when, no region is opened
        self._unlinked: list[int] = []  # descriptors of files that are gone
        self._litter: list[tuple[str, int]] = []  # files to remove, and what they count for
        self._pins = 0  # regions that are being erased in
        self._is_closed = False
        self.allocated_bytes = 0
        self.evicted_regions = 0

    @property
    def drive(self) -> int:
        """The directory's number in the tier."""
        return self._room.drive

    def adopt(self, region: Region, *, resume: bool) -> None:
        """Take a region found at start, oldest first; the last may be filled further."""
        self._generation = max(self._generation, region.generation, generation_in(region.name))
        self.allocated_bytes += region.file_bytes
        if resume:
            self._open = region
        else:
            region.full = True
            self._sealed.append(region)

    def reserve_generation(self, generation: int, size_bytes: int) -> None:
        """Count a file that is left alone: neither its name nor its bytes are given away."""
        self._generation = max(self._generation, generation)
        self.allocated_bytes += size_bytes

    def litter(self, name: str, size_bytes: int) -> None:
        """Count a file that should be gone but is not; its removal is tried again before a roll."""
        self._litter.append((name, size_bytes))
        self.allocated_bytes += size_bytes

    def regions(self) -> list[Region]:
        """All regions here, oldest first."""
        with self._rolled:
            return [*self._sealed, self._open] if self._open is not None else list(self._sealed)

    def resize(self, usable: int, region_bytes: int) -> None:
        """Live under another cap from now on; regions that do not fit it any more go at once.

        Called by one thread at a time, which it may keep for a few unlinks.
        """
        with self._rolled:
            while self._is_rolling:
                self._rolled.wait()
            self._is_rolling = True
            self._room = self._room._replace(usable_bytes=usable, region_bytes=region_bytes)
            unfit = self._retire_open() if self.allocated_bytes > usable else None
        try:
            if unfit is not None:
                self._seal(unfit)
            while self.allocated_bytes > usable and (oldest := self._evict()) is not None:
                self._unlink(oldest)
        except OSError as error:
            _log.warning("%s is above its cap (%s)", self._directory.path, error.strerror)
        finally:
            with self._rolled:
                self._is_rolling = False
                self._rolled.notify_all()

    def _is_of_our_size(self, region: Region) -> bool:
        """Whether a new region would hold no more: an older one may be smaller."""
        return region.size_bytes == region.file_bytes == self._room.region_bytes

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
                if region is not None and not region.placed and self._is_of_our_size(region):
                    return DropReason.TOO_LARGE
                self._is_rolling = True
                sealable = self._retire_open()
            if sealable is not None:
                self._seal(sealable)
            refused = self._roll()
            if refused is not None:
                return refused

    def note(self, region: Region, header: RecordHeader, offset: int) -> None:
        """A placed record is on the medium: from now on an erasure finds it."""
        with self._rolled:
            region.contents += layout.pack_entry(header, offset)

    def contents(self, region: Region) -> bytes | None:
        """The packed entries of a pinned region; None: they are on the medium."""
        with self._rolled:
            return None if region.is_sealed else bytes(region.contents)

    def strike(self, region: Region, offsets: Container[int], contents: bytes = b"") -> None:
        """Records are gone from the medium; `contents` is what a sealed region's table said."""
        with self._rolled:
            if region.is_sealed:
                region.is_sealed = False  # sealed anew when it is left
                region.contents = bytearray(contents)
            region.strike(offsets)

    def leave(self, region: Region) -> None:
        """A placed record is done with, written or not."""
        with self._rolled:
            sealable = region.leave()
            if sealable:
                _begin_sealing(region)
        if sealable:
            self._seal(region)

    def pin(self, region: Region) -> bool:
        """Keep a region from being evicted or sealed until `unpin`; False if it is gone already."""
        with self._rolled:
            while self._is_rolling or region.is_sealing:
                self._rolled.wait()
            if self._is_closed or not (region is self._open or region in self._sealed):
                return False
            region.writing += 1
            self._pins += 1
            return True

    def unpin(self, region: Region) -> None:
        """Let a region go; it is sealed if it is full and has no table of contents."""
        self.leave(region)
        with self._rolled:
            self._pins -= 1
            self._rolled.notify_all()

    def retire(self, timeout_s: float) -> bool:
        """Allow no further erasure and wait for those under way; False if they last too long."""
        with self._rolled:
            self._is_closed = True
            return self._rolled.wait_for(lambda: not self._pins, timeout_s)

    def close(self) -> list[int]:
        """Seal the open region, with nobody at work any more; hands descriptors to the caller."""
        with self._rolled:
            region = self._retire_open()
        if region is not None:
            self._seal(region)
        return [region.descriptor for region in self._sealed] + self._unlinked

    def _retire_open(self) -> Region | None:
        """Take no more records into the open region; it, if it can be sealed at once."""
        region, self._open = self._open, None
        if region is None:
            return None
        region.full = True
        self._sealed.append(region)
        if region.writing:
            return None
        _begin_sealing(region)
        return region

    def _seal(self, region: Region) -> None:
        """Write the table of contents; without it the region is walked at the next start."""
        try:
            regions.seal(self._disk, region)
        except OSError as error:
            _log.warning("%s has no table of contents (%s)", region.name, error.strerror)
        else:
            region.is_sealed = True
        with self._rolled:
            if region.is_sealed:
                region.contents = bytearray()
            region.is_sealing = False
            region.writing -= 1
            self._rolled.notify_all()

    def _roll(self) -> DropReason | None:
        """Open the next region; the reason if that cannot be done now."""
        opened: Region | DropReason = DropReason.IO_ERROR
        try:
            opened = self._next_region()
        except OSError as error:
            opened = DropReason.NO_SPACE if error.errno in FULL else DropReason.IO_ERROR
            self._pause = (opened, self._clock.monotonic() + self._options.full_pause_s)
        finally:
            with self._rolled:
                self._is_rolling = False
                if isinstance(opened, Region):
                    self._open = opened
                self._rolled.notify_all()
        return None if isinstance(opened, Region) else opened

    def _next_region(self) -> Region | DropReason:
        reason, until = self._pause
        if self._clock.monotonic() < until:
            return reason
        self._sweep()
        while self.allocated_bytes + self._room.region_bytes > self._room.usable_bytes:
            oldest = self._evict()
            if oldest is None:
                return DropReason.BUSY
            within_cap = self.allocated_bytes <= self._room.usable_bytes
            if within_cap and self._is_of_our_size(oldest):
                region = self._recycle(oldest)
                break
            self._unlink(oldest)
        else:
            region = self._create()
        self._catalog.add_region(region)
        return region

    def _sweep(self) -> None:
        """Remove what has to go; what cannot be removed stays counted until the next roll."""
        for name, size_bytes in self._litter.copy():
            try:
                self._disk.unlink(self._directory.descriptor, name)
            except FileNotFoundError:
                pass  # somebody else has done it
            except OSError:
                continue
            self._litter.remove((name, size_bytes))
            self.allocated_bytes -= size_bytes

    def _evict(self) -> Region | None:
        """The oldest region, its records forgotten; None if all are still being written."""
        with self._rolled:
            oldest = self._sealed[0] if self._sealed else None
        if oldest is None or oldest.writing:
            return None
        if oldest.number:
            self._catalog.drop_region(oldest)
            oldest.number = 0  # forgotten already, if what follows fails and is tried again
            self.evicted_regions += 1
        return oldest

    def _create(self) -> Region:
        """A new file, every block of it allocated before its first record."""
        name = self._next_name()
        place = self._directory.descriptor
        descriptor = self._disk.open(
            place, name, create=True, direct=self._directory.direct, write=True
        )
        self.allocated_bytes += self._room.region_bytes  # from before it is until after it is gone
        try:
            self._disk.preallocate(descriptor, self._room.region_bytes)
            return self._begin(name, descriptor)
        except OSError:
            self._disk.close(descriptor)
            self._litter.append((name, self._room.region_bytes))
            self._sweep()
            raise

    def _recycle(self, oldest: Region) -> Region:
        """The oldest region's file under a new name: no block is freed, none allocated."""
        name = self._next_name()
        self._disk.rename(self._directory.descriptor, oldest.name, name)
        oldest.name = name
        region = self._begin(name, oldest.descriptor)
        with self._rolled:
            self._sealed.popleft()
        return region

    def _unlink(self, oldest: Region) -> None:
        """Remove a file of another size; reads in flight may still use its descriptor."""
        self._disk.unlink(self._directory.descriptor, oldest.name)
        with self._rolled:
            self._unlinked.append(self._sealed.popleft().descriptor)
        self.allocated_bytes -= oldest.file_bytes

    def _next_name(self) -> str:
        self._generation += 1
        return region_name(self._generation)

    def _begin(self, name: str, descriptor: int) -> Region:
        number = self._catalog.number()
        region = Region(number, name, generation_in(name), descriptor, self._room.region_bytes)
        region.drive = self._room.drive
        regions.write_header(self._disk, region)
        return region


def _begin_sealing(region: Region) -> None:
    """Until it is sealed nothing else may use the file."""
    region.writing += 1
    region.is_sealing = True
