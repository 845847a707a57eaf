"""P8: bytes from disk are data: whatever lies there, the tier opens or says a sentence."""

import random
import resource
import struct
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.disk_harness import REGION_BYTES, opened, overwrite, records, regions

from forebay.errors import DirectoryError
from forebay.record import region as layout
from forebay.record.header import HEADER_BYTES
from forebay.testing.conformance import load, store
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Hit, Stored

SAMPLES = [single(f"hostile {n}", 30_000) for n in range(12)]


@pytest.fixture
def filled(swift_path: Path) -> Path:
    with opened(swift_path) as tier:
        for sample in SAMPLES:
            assert store(tier, sample) == Stored()
    return swift_path


def assert_exact_or_absent(place: Path) -> list[Sample]:
    with opened(place) as tier:
        outcomes = Outcomes(tier)
        for sample in SAMPLES:
            outcomes.load(sample)
        outcomes.wait()
        assert store(tier, single("next")) == Stored()
        return outcomes.hits


def rehashed(page: bytearray) -> bytes:
    page[-16:] = xxhash.xxh3_128_digest(bytes(page[:-16]))
    return bytes(page)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    noise=st.binary(min_size=1, max_size=120),
    at=st.integers(0, 160),
    which=st.sampled_from(["region header", "footer", "record"]),
    with_hash=st.booleans(),
    number=st.integers(0, 3),
)
def test_t39_hostile_pages_cost_what_they_hold_and_no_more(
    filled: Path, *, noise: bytes, at: int, which: str, with_hash: bool, number: int
) -> None:
    """Noise in any page that is decoded, with a valid hash over it or without."""
    paths = regions(filled)
    path = paths[number % len(paths)]
    originals = {each: each.read_bytes() for each in paths}
    first_record = next(offset for file, offset in records(filled) if file == path)
    offset = {"region header": 0, "footer": REGION_BYTES - HEADER_BYTES, "record": first_record}
    page = bytearray(originals[path][offset[which] :][:HEADER_BYTES])
    page[at : at + len(noise)] = noise
    overwrite(path, offset[which], rehashed(page) if with_hash else bytes(page))
    try:
        assert_exact_or_absent(filled)
    except DirectoryError as error:
        assert str(error).startswith(str(filled))  # noqa: PT017 - either way is right
    finally:
        for each in regions(filled):
            each.unlink()
        for each, content in originals.items():
            each.write_bytes(content)
            each.chmod(0o600)


@pytest.mark.parametrize(
    "change",
    [
        {"records": 2**32 - 1},
        {"records": 500},
        {"contents_offset": 2**63},
        {"contents_offset": 0},
        {"size_bytes": 2**63},
        {"size_bytes": 2**64 - 1, "records": 2**32 - 1},
        {"size_bytes": 1 << 40, "records": 2**32 - 1, "contents_offset": 4096},
    ],
    ids=str,
)
def test_t40_a_length_bomb_in_a_footer_is_refused_before_allocation(
    filled: Path, change: dict[str, int]
) -> None:
    for path in regions(filled):
        footer = layout.unpack_footer(path.read_bytes()[-HEADER_BYTES:])
        assert isinstance(footer, layout.Footer)
        bomb = layout.pack_footer(footer._replace(**change))  # type: ignore[arg-type]
        overwrite(path, REGION_BYTES - HEADER_BYTES, bomb)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(assert_exact_or_absent(filled)) == len(SAMPLES), "walked instead"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


@pytest.mark.parametrize("length", [0, 2**30 + 1, 2**63, 2**64 - 1, 2**30, REGION_BYTES])
def test_t40_a_length_bomb_in_a_record_is_absent(filled: Path, length: int) -> None:
    path, offset = next(iter(records(filled)))
    page = bytearray(path.read_bytes()[offset : offset + HEADER_BYTES])
    struct.pack_into("<Q", page, 16, length)
    overwrite(path, offset, rehashed(page))
    for each in regions(filled):  # no table: every record is walked
        overwrite(each, REGION_BYTES - HEADER_BYTES, bytes(HEADER_BYTES))
    assert len(assert_exact_or_absent(filled)) == len(SAMPLES) - 1


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("page", 2, 0),
        ("length", 2**20, 0),
        ("length", 2**32 - 1, len(SAMPLES)),  # impossible: the region is walked instead
        ("length", 0, len(SAMPLES)),
        ("page", 2**32 - 1, len(SAMPLES)),
        ("page", 0, len(SAMPLES)),
    ],
)
def test_t40_a_table_that_points_outside_its_region_is_a_miss(
    filled: Path, field: str, value: int, found: int
) -> None:
    """Sound in every hash: only what the records themselves say can tell."""
    for path in regions(filled):
        content = bytearray(path.read_bytes())
        footer = layout.unpack_footer(bytes(content[-HEADER_BYTES:]))
        assert isinstance(footer, layout.Footer)
        at = footer.contents_offset
        for entry in range(footer.records):
            where = at + entry * layout.ENTRY_BYTES + {"page": 80, "length": 84}[field]
            struct.pack_into("<I", content, where, value)
        contents = bytes(content[at : at + footer.records * layout.ENTRY_BYTES])
        footer = footer._replace(contents_hash=layout.contents_hash(contents))
        content[-HEADER_BYTES:] = layout.pack_footer(footer)
        overwrite(path, 0, bytes(content))
    assert len(assert_exact_or_absent(filled)) == found


def test_t39_a_region_of_nothing_but_noise_is_left_alone(filled: Path, seed: int) -> None:
    draw = random.Random(seed)
    stranger = filled / "region-00000000000000ff"
    stranger.write_bytes(draw.randbytes(REGION_BYTES))
    content = stranger.read_bytes()
    assert len(assert_exact_or_absent(filled)) == len(SAMPLES)
    assert stranger.read_bytes() == content, "what may be another's is not touched"


@pytest.mark.parametrize(
    "name",
    ["readme.txt", "region-", "region-xyz", "region-00000000000000FF", "region-1", ".hidden"],
)
def test_other_files_in_the_directory_are_left_alone(filled: Path, name: str) -> None:
    (filled / name).write_bytes(b"mine")
    assert len(assert_exact_or_absent(filled)) == len(SAMPLES)
    assert (filled / name).read_bytes() == b"mine"


def test_a_hit_is_still_a_hit(filled: Path) -> None:
    with opened(filled) as tier:
        assert load(tier, SAMPLES[0])[0] == Hit(30_000)
