"""Memory that other processes may map: sealed memfds, behind one another in one range of addresses.

A memfd leaves nothing behind, whatever kills us. Each *segment* is one: all of its pages are taken
when it is made, and it is sealed against growing and shrinking. So whoever has its descriptor can
take no more memory with it, and a mapping of it can never end in a SIGBUS. Memory grows by another
segment, which is mapped behind the last: what was mapped stays where it is, as a GPU that has it
registered needs.

A page that was given back (`discard`) is taken again by whoever writes to it: a process that has a
segment mapped can always fill all of it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from forebay.sys.machine import binding
from forebay.sys.machine.placement import ANYWHERE
from forebay.sys.memory import LARGE_PAGE_BYTES, ask_for_large_pages, populate

SEGMENTS_MAX: Final = 32  # of one slab; their descriptors go over a socket in one message
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAP_FIXED: Final = 0x10
_REMOVE: Final = 9  # MADV_REMOVE
_DONTDUMP: Final = 16  # MADV_DONTDUMP
_STEP_BYTES: Final = 64 << 20  # taken by one call
_THREADS_MAX: Final = 16  # a core zeroes 2 GB/s; a socket's memory takes no more than these write
_LOOK_S: Final = 0.2


class Segment(NamedTuple):
    """One memfd, sealed, every page of it taken."""

    descriptor: int
    size_bytes: int


class AddressRange:
    """Addresses for segments that come one by one; nothing is taken by having them."""

    def __init__(self, limit_bytes: int, alignment: int = mmap.PAGESIZE) -> None:
        """OSError where a process may not have so many addresses."""
        alignment = max(alignment, LARGE_PAGE_BYTES)
        # The addresses of an empty file: it has no page until somebody writes where no segment is.
        placeholder = os.memfd_create("forebay-addresses", os.MFD_CLOEXEC)
        try:
            os.ftruncate(placeholder, limit_bytes + alignment)
            self._map = mmap.mmap(placeholder, limit_bytes + alignment)
        except (OverflowError, ValueError):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
        finally:
            os.close(placeholder)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        skipped = -start % alignment
        self.address = start + skipped
        self.view = memoryview(self._map)[skipped : skipped + limit_bytes]
        self.limit_bytes = limit_bytes
        self.mapped_bytes = 0

    def map(self, segment: Segment) -> None:
        """Put a segment behind the last one, or raise OSError; not by two threads at once."""
        if segment.size_bytes > self.limit_bytes - self.mapped_bytes:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        _map_at(self.address + self.mapped_bytes, segment)
        self.mapped_bytes += segment.size_bytes

    def close(self) -> bool:
        """Unmap all of it; False while somebody has a view left: then try again."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            return False
        return True


class SharedMemory:
    """Segments of our own, mapped in this process."""

    def __init__(self, limit_bytes: int, *, huge_pages: bool = False) -> None:
        """OSError where there are no addresses, or no huge pages; no memory is taken yet."""
        self.huge_pages = huge_pages
        self._flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._flags |= os.MFD_HUGETLB if huge_pages else 0
        probe = os.memfd_create("forebay-slab", self._flags)
        try:
            self._range = AddressRange(limit_bytes, os.fstat(probe).st_blksize)
        finally:
            os.close(probe)
        self.segments: list[Segment] = []
        self.placement = ANYWHERE  # where it is to be taken from
        self.bytes_on_nodes: dict[int, int] = {}  # when last looked at; empty: not known
        self.limit_bytes = limit_bytes
        self.view = self._range.view

    @classmethod
    def of(cls, size_bytes: int) -> "SharedMemory":
        """Memory of one segment."""
        memory = cls(size_bytes)
        memory.extend(size_bytes)
        return memory

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def extend(
        self,
        size_bytes: int,
        taken: Callable[[int], None] = lambda _: None,
        nodes: Collection[int] = (),
    ) -> Segment:
        """One more segment, or OSError and all is as before; not by two threads at once.

        Waits until every page of it is taken, from these memory nodes if any are named; `taken`
        hears meanwhile how many bytes are. BindingError where nodes cannot be had by name.
        """
        descriptor = os.memfd_create("forebay-slab", self._flags)
        segment = Segment(descriptor, size_bytes)
        address = self._range.address + self._range.mapped_bytes
        try:
            os.ftruncate(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)  # verify: sealed memory
            self._range.map(segment)
        except OSError:
            os.close(descriptor)
            raise
        if not self.huge_pages:
            ask_for_large_pages(address, size_bytes)  # a kernel that refuses has small ones
        failed = _bound(address, size_bytes, nodes) or _take(segment, address, taken)
        if failed is not None:
            self._range.mapped_bytes -= size_bytes
            _madvise(address, size_bytes, _REMOVE)  # it stays mapped until another is put there
            os.close(descriptor)
            raise failed
        self.segments.append(segment)
        return segment

    def see_nodes(self) -> None:
        """Look on which memory nodes its pages lie.

        Where there are many small ones that takes long, and nobody can map anything meanwhile.
        """
        start = self._range.address
        self.bytes_on_nodes = binding.bytes_on_nodes(start, start + self._range.mapped_bytes)

    def discard(self, offset: int, size_bytes: int) -> None:
        """Give a range's pages back to the system; it reads as zeros from now on."""
        _madvise(self._range.address + offset, size_bytes, _REMOVE)

    def close(self) -> None:
        """Close the descriptors, and unmap; while a view is left, that waits for its end."""
        for segment in self.segments:
            os.close(segment.descriptor)
        self._range.close()


def mapped(descriptor: int, *, write: bool) -> memoryview:
    """A whole memfd of another process, mapped until its last view is gone; OSError."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    return memoryview(mmap.mmap(descriptor, 0, access=access))


def filled(data: bytes) -> int:
    """The descriptor of a sealed memfd that holds these bytes and nothing else; OSError."""
    descriptor = os.memfd_create("forebay-result", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def _bound(address: int, size_bytes: int, nodes: Collection[int]) -> OSError | None:
    try:
        if nodes:
            binding.bind(address, size_bytes, nodes)
    except binding.BindingError as error:
        return error
    return None


def _take(segment: Segment, address: int, taken: Callable[[int], None]) -> OSError | None:
    """Have a page behind every address of a segment; threads share the zeroing."""
    steps = iter(range(0, segment.size_bytes, _STEP_BYTES))
    done: list[int] = []
    failed: list[OSError] = []

    def work() -> None:
        for start in _each(steps, lock):
            length = min(_STEP_BYTES, segment.size_bytes - start)
            error = _populated(segment, address, start, length)
            if error is not None:
                failed.append(error)
            if failed:
                return
            done.append(length)

    lock = threading.Lock()
    count = min(_THREADS_MAX, os.cpu_count() or 1, -(-segment.size_bytes // _STEP_BYTES))
    threads = [threading.Thread(target=work, name="forebay-memory") for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK_S)
            taken(sum(done))
    taken(sum(done))
    return failed[0] if failed else None


def _each(steps: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    """What others have not taken of `steps`."""
    while True:
        with lock:
            step = next(steps, None)
        if step is None:
            return
        yield step


def _populated(segment: Segment, address: int, start: int, length: int) -> OSError | None:
    error = populate(address + start, length)
    if error is None or error.errno != errno.EINVAL:
        return error
    try:  # before Linux 5.14
        os.posix_fallocate(segment.descriptor, start, length)
    except OSError as refused:
        return refused
    return None


def _map_at(address: int, segment: Segment) -> None:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if call(address, segment.size_bytes, protection, flags, segment.descriptor, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _madvise(address, segment.size_bytes, _DONTDUMP)  # verify: not in a core dump


def _madvise(address: int, size_bytes: int, advice: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if call(address, size_bytes, advice):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
