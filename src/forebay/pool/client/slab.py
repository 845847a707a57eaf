"""The pool's slab in this process's memory, and the proof that what lies there is what was meant.

A pool looks chunks up by short keys, so it may hold another chunk under one. Its answers carry a
proof over the full keys; whoever asked compares it with his own before a byte is read.
"""

import mmap
import os
from collections.abc import Sequence

from forebay.identity.keys import proof_of
from forebay.pool.messages import Promise, Ready, Welcome
from forebay.sys import sockets


class MappedSlab:
    """A mapping that outlives its connection for as long as somebody reads from it."""

    def __init__(self, welcome: Welcome, mapping: mmap.mmap) -> None:
        self.size_bytes = welcome.slab_bytes
        self.arena_bytes = welcome.arena_bytes
        self._mapping = mapping
        self.memory = memoryview(mapping)

    def view(self, offset: int, length: int) -> memoryview | None:
        """Part of the slab, or None if it does not lie in it."""
        if not 0 <= offset <= offset + length <= self.size_bytes:
            return None
        return self.memory[offset : offset + length]

    def close(self) -> bool:
        """Unmap; False if somebody still reads from it: then try again."""
        self.memory.release()
        try:
            self._mapping.close()
        except BufferError:
            return False
        return True


def map_slab(welcome: Welcome, descriptors: list[int]) -> MappedSlab | str:
    """The slab whose descriptor came with a welcome, or why it is not mapped, in one sentence.

    The descriptors stay the caller's to close.
    """
    if len(descriptors) != 1 or welcome.slab_bytes <= 0:
        return "the pool sent no slab."
    try:
        # A slab that could shrink under us would turn a read into a SIGBUS.
        if not sockets.cannot_shrink(descriptors[0]):
            return "the pool's slab is not sealed."
        if os.fstat(descriptors[0]).st_size < welcome.slab_bytes:
            return "the pool's slab is smaller than it says."
        return MappedSlab(welcome, mmap.mmap(descriptors[0], welcome.slab_bytes))
    except (OSError, ValueError, OverflowError) as error:
        return f"the pool's slab cannot be mapped ({type(error).__name__})."


def is_promise_for(promise: Promise, keys: Sequence[bytes], generation: int) -> bool:
    """Whether the slots of a promise are of this generation and hold chunks of this chain."""
    first, count = promise.first, len(promise.offsets)
    is_proved = promise.proof == proof_of(keys[first : first + count])  # verify: proof
    return is_proved and promise.generation == generation and len(promise.lengths) == count


def is_ready_for(ready: Ready, keys: Sequence[bytes], generation: int) -> bool:
    """Likewise for one chunk of a stream; False also if it could not be had."""
    if not 0 <= ready.chunk < len(keys):
        return False
    is_same = ready.key == keys[ready.chunk]  # verify: streamed full key
    return is_same and ready.generation == generation and ready.length > 0


def views_of(
    slab: MappedSlab, promise: Promise, keys: Sequence[bytes], generation: int
) -> list[memoryview] | None:
    """The payloads that are here, read-only; None if they are not this chain's in this slab."""
    if not is_promise_for(promise, keys, generation):
        return None
    views = []
    for offset, length in zip(promise.offsets, promise.lengths, strict=True):
        view = slab.view(offset, length)
        if view is None:
            return None
        views.append(view.toreadonly())
    return views
