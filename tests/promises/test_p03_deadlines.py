"""P3: every wait has a deadline; a slow or hanging drive costs misses, never the caller's time."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness import CLOSE_S, SMALL, open_tier, opened, until

from forebay.sys import memory
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers import blocking
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Hit,
    LoadOutcome,
    Miss,
    MissReason,
    Stored,
)
from forebay.tiers.disk import DiskTier, Options

HASTY = Options(region_bytes=1 << 18, read_depth=1, write_depth=1, hang_s=0.3, probe_interval_s=0.2)
CALL_S_MAX = 0.05  # what 99 of 100 calls that must not wait may take
SOON_S = 1.0  # what any one may take on a busy machine; a hanging drive would take for ever


class Slow:
    """A tier with a few records on a disk that can be slowed down."""

    def __init__(self, place: Path, options: Options) -> None:
        self.disk = FaultDisk()
        self.tier = open_tier(place, self.disk, options=options)
        self.samples = [single(f"slow {n}", 9000) for n in range(10)]
        for sample in self.samples:
            assert store(self.tier, sample) == Stored()


@pytest.fixture
def slow(swift_path: Path) -> Iterator[Slow]:
    slow = Slow(swift_path, HASTY)
    yield slow
    slow.disk.disarm()
    slow.tier.close(CLOSE_S)


@pytest.mark.parametrize("fault", ["read:latency=100ms", "write:latency=100ms", "*:hang"])
def test_t24_no_call_waits_for_a_slow_drive(slow: Slow, fault: str) -> None:
    slow.disk.arm(fault)
    outcomes = Outcomes(slow.tier)
    took = []
    for n in range(100):
        for call in (
            lambda n=n: outcomes.load(slow.samples[n % 10], time.monotonic() + 0.2),
            lambda n=n: outcomes.store(single(f"new {n}", 9000)),
            lambda: slow.tier.prefix([sample.name.key for sample in slow.samples]),
            slow.tier.usage,
            lambda n=n: slow.tier.remove(single(f"new {n}").name.key),
        ):
            before = time.monotonic()
            call()
            took.append(time.monotonic() - before)
    took.sort()
    assert took[int(len(took) * 0.99)] < CALL_S_MAX
    slow.disk.disarm()
    outcomes.wait()


def test_t24_a_load_that_waits_behind_a_hanging_one_is_a_miss_in_time(slow: Slow) -> None:
    hanging = slow.disk.arm("read:hang@1")
    outcomes = Outcomes(slow.tier)
    outcomes.load(slow.samples[0])
    until(lambda: hanging.fired == 1)
    before = time.monotonic()
    outcome = waited(slow.tier, slow.samples[1], deadline=before + 0.1)
    assert outcome == Miss(MissReason.DEADLINE)
    assert time.monotonic() - before < 0.1 + SOON_S
    hanging.disarm()
    outcomes.wait()


def test_t24_a_caller_with_a_deadline_goes_on_without_a_hanging_call(slow: Slow) -> None:
    """The buffer stays the tier's until the call returns; the caller takes another."""
    slow.disk.arm("read:hang")
    before = time.monotonic()
    outcome, data = blocking.load(slow.tier, slow.samples[0].name, 9000, timeout_s=0.1)
    assert (outcome, data) == (Miss(MissReason.DEADLINE), b"")
    assert time.monotonic() - before < 0.1 + SOON_S


def waited(tier: DiskTier, sample: Sample, deadline: float) -> LoadOutcome:
    answered = threading.Event()
    found: list[LoadOutcome] = []

    def done(outcome: LoadOutcome) -> None:
        found.append(outcome)
        answered.set()

    tier.submit_load(sample.name, memory.allocate(sample.length), done, deadline)
    assert answered.wait(20)
    return found[0]


@pytest.mark.parametrize("fault", ["read:hang", "write:hang"])
def test_t24_a_hanging_drive_is_switched_off_and_on_again(slow: Slow, fault: str) -> None:
    outcomes = Outcomes(slow.tier)
    rule = slow.disk.arm(fault)
    outcomes.load(slow.samples[0])
    outcomes.store(single("hangs"))
    until(lambda: rule.fired > 0)
    until(lambda: not slow.tier.volumes()[0].is_on)
    before = time.monotonic()
    assert load(slow.tier, slow.samples[1])[0] == Miss(MissReason.TIER_OFF)
    assert store(slow.tier, single("refused")) == Dropped(DropReason.TIER_OFF)
    assert time.monotonic() - before < SOON_S
    slow.disk.disarm()
    outcomes.wait()
    until(lambda: slow.tier.volumes()[0].is_on)
    until(lambda: slow.tier.prefix([slow.samples[1].name.key]).chunks == 1)
    assert load(slow.tier, slow.samples[1])[0] == Hit(9000)
    assert store(slow.tier, single("taken")) == Stored()


def test_t24_a_drive_stays_off_while_one_of_its_calls_still_hangs(slow: Slow) -> None:
    outcomes = Outcomes(slow.tier)
    hanging = slow.disk.arm("read:hang@1")
    outcomes.load(slow.samples[0])
    until(lambda: not slow.tier.volumes()[0].is_on)
    time.sleep(3 * HASTY.probe_interval_s)
    assert not slow.tier.volumes()[0].is_on, "the probe alone went well"
    hanging.disarm()
    until(lambda: slow.tier.volumes()[0].is_on)
    outcomes.wait()
    assert len(outcomes.hits) == 1


def test_t24_closing_ends_though_a_call_hangs(swift_path: Path) -> None:
    slow = Slow(swift_path, SMALL)
    rule = slow.disk.arm("read+write:hang")
    outcomes = Outcomes(slow.tier)
    for n, sample in enumerate(slow.samples):
        outcomes.load(sample)
        outcomes.store(single(f"late {n}", 9000))
    until(lambda: rule.fired >= 2)
    before = time.monotonic()
    slow.tier.close(0.3)
    assert time.monotonic() - before < 2
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


YEARS = 10 * 365 * 86_400.0


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
def test_t47_a_jump_of_the_wall_clock_changes_nothing(swift_path: Path, jump: float) -> None:
    clock = ManualClock()
    sample = single("kept")
    with opened(swift_path, clock=clock) as tier:
        store(tier, sample)
        clock.jump(jump)
        time.sleep(2 * SMALL.tick_s)
        assert load(tier, sample)[0] == Hit(5000)
        assert store(tier, single("other")) == Stored()
        assert tier.volumes()[0].is_on
    with opened(swift_path, clock=clock) as tier:
        assert load(tier, sample)[0] == Hit(5000), "no record expires by the wall"


def test_t47_deadlines_follow_the_monotonic_clock(swift_path: Path) -> None:
    clock, disk = ManualClock(monotonic=100), FaultDisk()
    options = replace(HASTY, hang_s=1e9)
    sample = single("kept")
    with opened(swift_path, disk, clock, options=options) as tier:
        store(tier, sample)
        hanging = disk.arm("read:hang@1")
        outcomes = Outcomes(tier)
        outcomes.load(sample)
        until(lambda: hanging.fired == 1)
        outcomes.load(sample, deadline=105)
        clock.suspend(1000)
        time.sleep(4 * SMALL.tick_s)
        assert not outcomes.misses, "asleep, no time passes"
        clock.advance(6)
        until(lambda: outcomes.misses[MissReason.DEADLINE] == 1)
        disk.disarm()
        outcomes.wait()
        assert len(outcomes.hits) == 1
