"""P2: any failure of the medium is a miss or a dropped store; what was stored stays exact."""

import random
import shutil
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path

import pytest
from tests.disk_harness import (
    CAP_BYTES,
    CLOSE_S,
    SMALL,
    allocated,
    open_tier,
    opened,
    regions,
    until,
)
from tests.pool_process import open_files

from forebay.errors import DirectoryError
from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Fault, Operation, parse_fault
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Dropped, DropReason, Hit, Miss, MissReason, Stored
from forebay.tiers.disk import Directory, DiskTier, Options

# One thread of each kind, so that the n-th call is the same in every run; nothing ever pauses.
ORDERLY = Options(
    region_bytes=1 << 16, read_depth=1, write_depth=1, errors_max=1000, full_pause_s=0
)
TINY_CAP_BYTES = 11 << 16
FAILURES = [
    *(f"{call}:errno=EIO" for call in ("read", "write", "open", "preallocate", "rename", "unlink")),
    *(f"{call}:errno=ENOSPC" for call in ("write", "preallocate", "open", "rename")),
    *(f"open:errno={number}" for number in ("EMFILE", "ENFILE", "ENOMEM", "EROFS", "EACCES")),
    *(f"{call}:errno={number}" for call in ("read", "write") for number in ("EINTR", "EAGAIN")),
    *(f"{call}:errno=ENOMEM" for call in ("read", "write", "preallocate")),
    *(f"{call}:short={size}" for call in ("read", "write") for size in (0, 512, 4096, 5000)),
    "status:errno=EIO",
    "names:errno=EIO",
    "space:errno=EIO",
    "lock:errno=EIO",
    "lock:errno=ENOLCK",
    "open_directory:errno=EMFILE",
]


STARTS = ((TINY_CAP_BYTES + (3 << 16), 25), (TINY_CAP_BYTES, 6))  # cap in bytes, stores


def tiny(start: int, n: int) -> Sample:
    """Two of these fill a region."""
    return single(f"{start} {n}", 17_000)


def workload(place: Path, disk: FaultDisk) -> tuple[int, int] | None:
    """Fill, evict, load, close; trim to a lower cap, go on: every kind of call there is.

    Answers how many stores were taken after each start, or None if it refused to begin, or served
    without the directory.
    """
    stored = []
    for start, (cap_bytes, stores) in enumerate(STARTS):
        try:
            tier = open_tier(place, disk, options=ORDERLY, cap_bytes=cap_bytes)
        except DirectoryError as error:
            assert_sentence(error, place)
            return None
        if not tier.volumes()[0].is_on:
            assert store(tier, tiny(start, 0)) == Dropped(DropReason.TIER_OFF)
            tier.close(CLOSE_S)
            return None
        outcomes = Outcomes(tier)
        for n in range(stores):
            outcomes.store(tiny(start, n))
            outcomes.wait()
            if n % 4 == 3:
                outcomes.load(tiny(start, n - 2))
                outcomes.wait()
            assert allocated(place) <= cap_bytes
        tier.close(CLOSE_S)
        stored.append(len(outcomes.stored))
    return stored[0], stored[1]


def assert_sentence(error: DirectoryError, place: Path) -> None:
    assert str(error).startswith(str(place))
    assert str(error).endswith((".", str(place)))


def fail_nth_call(fault: str, swift_path: Path, n: int) -> bool:
    """Whether the fault struck; then it cost no more than what it struck."""
    place = swift_path / str(n)
    disk = FaultDisk()
    rule = disk.arm(f"{fault}@{n}")
    stored = workload(place, disk)
    assert open_files(str(place)) == 0, "every descriptor was given back"
    if not rule.fired:
        return False
    if stored is not None:
        assert stored[0] >= STARTS[0][1] - 1
        assert stored[1] >= STARTS[1][1] - 1
    with opened(place, options=ORDERLY, cap_bytes=TINY_CAP_BYTES) as tier:
        check_everything(tier)
        assert allocated(place) <= TINY_CAP_BYTES
        assert tier.usage().used_bytes == sum(path.stat().st_size for path in regions(place))
    shutil.rmtree(place)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAILURES)
def test_t15_t16_t17_the_nth_call_fails(fault: str, swift_path: Path) -> None:
    """Count up until no call fails: every call of every kind has then failed once."""
    struck = sum(1 for _ in takewhile(lambda n: fail_nth_call(fault, swift_path, n), count(1)))
    print(f"{struck} calls failed by {fault}")
    assert struck > 0, "the workload makes such calls"


@pytest.mark.parametrize("fault", FAILURES)
def test_t15_t16_t17_one_call_fails(fault: str, swift_path: Path, seed: int) -> None:
    """The same for one call of each kind, drawn anew in every run."""
    assert fail_nth_call(fault, swift_path, random.Random(seed).randint(1, 2))


def check_everything(tier: DiskTier) -> None:
    outcomes = Outcomes(tier)
    for start, (_, stores) in enumerate(STARTS):
        for n in range(stores):
            outcomes.load(tiny(start, n))
    outcomes.wait()
    assert outcomes.misses.keys() <= {MissReason.ABSENT, MissReason.CORRUPT}


@pytest.mark.parametrize(
    "fault", ["read:errno=EINTR@1", "read:errno=EAGAIN@1", "read:short=4096@1"]
)
def test_t17_what_posix_says_to_try_again_is_tried_again(fault: str, swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        store(tier, single("again"))
        disk.arm(fault)
        assert load(tier, single("again"))[0] == Hit(5000)
        disk.arm(fault.replace("read", "write"))
        assert store(tier, single("and again")) == Stored()


def test_t15_a_full_drive_drops_stores_reads_go_on_and_it_recovers(swift_path: Path) -> None:
    disk, clock = FaultDisk(), ManualClock()
    kept = [single(f"kept {n}", 30_000) for n in range(8)]
    with opened(swift_path, disk, clock) as tier:
        for sample in kept:
            assert store(tier, sample) == Stored()
        full = disk.arm("write+preallocate:errno=ENOSPC")
        before = {path.name for path in swift_path.iterdir()}
        for n in range(50):
            assert store(tier, single(f"dropped {n}", 30_000)) == Dropped(DropReason.NO_SPACE)
        assert {path.name for path in swift_path.iterdir()} == before, "nothing is left over"
        for sample in kept:
            assert load(tier, sample) == (Hit(30_000), sample.payload)
        assert tier.usage().records == 8
        assert [drive.is_on for drive in tier.volumes()] == [True], "full is not broken"
        full.disarm()
        clock.advance(5)
        for n in range(50):
            assert store(tier, single(f"dropped {n}", 30_000)) == Stored()


def test_t16_errors_switch_a_drive_off_and_a_probe_switches_it_on(swift_path: Path) -> None:
    disk, clock = FaultDisk(), ManualClock()
    sample = single("kept")
    with opened(swift_path, disk, clock) as tier:
        store(tier, sample)
        disk.arm("read+write:errno=EIO")
        for _ in range(SMALL.errors_max):
            assert load(tier, sample)[0] == Miss(MissReason.IO_ERROR)
        until(lambda: tier.prefix([sample.name.key]).chunks == 0)
        assert load(tier, sample)[0] == Miss(MissReason.TIER_OFF)
        assert store(tier, single("other")) == Dropped(DropReason.TIER_OFF)
        writes = disk.calls[Operation.WRITE]
        clock.advance(SMALL.probe_interval_s + 1)
        until(lambda: disk.calls[Operation.WRITE] > writes)
        assert load(tier, sample)[0] == Miss(MissReason.TIER_OFF), "the probe failed too"
        disk.disarm()
        clock.advance(SMALL.probe_interval_s + 1)
        until(lambda: tier.prefix([sample.name.key]).chunks == 1)
        assert load(tier, sample) == (Hit(5000), sample.payload)
        assert store(tier, single("other")) == Stored()


def test_t16_errors_far_apart_switch_nothing_off(swift_path: Path) -> None:
    disk, clock = FaultDisk(), ManualClock()
    sample = single("kept")
    with opened(swift_path, disk, clock) as tier:
        store(tier, sample)
        for _ in range(4 * SMALL.errors_max):
            disk.arm("read:errno=EIO@1")
            assert load(tier, sample)[0] == Miss(MissReason.IO_ERROR)
            assert load(tier, sample)[0] == Hit(5000), "an error is not damage"
            clock.advance(SMALL.error_window_s / (SMALL.errors_max - 1) + 1)


def test_t16_one_failing_drive_of_two_is_switched_off_alone(swift_path: Path) -> None:
    drives = [swift_path / "good", swift_path / "bad"]
    for drive in drives:
        drive.mkdir(mode=0o700)
    disk = FaultDisk()
    tier = DiskTier.open([Directory(str(drive), CAP_BYTES) for drive in drives], SMALL, world(disk))
    samples = [single(f"spread {n}", 10_000) for n in range(40)]
    for sample in samples:
        assert store(tier, sample) == Stored()
    rule = fault_within("read+write+preallocate+open:errno=EIO", "/bad")
    disk.arm(rule)
    for _ in range(2):
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
    assert 15 <= len(outcomes.hits) <= 25, "the other drive serves its half"
    assert {drive.path.rpartition("/")[2]: drive.is_on for drive in tier.volumes()} == {
        "good": True,
        "bad": False,
    }
    for n in range(20):
        assert store(tier, single(f"after {n}")) == Stored()
    tier.close(CLOSE_S)


def world(disk: FaultDisk) -> World:
    return World(disk, Clock())


def fault_within(text: str, within: str) -> Fault:
    return replace(parse_fault(text), within=within)


def test_t18_a_drive_that_becomes_read_only_still_serves(swift_path: Path) -> None:
    disk = FaultDisk()
    kept = single("kept")
    with opened(swift_path, disk) as tier:
        store(tier, kept)
        disk.arm("write+open+preallocate+rename+unlink:errno=EROFS")
        outcome = store(tier, single("refused"))
        assert outcome == Dropped(DropReason.IO_ERROR)
        assert load(tier, kept) == (Hit(5000), kept.payload)


def test_t18_a_directory_deleted_beneath_us_costs_no_exception(swift_path: Path) -> None:
    place = swift_path / "pool"
    samples = [single(f"gone {n}", 30_000) for n in range(200)]
    with opened(place) as tier:
        for sample in samples[:10]:
            store(tier, sample)
        shutil.rmtree(place)
        outcomes = Outcomes(tier)
        for sample in samples[10:]:
            outcomes.store(sample)
            outcomes.wait()
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.dropped, "no new region can be made"
    assert not place.exists(), "and nothing is made anew behind the operator's back"


def test_t18_a_directory_replaced_by_a_link_leads_nowhere(swift_path: Path) -> None:
    place, elsewhere = swift_path / "pool", swift_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    with opened(place) as tier:
        store(tier, single("before", 30_000))
        place.rename(swift_path / "moved")
        place.symlink_to(elsewhere)
        for n in range(100):
            store(tier, single(f"after {n}", 30_000))
        assert load(tier, single("after 99", 30_000))[0] == Hit(30_000)
    assert list(elsewhere.iterdir()) == []
    with pytest.raises(DirectoryError, match="symbolic link"):
        DiskTier.open([Directory(str(place), CAP_BYTES)], SMALL)
