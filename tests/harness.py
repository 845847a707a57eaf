"""What tests of the disk tier share: a small tier in a directory, and a witness beside it."""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forebay.record.header import HEADER_BYTES, MAGIC
from forebay.sys.clock import Clock
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.tiers.disk import Directory, DiskTier, Options

REGION_BYTES: Final = 1 << 18
CAP_BYTES: Final = 3 << 20
CLOSE_S: Final = 20.0
SMALL: Final = Options(region_bytes=REGION_BYTES, read_depth=2, write_depth=2)


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
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")
