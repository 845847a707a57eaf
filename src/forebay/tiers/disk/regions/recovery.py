"""Opening a directory: check it, trim it to its cap, and find what its regions hold.

The table of a sealed region is believed (its records are verified when they are loaded). A region
without one was open when its process died: it is walked and every record in it is verified whole,
because the last of them may be torn.
"""

import errno
import logging
from typing import Final, NamedTuple

from forebay.errors import DirectoryError
from forebay.quantity import format_size
from forebay.record import region as layout
from forebay.record.header import Damage
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES, padded
from forebay.sys.world import World
from forebay.tiers.disk.catalog import Catalog
from forebay.tiers.disk.options import Directory, Options
from forebay.tiers.disk.regions import region as regions
from forebay.tiers.disk.regions.directory import (
    OpenDirectory,
    open_directory,
    region_bytes,
    region_names,
    usable_bytes,
)
from forebay.tiers.disk.regions.reader import RegionContents, RegionReader
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.disk.regions.region_log import RegionLog, RegionLogLimits

_RESUME_SHARE: Final = 8  # a region with more than one part in so many free is filled further
_SECTOR_BYTES: Final = 512  # what a drive writes whole or not at all
_log: Final = logging.getLogger(__name__)


class RecoveredDirectory(NamedTuple):
    """A directory that this process has locked, with the regions found in it, oldest first."""

    directory: OpenDirectory
    region_log: RegionLog
    found: list[tuple[Region, RegionContents]]


class _File(NamedTuple):
    """A region file, not read yet."""

    generation: int  # in its name
    name: str
    descriptor: int
    size_bytes: int = 0  # whole pages of it
    file_bytes: int = 0  # what it counts for


def recover_directory(
    wanted: Directory, drive: int, catalog: Catalog, options: Options, world: World
) -> RecoveredDirectory:
    """Open and lock one directory; a DirectoryError says in one sentence why that cannot be."""
    disk = world.disk
    new_bytes = region_bytes(wanted, options.region_bytes)
    directory = open_directory(disk, wanted.path)
    usable = usable_bytes(wanted.cap_bytes)
    limits = RegionLogLimits(drive, usable, new_bytes)
    region_log = RegionLog(directory, catalog, options, world, limits)
    recovered = RecoveredDirectory(directory, region_log, [])
    files: list[_File] = []  # open, and not yet a region
    try:
        left_alone_bytes = _open_files(disk, recovered, files, new_bytes)
        usable -= left_alone_bytes
        _trim(disk, directory, files, usable)
        _refuse_too_much(disk, recovered, usable - sum(file.file_bytes for file in files))
        while files:
            _recover_region(disk, recovered, catalog.number(), files.pop(0))
        _resume(disk, recovered)
    except (DirectoryError, OSError) as error:
        for file in files:
            disk.close(file.descriptor)
        close_directory(disk, recovered)
        if isinstance(error, DirectoryError):
            raise
        raise DirectoryError(f"{wanted.path} cannot be read ({error.strerror}).") from None
    return recovered


def close_directory(disk: Disk, recovered: RecoveredDirectory) -> None:
    """Close and unlock a directory that no thread uses."""
    for region, _ in recovered.found:
        disk.close(region.descriptor)
    disk.close(recovered.directory.lock)
    disk.close(recovered.directory.descriptor)


def _open_files(
    disk: Disk, recovered: RecoveredDirectory, files: list[_File], new_bytes: int
) -> int:
    """Open every region file, oldest first; the bytes of those that cannot be opened.

    Those are left alone, but neither their name nor their bytes are given away: how many they have
    cannot be asked, so they count as one of ours.
    """
    directory = recovered.directory
    left_alone_bytes = 0
    for generation, name in region_names(disk, directory.descriptor):
        try:
            descriptor = disk.open(
                directory.descriptor, name, create=False, direct=directory.direct, write=True
            )
        except OSError as error:
            _log.warning("%s/%s is left alone (%s)", directory.path, name, error.strerror)
            recovered.region_log.reserve_generation(generation, new_bytes)
            left_alone_bytes += new_bytes
            continue
        files.append(_File(generation, name, descriptor))
        size = disk.status(descriptor).size_bytes
        files[-1] = files[-1]._replace(size_bytes=size - size % PAGE_BYTES, file_bytes=padded(size))
    return left_alone_bytes


def _trim(disk: Disk, directory: OpenDirectory, files: list[_File], usable: int) -> None:
    """Remove the oldest until the rest fits the cap."""
    while files and sum(file.file_bytes for file in files) > usable:
        _remove(disk, directory, files.pop(0))


def _remove(disk: Disk, directory: OpenDirectory, file: _File) -> None:
    disk.close(file.descriptor)
    disk.unlink(directory.descriptor, file.name)


def _remove_or_count(disk: Disk, recovered: RecoveredDirectory, file: _File) -> None:
    disk.close(file.descriptor)
    try:
        disk.unlink(recovered.directory.descriptor, file.name)
    except OSError as error:
        _log.warning("%s cannot be removed yet (%s)", file.name, error.strerror)
        recovered.region_log.reserve_generation(file.generation, 0)
        recovered.region_log.remove_later(file.name, file.file_bytes)


def _refuse_too_much(disk: Disk, recovered: RecoveredDirectory, missing_bytes: int) -> None:
    free_bytes = disk.space(recovered.directory.descriptor).free_bytes
    if missing_bytes > free_bytes:
        raise DirectoryError(
            f"{recovered.directory.path} has {format_size(free_bytes)} free and would need "
            f"{format_size(missing_bytes)} more; lower its cap or free some space."
        )


def _recover_region(disk: Disk, recovered: RecoveredDirectory, number: int, file: _File) -> None:
    path = f"{recovered.directory.path}/{file.name}"
    try:
        found = recover(RegionReader(disk, file.descriptor, file.size_bytes), file.generation)
    except OSError as error:
        _log.warning(
            "%s cannot be read (%s) and is left alone; forebay check --repair removes it",
            path,
            error.strerror,
        )
        found = Damage.NEWER_VERSION
    if found is None:
        _remove_or_count(disk, recovered, file)
        return
    if isinstance(found, Damage):
        disk.close(file.descriptor)
        if found is not Damage.NEWER_VERSION:
            raise DirectoryError(
                f"{path} is not a region of Forebay; move it away, or name another directory."
            )
        recovered.region_log.reserve_generation(file.generation, file.file_bytes)
        return
    region = Region(number, file.name, found.generation, file.descriptor, file.size_bytes)
    region.drive = recovered.region_log.drive
    region.file_bytes = file.file_bytes
    region.end = found.end
    region.placed = len(found.packed) // layout.ENTRY_BYTES
    recovered.found.append((region, found))


def _resume(disk: Disk, recovered: RecoveredDirectory) -> None:
    """Order the regions by age; fill the youngest further, and seal what was found unsealed."""
    recovered.found.sort(key=lambda pair: pair[0].generation)
    for region, found in recovered.found:
        is_youngest = region is recovered.found[-1][0]
        free_bytes = region.size_bytes - region.end
        resume = is_youngest and free_bytes > region.size_bytes // _RESUME_SHARE
        region.contents = bytearray(found.packed)
        region.is_sealed = found.is_sealed
        try:
            if resume and found.is_sealed:
                regions.unseal(disk, region)
                region.is_sealed = False
            elif not resume and not found.is_sealed:
                regions.seal(disk, region)
                region.is_sealed = True
        except OSError as error:
            if error.errno not in {errno.EIO, errno.ENOSPC, errno.EROFS}:
                raise
            resume = False
        if region.is_sealed:
            region.contents = bytearray()
        recovered.region_log.add(region, resume=resume)


def recover(reader: RegionReader, named: int) -> RegionContents | Damage | None:
    """Read one region; `named` is the generation in its file's name.

    A region whose header is damaged is still walked, by the generation in its name. None: its first
    header was never written whole, or too little is left of it. Damage is returned only for a file
    that holds nothing of ours: it may be another's (NOT_A_RECORD) or a later Forebay's
    (NEWER_VERSION). OSError: its header cannot be read, and nothing else tells whose it is.
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
    if reader.size_bytes >= layout.FIRST_RECORD + PAGE_BYTES:  # room for a footer at least
        found = reader.contents(generation)
        if found.packed or found.is_sealed or not isinstance(header, Damage):
            return found
    if unreadable is not None:
        raise unreadable
    return _judge(header, head)


def _judge(header: layout.RegionHeader | Damage, head: memoryview) -> Damage | None:
    """What a file is that holds no record: one of ours that was never begun, or another's."""
    # Created, perhaps preallocated, but the sector with its magic never reached the medium.
    if not any(head[:_SECTOR_BYTES]):
        return None
    # Our magic without our hash is a header torn while it was written, by creation or eviction.
    if header is Damage.HEADER_HASH or not isinstance(header, Damage):
        return None
    return header
