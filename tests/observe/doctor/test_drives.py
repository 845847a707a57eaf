"""Every check of directories finds its planted case, and nothing where there is none."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.observe.doctor.harness import (
    GIB,
    MIB,
    Machine,
    facts_of,
    finds,
    is_fine,
    is_skipped,
    look,
    on_disk,
)
from tests.pool_process import HANG_S, serving, short_directory, with_disk

from forebay.observe.doctor.drives import _by_drive
from forebay.observe.doctor.facts import DoctorModel, DriveSpeed, Facts
from forebay.observe.doctor.finding import Severity
from forebay.plan.model.shape import plain_shape
from forebay.settings import DiskSetting, Settings
from forebay.sys.disk import Disk, Space
from forebay.sys.machine.mounts import mount_of
from forebay.testing.faultdisk import FaultDisk

MODEL = DoctorModel("model", shape=plain_shape(32, 8, 128, 16))


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as made:
        yield made


def test_a_directory_that_is_ours_is_fine(place: Path) -> None:
    facts = facts_of(place, settings=on_disk(place / "disk"))
    for name in ("disk.directory", "disk.in_use", "disk.direct", "disk.space"):
        is_fine(name, facts)
    assert list((place / "disk").iterdir()) == [], "looking leaves nothing behind"
    is_skipped("disk.directory", facts_of(place))


def test_a_directory_that_is_missing_says_how_to_make_it(place: Path) -> None:
    settings = Settings(disk=(DiskSetting(str(place / "none"), GIB),))
    facts = facts_of(place, settings=settings)
    finds("disk.directory", facts, Severity.PROBLEM, "does not exist", "mkdir -m 700")
    for name in ("in_use", "file_system", "direct", "drive", "leftovers"):
        is_skipped(f"disk.{name}", facts)


def test_a_directory_that_is_missing_will_have_its_parents_space(place: Path) -> None:
    settings = Settings(disk=(DiskSetting(str(place / "none" / "none"), 2 * GIB),))
    facts = facts_of(place, disk=SmallDisk(), settings=settings)
    finds("disk.space", facts, Severity.WARNING, "1 GiB can be had")


def test_without_disk_the_running_pools_directories_are_looked_at(place: Path) -> None:
    settings = with_disk(place)
    with serving(place, settings):
        facts = facts_of(place)
        for name in ("disk.directory", "disk.in_use", "disk.space"):
            is_fine(name, facts)
        assert facts.directories[0].setting == settings.disk[0]


def test_a_directory_that_others_can_write(place: Path) -> None:
    settings = on_disk(place / "disk")
    (place / "disk").chmod(0o777)
    facts = facts_of(place, settings=settings)
    finds("disk.directory", facts, Severity.PROBLEM, "written by others", "chmod 700")


class AnotherUser(Disk):
    """The same disk, seen by somebody else."""

    def user(self) -> int:
        return super().user() + 1


def test_a_directory_of_another_user(place: Path) -> None:
    facts = facts_of(place, disk=AnotherUser(), settings=on_disk(place / "disk"))
    finds("disk.directory", facts, Severity.PROBLEM, "belongs to another user")


@pytest.mark.parametrize(
    "fault", ["open:errno=EROFS", "open:errno=EIO", "open_directory:errno=EIO"]
)
def test_a_directory_whose_drive_fails(place: Path, fault: str) -> None:
    facts = facts_of(place, disk=FaultDisk(fault), settings=on_disk(place / "disk"))
    finds("disk.directory", facts, Severity.PROBLEM, str(place / "disk"))


def test_a_directory_that_another_pool_uses(place: Path) -> None:
    other = place / "other"
    other.mkdir(mode=0o700)
    settings = with_disk(place)
    with serving(other, settings) as service:
        facts = facts_of(place, settings=settings)
        finds("disk.in_use", facts, Severity.PROBLEM, f"process {os.getpid()}", "another directory")
        own = Settings(disk=settings.disk, socket=service.address.path)
        is_fine("disk.in_use", facts_of(place, settings=own))
    is_fine("disk.in_use", facts_of(place, settings=settings))


@pytest.mark.parametrize(
    ("kind", "words"),
    [("tmpfs", "memory"), ("nfs4", "network"), ("overlay", "container's image")],
)
def test_a_directory_that_is_on_no_drive(
    tmp_path: Path, place: Path, kind: str, words: str
) -> None:
    machine = Machine(tmp_path)
    settings = on_disk(place / "disk")
    is_fine("disk.file_system", machine.facts(settings=settings))
    machine.mount(place, kind)
    facts = machine.facts(settings=settings)
    finds("disk.file_system", facts, Severity.WARNING, words, "local NVMe")


def test_another_file_system_is_worth_a_note(tmp_path: Path, place: Path) -> None:
    machine = Machine(tmp_path)
    machine.mount(place, "btrfs")
    finds("disk.file_system", machine.facts(settings=on_disk(place / "disk")), Severity.NOTE)


def test_the_kernels_own_list_of_mounts_can_be_read(tmp_path: Path) -> None:
    proc, here = mount_of("/proc/self/fd"), mount_of(str(tmp_path))
    assert proc is not None
    assert here is not None
    assert (proc.kind, proc.point) == ("proc", "/proc")
    assert tmp_path.is_relative_to(here.point)


class WithoutODirect(Disk):
    """A file system that has no O_DIRECT, and makes the file before it says so."""

    def open(self, directory: int, name: str, *, create: bool, direct: bool, write: bool) -> int:
        opened = super().open(directory, name, create=create, direct=False, write=write)
        if direct:
            self.close(opened)
            raise OSError(22, "Invalid argument")
        return opened


def test_a_file_system_without_o_direct(place: Path) -> None:
    facts = facts_of(place, disk=WithoutODirect(), settings=on_disk(place / "disk"))
    finds("disk.direct", facts, Severity.WARNING, "O_DIRECT", "XFS or ext4")
    assert list((place / "disk").iterdir()) == []


def test_a_hard_disk(tmp_path: Path, place: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("sys/dev/block/8:1/queue/rotational", "0\n")
    settings = on_disk(place / "disk")
    is_fine("disk.drive", machine.facts(settings=settings))
    machine.write("sys/dev/block/8:1/queue/rotational", "1\n")
    finds("disk.drive", machine.facts(settings=settings), Severity.NOTE, "hard disk")


class SmallDisk(Disk):
    """A file system of 4 GiB, of which one is free."""

    def space(self, directory: int) -> Space:
        return Space(GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("cap_bytes", "severity", "words"),
    [
        (8 * GIB, Severity.PROBLEM, "4 GiB in all"),
        (2 * GIB, Severity.WARNING, "1 GiB can be had"),
    ],
)
def test_a_cap_that_cannot_be_had(
    place: Path, cap_bytes: int, severity: Severity, words: str
) -> None:
    settings = on_disk(place / "disk", cap_bytes=cap_bytes)
    finds("disk.space", facts_of(place, disk=SmallDisk(), settings=settings), severity, words)


def test_what_regions_hold_counts_as_free(place: Path) -> None:
    settings = on_disk(place / "disk", cap_bytes=GIB + 32 * MIB)
    region = place / "disk" / "region-0000000000000001"
    region.write_bytes(b"x")
    os.truncate(region, 64 * MIB)
    with region.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MIB)
    is_fine("disk.space", facts_of(place, disk=SmallDisk(), settings=settings))


def test_directories_on_one_drive_share_it(place: Path) -> None:
    settings = on_disk(place / "a", place / "b", cap_bytes=GIB // 4)
    facts = facts_of(place, disk=SmallDisk(), settings=settings)
    finds("disk.space", facts, Severity.NOTE, "on one file system", "one directory")


def test_what_a_killed_measurement_left(place: Path) -> None:
    settings = on_disk(place / "disk")
    is_fine("disk.leftovers", facts_of(place, settings=settings))
    left = place / "disk" / "forebay-bench-0123456789ab"
    left.mkdir()
    finds("disk.leftovers", facts_of(place, settings=settings), Severity.NOTE, f"rm -r {left}")


def test_a_drive_is_slower_than_a_gpu_that_computes_anything_at_once(place: Path) -> None:
    """The same drive, measured: against a GPU without limits, and against hardly any."""
    inputs: dict[str, Any] = {"settings": on_disk(place / "disk"), "model": MODEL, "measures": True}
    slow = facts_of(place, prefill_tps=1e12, **inputs)
    finds(
        "disk.speed", slow, Severity.WARNING, "1,000,000,000,000 prompt tokens/s", "faster drives"
    )
    quick = facts_of(place, prefill_tps=1e-3, **inputs)
    is_fine("disk.speed", quick)
    assert not any(" 0.00 GB/s" in each.sentence for each in look("disk.speed", quick))
    both = facts_of(place, **{**inputs, "settings": on_disk(place / "disk", place / "b")})
    assert max(speed.read_bytes_s for speed in measured(both)) == sum(_by_drive(both).values()), (
        "two directories on one drive are not faster than one"
    )
    speed = slow.speeds[str(place / "disk")]
    assert isinstance(speed, DriveSpeed)
    assert min(speed) > 0
    assert list((place / "disk").iterdir()) == [], "what was measured with is gone"


def measured(facts: Facts) -> list[DriveSpeed]:
    return [speed for speed in facts.speeds.values() if isinstance(speed, DriveSpeed)]


def test_a_drive_is_not_measured_where_a_pool_uses_it_or_it_is_not_asked_for(place: Path) -> None:
    settings = with_disk(place)
    with serving(place, settings):
        busy = facts_of(place, settings=settings, measures=None)
        assert "a pool is using it" in str(busy.speeds)
    assert "as asked" in str(facts_of(place, settings=settings).speeds)
    full = facts_of(place, disk=FullDisk(), settings=settings, measures=None)
    assert "no free space" in str(full.speeds)


class FullDisk(Disk):
    """A file system without a free byte."""

    def space(self, directory: int) -> Space:
        return Space(0, 4 * GIB)


def test_forebay_check_counts_as_a_user_of_a_directory(place: Path) -> None:
    """Any lock does: of a process that is not ours."""
    settings = on_disk(place / "disk")
    code = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(place / "disk")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        facts = facts_of(place, settings=settings)
        finds("disk.in_use", facts, Severity.PROBLEM, f"process {process.pid}")
        process.communicate(timeout=HANG_S)
