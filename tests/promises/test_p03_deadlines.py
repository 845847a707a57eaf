"""P3: every wait has a deadline; a slow or hanging drive costs misses, never the caller's time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.clocks import jumping_wall
from tests.disk_harness import CLOSE_S, SMALL, TickedClock, open_tier, opened, until

from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import single
from forebay.tiers import blocking
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Hit,
    Miss,
    MissReason,
    Stored,
)
from forebay.tiers.disk import Options

HASTY = Options(region_bytes=1 << 18, read_depth=1, write_depth=1, hang_s=0.3, probe_interval_s=0.2)


class Slow:
    """A tier with a few records on a disk that can hang; time passes when a test says so."""

    def __init__(self, place: Path, options: Options) -> None:
        self.disk, self.clock = FaultDisk(), TickedClock()
        self.tier = open_tier(place, self.disk, self.clock, options)
        self.samples = [single(f"slow {n}", 9000) for n in range(10)]
        for sample in self.samples:
            assert store(self.tier, sample) == Stored()


@pytest.fixture
def slow(swift_path: Path) -> Iterator[Slow]:
    slow = Slow(swift_path, HASTY)
    yield slow
    slow.disk.disarm()
    slow.tier.close(CLOSE_S)


@pytest.mark.parametrize("fault", ["read:hang", "write:hang", "*:hang"])
def test_t24_no_call_waits_for_a_slow_drive(slow: Slow, fault: str) -> None:
    """Every call returns while the drive hangs: what the drive should have done is not done."""
    rule = slow.disk.arm(fault)
    outcomes = Outcomes(slow.tier)
    for n in range(100):
        outcomes.load(slow.samples[n % 10])
        outcomes.store(single(f"new {n}", 9000))
        slow.tier.prefix([sample.name.key for sample in slow.samples])
        slow.tier.usage()
        slow.tier.remove(single(f"new {n}").name.key)
    until(lambda: rule.fired > 0)
    assert not (outcomes.stored if fault == "write:hang" else outcomes.hits)
    slow.disk.disarm()
    outcomes.wait()


def test_t24_a_load_that_waits_behind_a_hanging_one_is_a_miss_in_time(slow: Slow) -> None:
    hanging = slow.disk.arm("read:hang@1")
    outcomes = Outcomes(slow.tier)
    outcomes.load(slow.samples[0])
    until(lambda: hanging.fired == 1)
    outcomes.load(slow.samples[1], deadline=slow.clock.monotonic() + 0.1)
    slow.clock.advance(0.1)
    until(lambda: outcomes.misses == {MissReason.DEADLINE: 1})
    assert not outcomes.hits, "the other one still hangs"
    hanging.disarm()
    outcomes.wait()


def test_t24_a_caller_with_a_deadline_goes_on_without_a_hanging_call(slow: Slow) -> None:
    """The buffer stays the tier's until the call returns; the caller takes another."""
    slow.disk.arm("read:hang")
    outcome, data = blocking.load(slow.tier, slow.samples[0].name, 9000, timeout_s=0.1)
    assert (outcome, data) == (Miss(MissReason.DEADLINE), b"")


@pytest.mark.parametrize("fault", ["read:hang", "write:hang"])
def test_t24_a_hanging_drive_is_switched_off_and_on_again(slow: Slow, fault: str) -> None:
    outcomes = Outcomes(slow.tier)
    rule = slow.disk.arm(fault)
    outcomes.load(slow.samples[0])
    outcomes.store(single("hangs"))
    until(lambda: rule.fired > 0)
    slow.clock.advance(2 * HASTY.hang_s)
    until(lambda: not slow.tier.volumes()[0].is_on)
    assert load(slow.tier, slow.samples[1])[0] == Miss(MissReason.TIER_OFF)
    assert store(slow.tier, single("refused")) == Dropped(DropReason.TIER_OFF)
    slow.disk.disarm()
    outcomes.wait()
    slow.clock.advance(HASTY.probe_interval_s)
    until(lambda: slow.tier.volumes()[0].is_on)
    until(lambda: slow.tier.prefix([slow.samples[1].name.key]).chunks == 1)
    assert load(slow.tier, slow.samples[1])[0] == Hit(9000)
    assert store(slow.tier, single("taken")) == Stored()


def test_t24_a_drive_stays_off_while_one_of_its_calls_still_hangs(slow: Slow) -> None:
    outcomes = Outcomes(slow.tier)
    hanging = slow.disk.arm("read:hang@1")
    outcomes.load(slow.samples[0])
    until(lambda: hanging.fired == 1)
    slow.clock.advance(2 * HASTY.hang_s)
    until(lambda: not slow.tier.volumes()[0].is_on)
    for _ in range(3):
        slow.clock.advance(HASTY.probe_interval_s)
        slow.clock.await_tick()
        assert not slow.tier.volumes()[0].is_on
    hanging.disarm()
    outcomes.wait()
    slow.clock.advance(HASTY.probe_interval_s)
    until(lambda: slow.tier.volumes()[0].is_on)
    assert len(outcomes.hits) == 1


def test_t24_closing_ends_though_a_call_hangs(swift_path: Path) -> None:
    slow = Slow(swift_path, SMALL)
    rule = slow.disk.arm("read+write:hang")
    outcomes = Outcomes(slow.tier)
    for n, sample in enumerate(slow.samples):
        outcomes.load(sample)
        outcomes.store(single(f"late {n}", 9000))
    until(lambda: rule.fired >= 2)
    slow.tier.close(0.3)
    assert outcomes.hits + outcomes.stored == [], "they still hang"
    slow.disk.disarm()
    outcomes.wait()


def test_too_many_waiting_are_refused_at_once(swift_path: Path) -> None:
    slow = Slow(swift_path, replace(HASTY, hang_s=60, read_queue_max=5, write_queue_bytes=50_000))
    slow.disk.arm("read+write:hang")
    outcomes = Outcomes(slow.tier)
    for n in range(20):
        outcomes.load(slow.samples[n % 10])
        outcomes.store(single(f"queued {n}", 9000))
    assert outcomes.misses[MissReason.BUSY] in {14, 15}
    assert outcomes.dropped[DropReason.BUSY] == 15
    slow.disk.disarm()
    outcomes.wait()
    assert store(slow.tier, single("again")) == Stored()
    slow.tier.close(CLOSE_S)


def test_t47_a_jumping_wall_clock_changes_nothing(swift_path: Path) -> None:
    sample = single("kept")
    with jumping_wall(), opened(swift_path) as tier:
        store(tier, sample)
        assert load(tier, sample)[0] == Hit(5000)
        assert store(tier, single("other")) == Stored()
        assert tier.volumes()[0].is_on
    with jumping_wall(), opened(swift_path) as tier:
        assert load(tier, sample)[0] == Hit(5000), "no record expires by the wall"


def test_t47_deadlines_follow_the_monotonic_clock(swift_path: Path) -> None:
    clock, disk = TickedClock(monotonic=100), FaultDisk()
    options = replace(HASTY, hang_s=1e9)
    sample = single("kept")
    with opened(swift_path, disk, clock, options=options) as tier:
        store(tier, sample)
        hanging = disk.arm("read:hang@1")
        outcomes = Outcomes(tier)
        outcomes.load(sample)
        until(lambda: hanging.fired == 1)
        outcomes.load(sample, deadline=105)
        clock.advance(4)
        clock.await_tick()
        assert not outcomes.misses
        clock.advance(2)
        until(lambda: outcomes.misses[MissReason.DEADLINE] == 1)
        disk.disarm()
        outcomes.wait()
        assert len(outcomes.hits) == 1
