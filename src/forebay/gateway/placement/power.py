"""Whether an engine that shares a GPU with others is awake; one that has it alone always is."""

from enum import StrEnum
from typing import Final


class Power(StrEnum):
    """Requests are sent to an engine only while it is awake."""

    AWAKE = "awake"
    DRAINING = "draining"  # it is given nothing more, and answers what it has
    FALLING_ASLEEP = "falling asleep"
    ASLEEP = "asleep"  # answers that were under way are kept, and go on when it wakes
    WAKING = "waking"  # or starting
    OFF = "off"  # its process does not run
    UNKNOWN = "unknown"  # not asked yet
    BROKEN = "broken"  # it neither wakes nor sleeps; tried again later


CHANGING: Final = frozenset({Power.DRAINING, Power.FALLING_ASLEEP, Power.WAKING, Power.UNKNOWN})
RESTING: Final = frozenset({Power.ASLEEP, Power.OFF})
