"""The slab: shared memory cut into arenas, arenas cut into slots of one size.

    arena a    [a * arena, (a + 1) * arena)
    slot s     [a * arena + s * slot, … + slot), one chunk; no slot straddles an arena

An arena belongs to one class of slot sizes while any of its slots is taken, and to none otherwise,
so that models of different shapes share the slab. All memory is taken before it is used: the slab
begins with as much as its cap, grows by segments of whole arenas when the cap is raised, and gives
arenas back when it is lowered. Not thread-safe: the pool's thread owns it.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from forebay.sys.memory import PAGE_BYTES, padded
from forebay.sys.shared import Segment, SharedMemory

ARENA_BYTES_MAX: Final = 256 << 20
_ARENAS_MIN: Final = 8
_STEPS: Final = 32  # classes per doubling: at most a thirty-second of a slot is wasted
_log: Final = logging.getLogger(__name__)


def arena_bytes_for(cap_bytes: int) -> int:
    """The size of an arena in a slab of this cap: a power of two, at least a page."""
    wanted = min(ARENA_BYTES_MAX, max(PAGE_BYTES, cap_bytes // _ARENAS_MIN))
    return 1 << (wanted.bit_length() - 1)


def cap_bytes_for(slot_bytes: int) -> int:
    """The smallest cap of a slab whose arenas hold a slot of this size."""
    return _ARENAS_MIN << (slot_bytes - 1).bit_length()


def slot_bytes_for(length: int) -> int:
    """The slot that a payload takes: whole pages, in 32 classes a doubling."""
    size = padded(length)
    step = max(PAGE_BYTES, (1 << (size.bit_length() - 1)) // _STEPS)
    return -(-size // step) * step


@dataclass(slots=True)
class Arena:
    """One arena that belongs to a class."""

    number: int
    slot_bytes: int
    free: list[int]  # offsets in the slab
    taken: set[int] = field(default_factory=set)  # offsets of taken slots


class Slab:
    """Slots of shared memory under a cap."""

    def __init__(self, memory: SharedMemory, arena_bytes: int) -> None:
        """A slab that uses all of this memory."""
        self.memory = memory
        self.arena_bytes = arena_bytes
        self._arenas_max = 0
        self._segments = 0  # number of the memory's segments that the slab uses
        self._arenas: set[int] = set()  # arenas that have memory
        self.given_back: list[int] = []  # arenas that had it: a GPU may still know their old pages
        self._idle: list[int] = []  # arenas without a class
        self._used: dict[int, Arena] = {}  # arenas with a class
        self._classes: dict[int, set[int]] = {}  # slot size → arenas with a free slot
        self.taken_bytes = 0
        self.resize(memory.size_bytes)

    @property
    def cap_bytes(self) -> int:
        """What the slab may hold."""
        return self._arenas_max * self.arena_bytes

    @property
    def allocated_bytes(self) -> int:
        """What the slab has taken from the system."""
        return len(self._arenas) * self.arena_bytes

    @property
    def node_bytes(self) -> dict[int, int]:
        """Bytes by memory node, when last looked up; empty if not known."""
        return self.memory.bytes_on_nodes

    def view(self, offset: int, length: int) -> memoryview:
        """The whole pages of a payload in its slot."""
        return self.memory.view[offset : offset + padded(length)]

    def payload(self, offset: int, length: int) -> memoryview:
        """A payload in its slot, without the padding."""
        return self.memory.view[offset : offset + length]

    def take(self, slot_bytes: int) -> int | None:
        """A free slot of this class, if necessary in a new arena; None if there is none."""
        partial = self._classes.get(slot_bytes)
        if not partial and not self._open_arena(slot_bytes):
            return None
        number = next(iter(self._classes[slot_bytes]))
        arena = self._used[number]
        offset = arena.free.pop()
        arena.taken.add(offset)
        if not arena.free:
            self._classes[slot_bytes].discard(number)
        self.taken_bytes += slot_bytes
        return offset

    def give(self, offset: int) -> None:
        """Free a slot; an arena whose slots are all free belongs to no class."""
        arena = self._used[offset // self.arena_bytes]
        arena.taken.remove(offset)
        arena.free.append(offset)
        self.taken_bytes -= arena.slot_bytes
        partial = self._classes.setdefault(arena.slot_bytes, set())
        if arena.taken:
            partial.add(arena.number)
            return
        partial.discard(arena.number)
        del self._used[arena.number]
        self._idle.append(arena.number)
        self._shrink()

    def arena_numbers(self) -> list[int]:
        """The numbers of all arenas that can be used, with or without a class."""
        return sorted([*self._idle, *self._used])

    def taken_slots(self, number: int) -> list[tuple[int, int]]:
        """Offset and size of every slot of an arena that is taken."""
        arena = self._used.get(number)
        return [] if arena is None else [(offset, arena.slot_bytes) for offset in arena.taken]

    def take_free(self, number: int) -> list[tuple[int, int]]:
        """Take every free slot of an arena, or all of an idle one; offset and size of each.

        These slots hold no chunk; `give_free` frees each of them again.
        """
        if number in self._idle:
            self._idle.remove(number)
            self._used[number] = Arena(number, self.arena_bytes, [number * self.arena_bytes])
        arena = self._used.get(number)
        if arena is None:
            return []  # the arena was given back meanwhile
        slots = [(offset, arena.slot_bytes) for offset in arena.free]
        arena.taken.update(arena.free)
        arena.free.clear()
        self._classes.setdefault(arena.slot_bytes, set()).discard(number)
        return slots

    def give_free(self, offset: int) -> None:
        """A slot that `take_free` took is free again."""
        self.taken_bytes += self.slot_bytes_at(offset)
        self.give(offset)

    def remainder(self, number: int) -> memoryview:
        """What follows an arena's last slot."""
        arena = self._used.get(number)
        size_bytes = 0 if arena is None else self.arena_bytes % arena.slot_bytes
        return self.payload((number + 1) * self.arena_bytes - size_bytes, size_bytes)

    def fits(self, length: int) -> bool:
        """Whether a slot can ever hold a payload of this length."""
        return slot_bytes_for(length) <= min(self.arena_bytes, self.cap_bytes)

    def slot_bytes_at(self, offset: int) -> int:
        """The size of the slot at an offset."""
        return self._used[offset // self.arena_bytes].slot_bytes

    def arenas(self) -> list[Arena]:
        """Every arena that belongs to a class; the caller may not change them."""
        return list(self._used.values())

    def missing_bytes(self, cap_bytes: int) -> int:
        """What must be added to the memory for this cap: whole arenas."""
        arenas = cap_bytes // self.arena_bytes - len(self._arenas)
        return max(0, arenas) * self.arena_bytes

    def new_segments(self) -> list[Segment]:
        """Segments added to the memory, which the next `resize` begins to use."""
        return self.memory.segments[self._segments :]

    def resize(self, cap_bytes: int) -> int:
        """Change the cap; returns how many arenas must still be emptied for it to hold.

        Added memory is used from now on. An arena that was given back is never used again: if its
        pages are registered with an engine's GPU, that goes on reading and writing those old pages.
        """
        first = len(self._arenas) + len(self.given_back)
        added = range(first, self.memory.size_bytes // self.arena_bytes)
        self._segments = len(self.memory.segments)
        self._arenas.update(added)
        self._idle += reversed(added)
        self._arenas_max = min(cap_bytes // self.arena_bytes, len(self._arenas))
        self._shrink()
        return self.excess()

    def excess(self) -> int:
        """How many arenas in use exceed the cap."""
        return max(0, len(self._arenas) - self._arenas_max)

    def close(self) -> None:
        """Give the memory back; mappings of other processes keep it until they end."""
        self.memory.close()

    def _open_arena(self, slot_bytes: int) -> bool:
        if slot_bytes > self.arena_bytes or not self._idle:
            return False
        number = self._idle.pop()
        start = number * self.arena_bytes
        count = self.arena_bytes // slot_bytes
        free = [start + slot * slot_bytes for slot in reversed(range(count))]
        self._used[number] = Arena(number, slot_bytes, free)
        self._classes.setdefault(slot_bytes, set()).add(number)
        return True

    def _shrink(self) -> None:
        while self._idle and len(self._arenas) > self._arenas_max:
            number = self._idle.pop(0)
            self._arenas.remove(number)
            self.given_back.append(number)
            try:
                self.memory.discard(number * self.arena_bytes, self.arena_bytes)
            except OSError as error:
                _log.warning("memory could not be given back (%s)", error.strerror)
