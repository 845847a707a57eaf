"""The list of forgotten tenants in a directory: the old one or the new one, whatever happens."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from forebay.testing.faultdisk import FaultDisk
from forebay.tiers.disk.regions.directory import OpenDirectory, open_directory
from forebay.tiers.disk.regions.forgotten import read_forgotten, write_forgotten

ONE, OTHER = b"1" * 16, b"2" * 16


@pytest.fixture
def disk() -> FaultDisk:
    return FaultDisk()


@pytest.fixture
def directory(tmp_path: Path, disk: FaultDisk) -> Iterator[OpenDirectory]:
    tmp_path.chmod(0o700)
    opened = open_directory(disk, str(tmp_path))
    yield opened
    disk.disarm()
    disk.close(opened.lock)
    disk.close(opened.descriptor)


def test_what_is_written_is_read(disk: FaultDisk, directory: OpenDirectory) -> None:
    assert read_forgotten(disk, directory) == frozenset()
    for tenants in (set[bytes](), {ONE}, {ONE, OTHER}):
        write_forgotten(disk, directory, tenants)
        assert read_forgotten(disk, directory) == tenants


def test_what_a_crash_left_is_replaced(
    disk: FaultDisk, directory: OpenDirectory, tmp_path: Path
) -> None:
    (tmp_path / "forgotten.new").write_bytes(b"half of it")
    write_forgotten(disk, directory, {ONE})
    assert read_forgotten(disk, directory) == {ONE}
    assert not (tmp_path / "forgotten.new").exists()


@pytest.mark.parametrize("fault", ["write:short=20", "write:errno=ENOSPC", "sync:errno=EIO@1"])
def test_what_cannot_be_written_leaves_the_old_list(
    disk: FaultDisk, directory: OpenDirectory, fault: str
) -> None:
    write_forgotten(disk, directory, {ONE})
    disk.arm(fault)
    with pytest.raises(OSError, match=r"injected|short"):
        write_forgotten(disk, directory, {ONE, OTHER})
    disk.disarm()
    assert read_forgotten(disk, directory) == {ONE}


def test_what_cannot_be_read_is_told(
    disk: FaultDisk, directory: OpenDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    write_forgotten(disk, directory, {ONE})
    disk.arm("read:errno=EIO")
    assert read_forgotten(disk, directory) == frozenset()
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<8sHHI", b"FOREBAYX", 1, 0, 1) + ONE,
        struct.pack("<8sHHI", b"FOREBAYF", 2, 0, 1) + ONE,
        struct.pack("<8sHHI", b"FOREBAYF", 1, 0, 2) + ONE,
        b"short",
        b"",
    ],
    ids=["magic", "version", "count", "short", "empty"],
)
def test_a_list_that_is_none_is_told(
    disk: FaultDisk,
    directory: OpenDirectory,
    tmp_path: Path,
    body: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "forgotten").write_bytes(body and body + xxhash.xxh3_128_digest(body))
    assert read_forgotten(disk, directory) == frozenset()
    assert "is damaged" in caplog.text
