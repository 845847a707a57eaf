"""A slab is registered in spans of whole slots, and gives way to what is being loaded."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.engines.vllm.copies.simulated import SimulatedDriver
from tests.poolside import wait_until

from forebay.engines.vllm.copies import registration
from forebay.engines.vllm.copies.contract import Mapped
from forebay.engines.vllm.copies.registration import Registration

pytestmark = pytest.mark.vllm  # the environment that has numpy
ARENA, ARENAS = 1 << 18, 4
SLOT = 9 << 10  # 28 an arena, and a rest

Begin = Callable[..., Registration]


@pytest.fixture
def driver() -> Iterator[SimulatedDriver]:
    driver = SimulatedDriver(register_s=0.002)
    yield driver
    driver.end()


@pytest.fixture
def changed() -> threading.Condition:
    return threading.Condition()


@pytest.fixture
def begin(driver: SimulatedDriver, changed: threading.Condition) -> Iterator[Begin]:
    made: list[Registration] = []

    def start(span_bytes: int, arenas: int = ARENAS) -> Registration:
        memory = np.zeros(arenas * ARENA, dtype=np.uint8)
        slab = Mapped(1, memory, ARENA, memory.nbytes)
        made.append(Registration(driver, slab, SLOT, changed, span_bytes))
        return made[-1]

    yield start
    for each in made:
        with changed:
            each.leave()
        wait_until(each.has_left, "a registration that has left")


@pytest.mark.parametrize("slots", [1, 2, 5, 9, 27, 28, 60])
def test_spans_are_of_about_one_size_and_hold_every_slot(
    begin: Begin, driver: SimulatedDriver, slots: int
) -> None:
    made = begin(slots * SLOT)
    whole = ARENA // SLOT * SLOT * ARENAS
    wait_until(lambda: made.ready_bytes == whole, "the slab in reach, to the byte")
    sizes = sorted(driver.registered.values())
    assert sum(sizes) == whole
    assert sizes[-1] <= slots * SLOT
    spans = -(-(ARENA // SLOT) // slots)
    assert len(sizes) <= spans * ARENAS, "no more than it takes"
    assert sizes[0] >= sizes[-1] - spans * SLOT, "none is a stub"
    ends = {start: start + size for start, size in driver.registered.items()}
    first = min(ends)
    for arena in range(ARENAS):
        for number in range(ARENA // SLOT):
            slot = first + arena * ARENA + number * SLOT
            assert any(start <= slot and slot + SLOT <= end for start, end in ends.items())


def test_arenas_too_small_for_a_slot_are_left_alone(
    driver: SimulatedDriver, changed: threading.Condition
) -> None:
    memory = np.zeros(SLOT, dtype=np.uint8)
    made = Registration(driver, Mapped(1, memory, SLOT // 2, SLOT), SLOT, changed)
    with changed:
        made.leave()
    wait_until(made.has_left, "a registration that has left")
    assert made.ready_bytes == 0
    assert not driver.registered


def test_what_nobody_waits_for_rests_while_something_is_loaded(
    begin: Begin, driver: SimulatedDriver, changed: threading.Condition
) -> None:
    made = begin(SLOT, arenas=40)
    wait_until(lambda: made.ready_bytes > 0, "a beginning")
    with changed:
        made.rest()
        last = 40 * ARENA - ARENA + SLOT
        made.want([last], is_first=True)
    wait_until(lambda: bool(made.are_ready([last]).all()), "what a load needs")
    registered = len(driver.registered)
    time.sleep(registration._REST_S / 2)
    assert len(driver.registered) <= registered + 1, "it did not rest"
    wait_until(lambda: len(driver.registered) > registered + 10, "what is left, afterwards")


def test_loads_without_end_do_not_stop_it(
    begin: Begin, driver: SimulatedDriver, changed: threading.Condition
) -> None:
    made = begin(SLOT, arenas=40)
    wait_until(lambda: made.ready_bytes > 0, "a beginning")
    begun, before = time.monotonic(), len(driver.registered)
    while time.monotonic() < begun + 3 * registration._AT_LEAST_S:
        with changed:
            made.rest()
        time.sleep(0.01)
    more = len(driver.registered) - before
    assert 2 <= more <= 80, "now and then one, and by far not all 1120"
