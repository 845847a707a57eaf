"""Page-aligned memory, as O_DIRECT and DMA want it."""

import ctypes
import errno
import mmap
import os
from typing import Final

PAGE_BYTES: Final = 4096
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, from Linux 5.14


def padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def allocate(size_bytes: int) -> memoryview:
    """Zeroed whole pages, at least `size_bytes`; freed with the last view of them."""
    return memoryview(mmap.mmap(-1, max(padded(size_bytes), PAGE_BYTES)))


def zero(buffer: memoryview) -> None:
    """Fill a writable buffer with zeros; the interpreter runs meanwhile."""
    if buffer.nbytes:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), 0, buffer.nbytes)


def is_aligned(buffer: memoryview) -> bool:
    """Whether a writable buffer begins on a page and has whole pages."""
    if buffer.nbytes % PAGE_BYTES or not buffer.nbytes:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % PAGE_BYTES == 0


def populate(address: int, length: int) -> OSError | None:
    """Have pages behind mapped memory, or the reason why not; the interpreter runs meanwhile.

    Where the kernel cannot do it, nothing happens and nothing is wrong: pages come when touched.
    """
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if call(address, length, _POPULATE_WRITE) and ctypes.get_errno() != errno.EINVAL:
        code = ctypes.get_errno()
        return OSError(code, os.strerror(code))
    return None
