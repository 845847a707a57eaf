"""What a host publishes about use: the records that its engines ask for most.

    hosts/HOST/used    written now and then; read by hosts that start, if they are to start warm

This is no part of the index: a host that ignores it misses nothing. Any bytes are safe input:
lengths are checked before they are used, and a hash at the end covers everything. A record listed
here is a hint; it is loaded and verified like any other.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import xxhash

from forebay.record.header import HASH_BYTES, NAMESPACE_BYTES, TENANT_BYTES, Damage
from forebay.record.region import SHORT_KEY_BYTES
from forebay.tiers.contract import USED_RECORDS_MAX, UsedRecord
from forebay.tiers.remote.index.published import HOSTS

_MAGIC: Final = b"FOREBAYU"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHHI")  # magic, version, 0, records
_RECORD: Final = struct.Struct(f"<{NAMESPACE_BYTES}s{TENANT_BYTES}sI{SHORT_KEY_BYTES}sI")
_USES_MAX: Final = (1 << 32) - 1
USED_BYTES_MAX: Final = _HEADER.size + USED_RECORDS_MAX * _RECORD.size + HASH_BYTES
MERGED_MAX: Final = 1 << 18  # records of all hosts that are merged at most
WARM_RECORDS_MAX: Final = 1 << 15  # the most used of these, fetched at most


def used_name(host: str) -> str:
    """The name of a host's list of most used records."""
    return f"{HOSTS}/{host}/used"


def pack_used(records: Sequence[UsedRecord], limit: int = USED_RECORDS_MAX) -> bytes:
    """Records as an object, the most used first, up to the limit."""
    kept = records[:limit]
    rows = (_RECORD.pack(*each[:-1], min(each.uses, _USES_MAX)) for each in kept)
    body = b"".join([_HEADER.pack(_MAGIC, _VERSION, 0, len(kept)), *rows])
    return body + xxhash.xxh3_128_digest(body)


def unpack_used(data: memoryview | bytes) -> list[UsedRecord] | Damage:
    """The records of an object, or why it says nothing."""
    body = memoryview(data)[:-HASH_BYTES]
    if len(body) < _HEADER.size:
        return Damage.CUT
    magic, version, _, count = _HEADER.unpack_from(body)
    if magic != _MAGIC or version != _VERSION:
        return Damage.NEWER_VERSION if magic == _MAGIC else Damage.NOT_A_RECORD
    if xxhash.xxh3_128_digest(body) != bytes(data[-HASH_BYTES:]):  # verify: hash of what is used
        return Damage.HEADER_HASH
    if _HEADER.size + count * _RECORD.size != len(body):
        return Damage.LENGTH
    return [UsedRecord(*row) for row in _RECORD.iter_unpack(body[_HEADER.size :])]


class MergedUses:
    """The use of several hosts together."""

    def __init__(self) -> None:
        self._uses: dict[tuple[bytes, bytes, int, bytes], int] = {}

    def add(self, records: Iterable[UsedRecord]) -> None:
        """Add one host's records."""
        uses = self._uses
        for each in records:
            name = each[:-1]
            if name in uses or len(uses) < MERGED_MAX:
                uses[name] = uses.get(name, 0) + each.uses

    def most(self) -> list[UsedRecord]:
        """The most used records first; equals in the order in which they were added."""
        order = sorted(self._uses.items(), key=lambda each: -each[1])[:WARM_RECORDS_MAX]
        return [UsedRecord(*name, count) for name, count in order]
