"""A directory that Forebay may use: checked, locked and measured; and the file names in it."""

import errno
import logging
import os
import re
import secrets
import stat
from typing import Final, NamedTuple

from forebay.errors import DirectoryError, MediumError
from forebay.quantity import format_size
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.disk.options import Directory

LOCK_NAME: Final = "lock"
_REGION_NAME: Final = re.compile(r"region-([0-9a-f]{16})")
REGIONS_MIN: Final = 8  # per directory; with fewer, each eviction would forget too much
REGION_BYTES_MIN: Final = 16 * PAGE_BYTES
_OVERHEAD_BYTES: Final = 64 * 1024  # the directory itself and the lock file, as du counts them
_OVERHEAD_SHARE: Final = 4096  # one part in 4,096, for the file system's extent blocks
# Not the operator's mistake: the medium fails, is full, or was remounted read-only.
_MEDIUM_ERRNOS: Final = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM}
_log: Final = logging.getLogger(__name__)


class OpenDirectory(NamedTuple):
    """A directory held by this process until its descriptor is closed."""

    path: str
    descriptor: int  # locked
    # The lock file, locked too: for pools that know no other lock, and to probe with. Where
    # something else has its name, a file without a name.
    lock: int
    direct: bool  # whether its file system has O_DIRECT


def region_name(generation: int) -> str:
    """The file name of a region."""
    return f"region-{generation:016x}"


def generation_in(name: str) -> int:
    """The generation in a region's file name."""
    return int(name.removeprefix("region-"), 16)


def region_names(disk: Disk, directory: int) -> list[tuple[int, str]]:
    """Generation and name of every region file, oldest first."""
    matches = (_REGION_NAME.fullmatch(name) for name in disk.names(directory))
    return sorted((int(match[1], 16), match[0]) for match in matches if match)


def usable_bytes(cap_bytes: int) -> int:
    """What regions may take so that `du` never shows more than the cap."""
    return max(0, cap_bytes - _OVERHEAD_BYTES - cap_bytes // _OVERHEAD_SHARE)


def refuse_too_large(disk: Disk, directory: OpenDirectory, cap_bytes: int) -> None:
    """A DirectoryError if the cap is more than free space could ever fill."""
    total_bytes = disk.space(directory.descriptor).total_bytes
    if cap_bytes > total_bytes:
        raise DirectoryError(
            f"{directory.path} is on a file system of {format_size(total_bytes)} and "
            f"cannot have {format_size(cap_bytes)}; lower its cap."
        )


def region_bytes(wanted: Directory, region_bytes_max: int) -> int:
    """The size of new regions under this cap."""
    size = min(region_bytes_max, usable_bytes(wanted.cap_bytes) // REGIONS_MIN)
    size -= size % PAGE_BYTES
    if size < REGION_BYTES_MIN:
        least = REGIONS_MIN * REGION_BYTES_MIN + 2 * _OVERHEAD_BYTES
        raise DirectoryError(
            f"{format_size(wanted.cap_bytes)} is too small for {wanted.path}; "
            f"give it at least {format_size(least)}."
        )
    return size


def open_directory(disk: Disk, path: str) -> OpenDirectory:
    """Check and lock a directory; a DirectoryError says in one sentence what is wrong with it.

    The lock is on the directory itself, so that it cannot be removed from under its holder.
    """
    try:
        descriptor = disk.open_directory(path)
    except OSError as error:
        raise cannot_open(path, error) from None
    try:
        refuse_unsafe(disk, path, descriptor)
        _take(disk, path, descriptor)  # verify: lock of the directory
        lock, direct = _open_lock(disk, path, descriptor)
    except (DirectoryError, OSError) as error:
        disk.close(descriptor)
        if isinstance(error, DirectoryError):
            raise
        raise cannot_open(path, error) from None
    return OpenDirectory(path, descriptor, lock, direct)


def medium_error(path: str, error: OSError) -> MediumError:
    """The sentence for a directory whose medium fails."""
    return MediumError(f"{path} cannot be used now ({error.strerror}).")


def cannot_open(path: str, error: OSError) -> DirectoryError:
    """The sentence for a directory that cannot be opened."""
    if error.errno in _MEDIUM_ERRNOS:
        return medium_error(path, error)
    sentence = f"{path} cannot be opened ({error.strerror}); choose a directory of your own."
    if error.errno == errno.ENOENT:
        sentence = f"{path} does not exist; create it with: mkdir -m 700 {path}"
    elif error.errno in {errno.ENOTDIR, errno.ELOOP}:
        sentence = f"{path} is not a directory, or is a symbolic link; name a directory itself."
    return DirectoryError(sentence)


def _take(disk: Disk, path: str, descriptor: int) -> None:
    if not disk.try_lock(descriptor):
        raise DirectoryError(
            f"{path} is in use by another pool; stop it or name another directory."
        )


def refuse_unsafe(disk: Disk, path: str, descriptor: int) -> None:
    """A DirectoryError unless an open directory is writable by us alone."""
    status = disk.status(descriptor)
    if status.owner_uid != disk.user():
        raise DirectoryError(f"{path} belongs to another user; choose a directory of your own.")
    if status.mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DirectoryError(f"{path} can be written by others; run: chmod 700 {path}")


def _open_lock(disk: Disk, path: str, directory: int) -> tuple[int, bool]:
    direct = True
    try:
        try:
            lock = _open_or_create(disk, directory, direct=True)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            direct = False
            lock = _open_or_create(disk, directory, direct=False)
    except OSError as error:
        if error.errno in _MEDIUM_ERRNOS:
            raise
        raise DirectoryError(
            f"{path} cannot be written ({os.strerror(error.errno or 0)}); "
            "choose a directory of your own on a writable file system."
        ) from None
    if not direct:
        _log.warning(
            "%s is on a file system without O_DIRECT; records go through the page cache", path
        )
    try:
        _take(disk, path, lock)  # verify: lock of the lock file
    except (DirectoryError, OSError):
        disk.close(lock)
        raise
    return lock, direct


def has_foreign_lock(disk: Disk, directory: int) -> bool:
    """Whether a link, a directory or the like has the name of the lock file.

    It is left alone, and only the directory itself is locked.
    """
    try:
        mode = disk.status_of(directory, LOCK_NAME).mode
    except OSError:
        return False  # there is none, or opening it will say why it cannot be used
    is_file = stat.S_ISREG(mode)  # verify: foreign lock
    return not is_file


def _open_or_create(disk: Disk, directory: int, *, direct: bool) -> int:
    try:
        return disk.open(directory, LOCK_NAME, create=True, direct=direct, write=True)
    except FileExistsError:
        pass
    if not has_foreign_lock(disk, directory):
        return disk.open(directory, LOCK_NAME, create=False, direct=direct, write=True)
    name = f"{LOCK_NAME}-{secrets.token_hex(8)}"
    lock = disk.open(directory, name, create=True, direct=direct, write=True)
    disk.unlink(directory, name)
    return lock
