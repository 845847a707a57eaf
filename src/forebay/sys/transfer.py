"""Whole reads and writes: short and interrupted calls are repeated, a few times."""

import errno
from collections.abc import Callable, Sequence
from typing import Final

from forebay.sys import memory
from forebay.sys.disk import Disk

_TRIES: Final = 4
_AGAIN: Final = {errno.EINTR, errno.EAGAIN}
_UNSUPPORTED: Final = {errno.EOPNOTSUPP, errno.ENOSYS}
_ZEROS_BYTES: Final = 1 << 20  # written at once


def read_whole(disk: Disk, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers; the bytes read, fewer only if the file keeps ending early."""
    return _whole(disk.read, descriptor, buffers, offset)


def write_whole(disk: Disk, descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write all buffers; OSError if that fails."""
    if _whole(disk.write, descriptor, buffers, offset) < sum(map(len, buffers)):
        raise OSError(errno.EIO, "short write")


def zero_whole(disk: Disk, descriptor: int, offset: int, size_bytes: int) -> None:
    """Make whole pages of a file read as zeros; OSError if that fails.

    Writes zeros if the file system has no call for it.
    """
    try:
        disk.zero(descriptor, offset, size_bytes)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    else:
        return
    overwrite_whole(disk, descriptor, offset, size_bytes)


def overwrite_whole(disk: Disk, descriptor: int, offset: int, size_bytes: int) -> None:
    """Write zeros over whole pages of a file, so that its blocks hold nothing else.

    `zero_whole` may only have the file system note that they read as zeros.
    """
    zeros = memory.allocate(min(size_bytes, _ZEROS_BYTES))
    for at in range(offset, offset + size_bytes, _ZEROS_BYTES):
        write_whole(disk, descriptor, [zeros[: offset + size_bytes - at]], at)


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
