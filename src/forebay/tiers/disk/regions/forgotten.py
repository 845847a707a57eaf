"""The ids of tenants that were forgotten, in a file of each directory; never fewer than before.

    FOREBAYF, version, 0, count; count ids of 16 bytes; XXH3-128 of all before it

The file is replaced whole: a new one is written, flushed, and given the old one's name, and then
the directory is flushed. A crash leaves the old file or the new one. A file that is damaged says
nothing: a warning is logged, and the other directories' files count.
"""

import logging
import struct
from collections.abc import Collection
from typing import Final

import xxhash

from forebay.record.header import HASH_BYTES, TENANT_BYTES, VERSION
from forebay.sys.disk import Disk
from forebay.tiers.disk.regions.directory import OpenDirectory

FORGOTTEN_MAX: Final = 1 << 16
_NAME: Final = "forgotten"
_NEW_NAME: Final = "forgotten.new"  # until it is whole
FORGOTTEN_NAMES: Final = frozenset({_NAME, _NEW_NAME})
_MAGIC: Final = b"FOREBAYF"
_HEADER: Final = struct.Struct("<8sHHI")  # magic, version, 0, count
_BYTES_MAX: Final = _HEADER.size + FORGOTTEN_MAX * TENANT_BYTES + HASH_BYTES
_log: Final = logging.getLogger(__name__)


def read_forgotten(disk: Disk, directory: OpenDirectory) -> frozenset[bytes]:
    """The ids that a directory remembers."""
    try:
        data = _read(disk, directory.descriptor)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        data = b""
        _log.warning("%s/%s cannot be read (%s)", directory.path, _NAME, error.strerror)
    found = _unpack(data)
    if found is None:
        _log.warning("%s/%s is damaged: it names no tenant any more", directory.path, _NAME)
    return found or frozenset()


def write_forgotten(disk: Disk, directory: OpenDirectory, tenants: Collection[bytes]) -> None:
    """Remember these ids, all of them, from now on and after any crash; OSError: it cannot be."""
    place = directory.descriptor
    data = _HEADER.pack(_MAGIC, VERSION, 0, len(tenants)) + b"".join(sorted(tenants))
    data += xxhash.xxh3_128_digest(data)
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
        buffer = bytearray(min(disk.status(file).size_bytes, _BYTES_MAX))
        return bytes(buffer[: disk.read(file, [memoryview(buffer)], 0)]) if buffer else b""
    finally:
        disk.close(file)


def _unpack(data: bytes) -> frozenset[bytes] | None:
    body, digest = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if len(body) < _HEADER.size or xxhash.xxh3_128_digest(body) != digest:  # verify: forgotten hash
        return None
    magic, version, _, count = _HEADER.unpack_from(body)
    ids = body[_HEADER.size :]
    if (magic, version, count * TENANT_BYTES) != (_MAGIC, VERSION, len(ids)):
        return None
    return frozenset(ids[at : at + TENANT_BYTES] for at in range(0, len(ids), TENANT_BYTES))
