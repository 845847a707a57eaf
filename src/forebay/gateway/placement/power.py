"""Whether an engine that shares a GPU with others is awake; one that has it alone always is."""

from enum import StrEnum
from typing import Final


class Power(StrEnum):
    """An engine's power state; requests are sent to it only while it is awake."""

    AWAKE = "awake"
    DRAINING = "draining"  # it gets no new requests, and finishes those that it has
    FALLING_ASLEEP = "falling asleep"
    ASLEEP = "asleep"  # unfinished answers are kept, and continue when it wakes
    WAKING = "waking"  # or its process is starting
    OFF = "off"  # its process does not run
    UNKNOWN = "unknown"  # not asked yet
    BROKEN = "broken"  # it neither wakes nor sleeps; tried again later


CHANGING: Final = frozenset({Power.DRAINING, Power.FALLING_ASLEEP, Power.WAKING, Power.UNKNOWN})
RESTING: Final = frozenset({Power.ASLEEP, Power.OFF})
