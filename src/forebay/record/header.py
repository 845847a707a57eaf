"""The record: one page of header, then the payload, padded to whole pages.

A record is the same on every medium and describes itself completely: its own bytes are enough to
tell whether it is what was asked for. `unpack` proves that a header is undamaged, `mismatch` that
it is the wanted one, `payload_hash` that the payload is intact. `MEDIUM_BYTES` of the header page
are the medium's, which may note there where it wrote the record; here they are opaque. A line that
verifies has a `verify:` comment; `make mutate` disables each in turn and demands that a test fails.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import xxhash

from forebay.sys.memory import PAGE_BYTES, padded

MAGIC: Final = b"FOREBAYR"
ERASED_MAGIC: Final = b"FOREBAYE"  # begins the page that an erased record leaves behind
VERSION: Final = 1
HEADER_BYTES: Final = PAGE_BYTES
KEY_BYTES: Final = 32
NAMESPACE_BYTES: Final = 32
HASH_BYTES: Final = 16
TENANT_BYTES: Final = 16
MEDIUM_BYTES: Final = 16
NO_MEDIUM: Final = bytes(MEDIUM_BYTES)  # the medium's part if it has nothing to note
PAYLOAD_BYTES_MAX: Final = 1 << 30
SHARDS_MAX: Final = 1 << 10
CODEC_RAW: Final = 0
KEY_ID_BYTES: Final = 16
SALT_BYTES: Final = 32
TAG_BYTES: Final = 16
SEALED_DIGEST_BYTES: Final = 32
ROOT: Final = bytes(KEY_BYTES)  # the parent of a record that needs no other
DEFAULT_TENANT: Final = bytes(TENANT_BYTES)  # the tenant of everybody who is in no other one

# magic, version, codec, group, payload length, the medium's part, namespace, key, parent,
# payload hash, shards (0: one), tenant; of a sealed record: key id, salt, tag, sealed digest
_FIELDS: Final = struct.Struct("<8sHHIQ16s32s32s32s16sI16s16s32s16s32s")
_SEALED: Final = 1 << 15  # the bit of the codec for an encrypted payload
_MEDIUM_AT: Final = 24
_HASH_AT: Final = HEADER_BYTES - HASH_BYTES
assert _FIELDS.size <= _HASH_AT
# Not part of the associated data, since the encryption computes it: the payload's hash, the tag,
# the sealed digest and the hash of the page.
_NOT_ASSOCIATED: Final = ((136, 152), (220, 268), (_HASH_AT, HEADER_BYTES))


class Damage(StrEnum):
    """Why bytes are not the record that was asked for: a miss's detail, without user data."""

    NOT_A_RECORD = "not a record"
    NEWER_VERSION = "another format version"
    HEADER_HASH = "header hash"
    CODEC = "unknown codec"
    LENGTH = "impossible length"
    SHARDS = "impossible number of shards"
    PLACE = "written for another place"
    NAMESPACE = "another namespace"
    TENANT = "another tenant"
    GROUP = "another group"
    KEY = "another key"
    PAYLOAD_HASH = "payload hash"
    CUT = "cut short"
    GENERATION = "impossible generation"
    SEALED = "encrypted, and should not be"
    NOT_SEALED = "not encrypted"
    NO_KEY = "its key is not at hand"
    TAG = "not what was encrypted"


@dataclass(frozen=True, slots=True)
class RecordName:
    """What a record is a record of; records with equal names have equal bytes."""

    namespace: bytes  # 32 bytes: everything about model and engine that shapes the bytes
    group: int  # layers that look equally far back; 0: full attention
    key: bytes  # 32 bytes: names the whole prefix that ends with this chunk
    parent: bytes  # key of the record without which this one is of no use; ROOT: none
    tenant: bytes = DEFAULT_TENANT  # 16 bytes: whose record it is


class Digest(NamedTuple):
    """A payload hash, and how many shards it was computed from."""

    payload_hash: bytes  # 16 bytes
    shards: int = 1


class Sealing(NamedTuple):
    """The fields of an encrypted record's header; `cipher.py` writes and reads them."""

    key_id: bytes  # of the key that the record's own key is derived from
    salt: bytes  # random and new with every write, and so is the record's key
    tag: bytes = bytes(TAG_BYTES)  # authenticates header, digest and payload
    digest: bytes = bytes(SEALED_DIGEST_BYTES)  # of the plain payload, encrypted


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A record's header, without the medium's part."""

    name: RecordName
    length: int  # payload bytes, without padding
    payload_hash: bytes  # 16 bytes, of the payload as it is stored
    codec: int = CODEC_RAW
    shards: int = 1  # equal parts of the payload that were hashed separately
    sealing: Sealing | None = None  # None: the payload is stored as it is


_NOT_SEALED: Final = Sealing(bytes(KEY_ID_BYTES), bytes(SALT_BYTES))


def record_bytes(length: int) -> int:
    """Bytes that a record with a payload of this length takes on the medium."""
    return HEADER_BYTES + padded(length)


def payload_hash(payload: memoryview | bytes, shards: int = 1) -> bytes:
    """A payload's hash as the header has it; the GIL is released for large payloads.

    Each shard of a payload is written, and hashed, by another worker.
    """
    size = len(payload) // shards
    view = memoryview(payload)
    return joined_hash(
        [xxhash.xxh3_128_digest(view[at * size : (at + 1) * size]) for at in range(shards)]
    )


def pieces_hash(pieces: Sequence[memoryview | bytes]) -> bytes:
    """The hash of a payload that lies in several pieces, equal to that of the joined bytes."""
    if len(pieces) == 1:
        return payload_hash(pieces[0])
    running = xxhash.xxh3_128()
    for piece in pieces:
        running.update(piece)
    return running.digest()


def joined_hash(hashes: Sequence[bytes]) -> bytes:
    """The payload hash, from the hashes of all shards in order; a single one stays as it is."""
    return hashes[0] if len(hashes) == 1 else xxhash.xxh3_128_digest(b"".join(hashes))


def are_shards(length: int, shards: int) -> bool:
    """Whether a payload of this length can consist of this many equal shards."""
    return 0 < shards <= SHARDS_MAX and not length % shards


def pack(header: RecordHeader, page: memoryview, medium: bytes = NO_MEDIUM) -> None:
    """Write a header and the medium's part into one page, the page's own hash last."""
    name = header.name
    assert len(name.key) == len(name.parent) == KEY_BYTES
    assert len(name.namespace) == NAMESPACE_BYTES
    assert len(name.tenant) == TENANT_BYTES
    assert len(medium) == MEDIUM_BYTES
    assert 0 < header.length <= PAYLOAD_BYTES_MAX
    assert are_shards(header.length, header.shards)
    page[:] = bytes(HEADER_BYTES)
    sealing = header.sealing
    _FIELDS.pack_into(
        page,
        0,
        MAGIC,
        VERSION,
        header.codec | (0 if sealing is None else _SEALED),
        name.group,
        header.length,
        medium,
        name.namespace,
        name.key,
        name.parent,
        header.payload_hash,
        0 if header.shards == 1 else header.shards,
        name.tenant,
        *(sealing or _NOT_SEALED),
    )
    page[_HASH_AT:] = xxhash.xxh3_128_digest(page[:_HASH_AT])


def erased_page() -> bytes:
    """The page that replaces the header of a record that was erased."""
    return ERASED_MAGIC.ljust(HEADER_BYTES, b"\0")


def is_erased(page: memoryview | bytes) -> bool:
    """Whether this is the page of an erased record."""
    return page[: len(ERASED_MAGIC)] == ERASED_MAGIC and bytes(page) == erased_page()


def medium_part(page: memoryview | bytes) -> bytes:
    """What the medium noted in a header page, which may be damaged."""
    return bytes(page[_MEDIUM_AT : _MEDIUM_AT + MEDIUM_BYTES])


def associated_data(page: memoryview | bytes) -> bytearray:
    """The header page with zeros in place of all that the encryption itself computes."""
    data = bytearray(page)
    for start, end in _NOT_ASSOCIATED:
        data[start:end] = bytes(end - start)
    return data


def unpack(page: memoryview | bytes) -> RecordHeader | Damage:
    """Read the header in a page, or why there is none. Any bytes are safe input."""
    if len(page) != HEADER_BYTES:
        return Damage.CUT
    fields = _FIELDS.unpack_from(page)
    magic, version, codec, group, length, _, *names, digest, shards, tenant = fields[:12]
    if magic != MAGIC:  # verify: magic
        return Damage.NOT_A_RECORD
    if version != VERSION:  # verify: version
        return Damage.NEWER_VERSION
    if xxhash.xxh3_128_digest(page[:_HASH_AT]) != page[_HASH_AT:]:  # verify: header hash
        return Damage.HEADER_HASH
    if codec & ~_SEALED != CODEC_RAW:  # verify: codec
        return Damage.CODEC
    if not 0 < length <= PAYLOAD_BYTES_MAX:  # verify: length bounds
        return Damage.LENGTH
    if not are_shards(length, shards or 1):  # verify: shards
        return Damage.SHARDS
    namespace, key, parent = names
    name = RecordName(namespace, group, key, parent, tenant)
    sealing = Sealing(*fields[12:]) if codec & _SEALED else None
    return RecordHeader(name, length, digest, codec & ~_SEALED, shards or 1, sealing)


def mismatch(found: RecordHeader, wanted: RecordName, length: int) -> Damage | None:
    """Why an undamaged header is not the wanted one; None if it is. Parents are not compared.

    The wanted key may be a short key, as clients of a pool use it; only that part is compared.
    """
    if found.name.key[: len(wanted.key)] != wanted.key:  # verify: key
        return Damage.KEY
    if found.name.namespace != wanted.namespace:  # verify: namespace
        return Damage.NAMESPACE
    if found.name.tenant != wanted.tenant:  # verify: tenant
        return Damage.TENANT
    if found.name.group != wanted.group:  # verify: group
        return Damage.GROUP
    if found.length != length:  # verify: length
        return Damage.LENGTH
    return None
