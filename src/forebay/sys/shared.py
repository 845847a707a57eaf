"""Memory that other processes can map: sealed memfds, side by side in one range of addresses.

A memfd leaves nothing behind, even if we are killed. Each *segment* is one memfd: all of its pages
are taken when it is created, and it is sealed against growing and shrinking. So whoever has its
descriptor cannot take more memory with it, and a mapping of it can never cause a SIGBUS. Memory
grows by another segment, mapped after the last one: what was mapped stays where it is, as a GPU on
which it is registered requires.

A page that was given back (`discard`) is taken again when somebody writes to it: a process that has
a segment mapped can always fill all of it.
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

SEGMENTS_MAX: Final = 32  # segments of one slab, whose descriptors fit into one message
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAP_FIXED: Final = 0x10
_REMOVE: Final = 9  # MADV_REMOVE
_DONTDUMP: Final = 16  # MADV_DONTDUMP
_STEP_BYTES: Final = 64 << 20  # bytes taken by one call
_THREADS_MAX: Final = 16  # a core zeroes 2 GB/s; more threads are no faster
_LOOK_S: Final = 0.2


class Segment(NamedTuple):
    """One sealed memfd, with every page taken."""

    descriptor: int
    size_bytes: int


class AddressRange:
    """Addresses reserved for segments that come one by one; reserving takes no memory."""

    def __init__(self, limit_bytes: int, alignment: int = mmap.PAGESIZE) -> None:
        """OSError if this process may not have so many addresses."""
        alignment = max(alignment, LARGE_PAGE_BYTES)
        # Mapped from an empty file, which takes no page unless somebody writes outside of segments.
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
        """Map a segment after the last one, or raise OSError; by one thread at a time."""
        if segment.size_bytes > self.limit_bytes - self.mapped_bytes:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        _map_at(self.address + self.mapped_bytes, segment)
        self.mapped_bytes += segment.size_bytes

    def close(self) -> bool:
        """Unmap everything; False while somebody has a view: then try again."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            return False
        return True


class SharedMemory:
    """Our own segments, mapped in this process."""

    def __init__(self, limit_bytes: int, *, huge_pages: bool = False) -> None:
        """OSError if there are no addresses, or no huge pages; takes no memory yet."""
        self.huge_pages = huge_pages
        self._flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._flags |= os.MFD_HUGETLB if huge_pages else 0
        probe = os.memfd_create("forebay-slab", self._flags)
        try:
            self._range = AddressRange(limit_bytes, os.fstat(probe).st_blksize)
        finally:
            os.close(probe)
        self.segments: list[Segment] = []
        self.placement = ANYWHERE  # where memory is to be taken from
        self.bytes_on_nodes: dict[int, int] = {}  # as last seen; empty: not known
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
        """The size of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def extend(
        self,
        size_bytes: int,
        taken: Callable[[int], None] = lambda _: None,
        nodes: Collection[int] = (),
    ) -> Segment:
        """Add a segment, or raise OSError and change nothing; by one thread at a time.

        Waits until every page of it is taken, from these memory nodes if any are named; `taken` is
        called with the number of bytes taken so far. BindingError if memory cannot be bound to
        nodes.
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
            ask_for_large_pages(address, size_bytes)  # if the kernel refuses, pages are small
        failed = _bound(address, size_bytes, nodes) or _take(segment, address, taken)
        if failed is not None:
            self._range.mapped_bytes -= size_bytes
            _madvise(address, size_bytes, _REMOVE)  # stays mapped until another segment replaces it
            os.close(descriptor)
            raise failed
        self.segments.append(segment)
        return segment

    def see_nodes(self) -> None:
        """Look up on which memory nodes its pages lie.

        With many small pages this takes long, and nobody can map anything meanwhile.
        """
        start = self._range.address
        self.bytes_on_nodes = binding.bytes_on_nodes(start, start + self._range.mapped_bytes)

    def discard(self, offset: int, size_bytes: int) -> None:
        """Give a range's pages back to the system; from now on it reads as zeros."""
        _madvise(self._range.address + offset, size_bytes, _REMOVE)

    def close(self) -> None:
        """Close the descriptors and unmap, which takes effect when no view is left."""
        for segment in self.segments:
            os.close(segment.descriptor)
        self._range.close()


def mapped(descriptor: int, *, write: bool) -> memoryview:
    """Another process's whole memfd, mapped until its last view is gone; OSError."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    return memoryview(mmap.mmap(descriptor, 0, access=access))


def filled(data: bytes) -> int:
    """The descriptor of a new sealed memfd that holds just these bytes; OSError."""
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
    """Take every page of a segment, zeroing them with several threads; the error if that fails."""
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
    """The steps that other threads have not taken."""
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
