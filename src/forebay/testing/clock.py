"""A clock that a test sets: monotonic and wall time move only when told to."""

import threading

from forebay.sys.clock import Clock


class ManualClock(Clock):
    """Stands still until it is told to move; any thread may read and move it.

    It begins where a machine's clock does that has just been started: what takes 0 for "never", or
    a deadline of the real clock for one of ours, is seen then.
    """

    def __init__(self, monotonic: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()  # guards both times
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        """Seconds that never go back."""
        with self._lock:
            return self._monotonic

    def wall(self) -> float:
        """Seconds since 1970."""
        with self._lock:
            return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        assert seconds >= 0
        with self._lock:
            self._monotonic += seconds
            self._wall += seconds

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the wall clock goes on, the monotonic one does not."""
        self.jump(seconds)

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock, by as much as years and in either direction."""
        with self._lock:
            self._wall += seconds
