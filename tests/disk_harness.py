"""What tests of the disk tier share: a small tier in a directory, and its files as bytes."""

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from forebay.record.header import HEADER_BYTES, MAGIC
from forebay.sys.clock import Clock
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.tiers.disk import Directory, DiskTier, Options

REGION_BYTES: Final = 1 << 18
CAP_BYTES: Final = 3 << 20
CLOSE_S: Final = 60.0
WATCHER: Final = "forebay-watch"  # the thread of a tier that looks at deadlines
UNTIL_S: Final = 60.0  # longer than anything takes; ends a test that would wait for ever
# No call takes ten minutes, on a busy machine neither: a drive is off only if a test wants it so.
SMALL: Final = Options(region_bytes=REGION_BYTES, read_depth=2, write_depth=2, hang_s=600.0)


class BadSectors(Disk):
    """A drive that cannot read some pages of its regions."""

    def __init__(self, *pages: int) -> None:
        self.pages = pages
        self.failures = 0

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        end = offset + sum(buffer.nbytes for buffer in buffers)
        if any(offset <= page * HEADER_BYTES < end for page in self.pages):
            self.failures += 1
            raise OSError(errno.EIO, "bad sector")
        return super().read(descriptor, buffers, offset)


class TickedClock(ManualClock):
    """A manual clock that knows how often the tier's watching thread has looked at it."""

    def __init__(self, monotonic: float = 0.0) -> None:
        super().__init__(monotonic)
        self._looks = 0  # of that thread alone

    def monotonic(self) -> float:
        if threading.current_thread().name == WATCHER:
            self._looks += 1
        return super().monotonic()

    def await_tick(self) -> None:
        """Wait until the tier has acted on the time as it is now."""
        looks = self._looks
        until(lambda: self._looks >= looks + 2)


def open_tier(
    place: Path,
    disk: Disk | None = None,
    clock: Clock | None = None,
    options: Options = SMALL,
    cap_bytes: int = CAP_BYTES,
) -> DiskTier:
    """A disk tier in `place`, made if it is not there."""
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    return DiskTier.open(
        [Directory(str(place), cap_bytes)], options, World(disk or Disk(), clock or Clock())
    )


@contextmanager
def opened(
    place: Path,
    disk: Disk | None = None,
    clock: Clock | None = None,
    options: Options = SMALL,
    cap_bytes: int = CAP_BYTES,
) -> Iterator[DiskTier]:
    """The same, closed afterwards."""
    tier = open_tier(place, disk, clock, options, cap_bytes)
    try:
        yield tier
    finally:
        tier.close(CLOSE_S)


def regions(place: Path) -> list[Path]:
    """The region files, oldest first."""
    return sorted(place.glob("region-*"))


def records(place: Path) -> Iterator[tuple[Path, int]]:
    """File and offset of everything that looks like a record's header."""
    for path in regions(place):
        content = path.read_bytes()
        for offset in range(HEADER_BYTES, len(content), HEADER_BYTES):
            if content.startswith(MAGIC, offset):
                yield path, offset


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change bytes behind the tier's back."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def allocated(place: Path) -> int:
    """Bytes of a directory as `du` counts them."""
    return sum(path.lstat().st_blocks * 512 for path in (place, *place.iterdir()))


def until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    end = time.monotonic() + UNTIL_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)


@contextmanager
def small_file_system(place: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at `place`; the test is skipped where none can be mounted."""
    place.mkdir(mode=0o700)
    mounted = shutil.which("mount") and os.geteuid() == 0
    options = f"size={size_bytes},mode=0700"
    if mounted:
        found = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "forebay-test", str(place)],
            capture_output=True,
            check=False,
        )
        mounted = found.returncode == 0
    if not mounted:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill_up(hog: Path) -> None:
    """Take all the space that a file system has left."""
    with hog.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return
