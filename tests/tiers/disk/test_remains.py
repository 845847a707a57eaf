"""Region files that somebody cut or lengthened, that a drive half reads, or that will not go."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import BadSectors, allocated, open_tier, opened, regions, until
from tests.pool_process import open_files

from forebay.errors import DirectoryError, StartupError
from forebay.record import region as layout
from forebay.record.header import RecordHeader, pack, payload_hash
from forebay.record.region import Position
from forebay.sys.disk import Disk, FileStatus, Space
from forebay.sys.world import World
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Dropped, DropReason, Hit, MissReason, Stored
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.disk.regions.audit import (
    FindingKind,
    audit,
    lock_directory,
    unlock_directory,
)

PAGE = 4096
REGION_BYTES = 1 << 16
CAP_BYTES = 11 * REGION_BYTES  # of which nine regions are usable
ORDERLY = Options(region_bytes=REGION_BYTES, read_depth=1, write_depth=1)
FIRST, SECOND = 1, 7  # pages at which a region's records begin; the table begins at page 13


def tiny(number: int) -> Sample:
    """Two of these fill a region."""
    return single(f"remains {number}", 18_000)


def fill(place: Path, count: int, *, die: bool = False) -> None:
    disk = FaultDisk()
    tier = open_tier(place, disk, options=ORDERLY, cap_bytes=CAP_BYTES)
    for number in range(count):
        assert store(tier, tiny(number)) == Stored()
    if die:
        disk.arm("write:errno=EIO")  # what is open stays unsealed
    tier.close(60)


def held(tier: DiskTier, count: int) -> set[int]:
    """The numbers that can be loaded; the others are absent, not damaged."""
    outcomes = Outcomes(tier)
    for number in range(count):
        outcomes.load(tiny(number))
    outcomes.wait()
    assert outcomes.misses.keys() <= {MissReason.ABSENT}
    return {number for number in range(count) if tiny(number) in outcomes.hits}


def write_until_evicted(tier: DiskTier, place: Path) -> None:
    for number in range(100, 140):
        assert store(tier, tiny(number)) == Stored()
        assert allocated(place) <= CAP_BYTES


@pytest.mark.parametrize("sealed", [True, False])
def test_of_a_region_cut_within_a_page_what_is_whole_is_kept(
    swift_path: Path, sealed: bool
) -> None:
    fill(swift_path, 2, die=not sealed)
    os.truncate(regions(swift_path)[0], SECOND * PAGE + 5000)
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 2) == {0}
        assert tier.usage().used_bytes == (SECOND + 2) * PAGE
        write_until_evicted(tier, swift_path)
        assert held(tier, 2) == set(), "it is evicted in its turn"
        assert {path.stat().st_size for path in regions(swift_path)} == {REGION_BYTES}


def test_a_region_with_something_behind_it_is_kept(swift_path: Path) -> None:
    fill(swift_path, 4)
    with regions(swift_path)[0].open("ab") as file:
        file.write(b"more")
    for _ in range(2):
        with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
            assert held(tier, 4) == {0, 1, 2, 3}
            assert tier.usage().used_bytes >= allocated(swift_path) - 2 * PAGE
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        write_until_evicted(tier, swift_path)
        assert {path.stat().st_size for path in regions(swift_path)} == {REGION_BYTES}


def test_a_region_cut_behind_a_record_has_no_room_for_a_table(swift_path: Path) -> None:
    """A footer in the last page would destroy the record that ends there."""
    fill(swift_path, 4)
    os.truncate(regions(swift_path)[0], SECOND * PAGE)
    for _ in range(2):
        with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
            assert held(tier, 4) == {0, 2, 3}


@pytest.mark.parametrize("size", [PAGE, 5000])
def test_what_is_left_of_a_region_without_records_is_removed(swift_path: Path, size: int) -> None:
    fill(swift_path, 4)
    oldest = regions(swift_path)[0]
    os.truncate(oldest, size)
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 4) == {2, 3}
        assert not oldest.exists()


@pytest.mark.parametrize("times", [1, 241, 1001])
def test_t60_a_file_that_is_not_ours_is_left_alone_and_counted(
    swift_path: Path, times: int
) -> None:
    """F5: opening was refused."""
    foreign = swift_path / "region-0000000000000001"
    foreign.write_bytes(b"somebody's diary " * times)
    for name in ("notes.txt", "region-1", "region-10000000000000000"):
        (swift_path / name).write_bytes(bytes(3 * PAGE))
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert tier.usage().used_bytes == foreign.stat().st_blocks * 512 + 9 * PAGE
        assert tier.volumes()[0].left_alone == 4
        write_until_evicted(tier, swift_path)
    assert foreign.read_bytes() == b"somebody's diary " * times


def make_link(path: Path) -> None:
    (path.parent / "diary").write_bytes(b"dear diary")
    path.symlink_to("diary")


@pytest.mark.parametrize("make", [Path.mkdir, make_link, os.mkfifo])
def test_what_has_the_lock_files_name_is_left_alone_and_counted(
    swift_path: Path, make: Callable[[Path], object]
) -> None:
    """A9: opening was refused."""
    fill(swift_path, 2)
    (swift_path / "lock").unlink()
    make(swift_path / "lock")
    names = {path.name for path in swift_path.iterdir()}
    hasty = replace(ORDERLY, errors_max=1, probe_interval_s=0.02, tick_s=0.01)
    disk = FaultDisk()
    with opened(swift_path, disk, options=hasty, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 2) == {0, 1}
        assert tier.volumes()[0].left_alone == 2 - (make is not make_link)
        for other in (open_tier, lambda place: lock_directory(Disk(), str(place))):
            with pytest.raises(DirectoryError, match="in use by"):
                other(swift_path)
        disk.arm("read:errno=EIO@1")
        probes = disk.arm("write:latency=0s")
        assert not isinstance(load(tier, tiny(0))[0], Hit)
        until(lambda: probes.fired > 0 and tier.volumes()[0].is_on)
    left = {path.name for path in swift_path.iterdir() if not path.name.startswith("region-")}
    assert left == {name for name in names if not name.startswith("region-")}
    locked = lock_directory(Disk(), str(swift_path))
    found = audit(Disk(), locked, lambda _, __: None)
    unlock_directory(Disk(), locked)
    kinds = [each.kind for each in found.others if each.file == "lock"]
    assert kinds == [FindingKind.FOREIGN]


@pytest.mark.parametrize(
    ("page", "sealed", "kept"),
    [
        (0, True, {0, 1}),  # the header: the name and the table tell whose it is
        (0, False, {0, 1}),  # likewise the name and the records
        (13, True, {0, 1}),  # the table: the region is walked
        (15, True, {0, 1}),  # the footer
        (FIRST, False, {1}),
        (FIRST + 2, False, {1}),
        (SECOND, False, {0}),
        (SECOND + 5, False, {0}),
    ],
)
def test_a_bad_sector_hides_only_what_lies_on_it(
    swift_path: Path, page: int, sealed: bool, kept: set[int]
) -> None:
    fill(swift_path, 2, die=not sealed)
    disk = BadSectors(page)
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 2) == kept
        disk.pages = ()
        write_until_evicted(tier, swift_path)


class ShortTable(Disk):
    """A drive that keeps reading less than the whole table of contents."""

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = super().read(descriptor, buffers, offset)
        return 100 if offset == 13 * PAGE else count


class Shrinking(Disk):
    """Somebody cuts a file while it is looked at."""

    def status(self, descriptor: int) -> FileStatus:
        found = super().status(descriptor)
        return found._replace(size_bytes=REGION_BYTES) if found.size_bytes > PAGE else found


def test_half_a_table_is_none(swift_path: Path) -> None:
    fill(swift_path, 2)
    with opened(swift_path, ShortTable(), options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 2) == {0, 1}


def test_a_record_that_ends_early_is_none(swift_path: Path) -> None:
    fill(swift_path, 2)
    os.truncate(regions(swift_path)[0], (SECOND + 3) * PAGE)
    with opened(swift_path, Shrinking(), options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 2) == {0}


def test_a_region_that_is_unreadable_throughout_is_soon_given_up(swift_path: Path) -> None:
    large = Options(region_bytes=1 << 20, read_depth=1, write_depth=1)
    disk = FaultDisk()
    tier = open_tier(swift_path, disk, options=large, cap_bytes=10 << 20)
    assert store(tier, tiny(0)) == Stored()
    disk.arm("write:errno=EIO")
    tier.close(60)
    bad = BadSectors(*range(1, 256))
    with opened(swift_path, bad, options=large, cap_bytes=10 << 20) as tier:
        assert held(tier, 1) == set()
        assert bad.failures < 100


def test_a_file_that_could_not_be_removed_is_counted_and_removed_later(swift_path: Path) -> None:
    disk = FaultDisk()
    options = Options(region_bytes=REGION_BYTES, read_depth=1, write_depth=1, full_pause_s=0.0)
    with opened(swift_path, disk, options=options, cap_bytes=CAP_BYTES) as tier:
        full = disk.arm("preallocate:errno=ENOSPC@1")
        kept = disk.arm("unlink:errno=EIO@1+")
        assert store(tier, tiny(0)) == Dropped(DropReason.NO_SPACE)
        assert (full.fired, kept.fired) == (1, 1)
        assert tier.usage().used_bytes == REGION_BYTES
        assert store(tier, tiny(1)) == Stored(), "a file that will not go is in nobody's way"
        assert tier.usage().used_bytes == 2 * REGION_BYTES
        kept.disarm()
        for number in range(2, 4):
            assert store(tier, tiny(number)) == Stored()
        assert tier.usage().used_bytes == len(regions(swift_path)) * REGION_BYTES


def test_a_file_that_somebody_else_removed_counts_no_more(swift_path: Path) -> None:
    disk = FaultDisk()
    options = Options(region_bytes=REGION_BYTES, read_depth=1, write_depth=1, full_pause_s=0.0)
    with opened(swift_path, disk, options=options, cap_bytes=CAP_BYTES) as tier:
        disk.arm("preallocate:errno=ENOSPC@1")
        disk.arm("unlink:errno=EIO@1")
        store(tier, tiny(0))
        for path in regions(swift_path):
            path.unlink()
        assert store(tier, tiny(1)) == Stored()
        assert tier.usage().used_bytes == REGION_BYTES


def test_a_stillborn_region_that_cannot_be_removed_at_start_is_removed_later(
    swift_path: Path,
) -> None:
    fill(swift_path, 1)
    stillborn = swift_path / "region-00000000000000ff"
    stillborn.write_bytes(bytes(REGION_BYTES))
    disk = FaultDisk("unlink:errno=EIO@1")
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert tier.usage().used_bytes == 2 * REGION_BYTES
        for number in range(1, 5):
            assert store(tier, tiny(number)) == Stored()
        assert not stillborn.exists()
        assert tier.usage().used_bytes == len(regions(swift_path)) * REGION_BYTES
        assert load(tier, tiny(0))[0] == Hit(18_000)


@pytest.mark.parametrize(
    ("name", "size", "is_ours"),
    [
        ("region-00000000000000ff", 1, False),  # a letter is no sign that it is ours
        ("region-00000000000000ff", 8, True),
        ("region-00000000000000ff", 511, True),
        ("region-00000000000000ff", 4095, True),
        ("region-ffffffffffffffff", PAGE, True),
        ("region-ffffffffffffffff", REGION_BYTES, True),
        ("region-ffffffffffffffff", 0, True),
    ],
)
def test_t60_what_is_ours_and_of_no_use_is_removed(
    swift_path: Path, name: str, size: int, is_ours: bool
) -> None:
    """F4, F5: it was in the way."""
    fill(swift_path, 4)
    generation = int(name.removeprefix("region-"), 16)
    content = layout.pack_header(layout.RegionHeader(generation, REGION_BYTES))
    stub = swift_path / name
    stub.write_bytes(content.ljust(size, b"\0")[:size])
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert stub.exists() != is_ours
        assert held(tier, 4) == {0, 1, 2, 3}
        write_until_evicted(tier, swift_path)
        assert max(regions(swift_path)) < swift_path / "region-0000000000010000"


@pytest.mark.parametrize("start", [b"FOREBAYX", b"x", b"\0" * 511 + b"x"])
@pytest.mark.parametrize("size", [600, 4095, PAGE, REGION_BYTES])
def test_t60_a_file_that_begins_otherwise_is_not_ours(
    swift_path: Path, start: bytes, size: int
) -> None:
    fill(swift_path, 4)
    foreign = swift_path / "region-00000000000000ff"
    foreign.write_bytes(start.ljust(size, b"\0"))
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 4) == {0, 1, 2, 3}
        assert tier.volumes()[0].left_alone == 1
    assert foreign.exists()


def test_t60_records_of_an_absurd_generation_count_for_nothing(swift_path: Path) -> None:
    """F4: sound in every hash, under a name and a header of the same generation."""
    fill(swift_path, 4)
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES):
        pass
    oldest = regions(swift_path)[0]
    absurd = swift_path / "region-fffffffffffffff0"
    sample, generation = tiny(9), 0xFFFFFFFFFFFFFFF0
    page = bytearray(PAGE)
    header = RecordHeader(sample.name, sample.length, payload_hash(sample.payload))
    pack(header, memoryview(page), Position(generation, PAGE).pack())
    damaged = bytearray(layout.pack_header(layout.RegionHeader(generation, REGION_BYTES)))
    damaged[0] ^= 1
    content = bytes(damaged) + bytes(page) + sample.payload
    absurd.write_bytes(content.ljust(REGION_BYTES, b"\0"))
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 10) == {0, 1, 2, 3}
        assert tier.volumes()[0].left_alone == 1
    assert absurd.exists()
    assert oldest.exists()


@pytest.mark.parametrize("size", [layout.REGION_BYTES_MAX + PAGE, 1 << 40])
def test_t60_a_sparse_giant_is_left_alone(swift_path: Path, size: int) -> None:
    """F9: it counted for its length, and all others went."""
    fill(swift_path, 4)
    giant = swift_path / "region-00000000000000ff"
    giant.touch(mode=0o600)
    os.truncate(giant, size)
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 4) == {0, 1, 2, 3}
        write_until_evicted(tier, swift_path)
    assert giant.exists()


def test_t60_a_pipe_and_a_directory_under_regions_names_are_left_alone(swift_path: Path) -> None:
    fill(swift_path, 4)
    os.mkfifo(swift_path / "region-00000000000000fe")
    (swift_path / "region-00000000000000ff").mkdir()
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 4) == {0, 1, 2, 3}
        assert tier.volumes()[0].left_alone == 2


def test_t60_a_name_that_is_left_alone_is_not_given_away(swift_path: Path) -> None:
    fill(swift_path, 4)
    generation = int(regions(swift_path)[-1].name.removeprefix("region-"), 16)
    (swift_path / f"region-{generation + 1:016x}").mkdir()
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        write_until_evicted(tier, swift_path)
        assert tier.volumes()[0].errors == 0
    assert (swift_path / f"region-{generation + 1:016x}").is_dir()


class Vanishing(Disk):
    """Files that cannot be asked about, or are gone when they are."""

    def __init__(self, number: int) -> None:
        self.number = number

    def status_of(self, directory: int, name: str) -> FileStatus:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(("number", "count"), [(errno.ENOENT, 0), (errno.EIO, 1)])
def test_what_cannot_be_asked_about_counts_as_a_region_of_ours(
    swift_path: Path, number: int, count: int
) -> None:
    (swift_path / "region-00000000000000ff").mkdir()
    disk = Vanishing(number)
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert tier.volumes()[0].left_alone == count
        assert tier.usage().used_bytes == count * REGION_BYTES


def test_a_file_that_cannot_be_trimmed_counts_until_it_can_be(swift_path: Path) -> None:
    with opened(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES + 3 * REGION_BYTES) as tier:
        for number in range(24):
            store(tier, tiny(number))
    disk = FaultDisk("unlink:errno=EIO@1")
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert tier.usage().used_bytes == len(regions(swift_path)) * REGION_BYTES
        assert allocated(swift_path) <= CAP_BYTES
        write_until_evicted(tier, swift_path)


class Full(Disk):
    """A file system without a free block."""

    def space(self, directory: int) -> Space:
        return super().space(directory)._replace(free_bytes=0)


def test_t60_a_full_file_system_serves_what_it_has(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: it was refused, though nothing had to be written."""
    fill(swift_path, 4)
    with opened(swift_path, Full(), options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 4) == {0, 1, 2, 3}
    assert "free some space" in caplog.text


@pytest.mark.parametrize("fault", ["names:errno=EIO", "open:errno=ENOSPC", "open:errno=EROFS"])
def test_t60_a_medium_that_fails_is_left_out_and_the_others_serve(
    swift_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: no pool began."""
    places = [swift_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir(mode=0o700)
    disk = FaultDisk(f"{fault}@1")
    tier = DiskTier.open(
        [Directory(str(place), CAP_BYTES) for place in places], ORDERLY, World(disk)
    )
    assert [(each.path, each.is_on) for each in tier.volumes()] == [
        (str(places[1]), True),
        (str(places[0]), False),
    ]
    assert store(tier, tiny(0)) == Stored()
    assert load(tier, tiny(0))[0] == Hit(18_000)
    assert tier.usage().cap_bytes == CAP_BYTES
    assert not tier.resize(str(places[0]), CAP_BYTES)
    tier.close(60)
    assert "Serving without it" in caplog.text


def test_a_tier_that_cannot_have_its_threads_does_not_begin(
    swift_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(StartupError, match="threads"):
        open_tier(swift_path, options=ORDERLY, cap_bytes=CAP_BYTES)


class WithoutDirect(Disk):
    """A file system without O_DIRECT: there a pipe can be opened for reading and writing."""

    def open(self, directory: int, name: str, *, create: bool, direct: bool, write: bool) -> int:
        if direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().open(directory, name, create=create, direct=direct, write=write)


def test_t60_a_pipe_is_left_alone_where_it_can_be_opened(swift_path: Path) -> None:
    os.mkfifo(swift_path / "region-00000000000000fe")
    with opened(swift_path, WithoutDirect(), options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert tier.volumes()[0].left_alone == 1
        assert store(tier, tiny(0)) == Stored()


def test_a_region_that_cannot_be_measured_is_left_alone(swift_path: Path) -> None:
    fill(swift_path, 4)
    disk = FaultDisk("status:errno=EIO@4")  # behind the directory and its lock file
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=CAP_BYTES) as tier:
        assert held(tier, 4) == {2, 3}
        assert tier.usage().used_bytes == 2 * REGION_BYTES


def test_every_descriptor_is_given_back_by_what_cannot_be_opened(swift_path: Path) -> None:
    fill(swift_path, 4)
    with opened(
        swift_path, FaultDisk("space:errno=EIO@2"), options=ORDERLY, cap_bytes=CAP_BYTES
    ) as tier:
        assert not tier.volumes()[0].is_on
        assert open_files(str(swift_path)) == 0
    wanted = [Directory(str(path), CAP_BYTES) for path in (swift_path, swift_path / "missing")]
    with pytest.raises(DirectoryError, match="does not exist"):
        DiskTier.open(wanted, ORDERLY)
    assert open_files(str(swift_path)) == 0
