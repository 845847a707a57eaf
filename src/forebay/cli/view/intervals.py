"""What `stats --watch` and `top` have in common: how often they look, and where they print."""

import os
import sys
from typing import Final

INTERVAL_S: Final = 2.0
INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 3600.0


def interval(text: str) -> float:
    """Parse the seconds between two looks; ValueError if out of range."""
    seconds = float(text)
    if not INTERVAL_S_MIN <= seconds <= INTERVAL_S_MAX:
        raise ValueError
    return seconds


def can_be_drawn_on() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}
