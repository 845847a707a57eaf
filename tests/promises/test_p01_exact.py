"""P1: a hit is bit-identical to what was stored, or it is a miss."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import flip, open_tier, opened, overwrite, records, regions

from forebay.record.header import (
    HEADER_BYTES,
    Damage,
    RecordHeader,
    medium_part,
    pack,
    payload_hash,
    record_bytes,
)
from forebay.record.region import Position
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Operation
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, payload_of, single
from forebay.tiers.contract import Dropped, DropReason, Hit, Miss, MissReason, Stored
from forebay.tiers.disk import DiskTier, Options

SAMPLE = single("victim", 6000)
# magic to payload hash, and the header's own hash: the bits of a header that say something
HEADER_BITS = [*range(152 * 8), *range((HEADER_BYTES - 16) * 8, HEADER_BYTES * 8)]


# One region holds all that these tests write: the first write of a store is then its record.
ROOMY = Options(region_bytes=4 << 20, read_depth=1, write_depth=1)
ROOMY_CAP_BYTES = 40 << 20


def content(path: Path, offset: int, size: int) -> bytes:
    return path.read_bytes()[offset : offset + size]


def only_record(place: Path) -> tuple[Path, int]:
    ((path, offset),) = records(place)
    return path, offset


CUTS = [*range(0, HEADER_BYTES, 97), *range(HEADER_BYTES, record_bytes(6000), 512), 10_095]


def test_t4_a_torn_write_is_a_miss_wherever_it_was_cut(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ROOMY, cap_bytes=ROOMY_CAP_BYTES) as tier:
        store(tier, single("first"))
        for cut in CUTS:
            sample = single(f"torn at {cut}", 6000)
            torn = disk.arm(f"write:tear={cut}@1")
            assert store(tier, sample) == Stored(), "the drive lied"
            assert torn.fired == 1
            torn.disarm()
            outcome, data = load(tier, sample)
            if cut >= HEADER_BYTES + sample.length:
                assert (outcome, data) == (Hit(6000), sample.payload), "only padding was cut"
            else:
                assert isinstance(outcome, Miss), cut
                assert outcome.reason is MissReason.CORRUPT


HARMFUL_CUTS = [cut for cut in CUTS if cut < HEADER_BYTES + 6000][::5]


def test_t4_a_torn_write_is_absent_after_a_restart(swift_path: Path) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk, options=ROOMY, cap_bytes=ROOMY_CAP_BYTES)
    good = single("good", 6000)
    store(tier, good)
    for cut in HARMFUL_CUTS:
        disk.arm(f"write:tear={cut}@1")
        store(tier, single(f"torn at {cut}", 6000))
        disk.disarm()
    # Killed before it could seal: the region has to be walked.
    disk.arm("write:errno=EIO")
    tier.close(60)
    with opened(swift_path, options=ROOMY, cap_bytes=ROOMY_CAP_BYTES) as tier:
        for cut in HARMFUL_CUTS:
            assert load(tier, single(f"torn at {cut}", 6000))[0] == Miss(MissReason.ABSENT)
        assert load(tier, good) == (Hit(6000), good.payload)
        assert tier.usage().records == 1


def damage_and_repair(tier: DiskTier, disk: FaultDisk, place: Path, bit: int) -> None:
    """One flipped bit of a fresh record: a miss, then absent without a look, then repaired."""
    tier.remove(SAMPLE.name.key)
    assert store(tier, SAMPLE) == Stored()
    path, offset = list(records(place))[-1]
    flip(path, offset * 8 + bit)
    outcome, _ = load(tier, SAMPLE)
    assert isinstance(outcome, Miss), f"bit {bit}"
    assert outcome.damage is not None
    reads = disk.calls[Operation.READ]
    assert load(tier, SAMPLE)[0] == Miss(MissReason.ABSENT)
    assert disk.calls[Operation.READ] == reads, "bad bytes are not read twice"
    assert store(tier, SAMPLE) == Stored()
    assert load(tier, SAMPLE) == (Hit(SAMPLE.length), SAMPLE.payload)


def flip_bits(place: Path, bits: list[int]) -> None:
    for at in range(0, len(bits), 40):
        each = place / str(at)
        disk = FaultDisk()
        with opened(each, disk) as tier:
            for bit in bits[at : at + 40]:
                damage_and_repair(tier, disk, each, bit)


def test_t6_some_flipped_bits_are_misses(swift_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    payload = [HEADER_BYTES * 8 + draw.randrange(SAMPLE.length * 8) for _ in range(60)]
    flip_bits(swift_path, draw.sample(HEADER_BITS, 60) + payload)


@pytest.mark.slow
def test_t6_every_flipped_header_bit_is_a_miss(swift_path: Path) -> None:
    flip_bits(swift_path, HEADER_BITS)


@pytest.mark.slow
def test_t6_ten_thousand_reads_with_a_flipped_bit_serve_nothing_wrong(
    swift_path: Path, seed: int
) -> None:
    """Flipped on the way from the medium, in header, payload or padding, in half of the reads."""
    disk = FaultDisk(seed=seed)
    samples = [single(f"flipped {n}", 3000) for n in range(200)]
    flipped = disk.arm("read:flip=1@50%")
    with opened(swift_path, disk) as tier:
        while flipped.fired < 10_000:
            outcomes = Outcomes(tier)
            for sample in samples:
                outcomes.store(sample)
            outcomes.wait()
            for sample in samples:
                outcomes.load(sample)
            outcomes.wait()
            assert outcomes.misses


def forged(sample: Sample, medium: bytes, payload: bytes) -> bytes:
    """A sound record of `sample` with the medium's part of another."""
    page = bytearray(HEADER_BYTES)
    header = RecordHeader(sample.name, sample.length, payload_hash(payload))
    pack(header, memoryview(page), medium)
    return bytes(page) + payload


def medium_at(path: Path, offset: int) -> bytes:
    return medium_part(content(path, offset, HEADER_BYTES))


def test_t7_two_records_that_changed_places_are_misses(swift_path: Path) -> None:
    one, other = single("one", 6000), single("other", 6000)
    with opened(swift_path) as tier:
        store(tier, one)
        store(tier, other)
        (path, first), (_, second) = records(swift_path)
        size = record_bytes(6000)
        bytes_one, bytes_other = content(path, first, size), content(path, second, size)
        overwrite(path, first, bytes_other)
        overwrite(path, second, bytes_one)
        for sample in (one, other):
            assert load(tier, sample)[0] == Miss(MissReason.WRONG_RECORD, Damage.PLACE)


@pytest.mark.parametrize(
    ("field", "value", "damage"),
    [
        ("key", SAMPLE.name.key[:16] + bytes(16), Damage.KEY),
        ("key", bytes(32), Damage.KEY),
        ("namespace", bytes(32), Damage.NAMESPACE),
        ("tenant", b"t" * 16, Damage.TENANT),
        ("group", 1, Damage.GROUP),
    ],
)
def test_t7_a_sound_record_of_another_name_in_our_place_is_a_miss(
    swift_path: Path, field: str, value: object, damage: Damage
) -> None:
    with opened(swift_path) as tier:
        store(tier, SAMPLE)
        path, offset = only_record(swift_path)
        name = replace(SAMPLE.name, **{field: value})  # type: ignore[arg-type]
        other = Sample(name, SAMPLE.length)
        overwrite(path, offset, forged(other, medium_at(path, offset), other.payload))
        assert load(tier, SAMPLE)[0] == Miss(MissReason.WRONG_RECORD, damage)


@pytest.mark.parametrize("length", [5999, 6001, 1, 100_000])
def test_t7_a_sound_record_of_another_length_in_our_place_is_a_miss(
    swift_path: Path, length: int
) -> None:
    with opened(swift_path) as tier:
        store(tier, SAMPLE)
        path, offset = only_record(swift_path)
        other = Sample(SAMPLE.name, length)
        overwrite(path, offset, forged(other, medium_at(path, offset), other.payload))
        outcome, _ = load(tier, SAMPLE)
        assert outcome == Miss(MissReason.CORRUPT, Damage.LENGTH)


def test_t7_a_sound_record_of_another_generation_in_our_place_is_a_miss(swift_path: Path) -> None:
    with opened(swift_path) as tier:
        store(tier, SAMPLE)
        path, offset = only_record(swift_path)
        older = Position(99, offset).pack()
        overwrite(path, offset, forged(SAMPLE, older, payload_of(SAMPLE.name, 6000)))
        assert load(tier, SAMPLE)[0] == Miss(MissReason.WRONG_RECORD, Damage.PLACE)


@pytest.mark.parametrize("operation", ["read", "write"])
def test_t7_misdirected_calls_are_misses(swift_path: Path, operation: str) -> None:
    disk = FaultDisk()
    samples = [single(f"misdirected {n}", 4096) for n in range(10)]
    with opened(swift_path, disk, options=ROOMY, cap_bytes=ROOMY_CAP_BYTES) as tier:
        store(tier, single("first"))
        for n, sample in enumerate(samples):
            lost = disk.arm(f"{operation}:misdirect=8192@1") if n % 3 == 0 else None
            assert store(tier, sample) == Stored()
            outcome, data = load(tier, sample)
            assert isinstance(outcome, Miss) or data == sample.payload
            if lost:
                assert isinstance(outcome, Miss)
                lost.disarm()
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()


def test_t7_regions_that_changed_their_names_are_misses_or_exact(swift_path: Path) -> None:
    samples = [single(f"swapped {n}", 30_000) for n in range(30)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
    first, second, *_ = regions(swift_path)
    spare = swift_path / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    with opened(swift_path) as tier:
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.hits


def test_t8_an_older_copy_of_a_region_never_serves_another_key(swift_path: Path) -> None:
    """Rolled back beneath a running tier, and again beneath a closed one."""
    early = [single(f"early {n}", 30_000) for n in range(10)]
    late = [single(f"late {n}", 30_000) for n in range(300)]
    with opened(swift_path) as tier:
        for sample in early:
            store(tier, sample)
        old = [path.read_bytes() for path in regions(swift_path)]
        for sample in late:
            store(tier, sample)
        for path, bytes_before in zip(regions(swift_path), old, strict=False):
            overwrite(path, 0, bytes_before)
        outcomes = Outcomes(tier)
        for sample in early + late:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.misses.keys() > {MissReason.ABSENT}, "rolled back records were met"
    for path, bytes_before in zip(regions(swift_path), old, strict=False):
        overwrite(path, 0, bytes_before)
    with opened(swift_path) as tier:
        outcomes = Outcomes(tier)
        for sample in early + late:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.hits


def test_t9_keys_that_agree_in_the_index_alone_never_share_bytes(swift_path: Path) -> None:
    twin = Sample(replace(SAMPLE.name, key=SAMPLE.name.key[:16] + bytes(16)), 6000)
    assert twin.payload != SAMPLE.payload
    with opened(swift_path) as tier:
        assert store(tier, SAMPLE) == Stored()
        assert store(tier, twin) == Dropped(DropReason.DUPLICATE)
        assert load(tier, twin)[0] == Miss(MissReason.WRONG_RECORD, Damage.KEY)
