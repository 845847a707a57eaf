"""The region: a preallocated file of records, followed by a table of contents.

    [0, 4096)                  region header
    [4096, end)                records, each at a page boundary
    [end, size - 4096)         table of contents, once the region is sealed
    [size - 4096, size)        footer that finds and proves the table

A table of contents only tells where to look: the record found there is verified like any other. A
record in a region has its `Position` in the medium's part of its header, so that a record from an
earlier use of the file, or one at a wrong offset, is not mistaken for another one.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

from forebay.record.header import (
    DEFAULT_TENANT,
    HASH_BYTES,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    VERSION,
    Damage,
    RecordHeader,
    medium_part,
    unpack,
)
from forebay.sys.memory import PAGE_BYTES, padded

SHORT_KEY_BYTES: Final = 16  # of a key, in messages and in the index; the record has all 32
FIRST_RECORD: Final = PAGE_BYTES
REGION_BYTES_MAX: Final = 256 << 20  # a larger file is no region
GENERATION_MAX: Final = (1 << 48) - 1  # out of reach: 8,900 regions a second for 1000 years
_MAGIC_HEADER: Final = b"FOREBAYG"
_MAGIC_FOOTER: Final = b"FOREBAYT"
_HEADER: Final = struct.Struct("<8sHHIQQ16s")  # magic, version, 0, 0, generation, size, tenant
# magic, version, 0, count, generation, size, contents offset, contents hash
_FOOTER: Final = struct.Struct("<8sHHIQQQ16s")
_ENTRY: Final = struct.Struct("<32s32s16sIIII")  # key, namespace, parent, page, length, group, 0
ENTRY_BYTES: Final = _ENTRY.size
_ENTRY_WORDS: Final = ENTRY_BYTES // 4
_PAGE_WORD: Final = 80 // 4  # of an entry
_LENGTH_WORD: Final = 84 // 4
_POSITION: Final = struct.Struct("<QQ")  # generation, offset
_HASH_AT: Final = PAGE_BYTES - HASH_BYTES


class RegionHeader(NamedTuple):
    """The first page of a region."""

    generation: int
    size_bytes: int
    tenant: bytes = DEFAULT_TENANT  # to whom all its records belong


class Position(NamedTuple):
    """Where in a directory a record was written."""

    generation: int  # of the region
    offset: int  # bytes from the region's start to the record's header

    def pack(self) -> bytes:
        """The bytes of a position for the medium's part of a record's header."""
        return _POSITION.pack(*self)


class Footer(NamedTuple):
    """The last page of a sealed region."""

    generation: int
    size_bytes: int
    contents_offset: int
    records: int
    contents_hash: bytes


class ContentsEntry(NamedTuple):
    """One record in a table of contents."""

    key: bytes
    namespace: bytes
    parent: bytes  # SHORT_KEY_BYTES of it
    offset: int
    length: int
    group: int


def short(key: bytes) -> bytes:
    """The short key of a key, as messages and the index have it."""
    return key[:SHORT_KEY_BYTES]


def pack_header(header: RegionHeader) -> bytes:
    """The first page of a region."""
    fields = _HEADER.pack(_MAGIC_HEADER, VERSION, 0, 0, *header)
    return _with_hash(fields)


def begins_region(head: memoryview | bytes) -> bool:
    """Whether a file that begins with this was once a region, even if it is damaged now."""
    return head[: len(_MAGIC_HEADER)] == _MAGIC_HEADER


def unpack_header(page: memoryview | bytes) -> RegionHeader | Damage:
    """Read a region's first page, or why it is none."""
    if len(page) != PAGE_BYTES:
        return Damage.CUT
    magic, version, _, _, generation, size_bytes, tenant = _HEADER.unpack_from(page)
    if magic != _MAGIC_HEADER:  # verify: region magic
        return Damage.NOT_A_RECORD
    if version != VERSION:  # verify: region version
        return Damage.NEWER_VERSION
    if not _hash_holds(page):  # verify: region header hash
        return Damage.HEADER_HASH
    if generation > GENERATION_MAX:  # verify: generation bounds
        return Damage.GENERATION
    return RegionHeader(generation, size_bytes, tenant)


def pack_footer(footer: Footer) -> bytes:
    """The last page of a sealed region."""
    fields = _FOOTER.pack(
        _MAGIC_FOOTER,
        VERSION,
        0,
        footer.records,
        footer.generation,
        footer.size_bytes,
        footer.contents_offset,
        footer.contents_hash,
    )
    return _with_hash(fields)


def unpack_footer(page: memoryview | bytes) -> Footer | Damage:
    """Read a sealed region's last page, or why it is none; its offsets and lengths are checked."""
    if len(page) != PAGE_BYTES:
        return Damage.CUT
    magic, version, _, count, generation, size_bytes, offset, digest = _FOOTER.unpack_from(page)
    if magic != _MAGIC_FOOTER:  # verify: footer magic
        return Damage.NOT_A_RECORD
    if version != VERSION:  # verify: footer version
        return Damage.NEWER_VERSION
    if not _hash_holds(page):  # verify: footer hash
        return Damage.HEADER_HASH
    end = size_bytes - PAGE_BYTES
    if not FIRST_RECORD <= offset <= end - padded(count * ENTRY_BYTES):  # verify: contents bounds
        return Damage.LENGTH
    return Footer(generation, size_bytes, offset, count, digest)


def unpack_record(page: memoryview | bytes, position: Position) -> RecordHeader | Damage:
    """Read the header of a record that was written for this position, or why it is none."""
    found = unpack(page)
    if isinstance(found, RecordHeader) and not is_for(page, position):  # verify: place
        return Damage.PLACE
    return found


def is_for(page: memoryview | bytes, position: Position) -> bool:
    """Whether a record's header page, which may be damaged, names this position."""
    return medium_part(page) == position.pack()


def pack_entry(header: RecordHeader, offset: int) -> bytes:
    """A record's entry in the table of contents."""
    name, page = header.name, offset // PAGE_BYTES
    return _ENTRY.pack(
        name.key, name.namespace, short(name.parent), page, header.length, name.group, 0
    )


def contents_hash(contents: memoryview | bytes) -> bytes:
    """The hash of a table of contents, as the footer has it."""
    return xxhash.xxh3_128_digest(contents)


def unpack_contents(
    contents: memoryview | bytes, footer: Footer
) -> Iterator[ContentsEntry] | Damage:
    """The entries of a table of contents, or why it is damaged."""
    contents = contents[: footer.records * ENTRY_BYTES]
    if len(contents) < footer.records * ENTRY_BYTES:
        return Damage.CUT
    if contents_hash(contents) != footer.contents_hash:  # verify: contents hash
        return Damage.PAYLOAD_HASH
    words = memoryview(contents).cast("B").cast("I")
    lengths, pages = words[_LENGTH_WORD::_ENTRY_WORDS], words[_PAGE_WORD::_ENTRY_WORDS]
    longest = max(lengths, default=1)
    if min(lengths, default=1) < 1 or longest > PAYLOAD_BYTES_MAX:  # verify: listed lengths
        return Damage.LENGTH
    end = footer.contents_offset // PAGE_BYTES
    if min(pages, default=1) < 1 or max(pages, default=0) >= end:  # verify: listed places
        return Damage.LENGTH
    return unpack_entries(contents)


def unpack_entries(contents: memoryview | bytes | bytearray) -> Iterator[ContentsEntry]:
    """The entries of a table of contents that was checked before."""
    for key, namespace, parent, page, length, group, _ in _ENTRY.iter_unpack(contents):
        yield ContentsEntry(key, namespace, parent, page * PAGE_BYTES, length, group)


def _with_hash(fields: bytes) -> bytes:
    page = fields.ljust(_HASH_AT, b"\0")
    return page + xxhash.xxh3_128_digest(page)


def _hash_holds(page: memoryview | bytes) -> bool:
    return bytes(page[_HASH_AT:]) == xxhash.xxh3_128_digest(page[:_HASH_AT])


assert HEADER_BYTES == PAGE_BYTES
