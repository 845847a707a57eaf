"""Clocks with which a test's outcome does not depend on how busy the machine is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final
from unittest.mock import patch

from forebay.sys.clock import Clock
from forebay.testing.clock import ManualClock

SLOWER: Final = 30
_TEN_YEARS_S: Final = 10 * 365 * 86_400.0


class SlowClock(Clock):
    """A second takes half a minute: what must answer within two has a minute for it."""

    def monotonic(self) -> float:
        return super().monotonic() / SLOWER


class CountingClock(Clock):
    """A millisecond passes whenever somebody looks, and never otherwise."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.looks / 1000


@contextmanager
def jumping_wall() -> Iterator[None]:
    """Somebody sets the machine's clock, ten years ahead and back, at every look."""
    looks = count()
    now = time.time()
    with patch("time.time", lambda: now + (-1) ** next(looks) * _TEN_YEARS_S):
        yield


@contextmanager
def waiting_in_vain(clock: ManualClock) -> Iterator[None]:
    """Nobody answers: whoever waits for a socket waits its whole time, and only on this clock."""

    def wait(_connection: object, *, write: bool, timeout_s: float) -> bool:
        clock.advance(timeout_s)
        return False

    with patch("forebay.sys.sockets.wait", wait):
        yield
