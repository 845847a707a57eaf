"""Time. Leases, deadlines and windows use `monotonic`; `wall` is for display only."""

import time


class Clock:
    """The machine's clocks; tests pass a subclass whose hands they move."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Wait; only where nobody else has to."""
        time.sleep(duration_s)

    def wall(self) -> float:
        """Seconds since 1970, for display only: it may jump by years."""
        return time.time()
