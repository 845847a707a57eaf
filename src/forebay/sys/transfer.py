"""Whole reads and writes: what POSIX says to try again is tried again, a few times."""

import errno
from collections.abc import Callable, Sequence
from typing import Final

from forebay.sys.disk import Disk

_TRIES: Final = 4
_AGAIN: Final = {errno.EINTR, errno.EAGAIN}


def read_whole(disk: Disk, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers; bytes read, fewer only where the file keeps ending early."""
    return _whole(disk.read, descriptor, buffers, offset)


def write_whole(disk: Disk, descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write the buffers; OSError if that cannot be done."""
    if _whole(disk.write, descriptor, buffers, offset) < sum(map(len, buffers)):
        raise OSError(errno.EIO, "short write")


def _whole(
    call: Callable[[int, Sequence[memoryview], int], int],
    descriptor: int,
    buffers: Sequence[memoryview],
    offset: int,
) -> int:
    """Repeat from the start: an O_DIRECT transfer can only be resumed at a page."""
    size = sum(map(len, buffers))
    moved = 0
    for attempt in range(_TRIES):
        try:
            moved = call(descriptor, buffers, offset)
        except OSError as error:
            if error.errno not in _AGAIN or attempt == _TRIES - 1:
                raise
            continue
        if moved == size:
            break
    return moved
