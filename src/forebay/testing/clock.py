"""A clock that a test sets: time passes only when told to."""

import threading

from forebay.sys.clock import Clock


class ManualClock(Clock):
    """Stands still until it is told to move; any thread may read and move it.

    It begins where a machine's clock does that has just been started: what takes 0 for "never", or
    a deadline of the real clock for one of ours, is seen then.
    """

    def __init__(self, monotonic: float = 0.0) -> None:
        self._lock = threading.Lock()  # guards the time
        self._monotonic = monotonic

    def monotonic(self) -> float:
        """Seconds that never go back."""
        with self._lock:
            return self._monotonic

    def day(self) -> int:
        """Days since this clock's beginning."""
        return 1 + int(self.monotonic() // 86_400)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0
        with self._lock:
            self._monotonic += seconds
