"""The record: one page of header, then the payload, padded to whole pages.

A record describes itself completely, so that nothing but its own bytes is needed to tell whether it
is what was asked for. `unpack` proves a header undamaged; `mismatch` proves it the wanted one;
`payload_hash` proves the bytes behind it. A line that verifies carries a `verify:` comment;
`make mutate` deletes each of them in turn and demands that a test notices.
"""

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import xxhash

from forebay.sys.memory import PAGE_BYTES, padded

MAGIC: Final = b"FOREBAYR"
ERASED_MAGIC: Final = b"FOREBAYE"  # begins the page that an erased record leaves behind
VERSION: Final = 1
HEADER_BYTES: Final = PAGE_BYTES
KEY_BYTES: Final = 32
NAMESPACE_BYTES: Final = 32
HASH_BYTES: Final = 16
PAYLOAD_BYTES_MAX: Final = 1 << 30
CODEC_RAW: Final = 0
ROOT: Final = bytes(KEY_BYTES)  # the parent of a first chunk

# magic, version, codec, group, payload length, region generation, offset in the region,
# namespace, key, parent, payload hash
_FIELDS: Final = struct.Struct("<8sHHIQQQ32s32s32s16s")
_HASH_AT: Final = HEADER_BYTES - HASH_BYTES
assert _FIELDS.size <= _HASH_AT


class Damage(StrEnum):
    """Why bytes are not the record that was asked for; part of a miss's detail, never user data."""

    NOT_A_RECORD = "not a record"
    NEWER_VERSION = "another format version"
    HEADER_HASH = "header hash"
    CODEC = "unknown codec"
    LENGTH = "impossible length"
    PLACE = "written for another place"
    NAMESPACE = "another namespace"
    GROUP = "another group"
    KEY = "another key"
    PAYLOAD_HASH = "payload hash"
    CUT = "cut short"


@dataclass(frozen=True, slots=True)
class RecordName:
    """What a record is of; equal names hold equal bytes."""

    namespace: bytes  # 32 bytes: everything about model and engine that shapes the bytes
    group: int  # layers that share a block table; 0 in full-attention models
    key: bytes  # 32 bytes: names the whole prefix that ends with this chunk
    parent: bytes  # the key of the chunk before, or ROOT


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A record's header as it stands on the medium."""

    name: RecordName
    generation: int  # of the region it was written into
    offset: int  # bytes from the region's start to this header
    length: int  # payload bytes, without padding
    payload_hash: bytes  # 16 bytes
    codec: int = CODEC_RAW


def record_bytes(length: int) -> int:
    """Bytes that a record with this payload takes on the medium."""
    return HEADER_BYTES + padded(length)


def payload_hash(payload: memoryview | bytes) -> bytes:
    """The hash that stands in the header; the GIL is released for large payloads."""
    return xxhash.xxh3_128_digest(payload)


def pack(header: RecordHeader, page: memoryview) -> None:
    """Write a header into one page, its own hash last."""
    name = header.name
    assert len(name.key) == len(name.parent) == KEY_BYTES
    assert len(name.namespace) == NAMESPACE_BYTES
    assert 0 < header.length <= PAYLOAD_BYTES_MAX
    page[:] = bytes(HEADER_BYTES)
    _FIELDS.pack_into(
        page,
        0,
        MAGIC,
        VERSION,
        header.codec,
        name.group,
        header.length,
        header.generation,
        header.offset,
        name.namespace,
        name.key,
        name.parent,
        header.payload_hash,
    )
    page[_HASH_AT:] = xxhash.xxh3_128_digest(page[:_HASH_AT])


def erased_page() -> bytes:
    """What replaces the header of a record that was deleted for good."""
    return ERASED_MAGIC.ljust(HEADER_BYTES, b"\0")


def is_erased(page: memoryview | bytes) -> bool:
    """Whether a record stood here and was deleted on purpose."""
    return bytes(page) == erased_page()


def claimed_place(page: memoryview | bytes) -> tuple[int, int]:
    """Generation and offset that a header page speaks of, be it damaged or not."""
    fields = _FIELDS.unpack_from(page)
    return fields[5], fields[6]


def unpack(page: memoryview | bytes) -> RecordHeader | Damage:
    """The header in a page, or why there is none. Any bytes are safe input."""
    if len(page) != HEADER_BYTES:
        return Damage.CUT
    (magic, version, codec, group, length, generation, offset, namespace, key, parent, digest) = (
        _FIELDS.unpack_from(page)
    )
    if magic != MAGIC:  # verify: magic
        return Damage.NOT_A_RECORD
    if version != VERSION:  # verify: version
        return Damage.NEWER_VERSION
    if xxhash.xxh3_128_digest(page[:_HASH_AT]) != page[_HASH_AT:]:  # verify: header hash
        return Damage.HEADER_HASH
    if codec != CODEC_RAW:  # verify: codec
        return Damage.CODEC
    if not 0 < length <= PAYLOAD_BYTES_MAX:  # verify: length bounds
        return Damage.LENGTH
    name = RecordName(namespace, group, key, parent)
    return RecordHeader(name, generation, offset, length, digest, codec)


def mismatch(found: RecordHeader, wanted: RecordHeader) -> Damage | None:
    """Why an undamaged header is not the wanted one: all but payload hash and parent must agree.

    A wanted key may be short (a pool's client names chunks so); it is compared as far as it goes.
    """
    if (found.generation, found.offset) != (wanted.generation, wanted.offset):  # verify: place
        return Damage.PLACE
    if found.name.namespace != wanted.name.namespace:  # verify: namespace
        return Damage.NAMESPACE
    if found.name.group != wanted.name.group:  # verify: group
        return Damage.GROUP
    key = wanted.name.key
    if found.name.key[: len(key)] != key:  # verify: key
        return Damage.KEY
    if found.length != wanted.length:  # verify: length
        return Damage.LENGTH
    return None
