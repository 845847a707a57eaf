"""A process that forks children to be killed: each runs one workload on a disk tier.

It has no threads, so that forking is safe and cheap. A child appends what the tier acknowledged to
a file that outlives it. Run as `python -m tests.crash_child`; every line on its input is one child.
"""

import json
import os
import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tests.disk_harness import open_tier
from tests.encryption_harness import ROTATED_KEYS, encrypted

from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.disk import Options

PAGE: Final = 4096
TINY_REGION_BYTES: Final = 16 * PAGE
TINY_CAP_BYTES: Final = 11 * TINY_REGION_BYTES  # of which eight regions are usable
BATCH: Final = 8  # stores in flight at once under load
FORGOTTEN: Final = b"f" * 16  # a tenant
KEPT: Final = b"k" * 16  # another
WRONG_BYTES: Final = 3  # exit status of a child that was served something else


@dataclass(frozen=True, slots=True)
class Job:
    """One child."""

    place: str
    acknowledged: str  # file to which numbers of stored samples are appended
    workload: str
    faults: tuple[str, ...] = ()
    start: int = 0  # number of the first sample
    seed: int = 0
    is_encrypted: bool = False


def tiny(number: int) -> Sample:
    """The samples of the workload at every write point: two fill a region."""
    return single(f"tiny {number}", 18_000 + number % 3)


def loaded(number: int) -> Sample:
    """The samples of the workload under load."""
    return single(f"loaded {number}", 1 + (number * 7919) % 30_000)


def acknowledged(path: Path) -> list[int]:
    """The numbers that children wrote down, in the order of the answers."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def options_of(job: Job, options: Options) -> Options:
    """The same options, with keys where the job wants them."""
    return encrypted(options) if job.is_encrypted else options


def every_write_point(job: Job) -> int:
    """Two lives, one call at a time: create, fill, seal, recycle; trim, resume, recycle again."""
    options = options_of(job, Options(TINY_REGION_BYTES, read_depth=1, write_depth=1))
    disk = FaultDisk(*job.faults)
    number = job.start
    for cap_bytes, stores in ((TINY_CAP_BYTES + 3 * TINY_REGION_BYTES, 25), (TINY_CAP_BYTES, 6)):
        tier = open_tier(Path(job.place), disk, options=options, cap_bytes=cap_bytes)
        for _ in range(stores):
            outcomes = Outcomes(tier)
            outcomes.store(tiny(number))
            outcomes.wait()
            if outcomes.stored:
                _acknowledge(job, number)
            number += 1
        tier.close(300)
    return 0


def owned(owner: bytes, number: int) -> Sample:
    """The samples of the workload that forgets: like `tiny`, each a tenant's."""
    sample = single(f"owned {owner.hex()} {number}", 18_000 + number % 3)
    return replace(sample, name=replace(sample.name, tenant=owner))


def forgetting(job: Job) -> int:
    """Two tenants with three regions each; one is forgotten while the other goes on storing."""
    options = options_of(job, Options(TINY_REGION_BYTES, read_depth=1, write_depth=1))
    disk = FaultDisk()
    tier = open_tier(Path(job.place), disk, options=options, cap_bytes=2 * TINY_CAP_BYTES)
    stored = Outcomes(tier)
    for number in range(6):
        stored.store(owned(FORGOTTEN, number))
        stored.store(owned(KEPT, number))
        stored.wait()
    for fault in job.faults:
        disk.arm(fault)
    beside = Outcomes(tier)
    for number in range(6, 10):
        beside.store(owned(KEPT, number))
    assert not tier.remember_forgotten(FORGOTTEN)
    _acknowledge(job, 1)
    assert not tier.forget(FORGOTTEN, scrub=bool(job.seed)).failure
    _acknowledge(job, 2)
    beside.wait()
    disk.disarm()
    tier.close(300)
    return 0


def rotating(job: Job) -> int:
    """Encrypted records before and after a new master key; as many as `seed` tells are before."""
    options = encrypted(Options(TINY_REGION_BYTES, read_depth=1, write_depth=1))
    disk = FaultDisk()
    tier = open_tier(Path(job.place), disk, options=options, cap_bytes=2 * TINY_CAP_BYTES)
    for number in range(2 * job.seed):
        if number == job.seed:
            for fault in job.faults:
                disk.arm(fault)
            assert options.keyring is not None
            options.keyring.replace(ROTATED_KEYS)
            tier.rotate()
        outcomes = Outcomes(tier)
        outcomes.store(tiny(number))
        outcomes.wait()
        if outcomes.stored:
            _acknowledge(job, number)
    tier.close(300)
    return 0


def under_load(job: Job) -> int:
    """Stores and loads side by side, for ever."""
    draw = random.Random(job.seed)
    options = options_of(job, Options(region_bytes=1 << 18, read_depth=2, write_depth=3))
    tier = open_tier(Path(job.place), FaultDisk(*job.faults), options=options)
    number = job.start
    while True:
        numbers = {loaded(number + ahead): number + ahead for ahead in range(BATCH)}
        outcomes = Outcomes(tier, lambda sample, n=numbers: _acknowledge(job, n[sample]))  # type: ignore[misc]
        for sample in numbers:
            outcomes.store(sample)
            outcomes.load(loaded(draw.randrange(max(1, number))))
        try:
            outcomes.wait()
        except AssertionError:
            return WRONG_BYTES
        number += BATCH


def _acknowledge(job: Job, number: int) -> None:
    file = os.open(job.acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, b"%d\n" % number)
    os.close(file)


WORKLOADS: Final = {
    "every_write_point": every_write_point,
    "under_load": under_load,
    "forgetting": forgetting,
    "rotating": rotating,
}


def main() -> None:
    """Fork a child a line; print its pid, then its exit status."""
    for line in sys.stdin:
        job = Job(**json.loads(line))
        child = os.fork()
        if not child:
            os._exit(_run(job))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(job: Job) -> int:
    sys.stdin.close()
    try:
        return WORKLOADS[job.workload](job)
    except BaseException as error:  # noqa: BLE001 - the child's last message
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1


def encode(job: Job) -> str:
    """A job as the line that `main` reads."""
    return json.dumps(asdict(job)) + "\n"


if __name__ == "__main__":
    main()
