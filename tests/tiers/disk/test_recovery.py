"""A region holds what was written in its generation: older tables and records count for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import flip, open_tier, opened, overwrite, records, regions

from forebay.record.header import HEADER_BYTES, RecordHeader, pack, payload_hash
from forebay.record.region import Position
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import parse_fault
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Hit, Miss, MissReason, Stored
from forebay.tiers.disk import Options

TINY_BYTES = 1 << 16
CAP_BYTES = 11 * TINY_BYTES
ORDERLY = Options(region_bytes=TINY_BYTES, read_depth=1, write_depth=1)


def tiny(number: int) -> Sample:
    """Two of these fill a region."""
    return single(f"recovered {number}", 18_000)


def write_and_die(place: Path, numbers: range) -> None:
    """Store, and end without sealing what is open, as a killed process does."""
    disk = FaultDisk()
    tier = open_tier(place, disk, options=ORDERLY, cap_bytes=CAP_BYTES)
    for number in numbers:
        assert store(tier, tiny(number)) == Stored()
    disk.arm("write:errno=EIO")
    tier.close(60)


def found(place: Path, numbers: range) -> list[Sample]:
    """What can be loaded; the rest is absent and nothing is damaged."""
    with opened(place, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        outcomes = Outcomes(tier)
        for number in numbers:
            outcomes.load(tiny(number))
        outcomes.wait()
        assert outcomes.misses.keys() <= {MissReason.ABSENT}
        assert tier.usage().records == len(outcomes.hits)
        return outcomes.hits


def test_an_older_generation_of_a_file_counts_for_nothing(swift_path: Path) -> None:
    """The file still has the older generation's footer, table and second record."""
    write_and_die(swift_path, range(21))
    youngest = regions(swift_path)[-1]
    assert len([path for path, _ in records(swift_path) if path == youngest]) == 2
    evicted = 4  # the records of two regions
    assert set(found(swift_path, range(21))) == {tiny(number) for number in range(evicted, 21)}


def test_a_walked_region_is_filled_further_and_sealed(swift_path: Path) -> None:
    write_and_die(swift_path, range(1))
    assert found(swift_path, range(1)) == [tiny(0)]
    write_and_die(swift_path, range(1, 2))
    assert len(regions(swift_path)) == 1
    assert len(found(swift_path, range(2))) == 2


def forge(place: Path, offset: int, sample: Sample, payload: bytes) -> None:
    """A record that is sound by itself, wherever it lies."""
    page = bytearray(HEADER_BYTES)
    header = RecordHeader(sample.name, sample.length, payload_hash(payload))
    pack(header, memoryview(page), Position(1, offset).pack())
    overwrite(regions(place)[0], offset, bytes(page) + payload)


@pytest.mark.parametrize("length", [100, 1 << 30])
def test_a_record_that_would_end_behind_its_region_is_not_one(
    swift_path: Path, length: int
) -> None:
    write_and_die(swift_path, range(1))
    forge(swift_path, TINY_BYTES - HEADER_BYTES, Sample(tiny(7).name, length), b"")
    assert found(swift_path, range(1)) == [tiny(0)]


def test_a_record_behind_a_gap_is_found(swift_path: Path) -> None:
    write_and_die(swift_path, range(1))
    sample = single("recovered 1", 4096)
    forge(swift_path, 9 * HEADER_BYTES, sample, sample.payload)
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert load(tier, sample) == (Hit(4096), sample.payload)


def test_a_table_of_another_region_is_not_believed(swift_path: Path) -> None:
    """A sound table and footer, copied from one region into another by a misdirected write."""
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        for number in range(4):
            store(tier, tiny(number))
    one, other = regions(swift_path)
    tail = 13 * HEADER_BYTES  # both lie behind the region's header and two records of six pages
    overwrite(other, tail, one.read_bytes()[tail:])
    assert len(found(swift_path, range(4))) == 4


def test_a_damaged_record_in_a_sealed_region_is_met_at_its_load(swift_path: Path) -> None:
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        for number in range(4):
            store(tier, tiny(number))
    path, offset = next(iter(records(swift_path)))
    flip(path, (offset + HEADER_BYTES) * 8)
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        outcome, _ = load(tier, tiny(0))
        assert isinstance(outcome, Miss)
        assert outcome.reason is MissReason.CORRUPT
        assert load(tier, tiny(1))[0] == Hit(18_000)


def test_a_region_that_cannot_be_read_is_left_alone_and_counted(swift_path: Path) -> None:
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        for number in range(4):
            store(tier, tiny(number))
    unreadable = replace(parse_fault("read:errno=EIO"), within=regions(swift_path)[0].name)
    disk = FaultDisk(unreadable)
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert tier.usage().records == 2
        assert tier.usage().used_bytes == 2 * TINY_BYTES
        assert load(tier, tiny(3))[0] == Hit(18_000)
    assert len(found(swift_path, range(4))) == 4, "it was only left alone"


@pytest.mark.parametrize("number", ["EIO", "ENOSPC", "EROFS", "EPERM"])
def test_a_region_that_cannot_be_resumed_is_kept(swift_path: Path, number: str) -> None:
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        store(tier, tiny(0))
    disk = FaultDisk(f"write:errno={number}@1")
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert load(tier, tiny(0))[0] == Hit(18_000)
        assert store(tier, tiny(1)) == Stored()
    assert tiny(0) in found(swift_path, range(2))
