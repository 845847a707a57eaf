"""The disk tier itself: opens the directories and spreads records over their drives."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from typing import Final, Self

from forebay.errors import DirectoryError, MediumError, StartupError
from forebay.record.forgotten import FORGOTTEN_MAX
from forebay.record.header import DEFAULT_TENANT, Digest, RecordName
from forebay.record.region import short
from forebay.sys import memory
from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.tiers.catalog import Catalog
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Forgotten,
    LargestNamespaces,
    LoadOutcome,
    Miss,
    MissReason,
    NamespaceUsage,
    Prefix,
    StoreOutcome,
    Tier,
    TierListener,
    Usage,
    VolumeProbe,
    VolumeStatus,
)
from forebay.tiers.disk.drive import Drive
from forebay.tiers.disk.options import Directory, Options
from forebay.tiers.disk.queue import LoadJob, StoreJob
from forebay.tiers.disk.regions.data_keys import DataKeys
from forebay.tiers.disk.regions.directory import region_bytes, usable_bytes
from forebay.tiers.disk.regions.forgotten import read_forgotten, write_forgotten
from forebay.tiers.disk.regions.recovery import (
    RecoveredDirectory,
    close_directory,
    recover_directory,
)
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.quotas import FLOORS, Quota, floors_bytes

_log: Final = logging.getLogger(__name__)


class DiskTier(Tier):
    """Records on one or more drives."""

    name = "disk"
    quotas_of = "disk"

    def __init__(
        self,
        drives: Sequence[Drive],
        caps_bytes: list[int],
        catalog: Catalog[Region],
        options: Options,
        clock: Clock,
    ) -> None:
        self._drives = drives
        self._missing: list[str] = []  # directories that could not be opened
        self._keys: DataKeys | None = None  # keys of encrypted records, if any
        self._forgotten: frozenset[bytes] = frozenset()  # tenants, by id
        self._remembering = threading.Lock()  # held while a forgotten tenant is noted
        self._caps_bytes = caps_bytes
        self._catalog = catalog
        self._options = options
        self._clock = clock
        self._quotas: dict[bytes, Quota] = {DEFAULT_TENANT: Quota()}
        self._stop = threading.Event()
        self._watch = threading.Thread(
            target=self._watch_forever, name="forebay-watch", daemon=True
        )

    @classmethod
    def open(
        cls,
        directories: Sequence[Directory],
        options: Options | None = None,
        world: World | None = None,
        listener: TierListener | None = None,
    ) -> Self:
        """Open the directories and find their records; DirectoryError if one cannot be used.

        A directory whose medium fails is left out until the next start. A record whose parent is
        evicted stays while the listener says that another tier has the parent's chunk, until
        `lost`.
        """
        options, world = options or Options(), world or World()
        catalog: Catalog[Region] = Catalog(listener)
        opened, missing = _recover(directories, catalog, options, world)
        keys = None
        if options.keyring is not None:
            tables = {taken.directory: taken.keys for taken in opened.values()}
            keys = DataKeys(world.disk, tables, options.keyring)
        forgotten = _finish_forgetting(list(opened.values()), catalog, world)
        for failure in _destroy_keys(keys, forgotten):
            _log.warning("%s", failure)
        orphans = catalog.restore(
            (region, found.entries())
            for taken in opened.values()
            for region, found in taken.found
            if region.tenant not in forgotten  # verify: nothing restored of a forgotten tenant
        )
        if orphans:
            _log.info("%d records have lost their prefix and are forgotten", orphans)
        drives = [
            Drive(taken.directory, taken.region_log, catalog, options, world, keys=keys)
            for taken in opened.values()
        ]
        caps_bytes = [wanted.cap_bytes for wanted in opened]
        tier = cls(drives, caps_bytes, catalog, options, world.clock)
        tier._missing, tier._keys, tier._forgotten = missing, keys, forgotten
        try:
            for drive in drives:
                drive.start()
            tier._watch.start()
        except RuntimeError as error:
            raise StartupError(f"the pool cannot have its threads ({error}).") from None
        return tier

    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        """See Tier."""
        return Prefix(self._catalog.prefix(keys))

    def submit_load(
        self,
        name: RecordName,
        target: memoryview,
        done: Callable[[LoadOutcome], None],
        deadline: float,
    ) -> None:
        """See Tier."""
        assert memory.is_aligned(target)
        found = self._catalog.find(short(name.key))
        if found is None:
            done(Miss(MissReason.ABSENT))
            return
        region, place = found
        if memory.padded(place.length) > target.nbytes:
            done(Miss(MissReason.WRONG_RECORD))  # of another size than was asked for
            return
        drive = self._drives[region.drive]
        drive.submit_load(LoadJob(name, region, place, target, done, deadline))

    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: Callable[[StoreOutcome], None],
        digest: Digest | None = None,
    ) -> None:
        """See Tier."""
        assert memory.is_aligned(source)
        assert 0 < length <= source.nbytes
        drive = self._choose(length)
        refused = drive if isinstance(drive, DropReason) else self._catalog.reserve(name)
        if refused is not None or isinstance(drive, DropReason):
            done(Dropped(refused or DropReason.TIER_OFF))
            return
        drive.assigned_bytes += length
        drive.submit_store(StoreJob(name, source, length, done, digest))

    def remove(self, key: bytes) -> None:
        """See Tier."""
        self._catalog.forget(short(key))

    def lost(self, key: bytes) -> None:
        """See Tier."""
        self._catalog.lost(short(key))

    def has(self, key: bytes) -> bool:
        """See Tier."""
        return self._catalog.has(short(key))

    def length_of(self, key: bytes) -> int | None:
        """See Tier."""
        found = self._catalog.find(short(key))
        if found is None or not self._drives[found[0].drive].health.is_on:
            return None
        return found[1].length

    def used(self, key: bytes, at: float) -> None:
        """See Tier."""
        self._catalog.mark_used(short(key), at)

    def asked(self, keys: Sequence[bytes]) -> None:
        """See Tier."""
        self._catalog.asked([short(key) for key in keys])

    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """See Tier."""
        return self._catalog.namespaces()

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """See Tier."""
        return self._catalog.usage_of(namespaces)

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """See Tier."""
        return self._catalog.largest_namespaces(limit)

    def erase(self, namespace: bytes | None, *, scrub: bool = False) -> int:
        """See Tier."""
        self._catalog.forget_namespace(namespace)
        return sum(drive.erase(namespace, scrub=scrub) for drive in self._drives)

    def forgotten(self) -> frozenset[bytes]:
        """See Tier."""
        return self._forgotten

    def remember_forgotten(self, tenant: bytes) -> str:
        """See Tier."""
        with self._remembering:  # otherwise two calls could each leave out the other's
            return self._remember_one_more(tenant)

    def _remember_one_more(self, tenant: bytes) -> str:
        forgotten = self._forgotten | {tenant}
        if len(forgotten) > FORGOTTEN_MAX:  # verify: how many are forgotten
            return f"more than {FORGOTTEN_MAX} tenants were forgotten here; empty the directories"
        for number, drive in enumerate(self._drives):
            failure = drive.remember_forgotten(forgotten)
            if failure:
                return self._remember_no_more(number, failure)
        self._forgotten = forgotten
        return ""

    def _remember_no_more(self, count: int, failure: str) -> str:
        """One directory cannot note a forgotten tenant, so undo it in those that did."""
        left = [drive.remember_forgotten(self._forgotten) for drive in self._drives[:count]]
        if any(left):
            failure += "; the next start forgets it where it can"
        return failure

    def forget(self, tenant: bytes, *, scrub: bool) -> Forgotten:
        """See Tier."""
        failures = [f"{path} is not open" for path in self._missing]
        failures += _destroy_keys(self._keys, [tenant], self._in_use)
        found = [drive.region_log.forget(tenant, scrub=scrub) for drive in self._drives]
        failures += [each.failure for each in found if each.failure]
        records, size_bytes = sum(each.records for each in found), sum(e.size_bytes for e in found)
        return Forgotten(records, size_bytes, "; ".join(failures))

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """See Tier."""
        self._quotas = dict(quotas)
        total_bytes = sum(self._caps_bytes)
        for drive, cap_bytes in zip(self._drives, self._caps_bytes, strict=True):
            share = Fraction(cap_bytes, total_bytes)
            drive.set_quotas({tenant: quota.part(share) for tenant, quota in quotas.items()})

    def held_by_tenants(self) -> dict[bytes, int]:
        """See Tier."""
        held = Counter[bytes]()
        for drive in self._drives:
            held.update(drive.region_log.held_by_tenants())
        return dict(held)

    def resize(self, path: str, cap_bytes: int) -> bool:
        """See Tier."""
        for number, drive in enumerate(self._drives):
            if drive.directory.path == path:
                try:
                    with drive.region_log.uses.one():
                        self._resize(number, cap_bytes)
                except OSError as error:
                    raise DirectoryError(f"{path} keeps its cap: {error.strerror}.") from None
                return True
        return False

    def _resize(self, number: int, cap_bytes: int) -> None:
        drive = self._drives[number]
        path = drive.directory.path
        drive.check_cap(cap_bytes)
        lost_bytes = self._caps_bytes[number] - cap_bytes
        left_bytes = sum(self._caps_bytes) - lost_bytes
        if lost_bytes > 0 and left_bytes < floors_bytes(self._quotas):
            raise DirectoryError(f"{path} cannot be so small: {FLOORS}.")
        size = region_bytes(Directory(path, cap_bytes), self._options.region_bytes)
        drive.region_log.resize(usable_bytes(cap_bytes), size)
        self._caps_bytes[number] = cap_bytes
        self.set_quotas(self._quotas)

    def rotate(self) -> None:
        """See Tier."""
        if self._keys is not None:
            with self._in_use():
                self._keys.rotate()

    def _in_use(self) -> ExitStack:
        """While this lasts no directory is closed; an OSError if one is closing."""
        with ExitStack() as uses:
            for drive in self._drives:
                uses.enter_context(drive.region_log.uses.one())
            return uses.pop_all()

    def probe(self, done: Callable[[VolumeProbe], None]) -> int:
        """See Tier."""
        for number, drive in enumerate(self._drives):
            drive.probe(partial(_tell, done, number))
        for number in range(len(self._missing)):
            done(VolumeProbe(len(self._drives) + number, MissReason.TIER_OFF))
        return len(self._drives) + len(self._missing)

    def usage(self) -> Usage:
        """See Tier."""
        records, payload_bytes = self._catalog.counts()
        used = sum(drive.region_log.allocated_bytes for drive in self._drives)
        return Usage(records, payload_bytes, used, sum(self._caps_bytes))

    def volumes(self) -> list[VolumeStatus]:
        """See Tier."""
        return [
            VolumeStatus(
                drive.directory.path,
                drive.health.is_on,
                drive.health.errors,
                drive.read_bytes,
                drive.written_bytes,
                drive.region_log.allocated_bytes,
                drive.region_log.evicted_regions,
                drive.region_log.left_alone,
                drive.region_log.life_written_bytes,
            )
            for drive in self._drives
        ] + [VolumeStatus(path, False, 1, 0, 0, 0, 0) for path in self._missing]

    def close(self, timeout_s: float) -> None:
        """See Tier."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._watch.join(timeout_s)
        until = self._clock.monotonic() + timeout_s
        for drive in self._drives:
            drive.close(max(0.0, until - self._clock.monotonic()))

    def _choose(self, length: int) -> Drive | DropReason:
        """The drive with the least assigned for its size, or why there is none."""
        healthy = [
            (drive.assigned_bytes / cap_bytes, drive.region_log.drive, drive)
            for drive, cap_bytes in zip(self._drives, self._caps_bytes, strict=True)
            if drive.health.is_on
        ]
        if not healthy:
            return DropReason.TIER_OFF
        fitting = [entry for entry in healthy if entry[2].region_log.fits(length)]
        return min(fitting)[2] if fitting else DropReason.TOO_LARGE

    def _watch_forever(self) -> None:
        unavailable: list[int] = []
        while not self._stop.wait(self._options.tick_s):
            now = self._clock.monotonic()
            for drive in self._drives:
                drive.tick(now)
            off = [drive for drive in self._drives if not drive.health.is_on]
            if off or unavailable:
                unavailable = [
                    region.number for drive in off for region in drive.region_log.regions()
                ]
                self._catalog.set_unavailable(unavailable)


def _tell(done: Callable[[VolumeProbe], None], volume: int, failure: str) -> None:
    done(VolumeProbe(volume, failure))


def _destroy_keys(
    keys: DataKeys | None,
    tenants: Iterable[bytes],
    use: Callable[[], ExitStack] = ExitStack,
) -> list[str]:
    """Destroy tenants' data keys while the directories are in use; why one is left, if so."""
    failures: list[str] = []
    if keys is None:
        return failures
    for tenant in tenants:
        try:
            with use():
                keys.forget(tenant)
        except OSError as error:
            failures.append(f"a forgotten tenant's key is left ({error.strerror})")
    return failures


def _finish_forgetting(
    opened: Sequence[RecoveredDirectory], catalog: Catalog[Region], world: World
) -> frozenset[bytes]:
    """Remove what is left of tenants that any directory remembers as forgotten."""
    remembered = [read_forgotten(world.disk, taken.directory) for taken in opened]
    forgotten = frozenset().union(*remembered)
    for taken, known in zip(opened, remembered, strict=True):
        taken.region_log.store_nothing_of(forgotten)
        left = forgotten & {region.tenant for region, _ in taken.found}
        for region, _ in taken.found if left else ():
            if region.tenant in left:
                catalog.add_extent(region)  # as `forget` expects it
        found = [taken.region_log.forget(tenant, scrub=False) for tenant in left]
        for failure in (each.failure for each in found if each.failure):
            _log.warning("%s keeps bytes of a forgotten tenant", failure)
        try:
            if known != forgotten:
                write_forgotten(world.disk, taken.directory, forgotten)
        except OSError as error:
            _log.warning("%s forgets nobody (%s)", taken.directory.path, error.strerror)
    return forgotten


def _recover(
    directories: Sequence[Directory], catalog: Catalog[Region], options: Options, world: World
) -> tuple[dict[Directory, RecoveredDirectory], list[str]]:
    """Open the directories; also returns paths whose medium fails. A DirectoryError closes all."""
    opened: dict[Directory, RecoveredDirectory] = {}
    missing: list[str] = []
    for wanted in directories:
        try:
            opened[wanted] = recover_directory(wanted, len(opened), catalog, options, world)
        except MediumError as error:
            _log.warning("%s Serving without it until the next start.", error)
            missing.append(wanted.path)
        except DirectoryError:
            for taken in opened.values():
                close_directory(world.disk, taken)
            raise
    return opened, missing
