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
from collections.abc import Iterator
from pathlib import Path, PurePath
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
        """Close the descriptor, and unmap; while a view is left, that waits for its end."""
        os.close(self.descriptor)
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


def total_memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """What this process may use before it is killed: of the machine, or of its cgroups, the least.

    Both versions of cgroups are understood; where none can be read, there is none.
    """
    return min([total_memory_bytes(), *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            files = [("sys/fs/cgroup/memory", "memory.limit_in_bytes")]
        elif not controllers:
            files = [(f"sys/fs/cgroup{unified}", "memory.max") for unified in ("", "/unified")]
        else:
            continue
        place = PurePath(path.lstrip("/"))
        # Without a namespace of its own a container sees its limit at the top.
        for directory, name in files:
            for part in (place, *place.parents):
                with contextlib.suppress(OSError, ValueError):  # ValueError: it says "max"
                    yield int((root / directory / part / name).read_text())
