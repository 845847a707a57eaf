"""The record header: exact, or a named damage; never an exception, whatever the bytes."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.record.header import (
    DEFAULT_TENANT,
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    ROOT,
    SHARDS_MAX,
    VERSION,
    Damage,
    RecordHeader,
    RecordName,
    joined_hash,
    medium_part,
    mismatch,
    pack,
    payload_hash,
    pieces_hash,
    record_bytes,
    unpack,
)
from forebay.record.region import Position

GOLDEN = Path(__file__).parent.parent / "golden" / "record-v1.bin"
NAME = RecordName(bytes(range(32)), 7, bytes(range(100, 132)), bytes(range(200, 232)))
PAYLOAD = b"the KV of one chunk"
HEADER = RecordHeader(NAME, len(PAYLOAD), payload_hash(PAYLOAD))
MEDIUM = Position(3, 8192).pack()
HASH_AT = HEADER_BYTES - 16

digests = st.binary(min_size=32, max_size=32)
tenants = st.binary(min_size=16, max_size=16)
headers = st.builds(
    RecordHeader,
    st.builds(RecordName, digests, st.integers(0, 2**32 - 1), digests, digests, tenants),
    st.integers(1, PAYLOAD_BYTES_MAX),
    st.binary(min_size=16, max_size=16),
)
sharded = st.builds(
    lambda header, shard_bytes, shards: replace(header, length=shard_bytes * shards, shards=shards),
    headers,
    st.integers(1, PAYLOAD_BYTES_MAX // SHARDS_MAX),
    st.integers(1, SHARDS_MAX),
)


# Few bytes, or a page of few bytes again and again: a page of noise is slow to draw.
hostile = st.binary(max_size=80) | st.binary(min_size=1, max_size=80).map(
    lambda noise: (noise * HEADER_BYTES)[:HEADER_BYTES]
)


def packed(header: RecordHeader = HEADER, medium: bytes = MEDIUM) -> bytearray:
    page = bytearray(HEADER_BYTES)
    pack(header, memoryview(page), medium)
    return page


def rehashed(page: bytearray) -> bytes:
    """A page whose own hash holds, whatever stands in it."""
    page[HASH_AT:] = xxhash.xxh3_128_digest(bytes(page[:HASH_AT]))
    return bytes(page)


@given(headers | sharded, st.binary(min_size=16, max_size=16))
def test_what_is_packed_is_unpacked(header: RecordHeader, medium: bytes) -> None:
    page = packed(header, medium)
    assert unpack(bytes(page)) == unpack(memoryview(page)) == header
    assert medium_part(bytes(page)) == medium


def test_a_medium_that_notes_nothing_leaves_zeros() -> None:
    page = bytearray(HEADER_BYTES)
    pack(HEADER, memoryview(page))
    assert medium_part(bytes(page)) == bytes(16)
    assert unpack(bytes(page)) == HEADER


def test_t12_golden_bytes_of_version_1() -> None:
    """Bytes that this version wrote once and must read for ever."""
    golden = GOLDEN.read_bytes()
    assert len(golden) == record_bytes(len(PAYLOAD))
    assert unpack(golden[:HEADER_BYTES]) == HEADER
    assert medium_part(golden) == MEDIUM
    assert golden[HEADER_BYTES:].rstrip(b"\0") == PAYLOAD
    assert bytes(packed()) == golden[:HEADER_BYTES], "the format changed: that is a new version"


def test_t6_every_flipped_bit_of_a_header_is_damage() -> None:
    page = packed()
    for bit in range(HEADER_BYTES * 8):
        page[bit // 8] ^= 1 << bit % 8
        assert isinstance(unpack(bytes(page)), Damage), f"bit {bit}"
        page[bit // 8] ^= 1 << bit % 8
    assert unpack(bytes(page)) == HEADER


def test_t4_a_header_cut_at_every_byte_is_damage() -> None:
    page = bytes(packed())
    for cut in range(HEADER_BYTES):
        assert unpack(page[:cut]) is Damage.CUT
        if any(page[cut:]):
            assert isinstance(unpack(page[:cut].ljust(HEADER_BYTES, b"\0")), Damage), cut
            assert isinstance(unpack(page[:cut].ljust(HEADER_BYTES, b"\xff")), Damage), cut
    assert unpack(page + b"\0") is Damage.CUT


def test_t4_a_header_joined_with_an_older_one_at_any_sector_is_damage() -> None:
    old = packed(replace(HEADER, payload_hash=bytes(16)), Position(2, 8192).pack())
    new = packed()
    for cut in range(512, HEADER_BYTES, 512):
        assert isinstance(unpack(bytes(new[:cut] + old[cut:])), Damage)
        assert isinstance(unpack(bytes(old[:cut] + new[cut:])), Damage)


@given(hostile)
@example(b"")
@example(MAGIC)
@example(bytes(HEADER_BYTES))
@example(b"\xff" * HEADER_BYTES)
def test_t39_hostile_bytes_are_damage(data: bytes) -> None:
    assert isinstance(unpack(data), Damage)


@given(st.binary(min_size=1, max_size=200), st.integers(0, 200))
def test_t39_hostile_bytes_with_a_valid_hash_stay_within_bounds(noise: bytes, at: int) -> None:
    page = packed()
    page[at : at + len(noise)] = noise
    found = unpack(rehashed(page))
    if not isinstance(found, Damage):
        assert 0 < found.length <= PAYLOAD_BYTES_MAX
        assert found.codec == 0


@pytest.mark.parametrize(
    "length", [0, PAYLOAD_BYTES_MAX + 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1]
)
def test_t40_a_length_bomb_is_refused(length: int) -> None:
    page = packed()
    struct.pack_into("<Q", page, 16, length)
    assert unpack(rehashed(page)) is Damage.LENGTH


def test_t40_the_largest_length_is_allowed() -> None:
    page = packed()
    struct.pack_into("<Q", page, 16, PAYLOAD_BYTES_MAX)
    assert not isinstance(unpack(rehashed(page)), Damage)


@pytest.mark.parametrize("version", [0, VERSION + 1, 0xFFFF])
def test_t12_another_version_is_named_even_if_its_hash_is_elsewhere(version: int) -> None:
    page = packed()
    struct.pack_into("<H", page, 8, version)
    assert unpack(bytes(page)) is Damage.NEWER_VERSION
    assert unpack(rehashed(page)) is Damage.NEWER_VERSION


@pytest.mark.parametrize("codec", [1, 0xFFFF])
def test_t12_an_unknown_codec_is_named(codec: int) -> None:
    page = packed()
    struct.pack_into("<H", page, 10, codec)
    assert unpack(rehashed(page)) is Damage.CODEC


def test_other_bytes_are_not_a_record() -> None:
    page = packed()
    page[:8] = b"FOREBAYX"
    assert unpack(rehashed(page)) is Damage.NOT_A_RECORD


@pytest.mark.parametrize(
    ("found", "damage"),
    [
        (HEADER, None),
        (replace(HEADER, payload_hash=bytes(16)), None),
        (replace(HEADER, name=replace(NAME, parent=ROOT)), None),
        (replace(HEADER, name=replace(NAME, namespace=bytes(32))), Damage.NAMESPACE),
        (replace(HEADER, name=replace(NAME, tenant=b"t" * 16)), Damage.TENANT),
        (replace(HEADER, name=replace(NAME, group=0)), Damage.GROUP),
        (replace(HEADER, name=replace(NAME, key=bytes(32))), Damage.KEY),
        (replace(HEADER, name=replace(NAME, key=NAME.key[:16] + bytes(16))), Damage.KEY),
        (replace(HEADER, length=len(PAYLOAD) + 1), Damage.LENGTH),
    ],
)
def test_t7_an_undamaged_header_of_something_else_is_named(
    found: RecordHeader, damage: Damage | None
) -> None:
    assert mismatch(found, NAME, len(PAYLOAD)) is damage


def test_a_record_of_a_tenant_says_whose_it_is() -> None:
    """At a place of its own, zeros before there were tenants: so old records are the default's."""
    owned = replace(HEADER, name=replace(NAME, tenant=bytes(range(1, 17))))
    page = packed(owned)
    assert bytes(page[156:172]) == bytes(range(1, 17))
    page[156:172] = DEFAULT_TENANT
    assert unpack(rehashed(page)) == HEADER
    assert mismatch(HEADER, owned.name, len(PAYLOAD)) is Damage.TENANT


def test_every_flipped_bit_of_a_payload_changes_its_hash() -> None:
    payload = bytearray(range(256)) * 2
    true = payload_hash(bytes(payload))
    for bit in range(len(payload) * 8):
        payload[bit // 8] ^= 1 << bit % 8
        assert payload_hash(bytes(payload)) != true
        payload[bit // 8] ^= 1 << bit % 8


def test_a_record_takes_whole_pages() -> None:
    assert [record_bytes(n) for n in (1, 4096, 4097)] == [8192, 8192, 12288]


def test_several_shards_have_the_hash_of_their_hashes() -> None:
    """So workers that write a shard each can make it together, and none reads the others'."""
    shards = [bytes([n]) * 100 for n in range(4)]
    whole = b"".join(shards)
    joined = joined_hash([payload_hash(shard) for shard in shards])
    assert payload_hash(whole, 4) == payload_hash(memoryview(whole), 4) == joined
    assert joined == xxhash.xxh3_128_digest(b"".join(map(xxhash.xxh3_128_digest, shards)))
    assert joined not in (payload_hash(whole), payload_hash(whole, 2))
    assert joined_hash([payload_hash(whole)]) == payload_hash(whole) == payload_hash(whole, 1)
    assert payload_hash(b"".join(reversed(shards)), 4) != joined


@pytest.mark.parametrize("shards", [2, SHARDS_MAX + 1])
def test_shards_that_cannot_be_are_damage(shards: int) -> None:
    """Of an odd length there are no two halves; and nobody has so many workers."""
    length = len(PAYLOAD) if shards == 2 else shards
    page = packed(replace(HEADER, length=length))
    struct.pack_into("<I", page, 152, shards)
    assert unpack(rehashed(page)) is Damage.SHARDS


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5))
def test_a_payload_in_pieces_has_the_hash_of_the_whole(pieces: list[bytes]) -> None:
    assert pieces_hash(pieces) == payload_hash(b"".join(pieces))
