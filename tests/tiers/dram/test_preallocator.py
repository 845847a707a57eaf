"""Memory allocated before it is needed: in time, refused, or not needed any more."""

import queue
from collections.abc import Callable, Iterator

import pytest
from tests.tiers.dram.test_slab import ARENA, ARENAS, Stingy

from forebay.tiers.dram.preallocator import Preallocator
from forebay.tiers.dram.slab import Slab


@pytest.fixture
def machine() -> Stingy:
    return Stingy(ARENAS * ARENA)


@pytest.fixture
def slab(machine: Stingy) -> Iterator[Slab]:
    slab = Slab(machine, ARENA, ARENAS * ARENA)
    yield slab
    slab.close()


class Owner:
    """The thread that owns the slab: it runs what other threads pass to it."""

    def __init__(self, slab: Slab) -> None:
        self._actions: queue.Queue[Callable[[], None]] = queue.Queue()
        self.preallocator = Preallocator(slab, self._actions.put)

    def act(self) -> None:
        self._actions.get(timeout=60)()


def test_the_next_arena_is_ready_before_it_is_needed(slab: Slab) -> None:
    owner = Owner(slab)
    owner.preallocator.step()
    assert slab.allocated_bytes == ARENA, "counted from the beginning"
    owner.preallocator.step()
    owner.act()
    owner.preallocator.step()
    assert slab.allocated_bytes == ARENA, "one at a time"
    assert slab.take(ARENA) == 0
    assert slab.allocated_bytes == ARENA
    owner.preallocator.close(60)


def test_an_arena_that_is_still_coming_is_not_waited_for(slab: Slab) -> None:
    owner = Owner(slab)
    owner.preallocator.step()
    assert slab.take(ARENA) == ARENA, "another one, allocated in place"
    owner.act()
    assert slab.take(ARENA) == 0


def test_the_last_arena_is_not_waited_for_either(slab: Slab) -> None:
    """Whoever found no slot would have others evicted for it, though there is room."""
    owner = Owner(slab)
    taken = [slab.take(ARENA) for _ in range(ARENAS - 1)]
    owner.preallocator.step()
    taken.append(slab.take(ARENA))
    assert sorted(each for each in taken if each is not None) == [
        number * ARENA for number in range(ARENAS)
    ]
    owner.act()  # it comes too late
    assert slab.take(ARENA) is None, "each once"
    assert slab.allocated_bytes == ARENAS * ARENA


def test_memory_that_is_not_to_be_had_ahead_is_lived_without(slab: Slab, machine: Stingy) -> None:
    machine.allocations_left = 0
    owner = Owner(slab)
    owner.preallocator.step()
    owner.act()
    assert (slab.allocated_bytes, slab.cap_bytes) == (0, 0)
    owner.preallocator.step()
    assert slab.take(ARENA) is None


def test_an_arena_that_arrives_above_a_lowered_cap_goes_again(slab: Slab) -> None:
    owner = Owner(slab)
    owner.preallocator.step()
    assert slab.resize(0) == 1
    owner.act()
    assert (slab.allocated_bytes, slab.excess()) == (0, 0)


def test_a_slab_that_never_grew_is_closed_at_once(slab: Slab) -> None:
    slab.resize(0)
    owner = Owner(slab)
    owner.preallocator.step()
    owner.preallocator.close(60)
