"""A drive's error budget: too many failures within a window switch it off, a probe back on."""

import threading
from collections import deque

from forebay.tiers.disk.options import Options


class Health:
    """Whether a drive is in use. The lock guards all of this."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._errors: deque[float] = deque(maxlen=options.errors_max)
        self._is_on = True
        self._probe_at = 0.0
        self.errors = 0  # since start

    @property
    def is_on(self) -> bool:
        """Whether the drive is in use."""
        return self._is_on

    def failed(self, now: float) -> bool:
        """Count a failure; True if that switched the drive off."""
        with self._lock:
            self.errors += 1
            self._errors.append(now)
            full = len(self._errors) == self._options.errors_max
            exhausted = full and now - self._errors[0] <= self._options.error_window_s
        return exhausted and self.switch_off(now)

    def switch_off(self, now: float) -> bool:
        """Stop using the drive until a probe succeeds; True if it was on."""
        with self._lock:
            was_on, self._is_on = self._is_on, False
            self._probe_at = now + self._options.probe_interval_s
            return was_on

    def probe_due(self, now: float) -> bool:
        """Whether a drive that is off is to be probed now; True once per interval."""
        with self._lock:
            if self._is_on or now < self._probe_at:
                return False
            self._probe_at = now + self._options.probe_interval_s
            return True

    def switch_on(self) -> None:
        """Use the drive again, with a fresh budget."""
        with self._lock:
            self._errors.clear()
            self._is_on = True
