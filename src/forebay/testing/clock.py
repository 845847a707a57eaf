"""A clock that a test sets: time passes only when told to."""

import threading

from forebay.sys.clock import Clock


class ManualClock(Clock):
    """Stands still until it is advanced; any thread may read and advance it.

    It starts at 0, as on a machine that has just been started: this finds code that takes 0 for
    "never", or that mixes deadlines of the real clock with those of this one.
    """

    def __init__(self, monotonic: float = 0.0) -> None:
        self._lock = threading.Lock()  # guards the time
        self._monotonic = monotonic

    def monotonic(self) -> float:
        """Seconds; they never go back."""
        with self._lock:
            return self._monotonic

    def day(self) -> int:
        """Days since this clock started, from 1."""
        return 1 + int(self.monotonic() // 86_400)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0
        with self._lock:
            self._monotonic += seconds
