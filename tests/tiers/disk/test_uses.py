"""What works on a directory beside its readers and writers: closing waits for it, deadlines do not.

A descriptor that is closed too early is another file's: zeros for a forgotten tenant went there.
"""

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import REGION_BYTES, SMALL, TickedClock, open_tier, opened, regions, until
from tests.encryption_harness import opened_disk
from tests.tiers.disk.test_tenants import A, hits, is_on, removed_files, some, store

from forebay.barrier import Barrier
from forebay.errors import DirectoryError
from forebay.sys import memory
from forebay.testing.conformance import load
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Operation
from forebay.testing.samples import single
from forebay.tiers.disk import DiskTier
from forebay.tiers.disk.uses import DirectoryUses, SideWork
from forebay.tiers.quotas import Quota

WAIT_S = 60.0


def forget(tier: DiskTier) -> None:
    tier.forget(A, scrub=False)


def scrub(tier: DiskTier) -> None:
    tier.forget(A, scrub=True)


def resize(tier: DiskTier) -> None:
    tier.resize(tier.volumes()[0].path, 8 * REGION_BYTES)


def remember(tier: DiskTier) -> None:
    tier.remember_forgotten(A)


def lower(tier: DiskTier) -> None:
    tier.set_quotas({A: Quota(0, REGION_BYTES)})  # the tier trims it


WORK = [
    (forget, "zero:hang@1"),
    (scrub, "sync:hang@2"),  # of the directory
    (resize, "unlink:hang@1"),
    (remember, "rename:hang@1"),
    (lower, "zero:hang@1"),
]


@pytest.mark.parametrize(("work", "fault"), WORK)
def test_a_file_is_not_closed_while_something_works_on_it(
    swift_path: Path, work: Callable[[DiskTier], None], fault: str
) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk)
    store(tier, some(A, 50))
    hanging = disk.arm(fault)
    thread = threading.Thread(target=work, args=[tier])
    thread.start()
    until(lambda: hanging.fired == 1)
    until(lambda: not removed_files(swift_path))  # they are closed meanwhile, as ever
    closed = disk.calls[Operation.CLOSE]
    closing = threading.Thread(target=tier.close, args=[WAIT_S])
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    assert disk.calls[Operation.CLOSE] == closed
    hanging.disarm()
    closing.join(WAIT_S)
    thread.join(WAIT_S)
    assert not closing.is_alive()
    assert disk.calls[Operation.CLOSE] > closed, "and then it is closed"


@pytest.mark.parametrize(("work", "fault"), WORK)
def test_what_hangs_keeps_its_files_and_keeps_no_tier_from_closing(
    swift_path: Path, work: Callable[[DiskTier], None], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk)
    store(tier, some(A, 50))
    hanging = disk.arm(fault)
    thread = threading.Thread(target=work, args=[tier])
    thread.start()
    until(lambda: hanging.fired == 1)
    closed = disk.calls[Operation.CLOSE]
    tier.close(0.1)
    assert "did not end in time" in caplog.text
    assert disk.calls[Operation.CLOSE] == closed
    hanging.disarm()
    thread.join(WAIT_S)


def test_a_probe_that_hangs_keeps_its_file(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultDisk()
    hasty = replace(SMALL, errors_max=1, probe_interval_s=0.02, tick_s=0.01)
    tier = open_tier(swift_path, disk, options=hasty)
    store(tier, some(A, 1))
    disk.arm("read:errno=EIO@1")
    hanging = disk.arm("write:hang@1")
    load(tier, some(A, 1)[0])
    until(lambda: hanging.fired == 1)
    closed = disk.calls[Operation.CLOSE]
    tier.close(0.1)
    assert "did not end in time" in caplog.text
    assert disk.calls[Operation.CLOSE] == closed
    hanging.disarm()


def test_a_closing_directory_ends_what_removes_many_regions(swift_path: Path) -> None:
    """Between two regions, so that closing waits for one of them; the next start does the rest."""
    disk = FaultDisk()
    tier = open_tier(swift_path, disk)
    store(tier, some(A, 20))
    tier.remember_forgotten(A)
    hanging = disk.arm("unlink:hang@1")
    found = []
    thread = threading.Thread(target=lambda: found.append(tier.forget(A, scrub=False)))
    thread.start()
    until(lambda: hanging.fired == 1)
    closing = threading.Thread(target=tier.close, args=[WAIT_S])
    closing.start()
    until(lambda: tier._drives[0].region_log.uses._is_closed)
    hanging.disarm()
    thread.join(WAIT_S)
    closing.join(WAIT_S)
    assert found[0].records == 5
    assert "it is being closed" in found[0].failure
    assert is_on(swift_path, some(A, 20))
    with opened(swift_path) as tier:
        assert not hits(tier, some(A, 20))
    assert not is_on(swift_path, some(A, 20))


@pytest.mark.parametrize("work", [resize, lower])
def test_a_closing_directory_is_above_its_cap_until_the_next_start(
    swift_path: Path, work: Callable[[DiskTier], None], caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk)
    store(tier, some(A, 50))
    hanging = disk.arm("unlink:hang@1")
    thread = threading.Thread(target=work, args=[tier])
    thread.start()
    until(lambda: hanging.fired == 1)
    closing = threading.Thread(target=tier.close, args=[WAIT_S])
    closing.start()
    until(lambda: tier._drives[0].region_log.uses._is_closed)
    hanging.disarm()
    thread.join(WAIT_S)
    closing.join(WAIT_S)
    assert disk.calls[Operation.UNLINK] == 1
    assert "cap (it is being closed)" in caplog.text


def test_nothing_begins_in_what_is_closed(swift_path: Path) -> None:
    with opened_disk(swift_path) as tier:
        store(tier, some(A, 5))
        tier.close(WAIT_S)
        files = regions(swift_path)
        assert "it is being closed" in tier.remember_forgotten(A)
        assert not tier.forgotten()
        assert "key is left (it is being closed)" in tier.forget(A, scrub=True).failure
        with pytest.raises(DirectoryError, match="keeps its cap: it is being closed"):
            tier.resize(str(swift_path), 8 * REGION_BYTES)
        with pytest.raises(OSError, match="it is being closed"):
            tier.rotate()
        assert regions(swift_path) == files


def test_deadlines_are_kept_while_a_tenant_is_trimmed(swift_path: Path) -> None:
    """The thread that looks at them hung with the drive."""
    disk, clock = FaultDisk(), TickedClock()
    with opened(swift_path, disk, clock) as tier:
        store(tier, some(A, 20))
        hanging = disk.arm("zero:hang")
        tier.set_quotas({A: Quota(0, REGION_BYTES)})
        until(lambda: hanging.fired == 1)
        clock.await_tick()
        clock.await_tick()
        assert hanging.fired == 1, "once at a time"
        hanging.disarm()
        until(lambda: tier.held_by_tenants()[A] == REGION_BYTES)


@pytest.mark.expects_faults
def test_an_exception_ends_one_trim_and_no_thread_that_looks_at_deadlines(
    swift_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, clock = FaultDisk(), TickedClock()
    with opened(swift_path, disk, clock) as tier:
        store(tier, some(A, 20))
        failed = threading.Event()

        def fail(*_: object) -> None:
            failed.set()
            raise ValueError

        with monkeypatch.context() as patch:
            patch.setattr(disk, "unlink", fail)
            tier.set_quotas({A: Quota(0, REGION_BYTES)})
            assert failed.wait(WAIT_S)
            clock.await_tick()
        until(lambda: tier.held_by_tenants()[A] == REGION_BYTES)


def test_work_for_which_no_thread_can_be_had_is_done_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = threading.Event()
    work = SideWork("test", done.set, DirectoryUses(), Barrier())

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        work.begin()
    assert not done.is_set()
    work.begin()
    assert done.wait(WAIT_S)


def test_work_is_done_once_at_a_time() -> None:
    begun: list[threading.Thread] = []
    going_on = threading.Event()
    uses = DirectoryUses()

    def wait() -> None:
        begun.append(threading.current_thread())
        going_on.wait(WAIT_S)

    work = SideWork("test", wait, uses, Barrier())
    work.begin()
    until(lambda: len(begun) == 1)
    work.begin()
    going_on.set()
    begun[0].join(WAIT_S)
    assert uses.close(WAIT_S)
    assert len(begun) == 1


def test_a_drive_is_probed_again_after_there_was_no_memory_for_it(
    swift_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultDisk()
    hasty = replace(SMALL, errors_max=1, probe_interval_s=0.02, tick_s=0.01)
    with opened(swift_path, disk, options=hasty) as tier:
        store(tier, [single("first")])
        refused = threading.Event()
        allocate = memory.allocate

        def short(size_bytes: int) -> memoryview:
            if threading.current_thread().name != "forebay-probe":
                return allocate(size_bytes)
            refused.set()
            raise OSError(errno.ENOMEM, "no memory")

        with monkeypatch.context() as patch:
            patch.setattr(memory, "allocate", short)
            disk.arm("read:errno=EIO@1")
            load(tier, single("first"))
            assert refused.wait(WAIT_S)
            assert not tier.volumes()[0].is_on
        until(lambda: tier.volumes()[0].is_on)
        assert not tier._drives[0]._barrier.caught, "it is no bug"
