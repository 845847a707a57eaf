"""An audit on a drive that reads badly says what it could not read, and repairs what it can."""

import fcntl
import os
from pathlib import Path

import pytest
from tests.disk_harness import SMALL, BadSectors, open_tier, regions

from forebay.errors import DirectoryError
from forebay.record.region import REGION_BYTES_MAX
from forebay.sys.disk import Disk
from forebay.testing.conformance import store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Operation
from forebay.testing.samples import single
from forebay.tiers.disk.regions.audit import (
    Audit,
    FindingKind,
    audit,
    lock_directory,
    unlock_directory,
)
from forebay.tiers.disk.regions.repair import repair

LAST = SMALL.region_bytes // 4096 - 1
RECORDS = 3  # of three pages each, from the second page on


@pytest.fixture
def place(swift_path: Path) -> Path:
    tier = open_tier(swift_path)
    for n in range(RECORDS):
        store(tier, single(f"audited {n}"))
    tier.close(60)
    return swift_path


def audited(place: Path, disk: Disk, *, fix: bool = False) -> tuple[Audit, list[str]]:
    locked = lock_directory(disk, str(place))
    try:
        found = audit(disk, locked, lambda _, __: None)
        return found, repair(disk, locked, found) if fix else []
    finally:
        unlock_directory(disk, locked)


@pytest.mark.parametrize(
    ("page", "sealed", "sound", "offset"),
    [
        (0, True, 0, None),  # a header that cannot be read says nothing about the rest
        (LAST, True, 3, LAST * 4096),  # without its footer a region is walked
        (1, True, 2, 4096),
        (4, False, 2, 4 * 4096),
    ],
)
def test_what_cannot_be_read_is_said(
    place: Path, page: int, sealed: bool, sound: int, offset: int | None
) -> None:
    if not sealed:
        with regions(place)[0].open("r+b") as file:
            file.seek(LAST * 4096)
            file.write(bytes(4096))
    found, _ = audited(place, BadSectors(page))
    assert found.regions[0].records == sound
    assert [(each.kind, each.offset) for each in found.findings][:1] == [
        (FindingKind.UNREADABLE, offset)
    ]


def test_a_repair_that_the_medium_refuses_is_said(place: Path) -> None:
    with regions(place)[0].open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"damage")
    _, done = audited(place, FaultDisk("write:errno=EROFS"), fix=True)
    assert len(done) == 1
    assert "could not be repaired (Read-only file system" in done[0]
    assert "2 sound records" in audited(place, Disk(), fix=True)[1][0]


def test_a_pool_that_knows_only_the_lock_file_keeps_others_out(place: Path) -> None:
    """Pools of version 0.1 do not lock the directory itself."""
    with (place / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DirectoryError, match="in use by a pool"):
            lock_directory(Disk(), str(place))
        with pytest.raises(DirectoryError, match="in use by another pool"):
            open_tier(place)
    open_tier(place).close(60)


def test_a_lock_file_that_cannot_be_opened_is_one_sentence(place: Path) -> None:
    with pytest.raises(DirectoryError, match="run this as its owner"):
        lock_directory(FaultDisk("open:errno=EACCES"), str(place))


def test_t60_of_a_giant_nothing_is_read(place: Path) -> None:
    """F9: the check of a sparse TiB did not end."""
    giant = place / "region-00000000000000ff"
    giant.touch(mode=0o600)
    os.truncate(giant, REGION_BYTES_MAX + 4096)
    disk = FaultDisk()
    before = audited(place, disk)[0]
    reads = disk.calls[Operation.READ]
    assert [(each.kind, each.file) for each in before.findings] == [
        (FindingKind.FOREIGN, giant.name)
    ]
    giant.unlink()
    audited(place, disk)
    assert disk.calls[Operation.READ] == 2 * reads
