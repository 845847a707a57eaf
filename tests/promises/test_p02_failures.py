"""P2: any failure of the medium is a miss or a dropped store; what was stored stays exact."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path

import pytest
from tests.harness import (
    CAP_BYTES,
    CLOSE_S,
    SMALL,
    allocated,
    flip,
    open_tier,
    opened,
    overwrite,
    records,
    regions,
    until,
)

from forebay.errors import DirectoryError
from forebay.record.header import HEADER_BYTES
from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import keys, load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Fault, parse_fault
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, chain, single
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


LIVES = ((TINY_CAP_BYTES + (3 << 16), 25), (TINY_CAP_BYTES, 6))  # cap in bytes, stores


def tiny(life: int, n: int) -> Sample:
    """Two of these fill a region."""
    return single(f"{life} {n}", 17_000)


def workload(place: Path, disk: FaultDisk) -> tuple[int, int] | None:
    """Fill, evict, load, close; trim to a lower cap, go on: every kind of call there is.

    Answers how many stores were taken in each life, or None if it refused to begin.
    """
    stored = []
    for life, (cap_bytes, stores) in enumerate(LIVES):
        try:
            tier = open_tier(place, disk, options=ORDERLY, cap_bytes=cap_bytes)
        except DirectoryError as error:
            assert_sentence(error, place)
            return None
        outcomes = Outcomes(tier)
        for n in range(stores):
            outcomes.store(tiny(life, n))
            outcomes.wait()
            if n % 4 == 3:
                outcomes.load(tiny(life, n - 2))
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
    before = descriptors()
    stored = workload(place, disk)
    assert descriptors() == before, "every descriptor was given back"
    if not rule.fired:
        return False
    if stored is not None:
        assert stored[0] >= LIVES[0][1] - 1
        assert stored[1] >= LIVES[1][1] - 1
    with opened(place, options=ORDERLY, cap_bytes=TINY_CAP_BYTES) as tier:
        check_everything(tier)
        assert allocated(place) <= TINY_CAP_BYTES
        assert tier.usage().used_bytes == sum(path.stat().st_size for path in regions(place))
    shutil.rmtree(place)
    return True


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
    for life, (_, stores) in enumerate(LIVES):
        for n in range(stores):
            outcomes.load(tiny(life, n))
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
        assert [drive.is_on for drive in tier.drives()] == [True], "full is not broken"
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
        until(lambda: tier.prefix([sample.name.key]) == 0)
        assert load(tier, sample)[0] == Miss(MissReason.TIER_OFF)
        assert store(tier, single("other")) == Dropped(DropReason.TIER_OFF)
        clock.advance(SMALL.probe_interval_s + 1)
        time.sleep(4 * SMALL.tick_s)
        assert load(tier, sample)[0] == Miss(MissReason.TIER_OFF), "the probe failed too"
        disk.disarm()
        clock.advance(SMALL.probe_interval_s + 1)
        until(lambda: tier.prefix([sample.name.key]) == 1)
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
    assert {drive.path.rpartition("/")[2]: drive.is_on for drive in tier.drives()} == {
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


def filled(place: Path, count: int = 30) -> list[Sample]:
    samples = [single(f"filled {n}", 30_000) for n in range(count)]
    with opened(place) as tier:
        for sample in samples:
            assert store(tier, sample) == Stored()
    return samples


def hits(place: Path, samples: list[Sample]) -> list[Sample]:
    with opened(place) as tier:
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.misses.keys() <= {MissReason.ABSENT, MissReason.CORRUPT}
        return outcomes.hits


def test_t19_a_missing_region_is_a_miss_and_nothing_more(swift_path: Path) -> None:
    samples = filled(swift_path)
    regions(swift_path)[1].unlink()
    found = hits(swift_path, samples)
    assert len(samples) - 8 <= len(found) < len(samples)


def test_t19_a_region_cut_beneath_us_is_a_miss_and_the_index_is_mended(swift_path: Path) -> None:
    samples = [single(f"cut {n}", 30_000) for n in range(5)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
        with regions(swift_path)[0].open("r+b") as file:
            file.truncate(50_000)
        found = [load(tier, sample)[0] for sample in samples]
        assert found[0] == Hit(30_000)
        assert {outcome.reason for outcome in found[1:] if isinstance(outcome, Miss)} == {
            MissReason.CORRUPT
        }
        assert tier.usage().records == 1
        assert load(tier, samples[4])[0] == Miss(MissReason.ABSENT)


def damage_footers(place: Path) -> None:
    for path in regions(place):
        flip(path, (path.stat().st_size - HEADER_BYTES + 20) * 8)


def damage_contents(place: Path) -> None:
    for path in regions(place):
        last = max(offset for file, offset in records(place) if file == path)
        flip(path, (last + 9 * HEADER_BYTES + 3) * 8)


def damage_region_headers(place: Path) -> None:
    for path in regions(place):
        overwrite(path, 0, bytes(HEADER_BYTES))


def damage_headers_and_footers(place: Path) -> None:
    damage_region_headers(place)
    damage_footers(place)


@pytest.mark.parametrize(
    "damage",
    [damage_footers, damage_contents, damage_region_headers, damage_headers_and_footers],
)
def test_t20_an_index_that_is_lost_is_rebuilt_by_walking(
    swift_path: Path, damage: Callable[[Path], None]
) -> None:
    samples = filled(swift_path)
    damage(swift_path)
    before = time.monotonic()
    assert len(hits(swift_path, samples)) == len(samples)
    assert time.monotonic() - before < 5
    assert len(hits(swift_path, samples)) == len(samples), "and is whole again"


def test_t20_records_behind_a_damaged_one_are_found(swift_path: Path) -> None:
    samples = filled(swift_path, 6)
    damage_footers(swift_path)
    path, offset = list(records(swift_path))[2]
    overwrite(path, offset, bytes(HEADER_BYTES))
    assert len(hits(swift_path, samples)) == 5


def test_t20_children_of_a_lost_record_are_absent(swift_path: Path) -> None:
    links = chain("chain", [30_000] * 6)
    with opened(swift_path) as tier:
        for link in links:
            store(tier, link)
    damage_footers(swift_path)
    path, offset = list(records(swift_path))[2]
    overwrite(path, offset, bytes(HEADER_BYTES))
    with opened(swift_path) as tier:
        assert tier.prefix(keys(links)) == 2
        assert tier.usage().records == 2


def test_t22_a_second_owner_is_refused_with_a_sentence(swift_path: Path) -> None:
    sample = single("owned")
    with opened(swift_path) as tier:
        store(tier, sample)
        with pytest.raises(DirectoryError, match="in use by another pool") as caught:
            open_tier(swift_path, cap_bytes=2 * CAP_BYTES)
        assert str(caught.value).startswith(str(swift_path))
        assert load(tier, sample)[0] == Hit(5000), "the first is not disturbed"
        assert another_process_opens(swift_path) == "DirectoryError"
    assert another_process_opens(swift_path) == "opened"


def another_process_opens(place: Path) -> str:
    program = (
        "import sys; from forebay.tiers.disk import *; from forebay.errors import *\n"
        "try: DiskTier.open([Directory(sys.argv[1], 3 << 20)]).close(9); print('opened')\n"
        "except DirectoryError as error: print(type(error).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, check=True, text=True
    )
    return found.stdout.strip()
