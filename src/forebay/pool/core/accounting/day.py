"""Bytes written in the last 24 hours, by the hour."""

from collections import deque
from typing import Final

_HOUR_S: Final = 3600.0
_HOURS: Final = 24


class DayWindow:
    """A sum that forgets what is older than a day, an hour at a time."""

    def __init__(self) -> None:
        self._hours: deque[list[float]] = deque(maxlen=_HOURS + 1)  # [when it began, bytes]

    def add(self, size_bytes: int, now: float) -> None:
        """So many bytes were written."""
        if not self._hours or now - self._hours[-1][0] >= _HOUR_S:
            self._hours.append([now, 0])
        self._hours[-1][1] += size_bytes

    def total(self, now: float) -> int:
        """What was written in the last 24 hours, counting whole hours."""
        oldest = now - (_HOURS + 1) * _HOUR_S
        return int(sum(size for begun, size in self._hours if begun > oldest))
