"""P9, as far as it touches the directory: private, and never left through a name."""

import fcntl
import os
import stat
from pathlib import Path

import pytest
from tests.disk_harness import CAP_BYTES, SMALL, opened, regions

from forebay.errors import DirectoryError
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Hit, Miss, Stored
from forebay.tiers.disk import Directory, DiskTier
from forebay.tiers.disk.regions.audit import lock_directory


def try_open(place: Path, disk: Disk | None = None) -> DiskTier:
    return DiskTier.open([Directory(str(place), CAP_BYTES)], SMALL, World(disk or Disk()))


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_t44_files_are_private_whatever_the_umask(swift_path: Path, umask: int) -> None:
    place = swift_path / "pool"
    place.mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        tier = try_open(place)
        outcome = store(tier, single("private"))
        tier.close(60)
    finally:
        os.umask(before)
    assert outcome == Stored()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert modes["lock"] & ~0o600 == 0
    assert set(modes.values()) <= {0o600, 0o600 & ~umask}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o722, 0o1777])
def test_t44_a_directory_that_others_can_write_is_refused(swift_path: Path, mode: int) -> None:
    place = swift_path / "pool"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(DirectoryError, match="chmod 700"):
        try_open(place)
    assert list(place.iterdir()) == []


class AnotherUser(Disk):
    """The same disk, seen by somebody else."""

    def user(self) -> int:
        return super().user() + 1


def test_t44_a_directory_of_another_user_is_refused(swift_path: Path) -> None:
    with pytest.raises(DirectoryError, match="belongs to another user"):
        try_open(swift_path, AnotherUser())
    assert list(swift_path.iterdir()) == []


@pytest.mark.parametrize("tail", ["", "/", "//", "/.", "/./", "//.//"])
def test_t44_a_symbolic_link_is_refused(swift_path: Path, tail: str) -> None:
    """F9: with a slash behind it, it was followed."""
    (swift_path / "real").mkdir(mode=0o700)
    (swift_path / "link").symlink_to(swift_path / "real")
    with pytest.raises(DirectoryError, match="symbolic link"):
        DiskTier.open([Directory(f"{swift_path}/link{tail}", CAP_BYTES)], SMALL)
    DiskTier.open([Directory(f"{swift_path}/real{tail}", CAP_BYTES)], SMALL).close(60)


def test_t60_a_lock_that_was_removed_lets_no_second_pool_in(swift_path: Path) -> None:
    """F9: the lock was that file alone."""
    with opened(swift_path):
        (swift_path / "lock").unlink()
        with pytest.raises(DirectoryError, match="in use by another pool"):
            try_open(swift_path)
        with pytest.raises(DirectoryError, match="in use by a pool"):
            lock_directory(Disk(), str(swift_path))


def test_what_is_missing_a_file_or_denied_is_refused_with_a_sentence(swift_path: Path) -> None:
    with pytest.raises(DirectoryError, match="does not exist; create it with: mkdir"):
        try_open(swift_path / "missing")
    (swift_path / "file").write_bytes(b"")
    with pytest.raises(DirectoryError, match="not a directory"):
        try_open(swift_path / "file")
    swift_path.chmod(0o700)
    with pytest.raises(DirectoryError, match=r"cannot be written \(Permission denied\); choose"):
        try_open(swift_path, FaultDisk("open:errno=EACCES"))


def test_t43_no_name_reaches_the_file_system(swift_path: Path) -> None:
    """Keys and namespaces are bytes in a record; the names of files are numbers."""
    hostile = [b"../../../../etc/passwd\0AAAAAAAAA", b"/absolute/path".ljust(32, b"/"), b"." * 32]
    place = swift_path / "pool"
    with opened(place) as tier:
        for key in hostile:
            name = single("x", namespace=key).name
            sample = Sample(type(name)(key, 0, key, name.parent), 5000)
            assert store(tier, sample) == Stored()
            assert load(tier, sample) == (Hit(5000), sample.payload)
    assert {path.name for path in swift_path.iterdir()} == {"pool"}
    assert {path.name.partition("-")[0] for path in place.iterdir()} == {"lock", "region"}


def test_t43_a_lock_that_is_a_link_is_not_followed(swift_path: Path) -> None:
    place, outside = swift_path / "pool", swift_path / "outside"
    place.mkdir(mode=0o700)
    outside.write_bytes(b"not yours")
    (place / "lock").symlink_to(outside)
    with opened(place) as tier, outside.open() as file:
        assert store(tier, single("ours")) == Stored()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else has locked it
    assert outside.read_bytes() == b"not yours"


def test_t43_a_region_that_is_a_link_is_neither_served_nor_written(swift_path: Path) -> None:
    """Even if it leads to a sound region: it lies outside, and may be another pool's."""
    theirs, place = swift_path / "theirs", swift_path / "pool"
    with opened(theirs) as tier:
        store(tier, single("theirs"))
    (region,) = regions(theirs)
    before = region.read_bytes()
    place.mkdir(mode=0o700)
    (place / region.name).symlink_to(region)
    with opened(place) as tier:
        assert isinstance(load(tier, single("theirs"))[0], Miss)
        for n in range(100):
            assert store(tier, single(f"ours {n}", 30_000)) == Stored()
    assert region.read_bytes() == before
