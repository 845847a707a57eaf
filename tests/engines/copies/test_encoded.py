"""Encoded records through the copies of a GPU, on a simulated one: pages, bounds, promises."""

from dataclasses import replace

import numpy as np
import pytest
from tests.engines.copies.machine import CHUNK, LAYERS, PAGE, Machine, Make, slot
from tests.pool_process import wait_until

from forebay.engines.codec.exponents import decode
from forebay.engines.copies.contract import DOES_NOT_FIT, LoadPart, Store
from forebay.record.exponents import COUNT_AT, encoded_bytes

pytestmark = pytest.mark.vllm  # the environment that has numpy
ENCODED = encoded_bytes(PAGE)


def store(machine: Machine, chunk: int, number: int) -> Store:
    plain = machine.store(chunk, number)
    return plain._replace(piece=plain.piece._replace(is_encoded=True))


def load(machine: Machine, chunk: int, number: int) -> LoadPart:
    plain = machine.load(chunk, number)
    return replace(plain, pieces=[plain.pieces[0]._replace(is_encoded=True)])


def fill_with_numbers(machine: Machine, chunk: int, seed: int = 0) -> np.ndarray:
    """Normal numbers with some escapes, as they lie in the record."""
    shape = (2, LAYERS, PAGE // 2)
    drawn = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    values = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    values[..., 5] = 0x7FC1  # not a number
    pages = values.view(np.uint8)
    for at, block in enumerate(machine.blocks(chunk)):
        machine.cache[:, block] = pages[at]
    return pages


def test_pages_are_encoded_into_their_slots_and_come_back(make: Make) -> None:
    machine = make()
    pages = fill_with_numbers(machine, 3)
    machine.step(store(machine, 3, 5), machine.store(3, 6))
    stored = machine.done(2).stored
    assert len(stored) == 2
    record = machine.memory[slot(5) : slot(5) + 2 * LAYERS * ENCODED].reshape(-1, ENCODED)
    assert (decode(record, PAGE) == pages.reshape(-1, PAGE)).all()
    behind = machine.memory[slot(5) + 2 * LAYERS * ENCODED : slot(6)]
    assert not behind.any(), "an encoded record takes no more than that"
    assert (machine.memory[slot(6) : slot(6) + CHUNK] == pages.ravel()).all()
    machine.step(loads=(load(machine, 9, 5), machine.load(8, 6)))
    machine.done(2)
    for chunk in (8, 9):
        found = np.stack([machine.cache[:, block] for block in machine.blocks(chunk)])
        assert (found == pages).all()


def test_pages_that_do_not_fit_are_told_of_without_a_digest(make: Make) -> None:
    machine = make()
    fill_with_numbers(machine, 3)
    spread = np.random.default_rng(1).integers(0, 256, PAGE).astype(np.uint8)
    machine.cache[LAYERS - 1, machine.blocks(3)[-1]] = spread
    machine.step(store(machine, 3, 5), store(machine, 4, 6))
    digests = {each.piece.offset: digest for each, digest in machine.done(2).stored}
    assert digests[slot(5)] == DOES_NOT_FIT
    assert len(digests[slot(6)]) == 16


@pytest.mark.parametrize(
    ("at", "value"),
    [(COUNT_AT + 3, 0xFF), (COUNT_AT + 5, 0), (15, 0)],
    ids=["escapes beyond their bound", "another size", "no table"],
)
def test_a_load_that_cannot_be_decoded_fails_before_the_engine_hears_that_it_comes(
    make: Make, at: int, value: int
) -> None:
    machine = make()
    fill_with_numbers(machine, 3)
    machine.step(store(machine, 3, 5))
    machine.done(1)
    machine.memory[slot(5) + (2 * LAYERS - 1) * ENCODED + at] = value
    machine.driver.submitted.clear()
    machine.step(loads=(load(machine, 9, 5),))
    assert len(machine.done(1).failed) == 1
    assert "loads" not in machine.driver.submitted, "nothing of it is copied"
    assert not machine.copies.take_done().coming
    assert machine.chunk(9) == {0}


def test_a_load_comes_only_once_it_is_known_that_it_can_be_decoded(make: Make) -> None:
    """Its memory is in reach, but the thread that looks at it is held up by another."""
    machine = make(copy_s=0.2)
    fill_with_numbers(machine, 3)
    machine.step(store(machine, 3, 5))
    machine.done(1)
    machine.step(loads=(load(machine, 9, 5),))
    assert [each.request for each in machine.coming(1)] == ["r"]
    assert len(machine.done(1).loaded) == 1


def test_a_kernel_that_fails_after_the_engine_has_heard_is_made_good_by_the_processor(
    make: Make,
) -> None:
    machine = make()
    pages = fill_with_numbers(machine, 3)
    machine.step(store(machine, 3, 5))
    machine.done(1)
    copy = machine.driver.copy
    heard: list[LoadPart] = []

    def late(*_: object, **__: object) -> None:
        machine.driver.copy = copy  # type: ignore[method-assign]
        wait_until(lambda: heard, "the engine to hear of it")
        raise RuntimeError

    machine.driver.copy = late  # type: ignore[method-assign]
    wanted = load(machine, 9, 5)
    machine.step(loads=(wanted,))
    heard += machine.coming(1)
    machine.driver.has_kernels = False
    machine.copies.await_loads([wanted])
    machine.driver.forward(lambda: None)
    assert machine.done(1).loaded == [wanted]
    machine.driver.settle()
    found = np.stack([machine.cache[:, block] for block in machine.blocks(9)])
    assert (found == pages).all()
