"""Wipes what a slab no longer holds: a free slot keeps its last bytes until it is reused.

This handles one arena at a time: its free slots are taken, so that nobody is given them, zeroed on
the caller's thread, and given back. What follows the chunks in its other slots, less than an eighth
of an arena, is zeroed on the slab's own thread. A slot that an engine is filling keeps the part
that its chunk will use.
"""

from collections.abc import Callable
from functools import partial

from forebay.sys.memory import zero
from forebay.tiers.dram.slab import Slab

OnOwner = Callable[[Callable[[], object]], bool]  # do it on the slab's thread; False: it was not


def wipe_free(slab: Slab, on_owner: OnOwner, used_bytes: Callable[[int], int]) -> bool:
    """Zero everything that holds no chunk; False if the slab's thread does not answer any more.

    `used_bytes`: how many bytes of the slot at an offset belong to its chunk; called on the slab's
    thread.
    """
    numbers: list[int] = []
    if not on_owner(lambda: numbers.extend(slab.arena_numbers())):
        return False
    for number in numbers:
        taken: list[tuple[int, int]] = []
        if not on_owner(partial(_take, slab, number, used_bytes, taken)):
            return False
        for offset, size_bytes in taken:
            zero(slab.payload(offset, size_bytes))  # verify: wiped slots
        if not on_owner(partial(_give, slab, taken)):
            return False
    return True


def _take(
    slab: Slab, number: int, used_bytes: Callable[[int], int], taken: list[tuple[int, int]]
) -> None:
    for offset, size_bytes in slab.taken_slots(number):
        used = used_bytes(offset)
        zero(slab.payload(offset + used, size_bytes - used))  # verify: wiped ends of slots
    taken += slab.take_free(number)
    zero(slab.remainder(number))  # verify: wiped ends of arenas


def _give(slab: Slab, taken: list[tuple[int, int]]) -> None:
    for offset, _ in taken:
        slab.give_free(offset)
