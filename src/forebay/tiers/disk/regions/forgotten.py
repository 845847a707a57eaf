"""The file of forgotten tenants' ids in each directory; ids are only ever added.

`forebay.record.forgotten` defines its bytes. The file is replaced as a whole: a new one is written,
flushed and renamed, and then the directory is flushed. A crash leaves the old file or the new one.
A damaged file counts as empty: a warning is logged, and the other directories' files count.
"""

import logging
from collections.abc import Collection
from typing import Final

from forebay.record.forgotten import FORGOTTEN_BYTES_MAX, pack_forgotten, unpack_forgotten
from forebay.sys.disk import Disk
from forebay.tiers.disk.regions.directory import OpenDirectory

_NAME: Final = "forgotten"
_NEW_NAME: Final = "forgotten.new"  # the new file until it is complete
FORGOTTEN_NAMES: Final = frozenset({_NAME, _NEW_NAME})
_log: Final = logging.getLogger(__name__)


def read_forgotten(disk: Disk, directory: OpenDirectory) -> frozenset[bytes]:
    """The ids in a directory's file."""
    try:
        data = _read(disk, directory.descriptor)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        data = b""
        _log.warning("%s/%s cannot be read (%s)", directory.path, _NAME, error.strerror)
    found = unpack_forgotten(data)
    if found is None:
        _log.warning("%s/%s is damaged: it names no tenant any more", directory.path, _NAME)
    return found or frozenset()


def write_forgotten(disk: Disk, directory: OpenDirectory, tenants: Collection[bytes]) -> None:
    """Replace the ids, durably; OSError if that fails.

    By one thread at a time.
    """
    place = directory.descriptor
    data = pack_forgotten(tenants)
    if _NEW_NAME in disk.names(place):
        disk.unlink(place, _NEW_NAME)
    file = disk.open(place, _NEW_NAME, create=True, direct=False, write=True)
    try:
        written = disk.write(file, [memoryview(data)], 0)
        if written != len(data):
            raise OSError("short write")
        disk.sync(file)
    finally:
        disk.close(file)
    disk.rename(place, _NEW_NAME, _NAME)
    disk.sync(place)


def _read(disk: Disk, place: int) -> bytes:
    file = disk.open(place, _NAME, create=False, direct=False, write=False)
    try:
        buffer = bytearray(min(disk.status(file).size_bytes, FORGOTTEN_BYTES_MAX))
        return bytes(buffer[: disk.read(file, [memoryview(buffer)], 0)]) if buffer else b""
    finally:
        disk.close(file)
