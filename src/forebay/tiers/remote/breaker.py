"""Whether a store is used: too many failures stop stores first, then everything until a probe.

Written by the tier's thread, read by all.
"""

from collections import deque

from forebay.tiers.remote.options import RemoteOptions


class Breaker:
    """Starts open: a store is used once it has answered a probe."""

    def __init__(self, options: RemoteOptions, now: float) -> None:
        self._options = options
        self._failures: deque[float] = deque(maxlen=options.errors_max)
        self._probe_at = now
        self.is_on = False  # the store is in use
        self.errors = 0  # since start

    def takes_stores(self, now: float) -> bool:
        """Whether records are stored: not while half of the error budget is spent."""
        return self.is_on and 2 * self._recent(now) < self._options.errors_max

    def failed(self, now: float) -> bool:
        """Count a failure; True if that ends the use of the store."""
        self.errors += 1
        self._failures.append(now)
        return self._recent(now) == self._options.errors_max and self.trip(now)

    def trip(self, now: float) -> bool:
        """Leave the store alone until a probe succeeds; True if it was in use."""
        was_on, self.is_on = self.is_on, False
        self._probe_at = now + self._options.probe_interval_s
        return was_on

    def probe_due(self, now: float) -> bool:
        """Whether a store that is left alone is to be probed now."""
        return not self.is_on and now >= self._probe_at

    def answered(self) -> None:
        """A probe succeeded: use the store, with a fresh budget."""
        self._failures.clear()
        self.is_on = True

    def _recent(self, now: float) -> int:
        since = now - self._options.error_window_s
        return sum(1 for each in self._failures if each >= since)
