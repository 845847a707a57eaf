"""A KV cache, a slab and copies between them, on a simulated device."""

import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from tests.engines.copies.simulated import SimulatedDriver
from tests.pool_process import HANG_S, wait_until

from forebay.engines.copies.contract import FinishedCopies, LoadPart, Piece, Store, WorkerSlab
from forebay.engines.copies.pointers import PageTable, PageTables
from forebay.engines.copies.streamed import StreamedCopies
from forebay.engines.geometry import Geometry
from forebay.engines.step import EVERYTHING

PAGE, LAYERS, BLOCKS, CHUNK_BLOCKS = 4096, 3, 32, 2
CHUNK = PAGE * LAYERS * CHUNK_BLOCKS
ARENA = 1 << 17
SLOT = 24576
SLOTS_AN_ARENA = ARENA // SLOT


def slot(number: int) -> int:
    return number // SLOTS_AN_ARENA * ARENA + number % SLOTS_AN_ARENA * SLOT


def page_tables(layers: list[tuple[int, int]]) -> PageTables:
    """All layers have one block table."""
    shape = Geometry(tuple(map(str, range(LAYERS))), PAGE, 16, CHUNK_BLOCKS)
    encoded = PageTable.encoded(layers, PAGE, BLOCKS)
    return PageTables([PageTable.of(layers, PAGE, BLOCKS)], shape, encoded={0: encoded})


class Machine:
    """A KV cache, a slab and copies between them."""

    def __init__(self, driver: SimulatedDriver, cap_arenas: int = 8) -> None:
        self.driver = driver
        self.cache = np.zeros((LAYERS, BLOCKS, PAGE), dtype=np.uint8)
        self.memory = np.zeros(8 * ARENA, dtype=np.uint8)
        layers = [(layer.ctypes.data, PAGE) for layer in self.cache]
        self.copies = StreamedCopies(driver, page_tables(layers))
        self.slab = WorkerSlab(1, self.memory, ARENA, cap_arenas * ARENA, slot_bytes=SLOT)
        self.copies.attach(self.slab)
        self.steps = 0
        self.has_ended = False  # no more steps follow

    def blocks(self, chunk: int) -> list[int]:
        return [2 * chunk + 1, 2 * chunk]  # not in order

    def write(self, chunk: int, value: int) -> Callable[[], None]:
        def work() -> None:
            self.cache[:, self.blocks(chunk)] = value

        return work

    def store(self, chunk: int, number: int, *, is_freed: bool = False) -> Store:
        return Store(1, Piece(slot(number), 0, self.blocks(chunk)), is_freed)

    def load(self, chunk: int, number: int, request: str = "r", *, last: bool = True) -> LoadPart:
        return LoadPart(request, 1, [Piece(slot(number), 0, self.blocks(chunk))], last)

    def step(
        self, *stores: Store, loads: tuple[LoadPart, ...] = (), freed: int = EVERYTHING
    ) -> None:
        self.steps += 1
        self.copies.begin(self.steps, stores, loads=bool(loads), freed=freed)
        for load in loads:
            self.copies.load(load)

    def stored(self, number: int) -> set[int]:
        return set(self.memory[slot(number) : slot(number) + CHUNK].tolist())

    def chunk(self, chunk: int) -> set[int]:
        return set(self.cache[:, self.blocks(chunk)].ravel().tolist())

    def fill(self, number: int, value: int) -> None:
        self.memory[slot(number) : slot(number) + CHUNK] = value

    def done(self, count: int, overtaking: int = 0) -> FinishedCopies:
        """What has ended, once so much has; after `overtaking` of them what is late goes on."""
        found = FinishedCopies()
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            more = self.copies.take_done()
            for name in ("stored", "missed", "loaded", "failed"):
                getattr(found, name).extend(getattr(more, name))
            found.submit_s += more.submit_s
            ended = len(found.stored + found.missed + found.loaded + found.failed)
            if overtaking and ended >= overtaking:
                self.driver.overtaken.set()
            if ended >= count:
                return found
            time.sleep(0.002)
        raise AssertionError(f"not {count} ended, but {found}")

    def coming(self, count: int) -> list[LoadPart]:
        """Loads that are coming, once there are so many."""
        found: list[LoadPart] = []
        until = time.monotonic() + HANG_S
        while len(found) < count:
            assert time.monotonic() < until
            found += self.copies.take_done().coming
            time.sleep(0.002)
        return found

    def two_steps_late(self) -> None:
        """Called on a stream, before a copy: until two more steps are computed."""
        step = self.steps
        wait_until(lambda: self.steps >= step + 2 or self.has_ended, "two steps")
        assert self.driver.record(self.driver.compute()).wait(HANG_S)

    def reach(self) -> None:
        """Until the whole slab is registered."""
        until = time.monotonic() + HANG_S
        registration = self.copies._registration
        assert registration is not None
        while not registration.are_ready([slot(n) for n in range(8 * SLOTS_AN_ARENA)]).all():
            assert time.monotonic() < until
            time.sleep(0.002)


Make: TypeAlias = Callable[..., Machine]
