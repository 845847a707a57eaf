"""Time. Leases, deadlines and windows go by this clock, which nobody can set."""

import time


class Clock:
    """The machine's clocks; tests pass a subclass whose hands they move."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def day(self) -> int:
        """Days since 1970, UTC: what bills go by. It may go back, if somebody sets the clock."""
        return int(time.time() // 86_400)

    def sleep(self, duration_s: float) -> None:
        """Wait; only where nobody else has to."""
        time.sleep(duration_s)
