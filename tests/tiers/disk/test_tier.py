"""What the disk tier does beyond the contract: ask, resize, report what left."""

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import CAP_BYTES, SMALL, allocated, open_tier, opened, regions, until
from tests.encryption_harness import encrypted

from forebay.errors import DirectoryError
from forebay.record.header import DEFAULT_TENANT
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes, RecordingListener
from forebay.testing.samples import NAMESPACE, Sample, chain, single
from forebay.tiers.contract import Dropped, DropReason, Hit, Stored
from forebay.tiers.disk import Directory, DiskTier


def test_a_drive_that_is_off_has_no_length_to_tell(swift_path: Path) -> None:
    disk = FaultDisk()
    sample = single("asked")
    with opened(swift_path, disk) as tier:
        store(tier, sample)
        disk.arm("read:errno=EIO")
        for _ in range(SMALL.errors_max):
            load(tier, sample)
        until(lambda: not tier.volumes()[0].is_on)
        assert tier.length_of(sample.name.key) is None


def test_a_lowered_cap_is_kept_at_once_and_a_raised_one_is_used(swift_path: Path) -> None:
    samples = [single(f"resized {n}", 60_000) for n in range(60)]
    with opened(swift_path) as tier:
        for sample in samples[:40]:
            store(tier, sample)
        assert tier.resize(str(swift_path), CAP_BYTES // 2)
        assert allocated(swift_path) <= CAP_BYTES // 2
        assert tier.usage().cap_bytes == CAP_BYTES // 2
        for sample in samples[40:]:
            assert store(tier, sample) == Stored()
            assert allocated(swift_path) <= CAP_BYTES // 2
        assert load(tier, samples[-1])[0] == Hit(60_000)
        assert tier.resize(str(swift_path), 2 * CAP_BYTES)
        for n in range(80):
            assert store(tier, single(f"raised {n}", 60_000)) == Stored()
        assert CAP_BYTES < allocated(swift_path) <= 2 * CAP_BYTES
        with pytest.raises(DirectoryError, match="too small"):
            tier.resize(str(swift_path), 4096)


def test_a_lowered_cap_that_the_medium_refuses_is_tried_again(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        for n in range(40):
            store(tier, single(f"resized {n}", 60_000))
        failing = disk.arm("unlink:errno=EIO")
        assert tier.resize(str(swift_path), CAP_BYTES // 2)
        failing.disarm()
        for n in range(40, 60):
            store(tier, single(f"resized {n}", 60_000))
        assert allocated(swift_path) <= CAP_BYTES // 2


def test_a_region_of_records_leaves_at_a_time(swift_path: Path) -> None:
    listener = RecordingListener()
    tier = DiskTier.open([Directory(str(swift_path), CAP_BYTES)], SMALL, World(), listener)
    stored = 0
    while not listener.gone:
        stored += 1
        store(tier, single(f"evicting {stored}", 60_000))
    tier.close(60)
    assert len(listener.gone) <= 4, "a region goes at a time"


def test_of_two_records_of_one_key_the_younger_counts(swift_path: Path) -> None:
    links = chain("twice", [30_000] * 3)
    with opened(swift_path) as tier:
        for _ in range(4):
            for link in links:
                assert store(tier, link) == Stored()
            tier.remove(links[0].name.key)
        for link in links:
            store(tier, link)
    with opened(swift_path) as tier:
        assert tier.usage().records == 3
        assert tier.usage().payload_bytes == 90_000
        for link in links:
            assert load(tier, link) == (Hit(30_000), link.payload)


def test_siblings_leave_in_any_order(swift_path: Path) -> None:
    parent = single("parent")
    twigs = [
        Sample(type(parent.name)(NAMESPACE, 0, single(f"twig {n}").name.key, parent.name.key), 1000)
        for n in range(4)
    ]
    with opened(swift_path) as tier:
        for sample in (parent, *twigs):
            assert store(tier, sample) == Stored()
        for gone in (1, 3, 0):
            tier.remove(twigs[gone].name.key)
        assert load(tier, twigs[2])[0] == Hit(1000)
        assert tier.usage().records == 2
        tier.remove(parent.name.key)
        assert tier.usage().records == 0


class WithoutDirect(Disk):
    """A file system that has no O_DIRECT."""

    def open(self, directory: int, name: str, *, create: bool, direct: bool, write: bool) -> int:
        if direct:
            raise OSError(22, "Invalid argument")
        return super().open(directory, name, create=create, direct=direct, write=write)


def test_a_file_system_without_direct_io_is_used_and_said(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(swift_path, WithoutDirect()) as tier:
        assert store(tier, single("buffered")) == Stored()
        assert load(tier, single("buffered"))[0] == Hit(5000)
    assert "without O_DIRECT" in caplog.text


def test_one_unfit_directory_lets_go_of_the_others(swift_path: Path) -> None:
    good, bad = swift_path / "good", swift_path / "bad"
    good.mkdir(mode=0o700)
    with pytest.raises(DirectoryError, match="does not exist"):
        DiskTier.open([Directory(str(good), CAP_BYTES), Directory(str(bad), CAP_BYTES)], SMALL)
    with opened(good) as tier:
        assert store(tier, single("free again")) == Stored()


def test_a_region_that_is_still_being_written_is_not_evicted(swift_path: Path) -> None:
    disk = FaultDisk()
    first = single("first", 30_000)
    with opened(swift_path, disk) as tier:
        store(tier, single("before it"))
        hanging = disk.arm("write:hang@1")
        outcomes = Outcomes(tier)
        outcomes.store(first)
        until(lambda: hanging.fired == 1)
        for number in range(150):  # three times what the tier holds: others give way
            assert store(tier, single(f"around {number}", 60_000)) == Stored()
        assert tier.usage().records < 150
        assert not outcomes.dropped
        hanging.disarm()
        outcomes.wait()
        assert load(tier, first) == (Hit(30_000), first.payload)
        until(lambda: store(tier, single("after it", 60_000)) == Stored())


def test_a_cap_is_changed_only_between_two_regions(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        hanging = disk.arm("preallocate:hang")
        outcomes = Outcomes(tier)
        outcomes.store(single("waits"))
        until(lambda: hanging.fired == 1)
        resizing = threading.Thread(target=tier.resize, args=[str(swift_path), 2 * CAP_BYTES])
        resizing.start()
        resizing.join(0.1)
        assert resizing.is_alive()
        hanging.disarm()
        resizing.join(60)
        assert not resizing.is_alive()
        outcomes.wait()
        assert len(outcomes.stored) == 1


def test_an_empty_region_of_a_smaller_size_stands_in_nobodys_way(swift_path: Path) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk, options=replace(SMALL, region_bytes=1 << 16))
    disk.arm("write:errno=EIO@2+")
    store(tier, single("never written"))
    tier.close(60)
    with opened(swift_path) as tier:
        assert store(tier, single("large", 200_000)) == Stored()
        assert load(tier, single("large", 200_000))[0] == Hit(200_000)


def test_a_record_too_large_for_regions_made_smaller_is_dropped(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=replace(SMALL, write_depth=1)) as tier:
        for n in range(24):
            store(tier, single(f"filling {n}", 60_000))
        hanging = disk.arm("write:hang@1")
        outcomes = Outcomes(tier)
        outcomes.store(single("small"))
        until(lambda: hanging.fired == 1)
        outcomes.store(single("large", 200_000))  # it would fit, were it its turn
        tier.resize(str(swift_path), 1 << 20)
        hanging.disarm()
        outcomes.wait()
        assert outcomes.dropped == {DropReason.TOO_LARGE: 1}
        assert store(tier, single("too large now", 200_000)) == Dropped(DropReason.TOO_LARGE)


def test_a_drive_that_answers_a_probe_stays_off_while_a_call_still_hangs(swift_path: Path) -> None:
    disk = FaultDisk()
    hasty = replace(SMALL, errors_max=1, probe_interval_s=0.02, tick_s=0.01)
    with opened(swift_path, disk, options=hasty) as tier:
        store(tier, single("first"))
        hanging = disk.arm("read:hang@1")
        disk.arm("read:errno=EIO@2")
        probes = disk.arm("write:latency=0s")
        outcomes = Outcomes(tier)
        outcomes.load(single("first"))
        until(lambda: hanging.fired == 1)
        outcomes.load(single("first"))
        until(lambda: probes.fired >= 3)
        assert not tier.volumes()[0].is_on
        hanging.disarm()
        outcomes.wait()
        until(lambda: tier.volumes()[0].is_on)


class BadFirstPages(Disk):
    """A drive that cannot write the first page of regions: of the next few, or of one for ever."""

    def __init__(self) -> None:
        self.refusals = 0  # still to come
        self.bad_file = 0  # its inode

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        is_refused = not offset and self.refusals > 0
        self.refusals -= is_refused
        if is_refused or (not offset and os.fstat(descriptor).st_ino == self.bad_file):
            raise OSError(errno.EIO, "bad sector")
        return super().write(descriptor, buffers, offset)


def test_t16_a_region_that_cannot_be_begun_is_one_error(swift_path: Path) -> None:
    """Though nothing is stored for a moment."""
    disk, clock = BadFirstPages(), ManualClock()
    with opened(swift_path, disk, clock) as tier:
        store(tier, single("kept"))
        disk.refusals = 1
        came = [store(tier, single(f"large {n}", 200_000)) for n in range(3 * SMALL.errors_max)]
        dropped = [each for each in came if isinstance(each, Dropped)]
        busy = Dropped(DropReason.BUSY)
        assert dropped[:2] == [Dropped(DropReason.IO_ERROR), busy]
        assert set(dropped[1:]) == {busy}
        assert (tier.volumes()[0].errors, tier.volumes()[0].is_on) == (1, True)
        assert load(tier, single("kept"))[0] == Hit(5000)
        clock.advance(SMALL.full_pause_s)
        assert store(tier, single("large", 200_000)) == Stored()


def test_a_region_whose_first_page_is_bad_is_put_aside(swift_path: Path) -> None:
    disk, options = BadFirstPages(), replace(SMALL, full_pause_s=0.0)
    with opened(swift_path, disk, options=options) as tier:
        for n in range(60):
            store(tier, single(f"filling {n}", 60_000))
        disk.bad_file = regions(swift_path)[0].stat().st_ino
        came = [store(tier, single(f"after it {n}", 60_000)) for n in range(60)]
        assert came.count(Dropped(DropReason.IO_ERROR)) == 1
        assert came.count(Stored()) == 59
        assert disk.bad_file not in {path.stat().st_ino for path in regions(swift_path)}
        assert allocated(swift_path) <= CAP_BYTES


@pytest.mark.expects_faults
def test_what_fails_before_it_is_written_keeps_neither_its_key_nor_its_region(
    swift_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory can be had for what a record is encrypted into."""
    allocate = memory.allocate

    def refuse(size: int) -> memoryview:
        if threading.current_thread().name.startswith("forebay-write"):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return allocate(size)

    sample = single("large", 90_000)
    with opened(swift_path, options=encrypted()) as tier:
        assert store(tier, single("first")) == Stored()
        with monkeypatch.context() as patched:
            patched.setattr(memory, "allocate", refuse)
            outcomes = Outcomes(tier)
            outcomes.store(sample)
            outcomes.wait()
        assert outcomes.dropped == {DropReason.IO_ERROR: 1}
        assert store(tier, sample) == Stored()
        assert load(tier, sample)[0] == Hit(90_000)
        assert not tier.remember_forgotten(DEFAULT_TENANT)
        assert tier.forget(DEFAULT_TENANT, scrub=False).records == 2, "no write is waited for"
