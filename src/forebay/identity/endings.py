"""Classes of how answers end: the only thing about an answer's text that leaves an engine.

A class is a small number. Some have names; the others stand for the last tokens of an answer, an
end-of-turn or tool marker mostly, as `MARKERS` numbers into which all token ids fall: nobody can
tell from one which tokens it was. Engines with the same vocabulary have the same numbers.
"""

import hashlib
import struct
from enum import IntEnum
from typing import Final

MARKER_FIRST: Final = 16
ENDINGS_MAX: Final = 64  # classes in all
MARKERS: Final = ENDINGS_MAX - MARKER_FIRST
MARKER_TOKENS: Final = 2  # the marker of a tool call, and the end of the turn behind it
PRIORITY_MAX: Final = 2  # from minus that
SECONDS_MAX: Final = 86_400.0  # that a hint may name
SESSION_BYTES: Final = 8


class EndingClass(IntEnum):
    """Classes that have names, and those beyond `MARKER_FIRST` that have none."""

    NOT_KNOWN = 0
    TOOL_CALL = 1  # as a gateway says that parses answers
    STOP = 2  # the model ended it
    LENGTH = 3  # it was as long as it may be
    ABORT = 4  # nobody wanted the rest
    OTHER = 5
    EXPECTED = 6  # whatever it was: the caller said when it returns


def marker_class(token_ids: tuple[int, ...]) -> int:
    """The class of an answer's last tokens."""
    joined = struct.pack(f"<{len(token_ids)}q", *token_ids)
    number = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")
    return MARKER_FIRST + number % MARKERS


def bounded_class(number: int) -> int:
    """A class that somebody else named."""
    return number if 0 <= number < ENDINGS_MAX else EndingClass.NOT_KNOWN


def bounded_seconds(value: float) -> float:
    """Seconds that somebody else named; what is no such time is 0, which says nothing."""
    return min(value, SECONDS_MAX) if value > 0 else 0.0


def bounded_priority(value: int) -> int:
    """A priority that somebody else named."""
    return max(-PRIORITY_MAX, min(PRIORITY_MAX, value))
