"""P5: the disk never holds more than its cap, at any instant, as others see it."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.disk_harness import (
    CAP_BYTES,
    REGION_BYTES,
    SMALL,
    allocated,
    fill_up,
    open_tier,
    opened,
    regions,
    small_file_system,
    until,
)

from forebay.errors import DirectoryError
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Dropped, DropReason, Hit, MissReason, Stored
from forebay.tiers.disk import Directory, DiskTier, Options


@contextmanager
def watched(place: Path) -> Iterator[list[int]]:
    """What `du` says, again and again, while something else is going on."""
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            found = subprocess.run(
                ["du", "--summarize", "--block-size=1", str(place)],
                capture_output=True,
                check=False,  # a region may be renamed while du looks
                text=True,
            )
            if found.stdout:
                seen.append(int(found.stdout.split()[0]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()


def write_times_the_cap(tier: DiskTier, cap_bytes: int, times: int) -> list[Sample]:
    samples: list[Sample] = []
    written = 0
    while written < times * cap_bytes:
        outcomes = Outcomes(tier)
        for _ in range(16):
            samples.append(single(f"quota {len(samples)}", 60_000))
            outcomes.store(samples[-1])
            written += samples[-1].length
        outcomes.wait()
        assert tier.usage().used_bytes <= cap_bytes
    return samples


def test_t31_du_never_shows_more_than_the_cap(tmp_path: Path) -> None:
    """While ten times the cap is written, on the file system that tests run on."""
    place = tmp_path / "pool"
    cap_bytes = 8 << 20
    with (
        opened(place, cap_bytes=cap_bytes, options=Options(region_bytes=1 << 20)) as tier,
        watched(place) as seen,
    ):
        samples = write_times_the_cap(tier, cap_bytes, times=10)
        assert load(tier, samples[-1])[0] == Hit(60_000)
        until(lambda: len(seen) > 3 and max(seen) > cap_bytes // 2)  # du saw what was written
    assert max(seen) <= cap_bytes
    assert len(list(place.iterdir())) <= 9, "inodes are bounded too"


def test_t31_the_cap_holds_though_nothing_can_be_removed(swift_path: Path) -> None:
    """A region that can neither be begun nor removed counts, however often it is tried."""
    disk, clock = FaultDisk(), ManualClock()
    options = Options(region_bytes=REGION_BYTES, write_depth=1, errors_max=1_000_000)
    with opened(swift_path, disk, clock, options) as tier:
        store(tier, single("first", 30_000))
        disk.arm("write+unlink:errno=EIO")
        for n in range(60):
            clock.advance(10)
            store(tier, single(f"failing {n}", 200_000))
            assert allocated(swift_path) <= CAP_BYTES
        disk.disarm()
        clock.advance(10)
        for n in range(60):
            store(tier, single(f"healed {n}", 200_000))
            assert allocated(swift_path) <= CAP_BYTES


def test_t34_a_lowered_cap_is_kept_before_anything_is_served(swift_path: Path) -> None:
    samples = [single(f"trimmed {n}", 60_000) for n in range(40)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
    lowered = CAP_BYTES // 2
    assert allocated(swift_path) > lowered
    with opened(swift_path, cap_bytes=lowered) as tier:
        assert allocated(swift_path) <= lowered
        assert tier.usage().used_bytes <= lowered
        assert load(tier, samples[-1])[0] == Hit(60_000), "the youngest stay"
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        assert len(outcomes.hits) == tier.usage().records > 0
        assert outcomes.misses.keys() == {MissReason.ABSENT}
        write_times_the_cap(tier, lowered, times=2)
        assert allocated(swift_path) <= lowered


def test_t34_a_raised_cap_is_used(swift_path: Path) -> None:
    with opened(swift_path) as tier:
        write_times_the_cap(tier, CAP_BYTES, times=2)
    with opened(swift_path, cap_bytes=2 * CAP_BYTES) as tier:
        write_times_the_cap(tier, 2 * CAP_BYTES, times=2)
        assert CAP_BYTES < allocated(swift_path) <= 2 * CAP_BYTES


def test_t34_regions_of_another_size_are_kept_and_replaced_in_their_turn(swift_path: Path) -> None:
    samples = [single(f"sizes {n}", 60_000) for n in range(20)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
    other = Options(region_bytes=REGION_BYTES // 2, read_depth=2, write_depth=2)
    with opened(swift_path, options=other) as tier:
        assert load(tier, samples[-1])[0] == Hit(60_000)
        write_times_the_cap(tier, CAP_BYTES, times=3)
        assert {path.stat().st_size for path in regions(swift_path)} == {REGION_BYTES // 2}
        assert allocated(swift_path) <= CAP_BYTES


def test_a_cap_that_is_not_there_is_refused_with_a_sentence(swift_path: Path) -> None:
    total_bytes = shutil.disk_usage(swift_path).total
    with pytest.raises(DirectoryError, match="lower its cap"):
        open_tier(swift_path, cap_bytes=total_bytes + (1 << 30))
    with pytest.raises(DirectoryError, match="too small"):
        open_tier(swift_path, cap_bytes=4096)


def test_t15_a_full_file_system_drops_stores_and_recovers(tmp_path: Path) -> None:
    """Somebody else fills the drive; later the space is there again."""
    place = tmp_path / "small"
    with small_file_system(place, 16 << 20):
        pool, hog = place / "pool", place / "hog"
        pool.mkdir(mode=0o700)
        clock = ManualClock()
        tier = DiskTier.open([Directory(str(pool), 12 << 20)], SMALL, manual(clock))
        kept = [single(f"kept {n}", 60_000) for n in range(8)]
        for sample in kept:
            assert store(tier, sample) == Stored()
        fill_up(hog)
        outcomes = Outcomes(tier)
        for n in range(40):
            outcomes.store(single(f"full {n}", 60_000))
        outcomes.wait()
        assert outcomes.dropped[DropReason.NO_SPACE] >= 30
        assert outcomes.dropped.keys() == {DropReason.NO_SPACE}
        for sample in kept:
            assert load(tier, sample) == (Hit(60_000), sample.payload)
        hog.unlink()
        clock.advance(60)
        for n in range(40):
            assert store(tier, single(f"again {n}", 60_000)) == Stored()
        assert not isinstance(store(tier, single("last")), Dropped)
        tier.close(60)


def manual(clock: ManualClock) -> World:
    return World(Disk(), clock)
