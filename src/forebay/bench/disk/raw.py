"""The baseline: the drive's speed for plain threads that read and write with O_DIRECT.

Same seam, same I/O size, same number in flight as Forebay's tier beside it, but nothing is hashed,
indexed or verified. One preallocated file a directory, written once before anything is measured.
"""

import contextlib
import errno
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.settings import DiskSetting
from forebay.sys.disk import Disk
from forebay.sys.shared import SharedMemory

FILE_NAME: Final = "raw"
DEPTH_MAX: Final = 8
USED_BYTES_MAX: Final = 8 << 30  # of a directory; more would only take longer to fill
RAW_SHARE: Final = 4  # the raw file gets this fraction (1/n) of the space

Move = Callable[[memoryview], int]  # an I/O with this buffer; the bytes that it moved


def used_bytes(disk: DiskSetting) -> int:
    """How much of a directory's size a benchmark uses."""
    return min(disk.cap_bytes, USED_BYTES_MAX)


def pool_bytes(disk: DiskSetting) -> int:
    """The part of `used_bytes` for Forebay; the rest is for the raw file beside it."""
    return used_bytes(disk) - used_bytes(disk) // RAW_SHARE


def raw_slots(disks: Sequence[DiskSetting], io_bytes: int) -> int:
    """I/Os that fit into the raw file of each directory."""
    return min(map(used_bytes, disks)) // RAW_SHARE // io_bytes


@dataclass(slots=True)
class RawFiles:
    """Threads that read and write the caller's preallocated files. Used by one thread."""

    disk: Disk
    files: list[int]
    io_bytes: int
    slots: int  # I/Os that fit in each file
    buffers: list[memoryview]  # as many as I/Os are ever in flight; the caller's
    written: int = 0  # slots written so far; the next write takes the slot after them

    def read(self, depth: int, seconds: float) -> float:
        """Read random slots, `depth` at once."""
        return sum(self._rates([self._read_slot] * depth, seconds))

    def read_through(self, depth: int, size_bytes: int) -> float:
        """Read this many bytes, `depth` at once, each I/O into the least recently used buffer.

        In a guest, memory that was not written lately may cost its host a page fault each, which
        halves the bandwidth: a comparison with a slab must use as much memory.
        """
        oldest = deque(self.buffers)

        def read(_mine: memoryview) -> int:
            buffer = oldest.popleft()
            try:
                return self._read_slot(buffer)
            finally:
                oldest.append(buffer)

        rates = self._rates([read] * depth, times=size_bytes // self.io_bytes)
        self.buffers[:] = oldest
        return sum(rates)

    def write(self, depth: int, seconds: float) -> float:
        """Write slots in order, `depth` at once."""
        return sum(self._rates([self._write_slot] * depth, seconds))

    def write_all(self) -> None:
        self._rates([self._write_slot] * DEPTH_MAX, times=self.slots * len(self.files))

    def both(self, depth: int, seconds: float) -> tuple[float, float]:
        rates = self._rates([self._read_slot] * depth + [self._write_slot] * depth, seconds)
        return sum(rates[:depth]), sum(rates[depth:])

    def _read_slot(self, buffer: memoryview) -> int:
        number = random.randrange(self.slots * len(self.files))  # noqa: S311 - a place to read
        return self.disk.read(*self._place(buffer, number))

    def _write_slot(self, buffer: memoryview) -> int:
        number = self.written = self.written + 1
        return self.disk.write(*self._place(buffer, number))

    def _place(self, buffer: memoryview, number: int) -> tuple[int, list[memoryview], int]:
        """The place of a slot; neighbouring numbers are in different directories."""
        file = self.files[number % len(self.files)]
        return file, [buffer], number // len(self.files) % self.slots * self.io_bytes

    def _rates(
        self, moves: Sequence[Move], seconds: float = 3600.0, times: int = 1 << 60
    ) -> list[float]:
        """GB/s (10^9) of one thread per move, which repeats it for this time or this often."""
        stop = threading.Event()
        turns = iter(range(times))
        start = time.monotonic()

        def work(move: Move, mine: memoryview) -> int:
            moved = 0
            while next(turns, None) is not None:
                moved += move(mine)
                if stop.is_set() or time.monotonic() - start >= seconds:
                    break
            return moved

        with ThreadPoolExecutor(len(moves), "bench-raw") as threads:
            try:
                moved = list(threads.map(work, moves, self.buffers))
            finally:
                stop.set()
        elapsed = time.monotonic() - start
        return [each / elapsed / 1e9 for each in moved]


@contextlib.contextmanager
def prepared_files(
    places: Sequence[Path], io_bytes: int, slots: int, memory_bytes: int = 0
) -> Iterator[RawFiles]:
    """Files in these directories with every byte written once; removed afterwards.

    Their buffers are shared memory, as the pool's slab is: enough for reads and writes at once, or
    `memory_bytes` of them. The physical layout of buffers makes up to a third of the bandwidth, so
    comparisons must use these same buffers, or a slab.
    """
    disk = Disk()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_created(disk, str(place))) for place in places]
        for file in files:
            disk.preallocate(file, slots * io_bytes)
        shared = SharedMemory.of(max(2 * DEPTH_MAX, memory_bytes // io_bytes) * io_bytes)
        stack.callback(shared.close)
        buffers = [shared.view[at : at + io_bytes] for at in range(0, shared.size_bytes, io_bytes)]
        noise = os.urandom(io_bytes)
        for buffer in buffers:
            stack.callback(buffer.release)
            buffer[:] = noise
        raw = RawFiles(disk, files, io_bytes, slots, buffers)
        raw.write_all()
        yield raw


@contextlib.contextmanager
def _created(disk: Disk, place: str) -> Iterator[int]:
    """A new file, with O_DIRECT where the file system has it; removed afterwards."""
    directory = disk.open_directory(place)
    try:
        try:
            file = disk.open(directory, FILE_NAME, create=True, direct=True, write=True)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The failed O_DIRECT open may have left the file behind.
            if FILE_NAME in disk.names(directory):
                disk.unlink(directory, FILE_NAME)
            file = disk.open(directory, FILE_NAME, create=True, direct=False, write=True)
        try:
            yield file
        finally:
            disk.close(file)
            disk.unlink(directory, FILE_NAME)
    finally:
        disk.close(directory)
