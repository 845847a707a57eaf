"""The slab: shared memory cut into arenas, arenas cut into slots of one size.

    arena a    [a * arena, (a + 1) * arena)
    slot s     [a * arena + s * slot, … + slot), one chunk; no slot straddles an arena

An arena belongs to one class of slot sizes while one of its slots is taken, and to none before and
after, so that models of different shape share the slab. Memory is allocated arena by arena, when it
is first needed, and given back when the cap is lowered. Not thread-safe: the pool's thread owns it.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from forebay.sys.memory import PAGE_BYTES, padded
from forebay.sys.shared import SharedMemory

ARENA_BYTES_MAX: Final = 256 << 20
_ARENAS_MIN: Final = 8
_STEPS: Final = 8  # classes a doubling: at most an eighth of a slot is waste
_log: Final = logging.getLogger(__name__)


def arena_bytes_for(cap_bytes: int) -> int:
    """The size of an arena in a slab of this cap: a power of two, at least a page."""
    wanted = min(ARENA_BYTES_MAX, max(PAGE_BYTES, cap_bytes // _ARENAS_MIN))
    return 1 << (wanted.bit_length() - 1)


def cap_bytes_for(slot_bytes: int) -> int:
    """The smallest cap of a slab whose arenas hold a slot of this size."""
    return _ARENAS_MIN << (slot_bytes - 1).bit_length()


def slot_bytes_for(length: int) -> int:
    """The slot that a payload takes: whole pages, in classes an eighth of a doubling apart."""
    size = padded(length)
    step = max(PAGE_BYTES, (1 << (size.bit_length() - 1)) // _STEPS)
    return -(-size // step) * step


@dataclass(slots=True)
class Arena:
    """One arena that belongs to a class."""

    number: int
    slot_bytes: int
    free: list[int]  # offsets in the slab
    taken: set[int] = field(default_factory=set)  # likewise


class Slab:
    """Slots of shared memory under a cap."""

    def __init__(self, memory: SharedMemory, arena_bytes: int, cap_bytes: int) -> None:
        self._memory = memory
        self.arena_bytes = arena_bytes
        self._arenas_max = min(cap_bytes, memory.size_bytes) // arena_bytes
        self._allocated: set[int] = set()  # arenas that have memory
        self._spent: set[int] = set()  # arenas given back: a GPU may still know their old pages
        self._coming: int | None = None  # of these, the one that a thread still allocates
        self._idle: list[int] = []  # of these, without a class
        self._used: dict[int, Arena] = {}  # of these, with one
        self._classes: dict[int, set[int]] = {}  # slot size → arenas with a free slot
        self.taken_bytes = 0

    @property
    def cap_bytes(self) -> int:
        """What the slab may hold."""
        return self._arenas_max * self.arena_bytes

    @property
    def limit_bytes(self) -> int:
        """What the cap can be raised to."""
        return self._memory.size_bytes

    @property
    def allocated_bytes(self) -> int:
        """What the slab has taken from the system."""
        return len(self._allocated) * self.arena_bytes

    def view(self, offset: int, length: int) -> memoryview:
        """The whole pages of a payload in its slot."""
        return self._memory.view[offset : offset + padded(length)]

    def payload(self, offset: int, length: int) -> memoryview:
        """A payload in its slot, without what pads it."""
        return self._memory.view[offset : offset + length]

    def take(self, slot_bytes: int) -> int | None:
        """A free slot of this class, in a new arena if need be and one is to be had."""
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
        """A slot is free again; an arena whose slots all are belongs to no class."""
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
        """Every arena that can be used, with a class or without."""
        return sorted([*self._idle, *self._used])

    def taken_slots(self, number: int) -> list[tuple[int, int]]:
        """Offset and size of every slot of an arena that is taken."""
        arena = self._used.get(number)
        return [] if arena is None else [(offset, arena.slot_bytes) for offset in arena.taken]

    def take_free(self, number: int) -> list[tuple[int, int]]:
        """Take every free slot of an arena, all of an idle one: offset and size of each.

        They hold no chunk and count for none; `give_free` gives each back.
        """
        if number in self._idle:
            self._idle.remove(number)
            self._used[number] = Arena(number, self.arena_bytes, [number * self.arena_bytes])
        arena = self._used.get(number)
        if arena is None:
            return []  # given back meanwhile
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
        """What an arena has behind its last slot."""
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

    def resize(self, cap_bytes: int) -> int:
        """Live under another cap; how many arenas must still be emptied for it to hold."""
        self._arenas_max = min(cap_bytes, self._memory.size_bytes) // self.arena_bytes
        self._shrink()
        return self.excess()

    def excess(self) -> int:
        """Arenas in use above the cap."""
        return max(0, len(self._allocated) - self._arenas_max)

    def announce(self) -> int | None:
        """An arena to allocate in advance, if the slab may grow and has no spare one.

        Whoever is told calls `allocate` on any thread and then `arrived` on the slab's own.
        """
        if self._idle or self._coming is not None or len(self._allocated) >= self._arenas_max:
            return None
        self._coming = self._unallocated()
        if self._coming is not None:
            self._allocated.add(self._coming)
        return self._coming

    def allocate(self, number: int) -> OSError | None:
        """Back an announced arena with memory; touches nothing of ours, so any thread may."""
        try:
            self._memory.allocate(number * self.arena_bytes, self.arena_bytes)
        except OSError as error:
            return error
        return None

    def arrived(self, number: int, error: OSError | None) -> None:
        """An announced arena has its memory, or cannot have it."""
        if number != self._coming:
            return  # it was wanted sooner, and allocated in place
        self._coming = None
        if error is not None:
            self._allocated.remove(number)
            self._refused(error)
            return
        self._idle.append(number)
        self._shrink()

    def close(self) -> None:
        """Give the memory back; mappings of other processes keep it until they end."""
        self._memory.close()

    def _open_arena(self, slot_bytes: int) -> bool:
        if slot_bytes > self.arena_bytes or not (self._idle or self._allocate()):
            return False
        number = self._idle.pop()
        start = number * self.arena_bytes
        count = self.arena_bytes // slot_bytes
        free = [start + slot * slot_bytes for slot in reversed(range(count))]
        self._used[number] = Arena(number, slot_bytes, free)
        self._classes.setdefault(slot_bytes, set()).add(number)
        return True

    def _allocate(self) -> bool:
        number: int | None = None
        if len(self._allocated) < self._arenas_max:
            number = self._unallocated()
        elif len(self._allocated) == self._arenas_max and self._coming is not None:
            number, self._coming = self._coming, None  # there is no other: it is not waited for
            self._allocated.remove(number)
        if number is None:
            return False
        error = self.allocate(number)
        if error is not None:
            self._refused(error)
            return False
        self._allocated.add(number)
        self._idle.append(number)
        return True

    def _unallocated(self) -> int | None:
        """An arena that never had memory.

        One that had it and gave it back is left alone: an engine's GPU that has its pages
        registered goes on reading and writing those, which are not the arena's any more.
        """
        total = self._memory.size_bytes // self.arena_bytes
        gone = self._allocated | self._spent
        return next((number for number in range(total) if number not in gone), None)

    def _refused(self, error: OSError) -> None:
        """The machine has less than was promised to us: live with what there is."""
        self._arenas_max = len(self._allocated)
        _log.warning(
            "no more memory (%s): DRAM stays at %d bytes", error.strerror, self.allocated_bytes
        )

    def _shrink(self) -> None:
        while self._idle and len(self._allocated) > self._arenas_max:
            number = self._idle.pop()
            self._allocated.remove(number)
            self._spent.add(number)
            try:
                self._memory.discard(number * self.arena_bytes, self.arena_bytes)
            except OSError as error:
                _log.warning("memory could not be given back (%s)", error.strerror)
