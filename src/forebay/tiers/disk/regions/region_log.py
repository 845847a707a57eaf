"""The region log: the regions of one directory, filled one after another, evicted whole.

The catalog decides which region is evicted first, since it knows what was asked for last.

A region holds records of one tenant, and each tenant that stores has one open region. Quotas decide
whose oldest region is evicted for the next one. A file is reused by its own tenant only; for
another tenant it is wiped and removed, so that no tenant's bytes lie in another's file.

`_changed` guards the open region, the list of full ones and the byte count. The I/O of opening the
next region (rolling) happens outside it, by one writer thread at a time, while the others wait.
"""

import errno
import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from forebay.record import region as layout
from forebay.record.header import DEFAULT_TENANT, RecordHeader, record_bytes
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.world import World
from forebay.tiers.catalog import Catalog
from forebay.tiers.contract import DropReason, EvictionCause, Forgotten
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.regions import region as regions
from forebay.tiers.disk.regions.directory import OpenDirectory, generation_in, region_name
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.disk.uses import DirectoryUses
from forebay.tiers.quotas import Quota, Quotas

_log: Final = logging.getLogger(__name__)
_WRITES_S: Final = 60.0  # how long to wait for writes to a region that has to go
_NOBODY: Final = b""  # no tenant's id
FULL_ERRNOS: Final = {errno.ENOSPC, errno.EDQUOT}


class RegionLogLimits(NamedTuple):
    """How much of its directory a region log may take."""

    drive: int  # the directory's number in the tier
    usable_bytes: int  # for all regions together
    region_bytes: int  # for a new one


class RegionLog:
    """Gives each record its place, and evicts old regions to make new ones."""

    def __init__(
        self,
        directory: OpenDirectory,
        catalog: Catalog[Region],
        options: Options,
        world: World,
        limits: RegionLogLimits,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._options = options
        self._disk, self._clock = world.disk, world.clock
        self._limits = limits
        self._changed = threading.Condition()
        self._is_rolling = False
        self._open: dict[bytes, Region] = {}  # by tenant
        self._full: list[Region] = []  # take no more records; oldest first
        self._quotas = Quotas()  # of region files, by tenant
        self._forgotten: frozenset[bytes] = frozenset()  # tenants that nothing is stored of
        self._generation = 0
        self._pause = (DropReason.NO_SPACE, 0.0)  # why, and until when, no new region is opened
        self._unlinked: list[int] = []  # descriptors of removed files that may still be being read
        self._to_remove: list[tuple[str, int]] = []  # files to remove, and the size they count for
        self._taken_names: set[str] = set()  # names of files found at the start; never reused
        self._forgetting: set[bytes] = set()  # tenants whose regions are being removed
        self._erasures = 0  # erasures under way
        self._waiting_to_place = 0  # writers that wait for a place
        self.uses = DirectoryUses()  # erasures, and whatever else works on files here
        self.allocated_bytes = 0
        self.evicted_regions = 0
        self.left_alone = 0  # files that are not ours, or not of this version

    @property
    def drive(self) -> int:
        """The directory's number in the tier."""
        return self._limits.drive

    @property
    def region_bytes(self) -> int:
        """The size of a new region."""
        return self._limits.region_bytes

    def add(self, region: Region, *, resume: bool) -> None:
        """Add a region found at a start, oldest first; the last may be filled further."""
        self._generation = max(self._generation, region.generation)
        self._taken_names.add(region.name)
        self.allocated_bytes += region.file_bytes
        self._quotas.take(region.tenant, region.file_bytes)
        if resume:
            self._open[region.tenant] = region
        else:
            region.full = True
            self._full.append(region)

    def leave_alone(self, name: str, size_bytes: int) -> None:
        """Count a file that is not ours: its name and its bytes are not reused."""
        self._taken_names.add(name)
        self.left_alone += 1
        self.allocated_bytes += size_bytes

    def remove_later(self, name: str, size_bytes: int) -> None:
        """Count a file that could not be removed; tried again before the next region is opened."""
        self._taken_names.add(name)
        self._to_remove.append((name, size_bytes))
        self.allocated_bytes += size_bytes

    @property
    def life_written_bytes(self) -> int:
        """The size of all regions ever begun here, counted at the size of a new one."""
        return self._generation * self._limits.region_bytes

    def regions(self) -> list[Region]:
        """All regions here, oldest first."""
        with self._changed:
            return sorted([*self._full, *self._open.values()], key=lambda each: each.generation)

    def resize(self, usable: int, region_bytes: int) -> None:
        """Use another cap from now on; regions that do not fit under it are removed at once.

        Called by one thread at a time; waits for the medium.
        """
        with self._changed:
            while self._is_rolling:
                self._changed.wait()
            self._is_rolling = True
            self._limits = self._limits._replace(usable_bytes=usable, region_bytes=region_bytes)
            unfit = self._end_open_regions() if self.allocated_bytes > usable else []
        try:
            for region in unfit:
                self._seal(region)
            while self.allocated_bytes > usable and (oldest := self._evict_any()) is not None:
                self._unlink(oldest)
        except OSError as error:
            _log.warning("%s is above its cap (%s)", self._directory.path, error.strerror)
        finally:
            with self._changed:
                self._is_rolling = False
                self._changed.notify_all()

    def _is_of_our_size(self, region: Region) -> bool:
        """Whether this region is at least as large as a new one; older ones may be smaller."""
        return region.size_bytes == region.file_bytes == self._limits.region_bytes

    def fits(self, length: int) -> bool:
        """Whether a payload of this size can ever have a place here."""
        return record_bytes(length) + 3 * PAGE_BYTES <= self._limits.region_bytes

    def place(self, length: int, tenant: bytes = DEFAULT_TENANT) -> tuple[Region, int] | DropReason:
        """Give a record its place, opening a new region if necessary; on a writer thread."""
        while True:
            with self._changed:
                self._wait_to_place()
                if tenant in self._forgotten:  # verify: nothing is stored of a forgotten tenant
                    return DropReason.FORGOTTEN
                region = self._open.get(tenant)
                offset = region.place(length) if region is not None else None
                if region is not None and offset is not None:
                    return region, offset
                if region is not None and not region.placed and self._is_of_our_size(region):
                    return DropReason.TOO_LARGE
                self._is_rolling = True
                sealable = self._end_open_region(tenant)
            if sealable is not None:
                self._seal(sealable)
            refused = self._roll(tenant)
            if refused is not None:
                return refused

    def _wait_to_place(self) -> None:
        """Wait for the next region or for an erasure, which lets waiting writers go first."""
        if not self._is_rolling:
            return
        self._waiting_to_place += 1
        self._changed.wait_for(lambda: not self._is_rolling)
        self._waiting_to_place -= 1
        self._changed.notify_all()

    def add_entry(self, region: Region, header: RecordHeader, offset: int) -> None:
        """A placed record has been written: from now on an erasure finds it."""
        with self._changed:
            region.contents += layout.pack_entry(header, offset)

    def contents(self, region: Region) -> bytes | None:
        """The packed entries of a pinned region; None if they are on the medium."""
        with self._changed:
            return None if region.is_sealed else bytes(region.contents)

    def drop_entries(self, region: Region, offsets: Container[int], contents: bytes = b"") -> None:
        """Forget records that are gone; `contents` is what a sealed region's table listed."""
        with self._changed:
            if region.is_sealed:
                region.is_sealed = False  # sealed again when nobody uses it
                region.contents = bytearray(contents)
            region.drop_entries(offsets)

    def end_use(self, region: Region, offset: int | None = None) -> None:
        """The record at `offset` was written, or will not be; seals the region if it is full."""
        with self._changed:
            sealable = region.end_use(offset)
            if sealable:
                region.begin_sealing()
            elif region.full:
                self._changed.notify_all()  # somebody may wait to remove it
        if sealable:
            self._seal(region)

    @contextmanager
    def erasing(self) -> Iterator[None]:
        """While this lasts no file is reused: its bytes may have to be erased."""
        with self._changed:
            while self._is_rolling:
                self._changed.wait()
            self._erasures += 1
        try:
            yield
        finally:
            with self._changed:
                self._erasures -= 1

    @contextmanager
    def gaps(
        self, region: Region, listed: bytes, wiped: Container[int]
    ) -> Iterator[list[tuple[int, int]]]:
        """See `Region.gaps`, for a pinned region; meanwhile no record is placed in it."""
        with self._changed:
            is_held = self._is_open(region)
            while is_held and (self._is_rolling or self._waiting_to_place):
                self._changed.wait()
                is_held = self._is_open(region)
            self._is_rolling = self._is_rolling or is_held
            found = region.gaps(listed, wiped)
        try:
            yield found
        finally:
            if is_held:
                with self._changed:
                    self._is_rolling = False
                    self._changed.notify_all()

    def pin(self, region: Region) -> bool:
        """Keep a region from being evicted or sealed until `unpin`; False if it is gone."""
        with self._changed:
            while self._is_rolling or region.is_sealing:
                self._changed.wait()
            if not (self._is_open(region) or region in self._full) or not self.uses.begin():
                return False
            region.users += 1
            return True

    def unpin(self, region: Region) -> None:
        """End a pin; the region is sealed if it is full and has no table of contents."""
        self.end_use(region)
        self.uses.end()

    def close(self) -> list[int]:
        """Seal open regions, after the last write and use; descriptors for the caller to close."""
        with self._changed:
            ended = self._end_open_regions()
        for region in ended:
            self._seal(region)
        return [region.descriptor for region in self._full] + self._unlinked

    def _is_open(self, region: Region) -> bool:
        return self._open.get(region.tenant) is region

    def _end_open_regions(self) -> list[Region]:
        """End every tenant's open region; returns those that can be sealed at once."""
        ended = [self._end_open_region(tenant) for tenant in list(self._open)]
        return [region for region in ended if region is not None]

    def _end_open_region(self, tenant: bytes) -> Region | None:
        """End a tenant's open region; returns it if it can be sealed at once."""
        region = self._open.pop(tenant, None)
        if region is None:
            return None
        region.full = True
        self._full.append(region)
        self._full.sort(key=lambda each: each.generation)
        if region.users:
            return None
        region.begin_sealing()
        return region

    def _seal(self, region: Region) -> None:
        """Write the table of contents; without it the region is walked at the next start."""
        try:
            regions.seal(self._disk, region)
        except OSError as error:
            _log.warning("%s has no table of contents (%s)", region.name, error.strerror)
        else:
            region.is_sealed = True
        with self._changed:
            if region.is_sealed:
                region.contents = bytearray()
            region.is_sealing = False
            region.users -= 1
            self._changed.notify_all()

    def _roll(self, tenant: bytes) -> DropReason | None:
        """Open a tenant's next region; the reason if that is not possible now."""
        opened: Region | DropReason = DropReason.IO_ERROR
        try:
            opened = self._next_region(tenant)
        except OSError as error:
            is_full = error.errno in FULL_ERRNOS
            opened = DropReason.NO_SPACE if is_full else DropReason.IO_ERROR
            # It failed once; requests during the pause are no further errors of the drive.
            reason = DropReason.NO_SPACE if is_full else DropReason.BUSY
            self._pause = (reason, self._clock.monotonic() + self._options.full_pause_s)
        finally:
            with self._changed:
                self._is_rolling = False
                if isinstance(opened, Region):
                    self._open[tenant] = opened
                self._changed.notify_all()
        return None if isinstance(opened, Region) else opened

    def _next_region(self, tenant: bytes) -> Region | DropReason:
        reason, until = self._pause
        if self._clock.monotonic() < until:
            return reason
        self._remove_leftovers()
        size_bytes = self._limits.region_bytes
        if not self._quotas.ever_fits(tenant, size_bytes):  # verify: cap below a region
            return DropReason.QUOTA
        while not self._has_room(tenant, size_bytes):
            oldest = self._evict(self._losers(tenant), EvictionCause.SPACE)
            if oldest is None:
                return DropReason.BUSY
            if self._can_recycle(oldest, tenant):
                region = self._recycle(oldest)
                break
            self._unlink(oldest)
        else:
            region = self._create(tenant)
        self._catalog.add_extent(region)
        return region

    def _has_room(self, tenant: bytes, size_bytes: int) -> bool:
        needed_bytes = self.allocated_bytes + size_bytes
        within = needed_bytes <= self._limits.usable_bytes  # verify: disk's cap
        return within and self._quotas.fits(tenant, size_bytes)

    def _losers(self, tenant: bytes) -> list[bytes]:
        """Tenants that may lose a region for this one."""
        with self._changed:
            return self._quotas.losers(tenant, self._limits.region_bytes)

    def _can_recycle(self, oldest: Region, tenant: bytes) -> bool:
        """Whether a tenant's next region may reuse the file of an evicted one."""
        is_own = oldest.tenant == tenant  # verify: no tenant's bytes in another's file
        within_caps = self.allocated_bytes <= self._limits.usable_bytes and self._quotas.fits(
            tenant, 0
        )
        return is_own and within_caps and self._is_of_our_size(oldest) and not self._erasures

    def _remove_leftovers(self) -> None:
        """Remove files that are to be removed; what fails stays counted and is tried again."""
        for name, size_bytes in self._to_remove.copy():
            try:
                self._disk.unlink(self._directory.descriptor, name)
            except FileNotFoundError:
                pass  # somebody else has removed it
            except OSError:
                continue
            self._to_remove.remove((name, size_bytes))
            self.allocated_bytes -= size_bytes

    def _evict(self, losers: Iterable[bytes], cause: EvictionCause) -> Region | None:
        """Evict a region of the first of these tenants that can lose one; None if none can.

        A tenant without full regions loses its open one.
        """
        for loser in losers:
            region = self._first_to_go(loser)
            if region is None or region.users:
                continue
            if region.number:
                self._catalog.drop_extent(region, cause)
                region.number = 0  # its records are forgotten, even if what follows fails
                self.evicted_regions += 1
            return region
        return None

    def _first_to_go(self, tenant: bytes) -> Region | None:
        """A tenant's full region to evict first, or its open one if it has no other.

        During an erasure this is the oldest: erasures begin there, so no region's file is removed
        with bytes in it that have yet to be wiped.
        """
        with self._changed:
            full = [each for each in self._full if each.tenant == tenant]
            if not full and (sealable := self._end_open_region(tenant)) is not None:
                sealable.end_sealing()
                return sealable
            if self._erasures:
                return full[0] if full else None
        if (forgotten := next((each for each in full if not each.number), None)) is not None:
            return forgotten
        return self._catalog.first_to_go([each for each in full if not each.users])

    def _evict_any(self) -> Region | None:
        """Evict a region, of a tenant that has more than its floor if there is one."""
        cause, holders = EvictionCause.RESIZED, sorted(self.held_by_tenants())
        return self._evict(self._losers(_NOBODY), cause) or self._evict(holders, cause)

    # Tenants.

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """Use other quotas from now on; `trim` evicts what exceeds lowered caps."""
        with self._changed:
            self._quotas.replace(quotas)

    def held_by_tenants(self) -> dict[bytes, int]:
        """Bytes of region files, by tenant."""
        with self._changed:
            return {tenant: self._quotas.used_bytes(tenant) for tenant in self._quotas.holders()}

    @property
    def is_to_trim(self) -> bool:
        """Whether `trim` has something to do now; does not wait for the medium."""
        with self._changed:
            return not self._is_rolling and bool(self._quotas.above_caps())

    def trim(self) -> None:
        """Evict what tenants have above lowered caps; waits for the medium."""
        with self._changed:
            above = self._quotas.above_caps()
            if not above or self._is_rolling:
                return
            self._is_rolling = True
        try:
            for tenant in above:
                while not self._quotas.fits(tenant, 0):
                    oldest = self._evict([tenant], EvictionCause.RESIZED)
                    if oldest is None:
                        break
                    self._unlink(oldest)
        except OSError as error:
            _log.warning("%s is above a tenant's cap (%s)", self._directory.path, error.strerror)
        finally:
            with self._changed:
                self._is_rolling = False
                self._changed.notify_all()

    def store_nothing_of(self, tenants: frozenset[bytes]) -> None:
        """From now on refuse stores of these tenants."""
        with self._changed:
            self._forgotten = tenants

    def forget(self, tenant: bytes, *, scrub: bool) -> Forgotten:
        """Wipe and remove all regions of a tenant whose stores are refused; waits."""
        with self._changed:
            while self._is_rolling or tenant in self._forgetting:
                self._changed.wait()
            self._forgetting.add(tenant)
            if (open_region := self._end_open_region(tenant)) is not None:
                open_region.end_sealing()
            doomed = [region for region in self._full if region.tenant == tenant]
            for region in doomed:
                region.users += 1  # so that nobody else evicts it
        try:
            return self._forget_regions(doomed, scrub=scrub)
        finally:
            with self._changed:
                self._forgetting.remove(tenant)
                self._changed.notify_all()

    def _forget_regions(self, doomed: list[Region], *, scrub: bool) -> Forgotten:
        records, size_bytes, failure = 0, 0, ""
        for region in doomed:
            try:
                with self.uses.one():
                    records += self._forget_region(region, scrub=scrub)
                size_bytes += region.file_bytes
            except OSError as error:
                failure = f"{self._directory.path}/{region.name}: {error.strerror}"
                with self._changed:
                    region.users -= 1
        return Forgotten(records, size_bytes, failure)

    def _forget_region(self, region: Region, *, scrub: bool) -> int:
        with self._changed:
            is_free = self._changed.wait_for(lambda: region.users <= 1, _WRITES_S)
        if not is_free:
            raise OSError(errno.EBUSY, "a write to it does not end")
        records = self._catalog.drop_extent(region, EvictionCause.CLEARED) if region.number else 0
        region.number = 0
        self._unlink(region, scrub=scrub)
        if scrub:
            self._disk.sync(self._directory.descriptor)
        return records

    def _create(self, tenant: bytes) -> Region:
        """Create a file and allocate every block of it before its first record."""
        name, size_bytes = self._next_name(), self._limits.region_bytes
        place = self._directory.descriptor
        descriptor = self._disk.open(
            place, name, create=True, direct=self._directory.direct, write=True
        )
        # Until it has become a region it is counted as a file to remove, in case anything fails.
        self._to_remove.append((name, size_bytes))
        self.allocated_bytes += size_bytes
        try:
            self._disk.preallocate(descriptor, size_bytes)
            region = self._begin(name, descriptor, tenant)
        except OSError:
            self._disk.close(descriptor)
            self._remove_leftovers()
            raise
        self._to_remove.remove((name, size_bytes))
        with self._changed:
            self._quotas.take(tenant, size_bytes)
        return region

    def _recycle(self, oldest: Region) -> Region:
        """Reuse the oldest region's file under a new name, so that no block is freed or allocated.

        If its first page cannot be written it is removed, or the next roll would take it again.
        """
        name = self._next_name()
        self._disk.rename(self._directory.descriptor, oldest.name, name)
        oldest.name = name
        try:
            region = self._begin(name, oldest.descriptor, oldest.tenant)
        except OSError:
            with suppress(OSError):
                self._unlink(oldest)
            raise
        oldest.is_gone = True
        with self._changed:
            self._full.remove(oldest)
        return region

    def _unlink(self, oldest: Region, *, scrub: bool = False) -> None:
        """Remove a file that is not reused; reads in flight may still use its descriptor.

        A tenant's file is wiped first, so that its bytes never appear in another file's blocks.
        OSError while the directory is closing, since removing several may take long.
        """
        oldest.is_gone = True  # from here on no read begins
        try:
            with self.uses.one():
                if scrub or oldest.tenant != DEFAULT_TENANT:
                    regions.wipe(self._disk, oldest, scrub=scrub)  # verify: wiped file
                if scrub:
                    self._disk.sync(oldest.descriptor)
                self._disk.unlink(self._directory.descriptor, oldest.name)
                with self._changed:
                    self._full.remove(oldest)
                    self._unlinked.append(oldest.descriptor)
                    self._quotas.give(oldest.tenant, oldest.file_bytes)
        except OSError:
            oldest.is_gone = False
            raise
        self.allocated_bytes -= oldest.file_bytes

    def take_unread(self, read: Callable[[], Collection[int]]) -> list[int]:
        """Descriptors of removed files that nobody reads any more; the caller has to close them.

        A file keeps its blocks until then. `read` tells which descriptors are being read, or will
        be.
        """
        with self._changed:
            removed, self._unlinked = self._unlinked, []
        if not removed:
            return []
        in_use = read()
        with self._changed:
            self._unlinked += [each for each in removed if each in in_use]
        return [each for each in removed if each not in in_use]

    def _next_name(self) -> str:
        self._generation += 1
        while region_name(self._generation) in self._taken_names:
            self._generation += 1
        return region_name(self._generation)

    def _begin(self, name: str, descriptor: int, tenant: bytes) -> Region:
        number = self._catalog.number()
        region = Region(number, name, generation_in(name), descriptor, self._limits.region_bytes)
        region.drive, region.begun_at = self._limits.drive, self._clock.monotonic()
        region.tenant = tenant
        regions.write_header(self._disk, region)
        return region
