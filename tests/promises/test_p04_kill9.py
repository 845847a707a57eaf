"""P4: kill -9 at any instant leaves a cache that opens, is warm, and satisfies P1.

At most the unflushed tail is lost: what was acknowledged is there again, unless it was evicted.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from tests import crash_child
from tests.disk_harness import CAP_BYTES, SMALL, open_tier, opened, regions
from tests.encryption_harness import ROTATED_KEYS, encrypted

from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, chain
from forebay.tiers.contract import MissReason, Tier
from forebay.tiers.disk import DiskTier, Options
from forebay.tiers.disk.regions.data_keys import KEYS_NAME

ROOT = Path(__file__).parent.parent.parent
HANG_S = 60.0  # a guard alone
MUTATING = "open+write+preallocate+rename+unlink"
TINY = Options(region_bytes=crash_child.TINY_REGION_BYTES, read_depth=2, write_depth=1)


class CrashRunner:
    """Runs processes that are killed, and says how they ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, job: crash_child.Job, kill_after_s: float | None = None, acknowledged: int = 0
    ) -> int:
        """`kill_after_s`: from when so many stores were acknowledged, by this one or before."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(crash_child.encode(job))
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if kill_after_s is not None:
            notes, until = Path(job.acknowledged), time.monotonic() + HANG_S
            while len(crash_child.acknowledged(notes)) < acknowledged:
                assert time.monotonic() < until, "it stores nothing"
                time.sleep(0.005)
            time.sleep(kill_after_s)
            os.kill(pid, signal.SIGKILL)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture
def crash_runner() -> Iterator[CrashRunner]:
    crash_runner = CrashRunner()
    yield crash_runner
    crash_runner.close()


def survivors(tier: Tier, samples: Sequence[Sample]) -> list[Sample]:
    """What can be loaded, all of it exact; nothing that is listed may be damaged."""
    outcomes = Outcomes(tier)
    for sample in samples:
        outcomes.load(sample)
    outcomes.wait()
    assert outcomes.misses.keys() <= {MissReason.ABSENT}
    return outcomes.hits


def assert_accounting(tier: DiskTier, place: Path, hits: Sequence[Sample]) -> None:
    """What the tier says it holds is what lies on the disk, and nothing else lies there."""
    usage = tier.usage()
    assert usage.records == len(hits)
    assert usage.payload_bytes == sum(sample.length for sample in hits)
    assert usage.used_bytes == sum(path.stat().st_size for path in regions(place))
    assert {path.name for path in place.iterdir()} - {KEYS_NAME} == {
        "lock",
        *(path.name for path in regions(place)),
    }


FATES = {
    "before": [f"{MUTATING}:kill=before@{{n}}"],
    "after": [f"{MUTATING}:kill=after@{{n}}"],
    "torn in the header": ["write:tear=700@{n}", "write:kill=after@{n}"],
    "torn in the payload": ["write:tear=9000@{n}", "write:kill=after@{n}"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_encrypted",
    [pytest.param(False, id="plain"), pytest.param(True, id="encrypted", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("fate", FATES)
def test_t1_t5_kill_at_every_write_point(
    fate: str, is_encrypted: bool, swift_path: Path, crash_runner: CrashRunner
) -> None:
    """Counting up until no kill fires covers every write point by construction: creating, filling
    and sealing a region, evicting one, trimming to a lowered cap, filling a region further."""
    for n in count(1):
        place, notes = swift_path / f"{n}", swift_path / f"{n}.txt"
        faults = tuple(fault.format(n=n) for fault in FATES[fate])
        job = crash_child.Job(
            str(place), str(notes), "every_write_point", faults, is_encrypted=is_encrypted
        )
        ended = crash_runner.run(job)
        assert ended in {0, -signal.SIGKILL}
        check_tiny(place, crash_child.acknowledged(notes), crash_child.options_of(job, TINY))
        shutil.rmtree(place, ignore_errors=True)
        if ended == 0:
            break
    print(f"{n - 1} kill points, {fate}")
    assert n > 80, "the workload reaches the points that it is meant to reach"


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_t5_killed_at_every_step_of_a_rotation(
    fate: str, swift_path: Path, crash_runner: CrashRunner
) -> None:
    """Whichever master key the table of keys was left with, what was stored is found."""
    before, mutating = 4, "open+write+zero+sync+rename+unlink"
    options = encrypted(TINY, ROTATED_KEYS)
    for n in count(1):
        place, notes = swift_path / f"{n}", swift_path / f"{n}.txt"
        faults = tuple(fault.format(n=n).replace(MUTATING, mutating) for fault in FATES[fate])
        job = crash_child.Job(str(place), str(notes), "rotating", faults, seed=before)
        ended = crash_runner.run(job)
        assert ended in {0, -signal.SIGKILL}
        said = crash_child.acknowledged(notes)
        assert len(said) >= before
        with opened(place, options=options, cap_bytes=2 * crash_child.TINY_CAP_BYTES) as tier:
            hits = survivors(tier, [crash_child.tiny(number) for number in range(2 * before)])
            assert {crash_child.tiny(number) for number in said} <= set(hits)
            assert_accounting(tier, place, hits)
        shutil.rmtree(place)
        if ended == 0:
            break
    print(f"{n - 1} kill points, {fate}")
    assert n > 5, "the workload reaches the points that it is meant to reach"


def check_tiny(place: Path, acknowledged: list[int], options: Options) -> None:
    if not place.exists():
        return
    samples = [crash_child.tiny(number) for number in range(31)]
    with opened(place, options=options, cap_bytes=crash_child.TINY_CAP_BYTES) as tier:
        hits = survivors(tier, samples)
        assert_accounting(tier, place, hits)
        sizes = {path.stat().st_size for path in regions(place)}
        assert sizes <= {crash_child.TINY_REGION_BYTES}, "nothing half made is left"
        kept = [number for number in acknowledged if crash_child.tiny(number) in hits]
        # A region whose eviction was cut short may be back: its two records, and no gap otherwise.
        youngest = acknowledged[len(acknowledged) - len(kept) + 2 :]
        assert kept[max(0, len(kept) - len(youngest)) :] == youngest, "the oldest leave first"
        assert len(kept) >= min(len(acknowledged), 12), "a restart is warm"
        assert len(hits) - len(kept) <= 1, "one store was in flight"
        outcomes = Outcomes(tier)
        for number in range(100, 130):
            outcomes.store(crash_child.tiny(number))
        outcomes.wait()
        assert len(outcomes.stored) == 30, "and goes on"


def random_kills(
    crash_runner: CrashRunner, tmp_path: Path, seed: int, kills: int, *, is_encrypted: bool
) -> None:
    draw = random.Random(seed)
    place, notes = tmp_path / "pool", tmp_path / "acknowledged"
    start = 0
    before: list[Sample] = []  # what was there before the last start; nothing older can come back
    for number in range(kills):
        job = crash_child.Job(
            str(place),
            str(notes),
            "under_load",
            start=start,
            seed=draw.randrange(1 << 30),
            is_encrypted=is_encrypted,
        )
        # Every other one is killed whether it has come to its load or not.
        least = number * 2 + 2 if number % 2 == 0 else 0
        ended = crash_runner.run(job, draw.uniform(0.02, 0.3), least)
        assert ended == -signal.SIGKILL, "nothing but us ends a victim; 3 is wrong bytes"
        done = crash_child.acknowledged(notes)
        if not place.exists():
            continue
        first, start = start, max(start, max(done, default=-1) + 1) + crash_child.BATCH
        samples = [*before, *(crash_child.loaded(number) for number in range(first, start))]
        options = crash_child.options_of(job, Options(region_bytes=1 << 18))
        with opened(place, options=options) as tier:
            before = survivors(tier, samples)
            assert_accounting(tier, place, before)
        assert_warm(set(before), done)
    assert len(crash_child.acknowledged(notes)) > kills, "there was load"


def assert_warm(here: set[Sample], acknowledged: list[int]) -> None:
    """The youngest half of what fits is there, if it was acknowledged."""
    room = CAP_BYTES // 2
    for number in reversed(acknowledged):
        sample = crash_child.loaded(number)
        room -= sample.length + 2 * crash_child.PAGE
        if room < 0:
            break
        assert sample in here, f"record {number} was acknowledged and is lost"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_t2_random_kills_under_load(
    crash_runner: CrashRunner, tmp_path: Path, seed: int, is_encrypted: bool
) -> None:
    kills = int(os.environ.get("FOREBAY_KILLS", "30"))
    random_kills(crash_runner, tmp_path, seed, kills, is_encrypted=is_encrypted)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_t2_a_few_random_kills_under_load(
    crash_runner: CrashRunner, tmp_path: Path, seed: int, is_encrypted: bool
) -> None:
    random_kills(crash_runner, tmp_path, seed, kills=5, is_encrypted=is_encrypted)


LOSSES = int(os.environ.get("FOREBAY_LOSSES", "20"))


@pytest.mark.parametrize("nth", range(LOSSES))
def test_t3_power_loss(nth: int, swift_path: Path, seed: int) -> None:
    """Unsynced writes and names are lost, kept and torn, start after start, in one directory."""
    options = encrypted(SMALL) if nth % 3 == 0 else SMALL
    place = swift_path / "pool"
    draw = random.Random(seed + nth)
    samples: list[Sample] = []
    for start in range(4):
        disk = FaultDisk(seed=draw.randrange(1 << 30), volatile=True)
        tier = open_tier(place, disk, options=options)
        outcomes = Outcomes(tier)
        for step in range(draw.randrange(1, 12)):
            links = chain(f"{nth} {start} {step}", [draw.randrange(1, 40_000) for _ in range(6)])
            for link in links:
                outcomes.store(link)
                outcomes.load(draw.choice(samples or links))
            samples += links
            if draw.random() < 0.2:
                outcomes.wait()
                disk.settle()
        disk.power_off()
        tier.close(20)
        outcomes.wait()
        check_after_power_loss(place, samples, options)


def check_after_power_loss(place: Path, samples: Sequence[Sample], options: Options) -> None:
    """Every load is exact or a miss; a table may list what was lost, so a miss may say so."""
    with opened(place, options=options) as tier:
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.misses.keys() <= {
            MissReason.ABSENT,
            MissReason.CORRUPT,
            MissReason.WRONG_RECORD,
        }
        again = Outcomes(tier)
        for sample in samples:
            again.load(sample)
        again.wait()
        assert again.misses.keys() <= {MissReason.ABSENT}, "damage is met once"
        assert_accounting(tier, place, again.hits)
