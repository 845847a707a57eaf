"""Page-aligned memory, as O_DIRECT and DMA need it, and how much memory is available.

The kernel does not refuse memory that a cgroup or a full memory node does not allow: it kills the
process that takes it. So these limits are checked before anything large is taken.
"""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple

from forebay.sys.machine.cgroups import cgroups
from forebay.sys.machine.nodes import nodes_left

PAGE_BYTES: Final = 4096
LARGE_PAGE_BYTES: Final = 2 << 20  # large pages need addresses that are multiples of this
_HUGEPAGE: Final = 14  # MADV_HUGEPAGE
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ, from Linux 5.14
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, likewise


def padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def allocate(size_bytes: int) -> memoryview:
    """Zeroed whole pages, at least `size_bytes`; freed with the last view of them."""
    return memoryview(mmap.mmap(-1, max(padded(size_bytes), PAGE_BYTES)))


def zero(buffer: memoryview) -> None:
    """Fill a writable buffer with zeros, without the interpreter lock."""
    if buffer.nbytes:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), 0, buffer.nbytes)


def is_aligned(buffer: memoryview) -> bool:
    """Whether a writable buffer starts at a page and consists of whole pages."""
    if buffer.nbytes % PAGE_BYTES or not buffer.nbytes:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % PAGE_BYTES == 0


def populate(address: int, length: int) -> OSError | None:
    """Take pages for mapped memory, without the interpreter lock; the error if that fails.

    EINVAL if the kernel lacks the call: then nothing has happened, and pages are taken when
    touched.
    """
    return _advised(address, length, _POPULATE_WRITE)


def populate_taken(address: int, length: int) -> OSError | None:
    """As `populate`, for shared memory whose pages are taken: maps many at once.

    Writing to them causes no further fault, as in all shared memory without a file behind it.
    """
    return _advised(address, length, _POPULATE_READ)


def ask_for_large_pages(address: int, length: int) -> OSError | None:
    """Ask for large pages for memory whose pages are not taken yet, if the kernel has them."""
    return _advised(address, length, _HUGEPAGE)


def _advised(address: int, length: int, advice: int) -> OSError | None:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if call(address, length, advice):
        code = ctypes.get_errno()
        return OSError(code, os.strerror(code))
    return None


class AvailableMemory(NamedTuple):
    """How much memory this process may still take."""

    size_bytes: int
    limited_by: str  # what limits it, in words


def total_memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory(root: Path = Path("/")) -> AvailableMemory:
    """The least of what the kernel estimates to be free, and what this process may take.

    The latter is limited by cgroups, and by the memory nodes that a cpuset or a policy allows.
    """
    meminfo = _numbers(root / "proc/meminfo")
    machine_bytes = meminfo["MemAvailable:"] << 10 if meminfo else total_memory_bytes()
    found = [AvailableMemory(machine_bytes, "this machine")]
    for group, is_v1 in cgroups("memory", root):
        limit, usage, cache = _CGROUP_V1 if is_v1 else _CGROUP
        limit_bytes, usage_bytes = _number(group / limit), _number(group / usage)
        if limit_bytes is not None and usage_bytes is not None:
            stat = _numbers(group / "memory.stat")
            left_bytes = limit_bytes - usage_bytes + sum(stat.get(name, 0) for name in cache)
            found.append(AvailableMemory(max(0, left_bytes), f"the memory limit of {group}"))
    left = nodes_left(root)
    if left is not None:
        found.append(AvailableMemory(left.size_bytes, f"the memory of NUMA node {left.nodes}"))
    return min(found)


_CGROUP: Final = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_CGROUP_V1: Final = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # or "max"
        return None


def _numbers(path: Path) -> dict[str, int]:
    """A file with a name and a number in each line."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {words[0]: int(words[1]) for line in lines if len(words := line.split()) > 1}
