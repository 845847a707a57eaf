"""Wiping a slab: what holds no chunk reads as zeros, and chunks stay as they are."""

from collections.abc import Callable

import pytest

from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import SharedMemory
from forebay.tiers.dram.slab import Slab
from forebay.tiers.dram.wiping import wipe_free

ARENA = 8 * PAGE_BYTES
ARENAS = 4
LENGTH = 2 * PAGE_BYTES + 100  # in slots of three pages, two of which fit an arena


@pytest.fixture
def slab() -> Slab:
    return Slab(SharedMemory.of(ARENAS * ARENA), ARENA)


def at_once(action: Callable[[], object]) -> bool:
    action()
    return True


def wipe(slab: Slab) -> bool:
    return wipe_free(slab, at_once, lambda _: LENGTH)


def test_all_but_chunks_is_zeroed(slab: Slab) -> None:
    slots = [slab.take(3 * PAGE_BYTES) for _ in range(5)]
    slab.memory.view[: ARENAS * ARENA] = b"x" * (ARENAS * ARENA)
    freed = slots.pop(1)
    assert freed is not None
    slab.give(freed)
    taken_bytes = slab.taken_bytes
    assert wipe(slab)
    assert slab.taken_bytes == taken_bytes
    chunks = [slab.payload(offset or 0, LENGTH) for offset in slots]
    assert {bytes(chunk) for chunk in chunks} == {b"x" * LENGTH}
    assert bytes(slab.memory.view[: ARENAS * ARENA]).count(b"x") == 4 * LENGTH


def test_slots_are_lent_while_they_are_wiped_and_given_back(slab: Slab) -> None:
    slots = [slab.take(3 * PAGE_BYTES) for _ in range(3)]
    seen: list[int | None] = []

    def on_owner(action: Callable[[], object]) -> bool:
        action()
        seen.append(slab.take(3 * PAGE_BYTES))
        if seen[-1] is not None:
            slab.give(seen[-1])
        return True

    assert wipe_free(slab, on_owner, lambda _: LENGTH)
    assert not {offset for offset in seen if offset is not None} & set(slots)
    free = [slab.take(3 * PAGE_BYTES) for _ in range(2 * ARENAS - 3)]
    assert len({*slots, *free}) == 2 * ARENAS
    assert None not in free
    assert slab.take(3 * PAGE_BYTES) is None


@pytest.mark.parametrize("answers", range(4))
def test_an_owner_that_stopped_to_answer_ends_it(slab: Slab, answers: int) -> None:
    left = [True] * answers

    def on_owner(action: Callable[[], object]) -> bool:
        return bool(left and left.pop() and at_once(action))

    assert not wipe_free(slab, on_owner, lambda _: LENGTH)


def test_an_arena_that_was_given_back_meanwhile_is_not_touched(slab: Slab) -> None:
    def on_owner(action: Callable[[], object]) -> bool:
        action()
        slab.resize(2 * ARENA)
        return True

    assert wipe_free(slab, on_owner, lambda _: LENGTH)
    assert slab.allocated_bytes == 2 * ARENA
