"""Opens a directory at a start: checks it, trims it to its cap, and finds its records.

The table of a sealed region is trusted (its records are verified when they are loaded). A region
without one was open when its process died: it is walked, and every record in it is verified whole,
because the last ones may be incomplete.
"""

import logging
import stat
from typing import Final, NamedTuple

from forebay.errors import DirectoryError
from forebay.quantity import format_size
from forebay.record import region as layout
from forebay.record.header import DEFAULT_TENANT, Damage
from forebay.sys.disk import Disk, printable
from forebay.sys.memory import PAGE_BYTES, padded
from forebay.sys.world import World
from forebay.tiers.catalog import Catalog
from forebay.tiers.disk.options import Directory, Options
from forebay.tiers.disk.regions import region as regions
from forebay.tiers.disk.regions.data_keys import KEYS_NAME, NEW_KEYS_NAME, KeyTable, checked_table
from forebay.tiers.disk.regions.directory import (
    LOCK_NAME,
    OpenDirectory,
    has_foreign_lock,
    medium_error,
    open_directory,
    refuse_too_large,
    region_bytes,
    region_names,
    usable_bytes,
)
from forebay.tiers.disk.regions.forgotten import FORGOTTEN_NAMES
from forebay.tiers.disk.regions.reader import RegionContents, RegionReader
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.disk.regions.region_log import RegionLog, RegionLogLimits

_RESUME_SHARE: Final = 8  # a region with more than an eighth free is filled further
_SECTOR_BYTES: Final = 512  # what a drive writes completely or not at all
_log: Final = logging.getLogger(__name__)


class RecoveredDirectory(NamedTuple):
    """A directory that this process has locked, with the regions found in it, oldest first."""

    directory: OpenDirectory
    region_log: RegionLog
    found: list[tuple[Region, RegionContents]]
    keys: KeyTable | None = None  # of encrypted records


class _File(NamedTuple):
    """A region file, not read yet."""

    generation: int  # in its name
    name: str
    descriptor: int
    size_bytes: int  # whole pages of it
    file_bytes: int  # what it counts for


def recover_directory(
    wanted: Directory, drive: int, catalog: Catalog[Region], options: Options, world: World
) -> RecoveredDirectory:
    """Open and lock a directory; a DirectoryError says in one sentence why that failed.

    Nothing that lies in it is a reason to fail: it is used, removed, or left alone and counted. A
    MediumError means that the directory cannot be used now, which nobody could have known.
    """
    disk = world.disk
    new_bytes = region_bytes(wanted, options.region_bytes)
    directory = open_directory(disk, wanted.path)
    usable = usable_bytes(wanted.cap_bytes)
    limits = RegionLogLimits(drive, usable, new_bytes)
    region_log = RegionLog(directory, catalog, options, world, limits)
    recovered = RecoveredDirectory(directory, region_log, [])
    files: list[_File] = []  # open files that are not regions yet
    try:
        refuse_too_large(disk, directory, wanted.cap_bytes)
        recovered = recovered._replace(keys=checked_table(disk, directory, options.keyring))
        _open_files(disk, recovered, files, is_encrypted=options.keyring is not None)
        _trim(disk, recovered, files, usable)
        _warn_of_little_space(disk, recovered, files, usable)
        while files:
            _recover_region(disk, recovered, catalog.number(), files.pop(0))
        _resume(disk, recovered)
    except (DirectoryError, OSError) as error:
        for file in files:
            disk.close(file.descriptor)
        close_directory(disk, recovered)
        if isinstance(error, DirectoryError):
            raise
        raise medium_error(wanted.path, error) from None
    return recovered


def close_directory(disk: Disk, recovered: RecoveredDirectory) -> None:
    """Close and unlock a directory that no thread uses."""
    for region, _ in recovered.found:
        disk.close(region.descriptor)
    disk.close(recovered.directory.lock)
    disk.close(recovered.directory.descriptor)


def _open_files(
    disk: Disk, recovered: RecoveredDirectory, files: list[_File], *, is_encrypted: bool
) -> None:
    """Open every region file, oldest first; what else is in the directory is counted."""
    place = recovered.directory.descriptor
    named = region_names(disk, place)
    ours = {name for _, name in named}
    if not has_foreign_lock(disk, place):
        ours.add(LOCK_NAME)
    ours |= FORGOTTEN_NAMES
    if is_encrypted:
        ours |= {KEYS_NAME, NEW_KEYS_NAME}
    for name in set(disk.names(place)) - ours:
        _leave_alone(disk, recovered, name, "not a region of Forebay")
    for generation, name in named:
        opened = _open_file(disk, recovered.directory, generation, name)
        if isinstance(opened, _File):
            files.append(opened)
        else:
            _leave_alone(disk, recovered, name, opened)


def _open_file(disk: Disk, directory: OpenDirectory, generation: int, name: str) -> _File | str:
    """A file with a region's name, or why it is no region."""
    try:
        descriptor = disk.open(
            directory.descriptor, name, create=False, direct=directory.direct, write=True
        )
    except OSError as error:
        return error.strerror or "cannot be opened"
    try:
        found = _measure(disk, descriptor)
    except OSError as error:
        found = error.strerror or "cannot be measured"
    if isinstance(found, str):
        disk.close(descriptor)
        return found
    return _File(generation, name, descriptor, *found)


def _measure(disk: Disk, descriptor: int) -> tuple[int, int] | str:
    """The whole pages of a file and the size it counts for, or why it is no region.

    It counts for its blocks: a sparse file must not drive others out.
    """
    status = disk.status(descriptor)
    if not stat.S_ISREG(status.mode):
        return "not a file"
    size_bytes = status.size_bytes - status.size_bytes % PAGE_BYTES
    if size_bytes > layout.REGION_BYTES_MAX:  # verify: region size
        return "larger than a region can be"
    return size_bytes, min(padded(status.size_bytes), status.allocated_bytes)


def _leave_alone(disk: Disk, recovered: RecoveredDirectory, name: str, why: str) -> None:
    """Count a file that is not ours: its name and its bytes are not reused."""
    try:
        size_bytes = disk.status_of(recovered.directory.descriptor, name).allocated_bytes
    except FileNotFoundError:
        return
    except OSError:
        size_bytes = recovered.region_log.region_bytes  # not known: count it like one of ours
    _log.warning("%s/%s is left alone (%s)", recovered.directory.path, printable(name), why)
    recovered.region_log.leave_alone(name, size_bytes)


def _trim(disk: Disk, recovered: RecoveredDirectory, files: list[_File], usable: int) -> None:
    """Remove the oldest regions until everything in the directory fits the cap."""
    while files and _counted_bytes(recovered, files) > usable:
        _remove_or_count(disk, recovered, files.pop(0))


def _counted_bytes(recovered: RecoveredDirectory, files: list[_File]) -> int:
    return recovered.region_log.allocated_bytes + sum(file.file_bytes for file in files)


def _remove_or_count(disk: Disk, recovered: RecoveredDirectory, file: _File) -> None:
    disk.close(file.descriptor)
    try:
        disk.unlink(recovered.directory.descriptor, file.name)
    except OSError as error:
        _log.warning("%s cannot be removed yet (%s)", file.name, error.strerror)
        recovered.region_log.remove_later(file.name, file.file_bytes)


def _warn_of_little_space(
    disk: Disk, recovered: RecoveredDirectory, files: list[_File], usable: int
) -> None:
    """Warn if there is too little space to write: records are served, regions come later."""
    missing_bytes = usable - _counted_bytes(recovered, files)
    free_bytes = disk.space(recovered.directory.descriptor).free_bytes
    if missing_bytes > free_bytes:
        _log.warning(
            "%s has %s free and may take %s more; lower its cap or free some space",
            recovered.directory.path,
            format_size(free_bytes),
            format_size(missing_bytes),
        )


def _recover_region(disk: Disk, recovered: RecoveredDirectory, number: int, file: _File) -> None:
    try:
        found = recover(RegionReader(disk, file.descriptor, file.size_bytes), file.generation)
    except OSError as error:
        disk.close(file.descriptor)
        why = f"{error.strerror}; forebay check --repair removes it"
        _leave_alone(disk, recovered, file.name, why)
        return
    if found is None:
        _log.warning("%s holds nothing that can be used and is removed", file.name)
        _remove_or_count(disk, recovered, file)
        return
    if isinstance(found, Damage):
        disk.close(file.descriptor)
        _leave_alone(disk, recovered, file.name, found)
        return
    region = Region(number, file.name, found.generation, file.descriptor, file.size_bytes)
    region.drive, region.tenant = recovered.region_log.drive, found.tenant
    region.file_bytes = file.file_bytes
    region.end = found.end
    region.placed = len(found.packed) // layout.ENTRY_BYTES
    recovered.found.append((region, found))


def _resume(disk: Disk, recovered: RecoveredDirectory) -> None:
    """Sort regions by age; go on filling each tenant's youngest, seal the other unsealed ones."""
    recovered.found.sort(key=lambda pair: pair[0].generation)
    youngest = {region.tenant: region for region, _ in recovered.found}
    for region, found in recovered.found:
        is_youngest = region is youngest[region.tenant]
        free_bytes = region.size_bytes - region.end
        is_roomy = free_bytes > region.size_bytes // _RESUME_SHARE
        resume = is_youngest and is_roomy and not region.is_sparse
        region.contents = bytearray(found.packed)
        region.is_sealed = found.is_sealed
        try:
            if resume and found.is_sealed:
                regions.unseal(disk, region)
                region.is_sealed = False
            elif not (resume or region.is_sparse or found.is_sealed):
                regions.seal(disk, region)
                region.is_sealed = True
        except OSError as error:
            _log.warning("%s has no table of contents (%s)", region.name, error.strerror)
            resume = False
        if region.is_sealed:
            region.contents = bytearray()
        recovered.region_log.add(region, resume=resume)


def recover(reader: RegionReader, named: int) -> RegionContents | Damage | None:
    """Read one region; `named` is the generation in its file's name.

    A region whose header is damaged is still walked, by the generation in its name. None: it is
    ours and of no use: its first header was never written whole, too little is left of it, or its
    generation is impossible. Damage is returned only for a file that holds nothing of ours: it may
    be another's (NOT_A_RECORD, CUT) or a later Forebay's (NEWER_VERSION). OSError: its header
    cannot be read, and nothing else tells whose it is.
    """
    unreadable: OSError | None = None
    try:
        head = reader.first_page()
    except OSError as error:
        head, unreadable = memoryview(b""), error
    header = layout.unpack_header(head)
    if header is Damage.NEWER_VERSION:
        return header
    generation = named if isinstance(header, Damage) else header.generation
    is_possible = generation <= layout.GENERATION_MAX and header is not Damage.GENERATION
    if (
        is_possible and reader.size_bytes >= layout.FIRST_RECORD + PAGE_BYTES
    ):  # at least room for a footer
        found = reader.contents(generation)
        named_tenant = DEFAULT_TENANT if isinstance(header, Damage) else header.tenant
        # The records themselves name their tenant: a header may have been repaired wrongly.
        found = found._replace(tenant=reader.tenant(found) or named_tenant)
        if found.packed or found.is_sealed or not isinstance(header, Damage):
            return found
    if unreadable is not None:
        raise unreadable
    return _judge(header, head)


def _judge(header: layout.RegionHeader | Damage, head: memoryview) -> Damage | None:
    """What a file without records is: a useless one of ours (None), or another's."""
    # Created, perhaps preallocated, but the sector with its magic never reached the medium.
    if not any(head[:_SECTOR_BYTES]):
        return None
    # Certainly ours, but cut off while written, truncated, or of an impossible generation.
    if not isinstance(header, Damage) or header in {Damage.HEADER_HASH, Damage.GENERATION}:
        return None
    if header is Damage.CUT and layout.begins_region(head):
        return None
    return header
