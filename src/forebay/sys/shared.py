"""Memory that other processes may map: one sealed memfd.

A memfd leaves nothing behind, whatever kills us. It is sealed against growing and shrinking, so a
mapping of it can never end in a SIGBUS; its pages are allocated range by range, and an allocation
that fails is an OSError here rather than a signal there.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FALLOC_KEEP_SIZE: Final = 1
_FALLOC_PUNCH_HOLE: Final = 2


class SharedMemory:
    """A memfd mapped whole into this process."""

    def __init__(self, size_bytes: int, *, huge_pages: bool = False) -> None:
        """OSError where the kernel has no such memory; nothing is allocated yet."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0)
        self.descriptor = os.memfd_create("forebay-slab", flags)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.descriptor, size_bytes)
        except OSError:
            os.close(self.descriptor)
            raise
        self.size_bytes = size_bytes
        self.view = memoryview(self._map)

    def allocate(self, offset: int, size_bytes: int) -> None:
        """Back a range with pages, or raise OSError."""
        os.posix_fallocate(self.descriptor, offset, size_bytes)

    def discard(self, offset: int, size_bytes: int) -> None:
        """Give a range's pages back to the system; it reads as zeros until allocated again."""
        libc = ctypes.CDLL(None, use_errno=True)
        mode = _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE
        call = libc.fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        if call(self.descriptor, mode, offset, size_bytes):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        """Close the descriptor and unmap; a view that is left keeps the mapping until it goes."""
        os.close(self.descriptor)
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


def total_memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
