"""The pool's slab mapped into this process, and proof that a slot holds the chunk that was meant.

A pool finds chunks by short keys, so it may hold another chunk under one. Its answers carry a proof
over the full keys; whoever asked checks it against its own keys before reading a byte.
"""

import mmap
import os
import weakref
from collections.abc import Sequence

from forebay.identity.keys import proof_of
from forebay.pool.messages import Promise, Ready, Welcome
from forebay.sys import sockets
from forebay.sys.shared import AddressRange, Segment


class MappedSlab:
    """A mapped slab, which outlives its connection for as long as somebody reads from it."""

    def __init__(self, welcome: Welcome, alignment: int) -> None:
        """Reserve its addresses, with no segment; OSError if this process may not have so many."""
        self.arena_bytes = welcome.arena_bytes
        self.given_back = frozenset(welcome.given_back)
        self._range = AddressRange(welcome.slab_bytes, alignment)
        self.memory = self._range.view  # all addresses; only the first `size_bytes` may be used
        self.segments: tuple[Segment, ...] = ()  # replaced by a new tuple whenever one is added
        self._descriptors: list[int] = []  # our own descriptors of the segments
        self._close_descriptors = weakref.finalize(self, _close_all, self._descriptors)

    @property
    def size_bytes(self) -> int:
        """How much is mapped, from the start."""
        return self._range.mapped_bytes

    def add(self, segment: Segment) -> str:
        """Map one more segment; returns in one sentence why that failed, or "".

        The descriptor stays the caller's to close.
        """
        try:
            # A segment that could shrink under us would turn a read into a SIGBUS.
            if not sockets.cannot_shrink(segment.descriptor):  # verify: sealed segment
                return "the pool's slab is not sealed."
            is_there = 0 < segment.size_bytes <= os.fstat(segment.descriptor).st_size
            if not is_there:  # verify: segment's size
                return "the pool's slab is smaller than it says."
            ours = os.dup(segment.descriptor)
            try:
                self._range.map(segment)
            except OSError:
                os.close(ours)
                raise
            self._descriptors.append(ours)
            self.segments = (*self.segments, Segment(ours, segment.size_bytes))
        except OSError as error:
            return f"the pool's slab cannot be mapped ({type(error).__name__})."
        return ""

    def renew(self, welcome: Welcome, descriptors: list[int]) -> str:
        """Map the segments that a later welcome of the same slab adds.

        Returns in one sentence why that failed, or ""; what was mapped stays. The descriptors stay
        the caller's to close.
        """
        known = self._descriptors
        is_same = [*map(_file_of, descriptors[: len(known)])] == [*map(_file_of, known)]
        if not is_same or len(descriptors) != len(welcome.segments):  # verify: same slab
            return "the pool has another slab than before."
        for segment in [*map(Segment, descriptors, welcome.segments)][len(known) :]:
            why = self.add(segment)
            if why:
                return why
        self.given_back = frozenset(welcome.given_back)
        return ""

    def view(self, offset: int, length: int) -> memoryview | None:
        """Part of the slab, or None if that is outside of it."""
        if not 0 <= offset <= offset + length <= self.size_bytes:
            return None
        return self.memory[offset : offset + length]

    def close(self) -> bool:
        """Unmap; False if somebody still reads from it: then try again."""
        if not self._range.close():
            return False
        self._close_descriptors()
        self.segments = ()
        return True


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _file_of(descriptor: int) -> tuple[int, int]:
    file = os.fstat(descriptor)
    return file.st_dev, file.st_ino


def map_slab(welcome: Welcome, descriptors: list[int]) -> MappedSlab | str:
    """Map the slab whose segments came with a welcome, or say in one sentence why not.

    The descriptors stay the caller's to close.
    """
    if len(descriptors) != len(welcome.segments) or welcome.slab_bytes <= 0:
        return "the pool sent no slab."
    try:
        alignment = max((os.fstat(each).st_blksize for each in descriptors), default=mmap.PAGESIZE)
        slab = MappedSlab(welcome, alignment)
    except OSError as error:
        return f"the pool's slab cannot be mapped ({type(error).__name__})."
    for segment in map(Segment, descriptors, welcome.segments):
        why = slab.add(segment)
        if why:
            slab.close()
            return why
    return slab


def is_promise_for(promise: Promise, keys: Sequence[bytes], generation: int) -> bool:
    """Whether the slots of a promise are of this generation and hold chunks of this chain."""
    first, count = promise.first, len(promise.offsets)
    is_proved = promise.proof == proof_of(keys[first : first + count])  # verify: proof
    return is_proved and promise.generation == generation and len(promise.lengths) == count


def is_ready_for(ready: Ready, keys: Sequence[bytes], generation: int) -> bool:
    """As `is_promise_for`, for one chunk of a stream; False also if the chunk failed."""
    if not 0 <= ready.chunk < len(keys):
        return False
    is_same = ready.key == keys[ready.chunk]  # verify: streamed full key
    return is_same and ready.generation == generation and ready.length > 0


def views_of(
    slab: MappedSlab, promise: Promise, keys: Sequence[bytes], generation: int
) -> list[memoryview] | None:
    """The promised payloads here, read-only; None if they are not of this chain and slab."""
    if not is_promise_for(promise, keys, generation):
        return None
    views = []
    for offset, length in zip(promise.offsets, promise.lengths, strict=True):
        view = slab.view(offset, length)
        if view is None:
            return None
        views.append(view.toreadonly())
    return views
