"""The fault disk does what it says: a test that trusts it would otherwise prove nothing."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool_process import open_files

from forebay.sys import memory
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Operation

PAGE = 4096
OLD = b"o" * PAGE * 4
NEW = b"n" * PAGE * 4


class Bench:
    """One file of four old pages on a fault disk."""

    def __init__(self, place: Path, *faults: str, volatile: bool = False) -> None:
        (place / "file").write_bytes(OLD)
        self.place = place
        self.disk = FaultDisk(volatile=volatile, seed=1)
        self.directory = self.disk.open_directory(str(place))
        self.file = self.disk.open(self.directory, "file", create=False, direct=False, write=True)
        for fault in faults:
            self.disk.arm(fault)

    def read(self, count: int = PAGE, offset: int = 0) -> bytes:
        target = memory.allocate(count)
        target[:] = b"?" * len(target)
        done = self.disk.read(self.file, [target[:PAGE], target[PAGE:]], offset)
        assert done <= count
        return bytes(target)

    def write(self, data: bytes = NEW, offset: int = 0) -> int:
        source = memory.allocate(len(data))
        source[: len(data)] = data
        return self.disk.write(self.file, [source[:PAGE], source[PAGE : len(data)]], offset)

    def content(self) -> bytes:
        return (self.place / "file").read_bytes()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert open_files(str(tmp_path)) <= 2, "the journal gave its descriptors back"


def test_without_faults_it_is_a_disk(place: Path) -> None:
    bench = Bench(place)
    assert bench.write(NEW[:PAGE], PAGE) == PAGE
    assert bench.read(2 * PAGE) == OLD[:PAGE] + NEW[:PAGE]
    assert bench.disk.names(bench.directory) == ["file"]
    assert bench.disk.calls[Operation.WRITE] == 1


def test_an_error_leaves_the_medium_alone(place: Path) -> None:
    bench = Bench(place, "write:errno=ENOSPC")
    with pytest.raises(OSError, match="No space left") as caught:
        bench.write()
    assert caught.value.errno == 28
    assert bench.content() == OLD


def test_a_short_write_says_so_and_a_torn_one_lies(place: Path) -> None:
    bench = Bench(place, "write:short=512@1", "write:tear=5000@2")
    assert bench.write() == 512
    assert bench.content() == NEW[:512] + OLD[512:]
    assert bench.write() == len(NEW)
    assert bench.content() == NEW[:5000] + OLD[5000:]


def test_a_short_read_blanks_what_it_did_not_fill(place: Path) -> None:
    bench = Bench(place, "read:short=5000")
    assert bench.read(2 * PAGE) == OLD[:5000] + bytes(2 * PAGE - 5000)


def test_a_misdirected_write_hits_the_neighbour(place: Path) -> None:
    bench = Bench(place, "write:misdirect=4096")
    assert bench.write(NEW[:PAGE]) == PAGE
    assert bench.content() == OLD[:PAGE] + NEW[:PAGE] + OLD[2 * PAGE :]


def test_a_flip_changes_one_bit(place: Path) -> None:
    bench = Bench(place, "read:flip=1")
    found = bench.read(2 * PAGE)
    wrong = [a ^ b for a, b in zip(found, OLD, strict=False) if a != b]
    assert len(wrong) == 1
    assert wrong[0].bit_count() == 1


def test_latency_delays_and_a_hang_waits_for_its_release(place: Path) -> None:
    bench = Bench(place, "read:latency=30ms@1", "read:hang@2")
    before = time.monotonic()
    bench.read()
    assert time.monotonic() - before >= 0.03
    waiting = threading.Thread(target=bench.read)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    bench.disk.disarm()
    waiting.join(60)
    assert not waiting.is_alive()


def test_after_power_off_only_close_works(place: Path) -> None:
    bench = Bench(place, volatile=True)
    bench.disk.power_off()
    with pytest.raises(OSError, match="power"):
        bench.read()
    with pytest.raises(OSError, match="power"):
        bench.write()
    bench.disk.close(bench.file)


def power_losses(place: Path, count: int = 60) -> Iterator[tuple[Bench, int]]:
    for seed in range(count):
        for path in place.iterdir():
            path.unlink()
        bench = Bench(place, volatile=True)
        bench.disk.seed = seed
        yield bench, seed
        bench.disk.power_off()
        bench.disk.close(bench.file)
        bench.disk.close(bench.directory)


def test_a_power_loss_keeps_loses_and_tears_unsettled_writes(place: Path) -> None:
    seen = set()
    for bench, _ in power_losses(place):
        bench.write(NEW[: 2 * PAGE])
        bench.disk.settle()
        bench.write(NEW[2 * PAGE :], 2 * PAGE)
        bench.disk.power_off()
        content = bench.content()
        assert content[: 2 * PAGE] == NEW[: 2 * PAGE], "settled writes are never lost"
        tail = content[2 * PAGE :]
        sectors = {tail[at : at + 512] for at in range(0, len(tail), 512)}
        assert sectors <= {OLD[:512], NEW[:512]}, "a sector is old or new"
        seen.add("kept" if tail == NEW[2 * PAGE :] else "lost" if tail == OLD[2 * PAGE :] else "t")
    assert seen == {"kept", "lost", "t"}


def test_a_power_loss_takes_back_names_from_the_end(place: Path) -> None:
    seen = set()
    for bench, _ in power_losses(place):
        bench.disk.settle()
        bench.disk.rename(bench.directory, "file", "second")
        made = bench.disk.open(bench.directory, "third", create=True, direct=False, write=True)
        bench.disk.preallocate(made, PAGE)
        bench.disk.close(made)
        bench.disk.unlink(bench.directory, "second")
        bench.disk.power_off()
        found = {path.name: path.stat().st_size for path in place.iterdir()}
        seen.add(tuple(sorted(found.items())))
    size = len(OLD)
    assert seen == {
        (("file", size),),
        (("second", size),),
        (("second", size), ("third", 0)),
        (("second", size), ("third", PAGE)),
        (("third", PAGE),),
    }


def test_a_power_loss_gives_back_what_a_rename_overwrote(place: Path) -> None:
    seen = set()
    for bench, _ in power_losses(place, 10):
        (place / "other").write_bytes(b"other")
        bench.disk.rename(bench.directory, "file", "other")
        bench.disk.power_off()
        seen.add(tuple(sorted((path.name, path.read_bytes()) for path in place.iterdir())))
    assert seen == {(("file", OLD), ("other", b"other")), (("other", OLD),)}


def test_the_process_dies_before_or_after_the_call(place: Path) -> None:
    for when, survives in (("before", OLD), ("after", NEW)):
        child = os.fork()
        if not child:
            Bench(place, f"write:kill={when}@1").write()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert (place / "file").read_bytes() == survives
        (place / "file").unlink()
