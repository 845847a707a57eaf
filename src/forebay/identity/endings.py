"""Classes of how answers end: the only thing about an answer's text that leaves an engine.

A class is a small number. Some classes have names. The others stand for the last tokens of an
answer, mostly an end-of-turn or tool marker: these are hashed to `MARKERS` numbers, from which the
tokens cannot be recovered. Engines with the same vocabulary get the same numbers.
"""

import hashlib
import struct
from enum import IntEnum
from typing import Final

MARKER_FIRST: Final = 16
ENDINGS_MAX: Final = 64  # classes in all
MARKERS: Final = ENDINGS_MAX - MARKER_FIRST
MARKER_TOKENS: Final = 2  # the marker of a tool call, and the end of turn after it
PRIORITY_MAX: Final = 2  # priorities range from -2 to 2
SECONDS_MAX: Final = 86_400.0  # the most that a hint may give
SESSION_BYTES: Final = 8


class EndingClass(IntEnum):
    """The classes that have names; those from `MARKER_FIRST` on have none."""

    NOT_KNOWN = 0
    TOOL_CALL = 1  # told by a gateway, which parses answers
    STOP = 2  # the model ended it
    LENGTH = 3  # it reached its limit of tokens
    ABORT = 4  # it was cancelled
    OTHER = 5
    EXPECTED = 6  # any ending, if the caller told when the dialog will return


def marker_class(token_ids: tuple[int, ...]) -> int:
    """The class of an answer's last tokens."""
    joined = struct.pack(f"<{len(token_ids)}q", *token_ids)
    number = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")
    return MARKER_FIRST + number % MARKERS


def bounded_class(number: int) -> int:
    """A class that somebody else gave; NOT_KNOWN if it is out of range."""
    return number if 0 <= number < ENDINGS_MAX else EndingClass.NOT_KNOWN


def bounded_seconds(value: float) -> float:
    """Seconds that somebody else gave, limited; 0, which means unknown, if not positive."""
    return min(value, SECONDS_MAX) if value > 0 else 0.0


def bounded_priority(value: int) -> int:
    """A priority that somebody else gave, limited to the range allowed."""
    return max(-PRIORITY_MAX, min(PRIORITY_MAX, value))
