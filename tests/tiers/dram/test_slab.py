"""The slab: slots of every class from one piece of memory, under a cap that can change."""

import errno
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import SharedMemory
from forebay.tiers.dram.slab import (
    ARENA_BYTES_MAX,
    Slab,
    arena_bytes_for,
    cap_bytes_for,
    slot_bytes_for,
)

ARENA = 8 * PAGE_BYTES
ARENAS = 4


class Stingy(SharedMemory):
    """A machine that may take nothing back."""

    takes_back = True

    def discard(self, offset: int, size_bytes: int) -> None:
        if not self.takes_back:
            raise OSError(errno.EPERM, "Operation not permitted")
        super().discard(offset, size_bytes)


@pytest.fixture
def machine() -> Stingy:
    memory = Stingy(3 * ARENAS * ARENA)
    memory.extend(ARENAS * ARENA)
    return memory


@pytest.fixture
def slab(machine: Stingy) -> Iterator[Slab]:
    slab = Slab(machine, ARENA)
    yield slab
    slab.close()


def raise_cap(slab: Slab, arenas: int) -> None:
    """As the pool does it: memory first, then the cap."""
    missing_bytes = slab.missing_bytes(arenas * ARENA)
    if missing_bytes:
        slab.memory.extend(missing_bytes)
    slab.resize(arenas * ARENA)


def take_all(slab: Slab, slot_bytes: int) -> list[int]:
    offsets = []
    while (offset := slab.take(slot_bytes)) is not None:
        offsets.append(offset)
    return offsets


@given(st.integers(1, 1 << 34))
def test_an_arena_is_a_power_of_two_and_several_fit_the_cap(cap_bytes: int) -> None:
    size = arena_bytes_for(cap_bytes)
    assert size & (size - 1) == 0
    assert PAGE_BYTES <= size <= ARENA_BYTES_MAX
    assert size * 8 <= cap_bytes or size == PAGE_BYTES


@given(st.integers(1, ARENA_BYTES_MAX))
def test_the_smallest_cap_for_a_slot_has_arenas_that_hold_it(length: int) -> None:
    slot = slot_bytes_for(length)
    if slot <= ARENA_BYTES_MAX:
        cap_bytes = cap_bytes_for(slot)
        assert arena_bytes_for(cap_bytes) >= slot
        assert cap_bytes == 8 * PAGE_BYTES or arena_bytes_for(cap_bytes - 1) < slot


@given(st.integers(1, 1 << 30))
def test_a_slot_holds_its_payload_and_wastes_little(length: int) -> None:
    slot = slot_bytes_for(length)
    assert slot % PAGE_BYTES == 0
    assert length <= slot <= length + length // 8 + PAGE_BYTES
    assert slot_bytes_for(slot) == slot, "a class is one of its own lengths"


def test_slots_of_one_class_share_an_arena_and_lie_apart(slab: Slab) -> None:
    offsets = [slab.take(2 * PAGE_BYTES) for _ in range(4)]
    assert sorted(offset for offset in offsets if offset is not None) == [
        0,
        2 * PAGE_BYTES,
        4 * PAGE_BYTES,
        6 * PAGE_BYTES,
    ]
    assert slab.allocated_bytes == ARENAS * ARENA, "memory is taken before it is needed"
    assert slab.taken_bytes == ARENA
    assert slab.slot_bytes_at(6 * PAGE_BYTES) == 2 * PAGE_BYTES


def test_views_are_of_the_slot_alone(slab: Slab) -> None:
    offset = slab.take(2 * PAGE_BYTES)
    assert offset is not None
    with slab.view(offset, 5000) as view, slab.payload(offset, 5000) as payload:
        assert (view.nbytes, payload.nbytes) == (2 * PAGE_BYTES, 5000)
        payload[:] = b"x" * 5000
        assert bytes(view) == b"x" * 5000 + bytes(2 * PAGE_BYTES - 5000)


def test_an_exhausted_slab_has_no_slot_until_one_is_given(slab: Slab) -> None:
    offsets = take_all(slab, 3 * PAGE_BYTES)
    assert len(offsets) == 2 * ARENAS, "what is left of an arena is too small for a slot"
    assert slab.take(PAGE_BYTES) is None, "every arena belongs to another class"
    slab.give(offsets[3])
    assert slab.take(3 * PAGE_BYTES) == offsets[3]
    assert slab.take(3 * PAGE_BYTES) is None


def test_an_empty_arena_may_change_its_class(slab: Slab) -> None:
    offsets = take_all(slab, ARENA)
    assert slab.take(PAGE_BYTES) is None
    slab.give(offsets[1])
    assert [arena.slot_bytes for arena in slab.arenas()] == [ARENA] * (ARENAS - 1)
    small = slab.take(PAGE_BYTES)
    assert small is not None
    assert small // ARENA == offsets[1] // ARENA
    assert slab.allocated_bytes == ARENAS * ARENA


def test_a_slot_larger_than_an_arena_is_not_to_be_had(slab: Slab) -> None:
    assert slab.take(ARENA + PAGE_BYTES) is None
    assert slab.taken_bytes == 0
    assert slab.fits(ARENA)
    assert not slab.fits(ARENA + 1)


def test_a_cap_above_the_memory_is_the_memory(slab: Slab) -> None:
    slab.resize(100 * ARENA)
    assert slab.cap_bytes == ARENAS * ARENA


def test_a_raised_cap_is_what_was_added_to_the_memory(slab: Slab) -> None:
    take_all(slab, ARENA)
    assert slab.missing_bytes(ARENAS * ARENA) == 0
    assert slab.missing_bytes(-1) == 0
    assert slab.missing_bytes(7 * ARENA - 1) == 2 * ARENA, "whole arenas"
    slab.memory.extend(2 * ARENA)
    assert slab.take(ARENA) is None, "others do not have it yet"
    assert slab.new_segments() == slab.memory.segments[1:]
    slab.resize(6 * ARENA)
    assert slab.new_segments() == []
    assert sorted(take_all(slab, ARENA)) == [4 * ARENA, 5 * ARENA]


def test_a_lowered_cap_holds_when_its_arenas_are_empty(slab: Slab) -> None:
    offsets = take_all(slab, ARENA)
    assert slab.resize(ARENA) == 3, "arenas that must be emptied"
    assert slab.take(ARENA) is None
    for left, offset in zip((2, 1, 0), offsets[1:], strict=True):
        slab.give(offset)
        assert slab.excess() == left
        assert slab.allocated_bytes == (left + 1) * ARENA
    assert slab.take(PAGE_BYTES) is None, "the cap is used up by what is left"
    raise_cap(slab, 2)
    assert slab.take(PAGE_BYTES) is not None


def test_idle_arenas_go_at_once_and_do_not_come_back(slab: Slab) -> None:
    """A GPU may have their old pages registered, and would go on copying to and from those."""
    offset = slab.take(ARENA)
    assert offset is not None
    slab.give(offset)
    assert slab.allocated_bytes == ARENAS * ARENA, "kept for the next"
    assert slab.resize(0) == 0
    assert slab.allocated_bytes == 0
    gone = set(slab.given_back)
    assert gone == set(range(ARENAS))
    raise_cap(slab, 2)
    more = take_all(slab, ARENA)
    assert {at // ARENA for at in more} == {ARENAS, ARENAS + 1}
    assert slab.cap_bytes == slab.allocated_bytes == 2 * ARENA


def test_memory_that_cannot_be_given_back_is_said(
    slab: Slab, machine: Stingy, caplog: pytest.LogCaptureFixture
) -> None:
    offset = slab.take(ARENA)
    assert offset is not None
    machine.takes_back = False
    slab.resize(0)
    slab.give(offset)
    assert "could not be given back" in caplog.text
    assert slab.allocated_bytes == 0


steps = st.one_of(
    st.tuples(st.just("take"), st.integers(1, ARENA + 1)),
    st.tuples(st.just("give"), st.integers(0, 1 << 16)),
    st.tuples(st.just("resize"), st.integers(0, ARENAS + 1)),
)


@given(st.lists(steps, max_size=60))
def test_slots_never_overlap_nor_straddle_and_the_sums_are_right(
    history: list[tuple[str, int]],
) -> None:
    slab = Slab(SharedMemory.of(ARENAS * ARENA), ARENA)
    taken: dict[int, int] = {}
    for step, number in history:
        if step == "take":
            size = slot_bytes_for(number)
            offset = slab.take(size)
            if offset is not None:
                taken[offset] = size
        elif step == "give" and taken:
            offset = sorted(taken)[number % len(taken)]
            slab.give(offset)
            del taken[offset]
        elif step == "resize":
            slab.resize(number * ARENA)
        assert slab.taken_bytes == sum(taken.values())
        assert slab.allocated_bytes <= slab.cap_bytes + slab.excess() * ARENA
        end = 0
        for start in sorted(taken):
            assert start >= end
            end = start + taken[start]
            assert start // ARENA == (end - 1) // ARENA
    slab.close()
