"""A probe of a drive: through its queues to the medium and back; and what leaving records say."""

import queue
from pathlib import Path

import pytest
from tests.disk_harness import CAP_BYTES, SMALL, opened, until

from forebay.sys.world import World
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import RecordingListener
from forebay.testing.samples import NAMESPACE, chain, single
from forebay.tiers.contract import EvictionCause, VolumeProbe
from forebay.tiers.disk import Directory, DiskTier

HANG_S = 60.0


def probed(tier: DiskTier) -> list[VolumeProbe]:
    answers: queue.SimpleQueue[VolumeProbe] = queue.SimpleQueue()
    return sorted(answers.get(timeout=HANG_S) for _ in range(tier.probe(answers.put)))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("read:errno=EIO", "io_error"),
        ("write:errno=EIO", "io_error"),
        ("write:errno=EIO@2", "io_error"),  # the wiping
        ("write:errno=ENOSPC", "no_space"),
        ("read:flip=1", "corrupt"),
    ],
)
def test_what_fails_is_the_reason(swift_path: Path, rule: str, why: str) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        fault = disk.arm(rule)
        assert probed(tier) == [VolumeProbe(0, why)]
        fault.disarm()
        assert probed(tier) == [VolumeProbe(0)], "nothing of the last one is in the way"
        assert not tier.usage().records


def test_a_drive_that_is_off_is_not_probed(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        disk.arm("*:errno=EIO")
        for _ in range(SMALL.errors_max):
            probed(tier)
        until(lambda: not tier.volumes()[0].is_on)
        assert probed(tier) == [VolumeProbe(0, "tier_off")]


def test_one_probe_at_a_time(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        hanging = disk.arm("write:hang")
        answers: queue.SimpleQueue[VolumeProbe] = queue.SimpleQueue()
        assert tier.probe(answers.put) == 1
        assert probed(tier) == [VolumeProbe(0, "busy")]
        hanging.disarm()
        assert answers.get(timeout=HANG_S) == VolumeProbe(0)


def test_a_directory_that_could_not_be_opened_fails_its_probe(swift_path: Path) -> None:
    disk = FaultDisk()
    paths = [swift_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir(mode=0o700)
    disk.arm("open_directory:errno=EIO@1")
    directories = [Directory(str(path), CAP_BYTES) for path in paths]
    tier = DiskTier.open(directories, SMALL, World(disk=disk))
    try:
        assert probed(tier) == [VolumeProbe(0), VolumeProbe(1, "tier_off")]
    finally:
        tier.close(HANG_S)


def test_what_leaves_says_why_and_since_when(swift_path: Path) -> None:
    disk, listener = FaultDisk(), RecordingListener()
    directory = Directory(str(swift_path), CAP_BYTES)
    tier = DiskTier.open([directory], SMALL, World(disk=disk), listener)
    try:
        links = chain("spoilt", [3000, 3000])
        for link in links:
            store(tier, link)
        fault = disk.arm("read:flip=1")
        load(tier, links[0])
        fault.disarm()
        assert causes(listener) == [EvictionCause.DAMAGED, EvictionCause.PREFIX]
        for number in range(60):
            store(tier, single(f"filler {number}", 60_000))
        assert set(causes(listener)) == {EvictionCause.SPACE}
        tier.resize(str(swift_path), CAP_BYTES // 2)
        assert set(causes(listener)) == {EvictionCause.RESIZED}
        tier.erase(NAMESPACE)
        assert set(causes(listener)) == {EvictionCause.CLEARED}
    finally:
        tier.close(HANG_S)


def causes(listener: RecordingListener) -> list[EvictionCause]:
    """Why records have left since the last call; every region was begun by this tier."""
    found, listener.gone = listener.gone, []
    assert all(removed.stored_at is not None for removed in found)
    return [removed.cause for removed in found]


def test_a_probe_that_cannot_begin_keeps_no_other_from_it(swift_path: Path) -> None:
    with opened(swift_path, FaultDisk()) as tier:
        probe = tier._drives[0]._probe_record

        def refuse(_job: object) -> None:
            raise MemoryError

        with pytest.raises(MemoryError):
            probe.begin(refuse, refuse, lambda _: None)
        assert probed(tier) == [VolumeProbe(0)]
