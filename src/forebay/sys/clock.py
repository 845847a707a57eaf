"""Clocks: leases, deadlines and windows use the monotonic one, which nobody can set."""

import time


class Clock:
    """The machine's clocks; tests pass a subclass that they can set."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def day(self) -> int:
        """Days since 1970 in UTC, as bills count them. May go back if somebody sets the clock."""
        return int(time.time() // 86_400)

    def sleep(self, duration_s: float) -> None:
        """Wait; only for threads that nobody waits for."""
        time.sleep(duration_s)
