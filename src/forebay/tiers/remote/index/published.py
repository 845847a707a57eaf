"""What a host publishes: a snapshot of its packs, and a tail with what changed since.

    hosts/HOST/snapshot    packs and their records; written anew when the tail has grown long
    hosts/HOST/tail        names its snapshot, lists newer packs and the deleted ones; also the
                           host's sign of life, by the time at which the store received it

The snapshot is put before the tail that names it. A reader that finds a tail with a snapshot other
than the one it names waits for the next tail. Any bytes are safe input: lengths are checked before
they are used, and a hash at the end covers everything.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

from forebay.record.header import DEFAULT_TENANT, HASH_BYTES, PAYLOAD_BYTES_MAX, Damage
from forebay.record.region import ContentsEntry, short
from forebay.sys.memory import PAGE_BYTES

HOSTS: Final = "hosts"
TAIL_BYTES_MAX: Final = 4 << 20
SNAPSHOT_BYTES_MAX: Final = 256 << 20
_MAGIC: Final = b"FOREBAYI"
_VERSION: Final = 2
_WITHOUT_TENANTS: Final = 1  # an older version that can be read
# magic, version, 0, packs, entries, deleted, generation, snapshot's generation, snapshot's bytes
_HEADER: Final = struct.Struct("<8sHHIIIQQQ")
_PACKS: Final = {  # by version: namespace, sequence, entries, tenant
    _WITHOUT_TENANTS: struct.Struct("<32sQI"),
    _VERSION: struct.Struct("<32sQI16s"),
}
_ENTRY: Final = struct.Struct("<16sII")  # short key, page, payload length
_DELETED: Final = struct.Struct("<Q")  # sequence
ENTRY_BYTES: Final = _ENTRY.size
_ENTRY_WORDS: Final = ENTRY_BYTES // 4
_LENGTH_WORD: Final = 5


class PublishedPack(NamedTuple):
    """One pack of a host."""

    namespace: bytes
    sequence: int
    entries: bytes  # packed, one per record
    tenant: bytes = DEFAULT_TENANT  # their tenant; empty: written by an older release


class Publication(NamedTuple):
    """A snapshot or a tail."""

    generation: int
    snapshot: int = 0  # of a tail: generation of the snapshot it continues; 0: none
    snapshot_bytes: int = 0  # the size of that snapshot's object
    packs: tuple[PublishedPack, ...] = ()
    deleted: tuple[int, ...] = ()  # sequences of packs deleted since the snapshot


def snapshot_name(host: str) -> str:
    """The name of a host's snapshot."""
    return f"{HOSTS}/{host}/snapshot"


def tail_name(host: str) -> str:
    """The name of a host's tail."""
    return f"{HOSTS}/{host}/tail"


def spent_name(host: str) -> str:
    """The name of a host's count of requests of the day."""
    return f"{HOSTS}/{host}/spent"


def forgotten_name(host: str) -> str:
    """The name of a host's list of forgotten tenants."""
    return f"{HOSTS}/{host}/forgotten"


def pack_entry(entry: ContentsEntry) -> bytes:
    """A record as it is published."""
    return _ENTRY.pack(short(entry.key), entry.offset // PAGE_BYTES, entry.length)


def entries_in(packed: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each record's short key, page and payload size."""
    return _ENTRY.iter_unpack(packed)


def pack(publication: Publication) -> bytes:
    """A publication as an object."""
    packs, deleted = publication.packs, publication.deleted
    entries = b"".join(each.entries for each in packs)
    count = len(entries) // ENTRY_BYTES
    numbers = (len(packs), count, len(deleted), *publication[:3])
    row = _PACKS[_VERSION].pack
    rows = [row(each[0], each[1], len(each[2]) // ENTRY_BYTES, each[3]) for each in packs]
    gone = map(_DELETED.pack, deleted)
    body = b"".join([_HEADER.pack(_MAGIC, _VERSION, 0, *numbers), *rows, entries, *gone])
    return body + xxhash.xxh3_128_digest(body)


def unpack(data: memoryview | bytes) -> Publication | Damage:
    """The publication in an object, or why there is none."""
    body = memoryview(data)[:-HASH_BYTES]
    if len(body) < _HEADER.size:
        return Damage.CUT
    magic, version, _, packs, entries, deleted, *numbers = _HEADER.unpack_from(body)
    if magic != _MAGIC or version not in _PACKS:
        return Damage.NEWER_VERSION if magic == _MAGIC else Damage.NOT_A_RECORD
    if xxhash.xxh3_128_digest(body) != bytes(data[-HASH_BYTES:]):  # verify: publication's hash
        return Damage.HEADER_HASH
    row = _PACKS[version]
    sizes = (packs * row.size, entries * ENTRY_BYTES, deleted * _DELETED.size)
    first, second, third = (_HEADER.size + sum(sizes[:count]) for count in range(3))
    if third + sizes[2] != len(body):
        return Damage.LENGTH
    at, found = second, []
    for namespace, sequence, count, *tenant in row.iter_unpack(body[first:second]):
        end = at + count * ENTRY_BYTES
        whose, packed = tenant[0] if tenant else b"", bytes(body[at:end])
        lengths = memoryview(packed).cast("I")[_LENGTH_WORD::_ENTRY_WORDS]
        longest = max(lengths, default=1)
        if min(lengths, default=1) < 1 or longest > PAYLOAD_BYTES_MAX:  # verify: published lengths
            return Damage.LENGTH
        found.append(PublishedPack(namespace, sequence, packed, whose))
        at = end
    if at != third:
        return Damage.LENGTH
    gone = (sequence for (sequence,) in _DELETED.iter_unpack(body[third:]))
    generation, snapshot, snapshot_bytes = numbers
    return Publication(generation, snapshot, snapshot_bytes, tuple(found), tuple(gone))
