"""The error budget of the pool: after too many failures it is not used for a while.

Every failure is a miss anyway; but a miss after waiting costs more than one without asking. So
after several failures nothing is asked or offered for a while; then one request tries again.
"""

import logging
from collections import Counter, deque
from typing import Final

_FAILURES: Final = 5
_WINDOW_S: Final = 10.0
_PAUSE_S: Final = 5.0
_PAUSE_MAX_S: Final = 60.0
_PROBE_S: Final = 2.0  # after a pause, time between two requests that try again
_log: Final = logging.getLogger("forebay")


class ErrorBudget:
    """Whether the pool may be used. Time is passed in; every pause is counted and logged."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._failed_at: deque[float] = deque(maxlen=_FAILURES)
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0
        self._is_trying = False  # the pause is over, and nothing has succeeded since

    def allows(self, now: float) -> bool:
        """Whether a request may ask the pool; after a pause one may every `_PROBE_S`."""
        if now < self._paused_until:
            return False
        if self._is_trying:
            self._paused_until = now + _PROBE_S
        return True

    def is_spent(self, now: float) -> bool:
        """Whether the pool is paused, or has not succeeded since a pause."""
        return self._is_trying or now < self._paused_until

    def failed(self, now: float) -> None:
        """Count a failure, of the pool or of our own code; enough of them begin a pause."""
        self._failed_at.append(now)
        recent = len(self._failed_at) == _FAILURES and now - self._failed_at[0] <= _WINDOW_S
        if not recent and not self._is_trying:
            return
        self._counts["pool.paused"] += 1
        _log.warning("too many pool failures: not using it for a while")
        self._paused_until = now + self._pause_s
        self._pause_s = min(_PAUSE_MAX_S, self._pause_s * 2)
        self._is_trying = True
        self._failed_at.clear()

    def found_nothing(self) -> None:
        """The pool answered that it knows nothing: that ends a trial after a pause, too."""
        if self._is_trying:
            self.succeeded()

    def succeeded(self) -> None:
        """The pool did what was asked, or is a new one: forget earlier failures."""
        self._failed_at.clear()
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0
        self._is_trying = False
