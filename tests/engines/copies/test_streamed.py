"""Copies on streams keep the order that makes a block's bytes whole; without the waits they do not.

Every race has its negative control: with a device that waits for nothing the bytes are wrong.
"""

import contextlib
import threading
import time
from typing import Any

import numpy as np
import pytest
from tests.engines.copies.machine import (
    ARENA,
    CHUNK,
    LAYERS,
    PAGE,
    SLOTS_AN_ARENA,
    Machine,
    Make,
    slot,
)
from tests.pool_process import HANG_S, wait_until

from forebay.engines.copies import streamed
from forebay.engines.copies.contract import LoadPart, Piece, Store
from forebay.record.header import payload_hash

pytestmark = pytest.mark.vllm  # the environment that has numpy


def test_a_store_is_told_of_with_the_digest_of_what_has_landed(make: Make) -> None:
    """F8: it goes with the commit, so that nobody believes what is written there later."""
    machine = make()
    for number in range(6):
        machine.driver.compute().put(machine.write(number, 7 + number))
        machine.step(machine.store(number, number))
    found = {store.piece.offset: digest for store, digest in machine.done(6).stored}
    machine.memory[:] = 0
    assert found == {slot(n): payload_hash(bytes([7 + n]) * CHUNK) for n in range(6)}


def test_bytes_come_back(make: Make) -> None:
    machine = make()
    for chunk in range(10):
        machine.cache[:, machine.blocks(chunk)] = np.random.default_rng(chunk).integers(
            0, 256, (LAYERS, 2, PAGE), dtype=np.uint8
        )
    before = machine.cache.copy()
    machine.step(*(machine.store(chunk, chunk + 1) for chunk in range(10)))
    assert len(machine.done(10).stored) == 10
    machine.cache[:] = 0
    machine.step(loads=tuple(machine.load(chunk, chunk + 1, f"r{chunk}") for chunk in range(10)))
    assert len(machine.done(10).loaded) == 10
    assert (machine.cache[:, :20] == before[:, :20]).all()


def test_part_of_a_chunk_lands_in_its_blocks_alone(make: Make) -> None:
    machine = make()
    machine.memory[: CHUNK // 2], machine.memory[CHUNK // 2 : CHUNK] = 1, 2
    machine.step(loads=(LoadPart("r", 1, [Piece(0, 1, [7])], is_last=True),))
    machine.done(1)
    assert set(machine.cache[:, 7].ravel().tolist()) == {2}
    assert machine.cache.sum() == 2 * PAGE * LAYERS


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_a_store_reads_what_the_forward_before_it_wrote(make: Make, waits: bool) -> None:
    machine = make(waits=waits)
    machine.driver.forward(machine.write(3, 7), is_late=True)
    machine.step(machine.store(3, 0))
    assert len(machine.done(1, overtaking=1).stored) == 1
    assert (machine.stored(0) == {7}) is waits


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_blocks_of_a_store_may_be_written_by_the_next_step(make: Make, waits: bool) -> None:
    machine = make(waits=waits)
    machine.driver.before_copy = machine.driver.late
    machine.write(3, 7)()
    machine.step(machine.store(3, 0))
    machine.step()
    machine.driver.forward(machine.write(3, 8))
    machine.driver.forward(machine.driver.overtaken.set)
    machine.done(1)
    assert (machine.stored(0) == {7}) is waits


def test_a_store_holds_up_no_forward_as_long_as_nothing_is_freed(make: Make) -> None:
    machine = make()
    machine.write(3, 7)()
    gate, ran = threading.Event(), threading.Event()
    machine.copies._store_stream.put(lambda: gate.wait(HANG_S))
    machine.step(machine.store(3, 0), freed=0)
    machine.step(machine.store(4, 1), freed=0)
    machine.driver.forward(ran.set, 0)
    assert ran.wait(HANG_S), "beside the store"
    machine.step()
    machine.driver.forward(machine.write(3, 8), is_late=True)
    gate.set()
    machine.done(2)
    assert machine.stored(0) == {7}


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_a_forward_waits_for_the_stores_of_freed_blocks_and_for_no_later_ones(
    make: Make, waits: bool
) -> None:
    machine = make(waits=waits)
    machine.write(3, 7)()
    machine.copies._store_stream.put(machine.driver.late)
    machine.step(machine.store(3, 0), freed=0)
    wait_until(lambda: not machine.copies._stores, "the first store to be submitted")
    gate, ran = threading.Event(), threading.Event()
    machine.copies._store_stream.put(lambda: gate.wait(HANG_S))
    machine.step(machine.store(4, 1), freed=0)
    machine.step(freed=1)
    machine.driver.forward(machine.write(3, 8), 0)
    machine.driver.forward(ran.set, 0)
    assert ran.wait(HANG_S), "beside the store of blocks that are not free"
    machine.driver.overtaken.set()
    gate.set()
    machine.done(2)
    assert (machine.stored(0) == {7}) is waits


def test_the_model_waits_for_the_submission_of_no_store_but_of_freed_blocks(make: Make) -> None:
    machine = make(pages=LAYERS)
    goes_on = threading.Event()
    machine.step(machine.store(3, 0), freed=0)
    wait_until(lambda: not machine.copies._stores, "the first store to be submitted")

    def hang() -> None:
        assert goes_on.wait(HANG_S)

    machine.driver.on_submitted = hang
    machine.step(machine.store(4, 1), freed=0)
    wait_until(lambda: len(machine.driver.submitted) == 3, "half of the second")
    machine.step(freed=1)
    assert machine.copies._stores, "it is submitted when the thread goes on"
    goes_on.set()
    machine.done(2)


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_blocks_of_an_older_store_may_be_loaded_into_once_they_are_free(
    make: Make, waits: bool
) -> None:
    machine = make(waits=waits)
    machine.write(3, 7)()
    machine.fill(5, 9)
    machine.copies._store_stream.put(machine.driver.late)
    machine.step(machine.store(3, 0), freed=0)
    machine.step(machine.store(4, 1), freed=0)
    machine.step()  # free from here on
    machine.step(loads=(machine.load(3, 5),), freed=0)
    machine.done(3, overtaking=1)
    assert (machine.stored(0) == {7}) is waits


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_blocks_of_a_freed_store_may_be_written_by_its_step(make: Make, waits: bool) -> None:
    machine = make(waits=waits)
    machine.driver.before_copy = machine.driver.late
    machine.write(3, 7)()
    machine.step(machine.store(4, 1), machine.store(3, 0, is_freed=True))
    machine.driver.forward(machine.write(3, 8))
    machine.driver.forward(machine.driver.overtaken.set)
    machine.done(2)
    assert (machine.stored(0) == {7}) is waits


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_a_load_does_not_disturb_the_forward_before_it(make: Make, waits: bool) -> None:
    machine = make(waits=waits)
    machine.write(3, 7)()
    machine.fill(5, 9)
    read: list[set[int]] = []
    machine.driver.forward(lambda: read.append(machine.chunk(3)), is_late=True)
    machine.step(loads=(machine.load(3, 5),))
    machine.done(1, overtaking=1)
    machine.driver.settle()
    assert (read == [{7}]) is waits
    assert machine.chunk(3) == {9}


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
@pytest.mark.parametrize("is_freed", [True, False], ids=["freed", "a step ago"])
def test_t14_a_load_does_not_disturb_a_store(make: Make, waits: bool, is_freed: bool) -> None:
    machine = make(waits=waits)
    machine.write(3, 7)()
    machine.fill(5, 9)
    machine.copies._store_stream.put(machine.driver.late)
    if is_freed:
        machine.step(machine.store(3, 0, is_freed=True), loads=(machine.load(3, 5),))
    else:
        machine.step(machine.store(3, 0))
        machine.step(loads=(machine.load(3, 5),))
    machine.done(2, overtaking=1)
    assert (machine.stored(0) == {7}) is waits


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_t14_a_forward_that_is_built_on_a_coming_load_waits_for_it(make: Make, waits: bool) -> None:
    machine = make(waits=waits)
    read_once, overtaken = threading.Event(), machine.driver.overtaken
    machine.driver.before_copy = lambda: (read_once if waits else overtaken).wait(HANG_S)
    machine.fill(5, 9)
    load = machine.load(3, 5)
    machine.step(loads=(load,))
    assert machine.coming(1) == [load]
    read: list[set[int]] = []
    machine.driver.forward(lambda: read.append(machine.chunk(3)))  # the engine had not heard
    machine.driver.forward(read_once.set)
    machine.copies.await_loads([load])
    machine.driver.forward(lambda: read.append(machine.chunk(3)))
    machine.driver.forward(machine.write(3, 7))  # its blocks may be anyone's by then
    machine.driver.forward(overtaken.set)
    machine.driver.settle()
    assert read == [{0}, {9} if waits else {0}]
    assert machine.chunk(3) == {7 if waits else 9}


def test_a_load_comes_when_little_is_before_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "COMING_BYTES", CHUNK)
    machine = make()
    gate = threading.Event()
    machine.copies._load_stream.put(lambda: gate.wait(HANG_S))
    loads = tuple(machine.load(chunk, chunk, f"r{chunk}") for chunk in range(3))
    machine.step(loads=loads)
    wait_until(lambda: len(machine.copies._loading) == 3, "all to be submitted")
    assert machine.coming(1) == [loads[0]]
    assert not machine.copies.take_done().coming, "each once, and no more than that"
    gate.set()
    assert machine.coming(2) == list(loads[1:])


def test_nobody_hears_of_a_copy_before_it_is_done(make: Make) -> None:
    machine = make()
    gate, was_opened = threading.Event(), []
    for stream in (machine.copies._store_stream, machine.copies._load_stream):
        stream.put(lambda: was_opened.append(gate.wait(HANG_S)))
    machine.step(machine.store(3, 0), loads=(machine.load(4, 5),))
    machine.step()
    early = machine.copies.take_done()
    gate.set()
    assert not early.stored
    assert not early.loaded
    machine.done(2)
    assert was_opened == [True, True], "the model's thread does not wait for copies"


def test_a_load_is_submitted_before_stores_that_nobody_waits_for(make: Make) -> None:
    machine = make(pages=LAYERS)  # a block a batch
    gate = machine.copies._changed
    with gate:  # the thread that submits sees all of it at once
        machine.step(*(machine.store(chunk, chunk) for chunk in range(4)))
        machine.copies.load(machine.load(9, 5))
    machine.done(5)
    submitted = machine.driver.submitted
    assert submitted.index("loads") <= 1
    assert len(submitted) == 10


def test_a_load_of_many_batches_makes_way_for_stores_that_are_waited_for(make: Make) -> None:
    machine = make(pages=1)
    submitted = machine.driver.submitted

    def midway() -> None:
        if len(submitted) == 20:
            wait_until(lambda: machine.copies._is_waited_for, "someone to wait for stores")

    machine.driver.on_submitted = midway
    many = LoadPart("r", 1, [Piece(slot(9), 0, [0, 1])] * 400, is_last=True)
    with machine.copies._changed:  # the thread that submits sees all of it at once
        machine.step(machine.store(4, 1), loads=(many,))
    wait_until(lambda: len(submitted) == 20, "a part of the load")
    machine.step()
    machine.done(2)
    assert submitted == ["loads"] * 20 + ["stores"] * 2 + ["loads"] * 780


def test_a_store_into_memory_out_of_reach_is_missed_and_then_reached(make: Make) -> None:
    machine = make(is_reached=False, cap_arenas=0, register_s=0.02)
    far = 5 * SLOTS_AN_ARENA
    machine.step(machine.store(3, far))
    assert len(machine.done(1).missed) == 1
    until = time.monotonic() + HANG_S
    stored: list[tuple[Store, bytes]] = []
    while not stored and time.monotonic() < until:
        machine.step(machine.store(3, far))
        stored = machine.done(1).stored
    assert stored
    starts = [start - machine.memory.ctypes.data for start in machine.driver.registered]
    assert all(start // ARENA == 5 for start in starts), "only what was wanted, and below the cap"


def test_what_a_load_needs_is_registered_first_and_the_load_waits(make: Make) -> None:
    goes_on = threading.Event()
    machine = make(is_reached=False, before_register=lambda: goes_on.wait(HANG_S))
    last = 8 * SLOTS_AN_ARENA - 1
    machine.fill(last, 9)
    machine.step(loads=(machine.load(3, last),))
    goes_on.set()
    assert len(machine.done(1).loaded) == 1
    assert machine.chunk(3) == {9}
    start = machine.memory.ctypes.data + slot(last)
    ends = [at + size for at, size in list(machine.driver.registered.items())]
    assert any(start < end for end in ends[:2]), "not after all the others"


def test_t49_memory_that_cannot_be_registered_is_no_tier(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    machine = make(is_reached=False, cap_arenas=0)
    machine.driver.refuses = "no more"
    for _ in range(3):
        machine.step(machine.store(3, 1), loads=(machine.load(4, 2),))
        done = machine.done(2)
        assert len(done.missed) == len(done.failed) == 1
    assert sum("no more" in line for line in caplog.messages) == 1
    assert not machine.driver.submitted


def test_how_long_a_load_waited_for_its_submission_is_told(make: Make) -> None:
    goes_on = threading.Event()
    machine = make(is_reached=False, before_register=lambda: goes_on.wait(HANG_S))
    machine.step(loads=(machine.load(3, 8 * SLOTS_AN_ARENA - 1),))
    time.sleep(0.2)
    goes_on.set()
    assert machine.done(1).submit_s >= 0.2, "its memory had to be registered first"


def test_a_slab_is_left_only_when_nothing_is_under_way(make: Make) -> None:
    machine, goes_on = make(), threading.Event()
    machine.driver.before_copy = lambda: goes_on.wait(HANG_S)
    machine.fill(2, 9)
    machine.step(loads=(machine.load(3, 2),))
    assert not machine.copies.detach()
    assert machine.driver.registered
    goes_on.set()
    wait_until(machine.copies.detach, "the slab to be left")
    assert machine.chunk(3) == {9}
    assert not machine.driver.registered
    machine.copies.attach(machine.slab)
    machine.reach()


def test_a_forward_waits_for_a_coming_load_that_is_not_submitted_yet(make: Make) -> None:
    machine = make(pages=1)
    machine.fill(5, 9)
    load = machine.load(3, 5)
    goes_on = threading.Event()
    machine.driver.on_submitted = lambda: goes_on.wait(HANG_S)
    machine.step(loads=(load,))
    assert machine.coming(1) == [load]
    assert len(machine.driver.submitted) < 2 * LAYERS
    threading.Timer(0.05, goes_on.set).start()
    machine.copies.await_loads([load])
    read: list[set[int]] = []
    machine.driver.forward(lambda: read.append(machine.chunk(3)))
    machine.driver.settle()
    assert read == [{9}]


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_random_histories_keep_every_byte(make: Make, waits: bool) -> None:
    machine = make(waits=waits, copy_s=0.003, pages=4)
    if not waits:
        machine.driver.before_copy = machine.two_steps_late
    with contextlib.nullcontext() if waits else pytest.raises(AssertionError):
        live(machine, np.random.default_rng(11))
    machine.has_ended = True


def live(machine: Machine, draw: Any) -> None:
    """A scheduler's life: blocks are computed, stored, freed, given to others, loaded."""
    value = 0
    expected: dict[int, int] = {}  # slot → value
    free = list(range(16))
    fresh = iter(range(8 * SLOTS_AN_ARENA))
    loads: dict[str, tuple[int, int]] = {}
    computed: list[tuple[int, int]] = []  # in the last step: chunk and value
    held: list[tuple[int, int]] = []  # chunk, and the step that stored it
    for number in range(60):
        for load in machine.copies.take_done().loaded:
            chunk, wanted = loads.pop(load.request)
            assert machine.chunk(chunk) == {wanted}
            free.append(chunk)
        stores: list[Store] = []
        freed = 0
        for chunk, step in list(held):
            if draw.random() < 0.4:
                held.remove((chunk, step))
                free.append(chunk)
                freed = max(freed, step)
        for chunk, wanted in computed:
            at = next(fresh, None)
            is_freed = bool(draw.random() < 0.5)
            if at is not None:
                stores.append(machine.store(chunk, at, is_freed=is_freed))
                expected[at] = wanted
            if is_freed:
                free.append(chunk)
            else:
                held.append((chunk, machine.steps + 1))
        asked = []
        ready = [at for at in expected if machine.stored(at) == {expected[at]}]
        if ready and free and draw.random() < 0.5:
            chunk, at = free.pop(), ready[int(draw.integers(len(ready)))]
            loads[f"r{number}"] = (chunk, expected[at])
            asked = [machine.load(chunk, at, f"r{number}")]
        machine.step(*stores, loads=tuple(asked), freed=freed)
        computed = []
        while free and draw.random() < 0.7:
            value = value % 255 + 1
            chunk = free.pop()
            machine.driver.forward(machine.write(chunk, value), float(draw.random()) * 0.004)
            computed.append((chunk, value))
    machine.has_ended = True
    machine.driver.settle()
    assert all(machine.stored(at) == {wanted} for at, wanted in expected.items())
    assert len(expected) > 30
