"""Memory that a child process can use: the slab's slots directly, other buffers as copies.

The slab's segments are areas of the child's memory. A buffer that lies in none of them is copied
into an area of its own for one call: that is for tests and tools, never for a pool.

Owned by the tier's thread.
"""

import ctypes
import itertools
from typing import Final, NamedTuple

from forebay.sys.memory import PAGE_BYTES, padded
from forebay.sys.shared import SEGMENTS_MAX, SharedMemory
from forebay.tiers.remote.process.link import Link

_SCRATCH: Final = 0  # the area for everything that is no payload
_SLAB: Final = 1  # the area of the slab's first segment
PROBE_PAGES: Final = 2  # the header and the payload of the record that a probe writes
_SEALED: Final = _SLAB + SEGMENTS_MAX  # the area of encrypted payloads
_COPIES: Final = _SEALED + 1  # the first area of a copy

Buffer = tuple[int, int, int]  # area, offset, length


class Lent(NamedTuple):
    """One buffer, as the child knows it."""

    buffer: Buffer
    view: memoryview
    copy: SharedMemory | None = None  # the copy, if it is one


class Lending:
    """Memory that is lent to the child of one link."""

    def __init__(self, link: Link, scratch_bytes: int, lanes: int) -> None:
        """Allocate scratch memory for frames, pages of lanes, probe and counts; OSError."""
        self._link = link
        self._areas = itertools.count(_COPIES)
        self._slab: SharedMemory | None = None
        self._pages_at, self._probe_at = scratch_bytes, scratch_bytes + lanes * PAGE_BYTES
        self._counts_at = self._probe_at + PROBE_PAGES * PAGE_BYTES
        self._scratch = SharedMemory.of(self._counts_at + PAGE_BYTES)
        self._sealed: SharedMemory | None = None
        link.share(_SCRATCH, self._scratch.segments[0])

    def attach(self, slab: SharedMemory) -> None:
        """Payloads will lie in this slab."""
        self._slab = slab

    @property
    def scratch(self) -> memoryview:
        """Memory for one pack's frame."""
        return self._scratch.view

    def frame(self, at: int, length: int) -> Buffer:
        """A part of the scratch memory."""
        return _SCRATCH, at, length

    def page(self, lane: int) -> tuple[Buffer, memoryview]:
        """A lane's page."""
        at = self._pages_at + lane * PAGE_BYTES
        return (_SCRATCH, at, PAGE_BYTES), self._scratch.view[at : at + PAGE_BYTES]

    def probe(self) -> tuple[Buffer, memoryview]:
        """The probe's pages."""
        size = PROBE_PAGES * PAGE_BYTES
        at = self._probe_at
        return (_SCRATCH, at, size), self._scratch.view[at : at + size]

    def counts(self) -> tuple[Buffer, memoryview]:
        """The memory in which maintenance counts its requests, one call at a time."""
        at = self._counts_at
        return (_SCRATCH, at, PAGE_BYTES), self._scratch.view[at : at + PAGE_BYTES]

    def sealed(self, size_bytes: int) -> memoryview:
        """Memory for one pack's encrypted records, while no call uses it; OSError."""
        if self._sealed is None or self._sealed.size_bytes < size_bytes:
            if self._sealed is not None:
                self._link.unshare(_SEALED)
                self._sealed.close()
            self._sealed = SharedMemory.of(padded(size_bytes))
            self._link.share(_SEALED, self._sealed.segments[0])
        return self._sealed.view

    def part_of_sealed(self, at: int, length: int) -> Buffer:
        """A part of that memory."""
        return _SEALED, at, length

    def lend(self, view: memoryview, *, filled: bool) -> Lent:
        """Let the child use a buffer, with its content if `filled`; OSError."""
        found = self._in_slab(view)
        if found is not None:
            return Lent(found, view)
        copy = SharedMemory.of(len(view))
        if filled:
            copy.view[:] = view
        area = next(self._areas)
        self._link.share(area, copy.segments[0])
        return Lent((area, 0, len(view)), view, copy)

    def give_back(self, lent: Lent, length: int = 0) -> None:
        """The child is done with it; copies back the first `length` bytes."""
        if lent.copy is None:
            return
        if length:
            lent.view[:length] = lent.copy.view[:length]
        self._link.unshare(lent.buffer[0])
        lent.copy.close()

    def close(self) -> None:
        """Give the scratch memory back."""
        self._scratch.close()
        if self._sealed is not None:
            self._sealed.close()

    def _in_slab(self, view: memoryview) -> Buffer | None:
        """Where a buffer lies in the slab, whose segment is shared first if necessary."""
        if self._slab is None:
            return None
        offset = _address(view) - _address(self._slab.view)
        for number, segment in enumerate(self._slab.segments):
            if 0 <= offset <= segment.size_bytes - len(view):
                if not self._link.has_area(_SLAB + number):
                    self._link.share(_SLAB + number, segment)
                return _SLAB + number, offset, len(view)
            offset -= segment.size_bytes
        return None


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
