"""A pack: some records of one namespace as one immutable object, in the format of a sealed region.

    [0, 4096)              region header; its generation is the pack's sequence
    [4096, end)            records, each at a page boundary, with their place in their headers
    [end, size - 4096)     table of contents
    [size - 4096, size)    footer

Its name, `packs/NAMESPACE/HOST/SEQUENCE`, is never used again: a host draws a random sequence when
it starts and counts on from there, so that it need not know which were used before.
"""

import secrets
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from forebay.record import region as layout
from forebay.record.cipher import opened
from forebay.record.header import (
    HEADER_BYTES,
    Damage,
    RecordHeader,
    RecordName,
    mismatch,
    pack,
    payload_hash,
    record_bytes,
)
from forebay.record.keyring import RecordKeys
from forebay.record.region import ContentsEntry, Footer, Position, RegionHeader
from forebay.sys.memory import PAGE_BYTES, padded

PACKS: Final = "packs"
_SEQUENCE_DIGITS: Final = 12
_COUNTED: Final = 1 << 16  # packs numbered from one random number on


class Sequences:
    """Numbers for packs; not thread-safe."""

    def __init__(self) -> None:
        self._next = 0

    def next(self) -> int:
        """A number that no pack of this host has or ever had."""
        if self._next % _COUNTED == 0:
            self._next = secrets.randbelow((layout.GENERATION_MAX + 1) // _COUNTED) * _COUNTED
        self._next += 1
        return self._next


def pack_name(namespace: bytes, host: str, sequence: int) -> str:
    """The name of a pack's object."""
    return f"{PACKS}/{namespace.hex()}/{host}/{sequence:0{_SEQUENCE_DIGITS}x}"


def sequence_of(name: str) -> int | None:
    """The sequence in the last part of a pack's name; None if it is no name of ours."""
    try:
        sequence = int(name, 16)
    except ValueError:
        return None
    is_ours = name == f"{sequence:0{_SEQUENCE_DIGITS}x}" and sequence <= layout.GENERATION_MAX
    return sequence if is_ours else None


def pack_bytes(lengths: Sequence[int]) -> int:
    """The size of a pack with payloads of these lengths."""
    contents = padded(len(lengths) * layout.ENTRY_BYTES)
    return 2 * PAGE_BYTES + contents + sum(map(record_bytes, lengths))


def frame_bytes(records: int) -> int:
    """The size of a pack of so many records, without their payloads."""
    return (2 + records) * PAGE_BYTES + padded(records * layout.ENTRY_BYTES)


def positions(headers: Sequence[RecordHeader], sequence: int) -> list[Position]:
    """Where the records of a pack lie."""
    sizes = [record_bytes(header.length) for header in headers]
    offsets = accumulate(sizes[:-1], initial=layout.FIRST_RECORD)
    return [Position(sequence, offset) for offset in offsets]


def frame(headers: Sequence[RecordHeader], sequence: int, target: memoryview) -> None:
    """Write everything of a pack except payloads into `target`.

    That is the region header, a page for each record, the table of contents and the footer.
    """
    size = pack_bytes([header.length for header in headers])
    target[:PAGE_BYTES] = layout.pack_header(RegionHeader(sequence, size, headers[0].name.tenant))
    contents = b""
    for number, (header, at) in enumerate(
        zip(headers, positions(headers, sequence), strict=True), start=1
    ):
        pack(header, target[number * PAGE_BYTES : (number + 1) * PAGE_BYTES], at.pack())
        contents += layout.pack_entry(header, at.offset)
    records_end = layout.FIRST_RECORD + sum(record_bytes(header.length) for header in headers)
    end = (1 + len(headers)) * PAGE_BYTES
    table_bytes = padded(len(contents))
    target[end : end + table_bytes] = contents.ljust(table_bytes, b"\0")
    digest = layout.contents_hash(contents)
    footer = Footer(sequence, size, records_end, len(headers), digest)
    end += table_bytes
    target[end : end + PAGE_BYTES] = layout.pack_footer(footer)


class PackPlace(NamedTuple):
    """Where a record lies."""

    name: str  # of the pack's object
    sequence: int
    offset: int
    length: int  # payload bytes


class ReadRecord(NamedTuple):
    """A record's header and payload as read."""

    page: memoryview  # its header
    payload: memoryview
    size_bytes: int  # size of both


def verified(
    read: ReadRecord, name: RecordName, place: PackPlace, keys: RecordKeys | None
) -> RecordHeader | Damage:
    """The header that was read, if this is the wanted record bit for bit, or why it is not.

    With keys, the payload is decrypted in place.
    """
    if read.size_bytes != HEADER_BYTES + padded(place.length):  # verify: whole remote read
        return Damage.CUT
    found = layout.unpack_record(read.page, Position(place.sequence, place.offset))
    if isinstance(found, Damage):
        return found
    wrong = mismatch(found, name, place.length)
    if wrong is not None:
        return wrong
    plain = opened(found, read.page, keys, read.payload)
    if isinstance(plain, Damage):
        return plain
    digest = payload_hash(read.payload[: place.length], plain.shards)
    if digest != plain.payload_hash:  # verify: remote payload hash
        return Damage.PAYLOAD_HASH
    return plain


def contents_place(last_page: memoryview, sequence: int, size_bytes: int) -> Footer | Damage:
    """Where a pack's table of contents lies, according to its last page."""
    footer = layout.unpack_footer(last_page)
    if isinstance(footer, Damage):
        return footer
    if (footer.generation, footer.size_bytes) != (sequence, size_bytes):  # verify: pack's footer
        return Damage.PLACE
    return footer


def entries_of(contents: bytes) -> list[ContentsEntry]:
    """The records that a table of contents lists."""
    return list(layout.unpack_entries(contents))
