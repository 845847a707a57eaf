"""Time. Leases, deadlines and windows go by this clock, which nobody can set."""

import time


class Clock:
    """The machine's clocks; tests pass a subclass whose hands they move."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Wait; only where nobody else has to."""
        time.sleep(duration_s)
