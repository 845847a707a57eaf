"""Page-aligned memory, as O_DIRECT and DMA want it."""

import ctypes
import mmap
from typing import Final

PAGE_BYTES: Final = 4096


def padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def allocate(size_bytes: int) -> memoryview:
    """Zeroed whole pages, at least `size_bytes`; freed with the last view of them."""
    return memoryview(mmap.mmap(-1, max(padded(size_bytes), PAGE_BYTES)))


def is_aligned(buffer: memoryview) -> bool:
    """Whether a writable buffer begins on a page and has whole pages."""
    if buffer.nbytes % PAGE_BYTES or not buffer.nbytes:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % PAGE_BYTES == 0
