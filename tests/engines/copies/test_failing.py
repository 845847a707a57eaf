"""Copies that cannot be submitted are misses; what the engine was told of is copied, or it ends."""

import threading
from typing import Any

import pytest
from tests.engines.copies.machine import LAYERS, Machine, Make
from tests.pool_process import HANG_S, wait_until

from forebay.engines.boundary import Boundary, BrokenError
from forebay.engines.copies import streamed
from forebay.engines.copies.contract import FinishedCopies, LoadPart
from forebay.engines.copies.pointers import PageTables

pytestmark = pytest.mark.vllm  # the environment that has numpy


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError


def test_a_batch_that_fails_is_a_miss(make: Make) -> None:
    machine = make()
    machine.driver.copy = broken  # type: ignore[method-assign]
    machine.step(machine.store(3, 1), loads=(machine.load(4, 2),))
    wait_until(lambda: machine.copies._loading, "the load to fail before anyone hears of it")
    done = machine.done(2)
    assert len(done.missed) == len(done.failed) == 1


def told_and_failed(machine: Machine) -> LoadPart:
    """A load of which the engine has heard before its copies could not be submitted."""
    load, copy = machine.load(3, 5), machine.driver.copy
    machine.fill(5, 9)
    has_heard = threading.Event()

    def late(*_: Any, **__: Any) -> None:
        machine.driver.copy = copy  # type: ignore[method-assign]
        assert has_heard.wait(HANG_S)
        raise RuntimeError

    machine.driver.copy = late  # type: ignore[method-assign]
    machine.step(loads=(load,))
    assert machine.coming(1) == [load], "it is not submitted yet"
    has_heard.set()
    return load


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "not seen yet"])
def test_a_coming_load_that_fails_is_copied_before_a_forward_is_built_on_it(
    make: Make, is_seen: bool
) -> None:
    machine = make(copy_s=0.2)
    load = told_and_failed(machine)
    machine.driver.has_kernels = False  # nor will they be back
    if is_seen:
        wait_until(lambda: machine.copies._loading, "it to fail")
        machine.driver.settle()
        assert machine.copies.take_done() == FinishedCopies(), "it is neither loaded nor failed"
        assert not machine.copies.detach(), "the slab is needed"
    machine.driver.forward(machine.write(3, 7), is_late=True)  # of whom these blocks were before
    machine.copies.await_loads([load])
    read: list[set[int]] = []
    machine.driver.forward(lambda: read.append(machine.chunk(3)), 0)
    assert machine.done(1).loaded == [load]
    machine.driver.settle()
    assert read == [{9}]
    wait_until(machine.copies.detach, "the slab to be let go of")


def test_an_engine_does_not_compute_from_what_cannot_be_copied(make: Make) -> None:
    machine = make()
    load = told_and_failed(machine)
    wait_until(lambda: machine.copies._loading, "it to fail")
    machine.driver.copy = broken  # type: ignore[method-assign]
    with pytest.raises(BrokenError, match="lacks"):
        Boundary().call(lambda: None, lambda: machine.copies.await_loads([load]))


def test_an_engine_does_not_compute_from_what_is_half_submitted_for_good(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "_SUBMIT_S", 0.2)
    machine = make()
    began, gate, load = threading.Event(), threading.Event(), machine.load(3, 5)

    def hang(*_: Any, **__: Any) -> None:
        began.set()
        gate.wait(HANG_S)

    machine.driver.copy = hang  # type: ignore[method-assign]
    machine.step(loads=(load,))
    assert machine.coming(1) == [load]
    assert began.wait(HANG_S)
    with pytest.raises(BrokenError, match="hangs"):
        machine.copies.await_loads([load])
    gate.set()


def test_a_coming_load_of_a_thread_that_was_given_up_is_copied_when_that_comes_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "_SUBMIT_S", 0.5)
    machine = make()
    machine.fill(5, 9)
    load, copy = machine.load(3, 5), machine.driver.copy
    began, goes_on = threading.Event(), threading.Event()

    def slow(*to: Any, **how: Any) -> None:
        began.set()
        goes_on.wait(HANG_S)
        copy(*to, **how)

    machine.driver.copy = slow  # type: ignore[method-assign]
    machine.step(machine.store(4, 0), loads=(load,))
    assert began.wait(HANG_S)
    assert machine.coming(1) == [load]
    machine.step()  # waits for the store, and gives up
    assert machine.copies._is_off
    assert not machine.copies.reach_bytes
    monkeypatch.setattr(streamed, "_SUBMIT_S", HANG_S)
    threading.Timer(0.05, goes_on.set).start()
    machine.copies.await_loads([load])
    machine.driver.settle()
    assert machine.chunk(3) == {9}


def test_nothing_is_copied_for_what_was_given_up_while_it_was_prepared(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "_SUBMIT_S", 0.2)
    monkeypatch.setattr(streamed, "_AGAIN_S", 0.1)
    machine = make()
    machine.fill(5, 9)
    begun, goes_on, blocks_of = threading.Event(), threading.Event(), PageTables.blocks_of

    def slow(*of: Any) -> Any:
        begun.set()
        goes_on.wait(HANG_S)
        return blocks_of(*of)

    monkeypatch.setattr(PageTables, "blocks_of", slow)
    load = machine.load(3, 5)
    machine.step(loads=(load,))
    assert begun.wait(HANG_S)
    machine.step(machine.store(1, 7))
    machine.step()  # waits for that store, and gives up
    early = machine.copies.take_done()
    assert (early.failed, len(early.missed)) == ([], 1)
    assert not machine.copies.detach(), "its thread may still use the slab"
    goes_on.set()
    assert machine.done(1).failed == [load]
    machine.driver.settle()
    assert not machine.driver.submitted
    wait_until(machine.copies.detach, "the slab to be left")


def test_a_thread_that_was_only_stopped_for_a_while_is_not_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP and SIGCONT: the limit is over before anyone has run again."""
    monkeypatch.setattr(streamed, "_SUBMIT_S", 0.0)
    monkeypatch.setattr(streamed, "_AGAIN_S", HANG_S)
    machine = make()
    machine.step(machine.store(3, 1))
    machine.step()
    assert not machine.copies._is_off
    assert len(machine.done(1).stored) == 1


def test_a_store_that_waited_for_too_long_is_missed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then its slot may have been given back, and be another's."""
    machine = make()
    copy, begun, goes_on = machine.driver.copy, threading.Event(), threading.Event()

    def slow(*to: Any, **how: Any) -> None:
        begun.set()
        goes_on.wait(HANG_S)
        copy(*to, **how)

    monkeypatch.setattr(machine.driver, "copy", slow)
    machine.step(machine.store(3, 1))
    assert begun.wait(HANG_S)
    monkeypatch.setattr(streamed, "_STORE_S", -1.0)
    machine.copies._queue_stores(1, [machine.store(4, 2)])
    goes_on.set()
    done = machine.done(2)
    assert (len(done.stored), len(done.missed)) == (1, 1)


def test_a_load_that_hangs_half_submitted_is_over_when_the_device_is_done_with_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "_SUBMIT_S", 0.2)
    machine = make(pages=LAYERS)  # a block a batch
    machine.fill(5, 9)
    copy, hangs, goes_on = machine.driver.copy, threading.Event(), threading.Event()

    def hang(*to: Any, **how: Any) -> None:
        if machine.driver.submitted.count("loads") == 1 and how["inward"]:
            hangs.set()
            goes_on.wait(HANG_S)
        copy(*to, **how)

    machine.driver.copy = hang  # type: ignore[method-assign]
    first, behind = machine.load(3, 5, "first"), machine.load(4, 5, "behind")
    machine.step(loads=(first, behind))
    assert hangs.wait(HANG_S)
    machine.step(machine.store(1, 7))
    machine.step()  # waits for that store, and gives up
    early = machine.copies.take_done()
    assert [early.failed, len(early.missed), early.coming] == [[behind], 1, []]
    assert not machine.copies.detach(), "the slab is in use"
    goes_on.set()
    late = machine.done(1)
    assert late.failed == [first]
    assert machine.chunk(3) == {9}, "nothing comes after it is said to be over"
    wait_until(machine.copies.detach, "the slab to be left")
