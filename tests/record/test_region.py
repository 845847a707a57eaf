"""Region header, footer and table of contents: exact or a named damage, whatever the bytes."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.record.header import PAYLOAD_BYTES_MAX, Damage, RecordHeader, RecordName, pack
from forebay.record.region import (
    ENTRY_BYTES,
    FIRST_RECORD,
    GENERATION_MAX,
    ContentsEntry,
    Footer,
    Position,
    RegionHeader,
    contents_hash,
    pack_entry,
    pack_footer,
    pack_header,
    short,
    unpack_contents,
    unpack_footer,
    unpack_header,
    unpack_record,
)

GOLDEN = Path(__file__).parent.parent / "golden"
PAGE = 4096
NAME = RecordName(bytes(range(32)), 7, bytes(range(100, 132)), bytes(range(200, 232)))
OFFSETS = [PAGE * (1 + 2 * n) for n in range(3)]
RECORDS = [RecordHeader(NAME, 100 + n, bytes(16)) for n in range(3)]
CONTENTS = b"".join(map(pack_entry, RECORDS, OFFSETS))
HEADER = RegionHeader(5, 1 << 20)
FOOTER = Footer(5, 1 << 20, PAGE * 7, len(RECORDS), contents_hash(CONTENTS))
Unpack = Callable[[bytes], object]
PAGES: list[tuple[Unpack, bytes]] = [
    (unpack_header, pack_header(HEADER)),
    (unpack_footer, pack_footer(FOOTER)),
]
both = pytest.mark.parametrize(("unpack", "page"), PAGES, ids=["header", "footer"])


# Few bytes, or a page of few bytes again and again: a page of noise is slow to draw.
hostile = st.binary(max_size=80) | st.binary(min_size=1, max_size=80).map(
    lambda noise: (noise * PAGE)[:PAGE]
)


def rehashed(page: bytes | bytearray) -> bytes:
    return bytes(page[:-16]) + xxhash.xxh3_128_digest(bytes(page[:-16]))


@given(st.integers(0, GENERATION_MAX), st.integers(0, 2**64 - 1))
def test_a_header_is_unpacked_as_packed(generation: int, size_bytes: int) -> None:
    header = RegionHeader(generation, size_bytes)
    assert unpack_header(pack_header(header)) == header


def test_a_footer_and_its_contents_are_unpacked_as_packed() -> None:
    assert unpack_footer(pack_footer(FOOTER)) == FOOTER
    entries = unpack_contents(CONTENTS + b"what lies behind them", FOOTER)
    assert not isinstance(entries, Damage)
    assert list(entries) == [
        ContentsEntry(
            NAME.key, NAME.namespace, short(NAME.parent), offset, record.length, NAME.group
        )
        for record, offset in zip(RECORDS, OFFSETS, strict=True)
    ]


def test_t12_golden_bytes_of_version_1() -> None:
    assert (GOLDEN / "region-header-v1.bin").read_bytes() == pack_header(HEADER)
    assert (GOLDEN / "region-footer-v1.bin").read_bytes() == pack_footer(FOOTER)
    assert (GOLDEN / "region-contents-v1.bin").read_bytes() == CONTENTS


@both
def test_t6_every_flipped_bit_is_damage(unpack: Unpack, page: bytes) -> None:
    changed = bytearray(page)
    for bit in range(PAGE * 8):
        changed[bit // 8] ^= 1 << bit % 8
        assert isinstance(unpack(bytes(changed)), Damage), f"bit {bit}"
        changed[bit // 8] ^= 1 << bit % 8


def test_t6_every_flipped_bit_of_the_contents_is_damage() -> None:
    changed = bytearray(CONTENTS)
    for bit in range(len(CONTENTS) * 8):
        changed[bit // 8] ^= 1 << bit % 8
        assert unpack_contents(bytes(changed), FOOTER) is Damage.PAYLOAD_HASH
        changed[bit // 8] ^= 1 << bit % 8


@both
def test_t4_a_page_cut_at_every_byte_is_damage(unpack: Unpack, page: bytes) -> None:
    for cut in range(PAGE):
        assert unpack(page[:cut]) is Damage.CUT
        assert isinstance(unpack(page[:cut].ljust(PAGE, b"\0")), Damage)


def test_t4_contents_cut_at_every_byte_are_damage() -> None:
    for cut in range(len(CONTENTS)):
        assert unpack_contents(CONTENTS[:cut], FOOTER) is Damage.CUT
        footer = FOOTER._replace(contents_hash=contents_hash(CONTENTS[:cut]))
        assert unpack_contents(CONTENTS[:cut], footer) is Damage.CUT
    changed = CONTENTS[:-1] + b"x"
    assert unpack_contents(changed, FOOTER) is Damage.PAYLOAD_HASH


@pytest.mark.parametrize("generation", [GENERATION_MAX + 1, 2**63, 2**64 - 1])
def test_t60_an_impossible_generation_is_damage(generation: int) -> None:
    page = pack_header(RegionHeader(generation, 1 << 20))
    assert unpack_header(page) is Damage.GENERATION


@pytest.mark.parametrize("length", [0, PAYLOAD_BYTES_MAX + 1, 2**32 - 1])
@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_t56_an_impossible_length_in_a_table_is_damage(number: int, length: int) -> None:
    """F2: its hashes are right; a slot for a payload of no bytes ended the pool."""
    contents = bytearray(CONTENTS)
    struct.pack_into("<I", contents, number * ENTRY_BYTES + 84, length)
    footer = FOOTER._replace(contents_hash=contents_hash(bytes(contents)))
    assert unpack_contents(bytes(contents), footer) is Damage.LENGTH
    assert unpack_contents(memoryview(contents), footer) is Damage.LENGTH


@pytest.mark.parametrize("page", [0, 7, 2**32 - 1])
@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_t56_an_impossible_place_in_a_table_is_damage(number: int, page: int) -> None:
    """F2: an erasure would write there, before or behind the records."""
    contents = bytearray(CONTENTS)
    struct.pack_into("<I", contents, number * ENTRY_BYTES + 80, page)
    footer = FOOTER._replace(contents_hash=contents_hash(bytes(contents)))
    assert unpack_contents(bytes(contents), footer) is Damage.LENGTH


def test_an_empty_table_is_sound() -> None:
    footer = FOOTER._replace(records=0, contents_hash=contents_hash(b""))
    entries = unpack_contents(b"", footer)
    assert not isinstance(entries, Damage)
    assert list(entries) == []


@both
@pytest.mark.parametrize("version", [0, 2, 0xFFFF])
def test_t12_another_version_is_named(unpack: Unpack, page: bytes, version: int) -> None:
    changed = bytearray(page)
    struct.pack_into("<H", changed, 8, version)
    assert unpack(bytes(changed)) is Damage.NEWER_VERSION
    assert unpack(rehashed(changed)) is Damage.NEWER_VERSION


@both
def test_other_bytes_are_not_ours(unpack: Unpack, page: bytes) -> None:
    changed = bytearray(page)
    changed[7] = ord("X")
    assert unpack(rehashed(changed)) is Damage.NOT_A_RECORD


@both
@given(data=hostile)
@example(data=b"")
@example(data=bytes(PAGE))
@example(data=b"\xff" * PAGE)
def test_t39_hostile_bytes_are_damage(unpack: Unpack, page: bytes, data: bytes) -> None:
    assert isinstance(unpack(data), Damage)


@given(noise=st.binary(min_size=1, max_size=60), at=st.integers(8, 70))
def test_t39_a_hostile_footer_with_a_valid_hash_points_inside_its_region(
    noise: bytes, at: int
) -> None:
    changed = bytearray(pack_footer(FOOTER))
    changed[at : at + len(noise)] = noise
    found = unpack_footer(rehashed(changed))
    if isinstance(found, Footer):
        assert found.contents_offset >= FIRST_RECORD
        assert found.contents_offset + found.records * ENTRY_BYTES <= found.size_bytes - PAGE


@pytest.mark.parametrize(
    "footer",
    [
        FOOTER._replace(records=2**32 - 1),
        FOOTER._replace(records=(1 << 20) // ENTRY_BYTES),
        FOOTER._replace(contents_offset=0),
        FOOTER._replace(contents_offset=PAGE - 1),
        FOOTER._replace(contents_offset=(1 << 20) - PAGE),
        FOOTER._replace(contents_offset=2**63),
        FOOTER._replace(contents_offset=2**64 - 1),
        FOOTER._replace(size_bytes=0),
        FOOTER._replace(size_bytes=PAGE),
    ],
)
def test_t40_a_length_bomb_is_refused(footer: Footer) -> None:
    assert unpack_footer(pack_footer(footer)) is Damage.LENGTH


def test_an_empty_region_has_a_footer_too() -> None:
    footer = Footer(1, 3 * PAGE, 2 * PAGE, 0, contents_hash(b""))
    assert unpack_footer(pack_footer(footer)) == footer
    entries = unpack_contents(b"", footer)
    assert not isinstance(entries, Damage)
    assert list(entries) == []


def test_an_entry_keeps_what_the_index_needs() -> None:
    packed = pack_entry(RECORDS[0], PAGE * 123_456)
    offset = PAGE * 123_457
    entries = unpack_contents(packed, Footer(1, 1, offset, 1, contents_hash(packed)))
    assert not isinstance(entries, Damage)
    assert next(entries).offset == PAGE * 123_456


def test_t7_a_record_written_for_another_position_is_named() -> None:
    page = bytearray(PAGE)
    pack(RECORDS[0], memoryview(page), Position(5, PAGE).pack())
    assert unpack_record(bytes(page), Position(5, PAGE)) == RECORDS[0]
    assert unpack_record(bytes(page), Position(4, PAGE)) is Damage.PLACE
    assert unpack_record(bytes(page), Position(5, 2 * PAGE)) is Damage.PLACE
    page[0] ^= 1
    assert unpack_record(bytes(page), Position(5, PAGE)) is Damage.NOT_A_RECORD
