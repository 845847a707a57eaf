"""The thread that looks after an engine's pool while no hook is called."""

import threading

from tests.pool_process import HANG_S, wait_until

from forebay.engines.boundary import Boundary, bounded
from forebay.engines.reporting.idle import IdleThread


class Hooked:
    """An engine with one hook, which says on which threads it and the look ran, and overlapped."""

    def __init__(self) -> None:
        self.boundary = Boundary()
        self.looks = 0
        self.is_inside = False
        self.overlaps = 0
        self.may_end = threading.Event()

    def look(self) -> None:
        self.looks += 1
        self.overlaps += self.is_inside

    @bounded(lambda: None)
    def hook(self) -> None:
        self.is_inside = True
        self.may_end.wait(HANG_S)
        self.is_inside = False


def test_an_idle_engine_is_looked_after_until_it_ends() -> None:
    engine = Hooked()
    thread = IdleThread(engine.boundary, engine.look, 0.001)
    wait_until(lambda: engine.looks > 3, "some looks")
    thread.close()
    assert not thread._thread.is_alive()


def test_a_look_and_a_hook_take_turns() -> None:
    engine = Hooked()
    thread = IdleThread(engine.boundary, engine.look, 0.001)
    scheduler = threading.Thread(target=engine.hook)
    scheduler.start()
    wait_until(lambda: engine.is_inside, "the hook")
    looks = engine.looks
    engine.boundary.called_at = 0.0  # as if it had been called long ago
    assert not engine.boundary.turn.acquire(blocking=False)
    engine.may_end.set()
    scheduler.join(HANG_S)
    wait_until(lambda: engine.looks > looks, "the next look")
    thread.close()
    assert engine.overlaps == 0


def test_a_look_that_fails_is_counted_and_is_not_the_last() -> None:
    engine = Hooked()

    def fail() -> None:
        engine.looks += 1
        raise ZeroDivisionError

    thread = IdleThread(engine.boundary, fail, 0.001)
    wait_until(lambda: engine.looks > 1, "another look")
    thread.close()
    assert engine.boundary.failures >= 1
