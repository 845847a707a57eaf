"""What a GPU encodes and decodes is compared with the reference where that is asked for."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from tests.engines.copies.machine import LAYERS, PAGE, Machine
from tests.engines.copies.simulated import SimulatedDriver
from tests.engines.copies.test_encoded import ENCODED, fill_with_numbers, load, store
from tests.pool_process import wait_until

from forebay.engines.boundary import BrokenError
from forebay.engines.codec.checked import CheckedDriver
from forebay.engines.copies.contract import DOES_NOT_FIT
from forebay.engines.copies.streamed import StreamedCopies
from forebay.record.exponents import VALUES_AT

pytestmark = pytest.mark.vllm  # the environment that has numpy
PAGES = 2 * LAYERS  # of a chunk


class Wrong(SimulatedDriver):
    """A GPU that gets one bit wrong, where it is told to."""

    encodes_wrong = decodes_wrong = False
    wrong_at = ENCODED - 1  # of an encoded page

    def _copy_encoded(self, page: int, slot: int, page_bytes: int, *, inward: bool) -> None:
        super()._copy_encoded(page, slot, page_bytes, inward=inward)
        if self.decodes_wrong and inward:
            flip(page + page_bytes - 1)
        if self.encodes_wrong and not inward:
            flip(slot + self.wrong_at)


def flip(address: int) -> None:
    ctypes.c_uint8.from_address(address).value ^= 1


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(Wrong())
    plain = machine.copies
    plain.detach()
    plain.close()
    machine.copies = StreamedCopies(CheckedDriver(machine.driver), plain._page_tables)
    machine.copies.attach(machine.slab)
    machine.reach()
    yield machine
    machine.copies.close()
    machine.driver.end()


def compared(machine: Machine) -> int:
    driver = machine.copies._driver
    assert isinstance(driver, CheckedDriver)
    return driver.compared_pages


def fails(machine: Machine, words: str) -> None:
    caught: list[str] = []

    def ended() -> bool:
        try:
            machine.copies.take_done()
        except BrokenError as error:
            caught.append(str(error))
        return bool(caught)

    wait_until(ended, "the fault to be seen")
    assert words in caught[0]


def test_what_is_right_comes_back_and_every_page_is_compared(machine: Machine) -> None:
    pages = fill_with_numbers(machine, 3)
    machine.step(store(machine, 3, 5), machine.store(3, 6))
    assert len(machine.done(2).stored) == 2
    assert compared(machine) == PAGES, "those that are not encoded need no check"
    machine.step(loads=(load(machine, 9, 5),))
    assert len(machine.done(1).loaded) == 1
    assert compared(machine) == 2 * PAGES
    found = np.stack([machine.cache[:, block] for block in machine.blocks(9)])
    assert (found == pages).all()


def test_pages_that_do_not_fit_are_none_of_a_gpus_faults(machine: Machine) -> None:
    fill_with_numbers(machine, 3)
    spread = np.random.default_rng(1).integers(0, 256, PAGE).astype(np.uint8)
    machine.cache[LAYERS - 1, machine.blocks(3)[-1]] = spread
    machine.step(store(machine, 3, 5))
    assert [digest for _, digest in machine.done(1).stored] == [DOES_NOT_FIT]
    assert compared(machine) == PAGES - 1


@pytest.mark.parametrize("at", [ENCODED - 1, VALUES_AT], ids=["a value", "not decodable"])
def test_a_page_that_is_encoded_wrongly_ends_the_engine(machine: Machine, at: int) -> None:
    fill_with_numbers(machine, 3)
    machine.driver.encodes_wrong = True  # type: ignore[attr-defined]
    machine.driver.wrong_at = at  # type: ignore[attr-defined]
    machine.step(store(machine, 3, 5))
    fails(machine, "encoded pages wrongly")


def test_a_page_that_is_decoded_wrongly_ends_the_engine(machine: Machine) -> None:
    fill_with_numbers(machine, 3)
    machine.step(store(machine, 3, 5))
    machine.done(1)
    machine.driver.decodes_wrong = True  # type: ignore[attr-defined]
    machine.step(loads=(load(machine, 9, 5),))
    fails(machine, "decoded pages wrongly")
