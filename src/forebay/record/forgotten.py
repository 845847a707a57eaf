"""The list of forgotten tenants, as a directory or a store keeps it: ids, never fewer than before.

FOREBAYF, version, 0, count; count ids of 16 bytes; XXH3-128 of all before it
"""

import struct
from collections.abc import Collection
from typing import Final

import xxhash

from forebay.record.header import HASH_BYTES, TENANT_BYTES, VERSION

FORGOTTEN_MAX: Final = 1 << 16
_MAGIC: Final = b"FOREBAYF"
_HEADER: Final = struct.Struct("<8sHHI")  # magic, version, 0, count
FORGOTTEN_BYTES_MAX: Final = _HEADER.size + FORGOTTEN_MAX * TENANT_BYTES + HASH_BYTES


def pack_forgotten(tenants: Collection[bytes]) -> bytes:
    """The list as bytes."""
    data = _HEADER.pack(_MAGIC, VERSION, 0, len(tenants)) + b"".join(sorted(tenants))
    return data + xxhash.xxh3_128_digest(data)


def unpack_forgotten(data: bytes) -> frozenset[bytes] | None:
    """The ids in a list; None if the bytes are no list, or damaged."""
    body, digest = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if len(body) < _HEADER.size or xxhash.xxh3_128_digest(body) != digest:  # verify: forgotten hash
        return None
    magic, version, _, count = _HEADER.unpack_from(body)
    ids = body[_HEADER.size :]
    if (magic, version, count * TENANT_BYTES) != (_MAGIC, VERSION, len(ids)):
        return None
    return frozenset(ids[at : at + TENANT_BYTES] for at in range(0, len(ids), TENANT_BYTES))
