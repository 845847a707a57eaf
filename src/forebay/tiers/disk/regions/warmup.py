"""Opening a directory: check it, trim it to its cap, and find what its regions hold."""

import errno
import logging
from typing import Final, NamedTuple

from forebay.errors import DirectoryError
from forebay.quantity import format_size
from forebay.record.header import Damage
from forebay.record.region import ENTRY_BYTES
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
from forebay.tiers.disk.regions.recovery import recover
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.disk.regions.shelf import Room, Shelf

_RESUME_SHARE: Final = 8  # a region with more than one part in so many left is filled further
_log: Final = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A directory that is ours, with the regions found in it, oldest first."""

    directory: OpenDirectory
    shelf: Shelf
    found: list[tuple[Region, RegionContents]]


class _File(NamedTuple):
    """A region file, not read yet."""

    generation: int  # in its name
    name: str
    descriptor: int
    size_bytes: int = 0  # whole pages of it
    file_bytes: int = 0  # what it counts for


def open_shelf(
    wanted: Directory, drive: int, catalog: Catalog, options: Options, world: World
) -> Opened:
    """Take one directory; a DirectoryError says in one sentence why it cannot be had."""
    disk = world.disk
    new_bytes = region_bytes(wanted, options.region_bytes)
    directory = open_directory(disk, wanted.path)
    usable = usable_bytes(wanted.cap_bytes)
    room = Room(drive, usable, new_bytes)
    shelf = Shelf(directory, catalog, options, world, room)
    opened = Opened(directory, shelf, [])
    files: list[_File] = []  # open, and not yet a region
    try:
        left_alone_bytes = _open_files(disk, opened, files, new_bytes)
        usable -= left_alone_bytes
        _trim(disk, directory, files, usable)
        _refuse_too_much(disk, opened, usable - sum(file.file_bytes for file in files))
        while files:
            _adopt(disk, opened, catalog.number(), files.pop(0))
        _resume(disk, opened)
    except (DirectoryError, OSError) as error:
        for file in files:
            disk.close(file.descriptor)
        release(disk, opened)
        if isinstance(error, DirectoryError):
            raise
        raise DirectoryError(f"{wanted.path} cannot be read ({error.strerror}).") from None
    return opened


def release(disk: Disk, opened: Opened) -> None:
    """Let go of a directory that no thread uses."""
    for region, _ in opened.found:
        disk.close(region.descriptor)
    disk.close(opened.directory.lock)
    disk.close(opened.directory.descriptor)


def _open_files(disk: Disk, opened: Opened, files: list[_File], new_bytes: int) -> int:
    """Open every region file, oldest first; the bytes of those that cannot be opened.

    Those are left alone, but neither their name nor their bytes are given away: how many they have
    cannot be asked, so they count as one of ours.
    """
    directory = opened.directory
    left_alone_bytes = 0
    for generation, name in region_names(disk, directory.descriptor):
        try:
            descriptor = disk.open(
                directory.descriptor, name, create=False, direct=directory.direct, write=True
            )
        except OSError as error:
            _log.warning("%s/%s is left alone (%s)", directory.path, name, error.strerror)
            opened.shelf.reserve_generation(generation, new_bytes)
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


def _remove_or_count(disk: Disk, opened: Opened, file: _File) -> None:
    disk.close(file.descriptor)
    try:
        disk.unlink(opened.directory.descriptor, file.name)
    except OSError as error:
        _log.warning("%s cannot be removed yet (%s)", file.name, error.strerror)
        opened.shelf.reserve_generation(file.generation, 0)
        opened.shelf.litter(file.name, file.file_bytes)


def _refuse_too_much(disk: Disk, opened: Opened, missing_bytes: int) -> None:
    free_bytes = disk.space(opened.directory.descriptor).free_bytes
    if missing_bytes > free_bytes:
        raise DirectoryError(
            f"{opened.directory.path} has {format_size(free_bytes)} free and would need "
            f"{format_size(missing_bytes)} more; lower its cap or free some space."
        )


def _adopt(disk: Disk, opened: Opened, number: int, file: _File) -> None:
    path = f"{opened.directory.path}/{file.name}"
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
        _remove_or_count(disk, opened, file)
        return
    if isinstance(found, Damage):
        disk.close(file.descriptor)
        if found is not Damage.NEWER_VERSION:
            raise DirectoryError(
                f"{path} is not a region of Forebay; move it away, or name another directory."
            )
        opened.shelf.reserve_generation(file.generation, file.file_bytes)
        return
    region = Region(number, file.name, found.generation, file.descriptor, file.size_bytes)
    region.drive = opened.shelf.drive
    region.file_bytes = file.file_bytes
    region.end = found.end
    region.placed = len(found.packed) // ENTRY_BYTES
    opened.found.append((region, found))


def _resume(disk: Disk, opened: Opened) -> None:
    """Order the regions by age; fill the youngest further, and seal what was found unsealed."""
    opened.found.sort(key=lambda pair: pair[0].generation)
    for region, found in opened.found:
        youngest = region is opened.found[-1][0]
        roomy = region.size_bytes - region.end > region.size_bytes // _RESUME_SHARE
        resume = youngest and roomy
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
        opened.shelf.adopt(region, resume=resume)
