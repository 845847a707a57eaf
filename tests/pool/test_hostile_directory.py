"""A pool on a directory that a crash, an operator, a full disk or an attacker has left (T56, T60).

Each test attacks a pool in a process of its own, through its files; what it held before is served
or is a miss, the pool lives, and `du` never shows more than the cap.
"""

import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.disk_harness import fill_up, overwrite, regions, small_file_system
from tests.pool_process import (
    DISK_BYTES,
    HANG_S,
    PatientClient,
    PoolProcess,
    count_exact,
    environment,
    made,
    running_pool,
    serving,
    short_directory,
    wait_until,
)

from forebay.pool.client import Chain
from forebay.record import region as layout
from forebay.record.header import RecordHeader, medium_part, pack, unpack
from forebay.tiers.contract import Miss

pytestmark = pytest.mark.slow
PAGE: Final = 4096
CHUNKS, CHAIN = made("kept", count=40, length=400_000)  # two regions


@pytest.fixture(scope="module")
def filled() -> Iterator[Path]:
    """What a pool has left that stored 40 chunks and was stopped."""
    with short_directory() as place, on(place) as pool, PatientClient(pool.socket) as client:
        client.store(CHAIN, [chunk.payload for chunk in CHUNKS])
        assert pool.stop() == 0
        yield place / "disk"


@pytest.fixture
def place(filled: Path) -> Iterator[Path]:
    """A copy of it."""
    with short_directory() as path:
        shutil.copytree(filled, path / "disk")
        yield path


def on(place: Path) -> AbstractContextManager[PoolProcess]:
    """A pool on the directory in `place`."""
    return running_pool(place, "--dram", "64MiB")


def loaded(pool: PoolProcess) -> int:
    """How many chunks come back, each bit for bit; and the pool lives."""
    with PatientClient(pool.socket) as client, client.load(CHAIN) as found:
        count = count_exact(found, CHUNKS)
    pool.check_alive()
    return count


def du(directory: Path) -> int:
    """What `du` shows; a file that is being renamed counts once, or with the next look."""
    found = {}
    for path in (directory, *directory.iterdir()):
        with suppress(FileNotFoundError):
            status = path.lstat()
            found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def write_times_the_cap(pool: PoolProcess, directory: Path, label: str = "flood") -> None:
    """New chunks until regions must have been evicted, and never more than the cap."""
    with PatientClient(pool.socket) as client:
        for number in range(12):
            chunks, chain = made(f"{label} {number}", count=4, length=1_500_000)
            client.store(chain, [chunk.payload for chunk in chunks])
            wait_until(lambda: pool.number("filling_bytes") == 0, "all to be written")
            assert du(directory) <= DISK_BYTES
    assert pool.volume()["evictions"] > 0


def check(directory: Path | bytes, *flags: str) -> tuple[int, str]:
    """`forebay check` in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "forebay.cli", "check", directory, *flags],
        env=environment(),
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    assert b"Traceback" not in ended.stderr
    return ended.returncode, ended.stdout.decode()


@pytest.mark.parametrize("length", [0, 2**32 - 1])
def test_t56_a_forged_table_with_right_hashes(place: Path, length: int) -> None:
    """F2: one entry of length 0, and the first load ended the pool, in every life."""
    for path in regions(place / "disk"):
        content = bytearray(path.read_bytes())
        footer = layout.unpack_footer(bytes(content[-PAGE:]))
        assert isinstance(footer, layout.Footer)
        at, end = footer.contents_offset, footer.records * layout.ENTRY_BYTES
        for entry in range(footer.records):
            struct.pack_into("<I", content, at + entry * layout.ENTRY_BYTES + 84, length)
        digest = layout.contents_hash(bytes(content[at : at + end]))
        overwrite(path, at, bytes(content[at : at + end]))
        overwrite(
            path,
            len(content) - PAGE,
            layout.pack_footer(footer._replace(contents_hash=digest)),
        )
    with on(place) as pool:
        assert loaded(pool) == 40, "the regions are walked instead"


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("circle", [1, 2, 40])
def test_records_that_are_their_own_ancestors(place: Path, circle: int, sealed: bool) -> None:
    """A9: parents that form a circle; they are loaded or are misses, and leave DRAM like others."""
    keys = [chunk.name.key for chunk in CHUNKS]
    for path in regions(place / "disk"):
        content = path.read_bytes()
        for at in range(PAGE, len(content), PAGE):
            header = unpack(content[at : at + PAGE])
            if not isinstance(header, RecordHeader):
                continue
            number = keys.index(header.name.key)
            following = number - number % circle + (number + 1) % circle
            name = replace(header.name, parent=keys[following])
            page = bytearray(PAGE)
            pack(replace(header, name=name), memoryview(page), medium_part(content[at : at + PAGE]))
            overwrite(path, at, bytes(page))
        if not sealed:  # it is walked: what is indexed comes from the records
            overwrite(path, len(content) - PAGE, bytes(PAGE))
    with running_pool(place) as pool, PatientClient(pool.socket) as client:
        for first in range(0, 40, 10):  # more than DRAM holds
            with client.load(CHAIN, first) as found:
                assert count_exact(found, CHUNKS) == 0 or sealed
        again, chain = made("again", 4, 400_000)  # which needs the slots of those
        assert client.store(chain, [chunk.payload for chunk in again]).stored == 4
        with client.load(chain) as found:
            assert count_exact(found, again) == 4
        assert pool.stop() == 0


def _a_file(path: Path) -> None:
    path.write_bytes(b"x" * 100_000)


def _an_empty_file(path: Path) -> None:
    path.touch()


def _a_header(path: Path) -> None:
    generation = int(path.name.removeprefix("region-"), 16)
    header = layout.pack_header(layout.RegionHeader(generation, 1 << 20))
    path.write_bytes(header.ljust(1 << 20, b"\0"))


@pytest.mark.parametrize(
    ("generation", "make"),
    [
        ("f" * 16, Path.mkdir),
        ("f" * 16, _a_file),
        ("f" * 16, _a_header),
        ("fffffffffffffffe", _an_empty_file),
    ],
)
def test_t60_an_absurd_generation(
    place: Path, generation: str, make: Callable[[Path], None]
) -> None:
    """F4: writers died, the tier stayed off, and later its orphans were not counted."""
    disk = place / "disk"
    absurd = disk / f"region-{generation}"
    make(absurd)
    if make is not _an_empty_file:  # that is a region whose making was cut off
        status, text = check(disk)
        assert (status, absurd.name in text) == (1, True)
    with on(place) as pool:
        assert loaded(pool) == 40
        write_times_the_cap(pool, disk)
        assert pool.volume()["is_on"]
        assert pool.stop() == 0
    assert absurd.exists() == (make in {Path.mkdir, _a_file}), "what is not ours is left alone"
    assert len(list(disk.iterdir())) == len(regions(disk)) + 1, "no other file was made"
    with on(place) as pool:
        assert pool.number("chunks", tier="disk") > 0
        write_times_the_cap(pool, disk, "again")


def _cut(size_bytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size_bytes)


def _empty_with_bad_magic(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"NOTOURS!".ljust(size, b"\0"))


@pytest.mark.parametrize(
    "damage",
    [_cut(1), _cut(4095), _empty_with_bad_magic],
    ids=["1 byte", "4095 bytes", "magic of an empty one"],
)
def test_t60_what_is_left_of_a_region_keeps_no_pool_from_opening(
    place: Path, damage: Callable[[Path], None]
) -> None:
    """F5: the pool did not start."""
    disk = place / "disk"
    damage(regions(disk)[-1])
    with on(place) as pool:
        assert 0 < loaded(pool) < 40
        write_times_the_cap(pool, disk)


def test_t60_a_lock_that_was_removed_lets_no_second_pool_in(place: Path) -> None:
    """F9: two pools ran in one directory."""
    with on(place) as pool:
        (place / "disk" / "lock").unlink()
        command = [*pool.command[:4], "--socket", str(place / "second.sock"), *pool.command[6:]]
        second = subprocess.run(
            command, env=environment(), capture_output=True, timeout=HANG_S, check=False
        )
        assert second.returncode == 2
        assert b"in use by another pool" in second.stderr
        status, _ = check(place / "disk")
        assert status == 2
        assert loaded(pool) == 40


@pytest.mark.parametrize("tail", ["/", "/./"])
def test_t60_a_link_is_refused_however_it_is_written(place: Path, tail: str) -> None:
    """F9: with a slash behind it, it passed."""
    (place / "real").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "real")
    pool = PoolProcess(place, "--disk", f"{place}/link{tail}:{DISK_BYTES}", disk=False)
    ended = subprocess.run(
        pool.command, env=environment(), capture_output=True, timeout=HANG_S, check=False
    )
    assert ended.returncode == 2
    assert b"symbolic link" in ended.stderr
    assert list((place / "real").iterdir()) == []


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda lock: lock.symlink_to("/etc/fstab")]
)
def test_t60_a_lock_that_is_no_file_keeps_no_pool_from_opening(
    place: Path, make: Callable[[Path], object]
) -> None:
    """A9: it did not begin; the directory's own lock still keeps a second one out."""
    lock = place / "disk" / "lock"
    lock.unlink()
    make(lock)
    with on(place) as pool:
        assert loaded(pool) == 40
        assert pool.volume()["left_alone"] == 1
        second = PoolProcess(place, "--socket", str(place / "second.sock"))
        ended = subprocess.run(
            second.command, env=environment(), capture_output=True, timeout=HANG_S, check=False
        )
        assert ended.returncode == 2
        assert b"in use by another pool" in ended.stderr
        assert pool.stop() == 0
    status, text = check(place / "disk")
    assert (status, "40 sound records" in text, "lock" in text) == (1, True, True)
    assert not lock.is_file() or lock.is_symlink()


@pytest.mark.parametrize("size_bytes", [200 << 20, 1 << 40])
def test_t60_a_sparse_giant_drives_nothing_out(place: Path, size_bytes: int) -> None:
    """F9: a sparse GiB trimmed everything, and the check of a sparse TiB did not end."""
    disk = place / "disk"
    giant = disk / "region-0000000000ffffff"
    giant.touch(mode=0o600)
    os.truncate(giant, size_bytes)
    status, text = check(disk)
    assert "sound records" in text
    if size_bytes > layout.REGION_BYTES_MAX:
        assert (status, giant.name in text) == (1, True)
    with on(place) as pool:
        assert loaded(pool) == 40
        write_times_the_cap(pool, disk)


def test_t60_a_directory_whose_name_is_not_utf_8_is_checked(place: Path) -> None:
    """F2: commands ended with a traceback."""
    odd = os.fsencode(place) + b"/d\xff"
    (place / "disk").rename(os.fsdecode(odd))
    status, text = check(odd)
    assert status == 0
    assert "d\\xff: 40 sound records" in text
    status, text = check(odd, "--json")
    assert status == 0


SECRET: Final = b"SECRET-OF-A-USER"


def secrets_in(pool: PoolProcess, directory: Path) -> int:
    """How often the secret is in the files, and in the memory that engines map."""
    found = 0
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # a region may be evicted meanwhile
            found += path.read_bytes().count(SECRET)
    for link in Path(f"/proc/{pool.pid}/fd").iterdir():
        if "memfd:forebay-slab" in str(link.readlink()):
            found += _count_in_memory(link)
    return found


def _count_in_memory(link: Path) -> int:
    """Only where there is memory: the file may be as large as the machine's."""
    found, end = 0, 0
    with link.open("rb", buffering=0) as memory:
        while True:
            try:
                start = os.lseek(memory.fileno(), end, os.SEEK_DATA)
            except OSError:
                return found
            end = os.lseek(memory.fileno(), start, os.SEEK_HOLE)
            found += os.pread(memory.fileno(), end - start, start).count(SECRET)


@pytest.mark.parametrize("what", ["--namespace", "--all"])
def test_clear_leaves_no_byte_of_what_it_deletes(place: Path, what: str) -> None:
    """F9: "erased from disk", and 6,000 of 6,000 secrets were still in the files and the slab."""
    namespace = bytes.fromhex("5ec7e7") * 10 + b"xx"
    flags = ["--all"] if what == "--all" else [what, namespace.hex()]
    command = [sys.executable, "-m", "forebay.cli", "clear", *flags, "--socket"]
    with on(place) as pool, PatientClient(pool.socket) as client:
        for number in range(240):
            keys = [bytes([number, chunk]) * 16 for chunk in range(3)]
            # Of several sizes, hence in several classes.
            payload = SECRET * (24_000 + 100 * (number % 60))
            client.store(Chain(namespace, keys), [payload] * 3)
            if number >= 60 and pool.volume()["evictions"] > 0:
                break  # a busy machine may write less than it is given
        wait_until(lambda: pool.number("filling_bytes") == 0, "all to be written")
        assert pool.volume()["evictions"] > 0
        kept = made("kept beside it", count=4)
        client.store(kept[1], [chunk.payload for chunk in kept[0]])
        wait_until(lambda: pool.number("filling_bytes") == 0, "all to be written")
        assert secrets_in(pool, place / "disk") > 6000
        subprocess.run([*command, pool.socket], env=environment(), timeout=HANG_S, check=True)
        assert secrets_in(pool, place / "disk") == 0
        with client.load(kept[1]) as found:
            assert count_exact(found, kept[0]) == (0 if what == "--all" else 4)
        assert pool.stop() == 0
    with on(place) as pool:
        assert secrets_in(pool, place / "disk") == 0
        assert check(place / "disk")[0] == 2, "in use"
        assert pool.stop() == 0
    assert check(place / "disk")[0] == 0


def test_t60_a_full_file_system_keeps_no_pool_from_starting(tmp_path: Path) -> None:
    """F5: all regions were there, and it would have needed 21 KiB more."""
    with short_directory() as place, small_file_system(tmp_path / "small", 96 << 20):
        (place / "disk").symlink_to(tmp_path / "small" / "disk")  # a socket's path is short
        (tmp_path / "small" / "disk").mkdir(mode=0o700)
        flags = ("--dram", "64MiB", "--disk", f"{tmp_path}/small/disk:{DISK_BYTES}")
        with (
            running_pool(place, *flags, disk=False) as pool,
            PatientClient(pool.socket) as client,
        ):
            client.store(CHAIN, [chunk.payload for chunk in CHUNKS])
            assert pool.stop() == 0
        fill_up(tmp_path / "small" / "hog")
        with running_pool(place, *flags, disk=False) as pool:
            assert loaded(pool) == 40
            assert pool.stop() == 0
        (tmp_path / "small" / "disk" / "lock").unlink()
        fill_up(tmp_path / "small" / "another hog")
        with running_pool(place, *flags, disk=False) as pool:
            pool.stats()
            assert pool.stop() == 0


def test_t32_starting_again_brings_no_new_burst(place: Path) -> None:
    """F9: every start granted an hour's worth of writes at once."""
    budget_bytes = 24 * 64 * 10**6
    began, written = time.monotonic(), 0
    for life in range(3):
        flags = ("--dram", "64MiB", "--disk-writes-a-day", str(budget_bytes))
        with running_pool(place, *flags) as pool, PatientClient(pool.socket) as client:
            chunks, chain = made(f"life {life}", count=40, length=400_000)
            client.store(chain, [chunk.payload for chunk in chunks])
            assert pool.stop() == 0
        directory = place / "disk"
        written = sum(path.read_bytes().count(b"FOREBAYR") for path in regions(directory)) - 40
        assert written * 400_000 <= budget_bytes * (time.monotonic() - began) / 86_400


def test_t56_a_pool_without_a_thread_to_spare_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: no thread to be had, and one `clear` ended the pool."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "forebay-admin":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with serving(place) as service, PatientClient(service.address.path) as client:
        client.store(CHAIN, [chunk.payload for chunk in CHUNKS[:2]])
        monkeypatch.setattr(threading.Thread, "start", start)
        for call in (client.clear, client.resize):
            answer = call(None) if call == client.clear else client.resize(8 << 20)
            assert not isinstance(answer, Miss)
            assert (answer.ok, answer.sentence) == (False, "no thread can be had now; try again.")
        monkeypatch.undo()
        answer = client.clear(None)
        assert not isinstance(answer, Miss)
        assert answer.ok
