"""Faults as values: what goes wrong, at which call, and how a person writes it down.

    read:latency=200ms       every read takes 200 ms longer
    write:errno=ENOSPC@3     the third write from now fails
    write:errno=EIO@3+       the third and all that follow
    read:flip=1@5%           one read in twenty has one bit flipped
    write+rename:kill=after@7  the process kills itself after the seventh of these calls
    *:errno=EIO              everything fails

A rule is armed on a `FaultDisk`; its calls are counted from then on.
"""

import errno
import random
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forebay.errors import SettingsError
from forebay.quantity import parse_size


class Operation(StrEnum):
    """The calls of `forebay.sys.disk.Disk`, as rules name them."""

    OPEN_DIRECTORY = "open_directory"
    OPEN = "open"
    CLOSE = "close"
    READ = "read"
    WRITE = "write"
    PREALLOCATE = "preallocate"
    RENAME = "rename"
    UNLINK = "unlink"
    NAMES = "names"
    STATUS = "status"
    ZERO = "zero"
    SYNC = "sync"
    SPACE = "space"
    LOCK = "lock"


# The calls that change what a crash leaves behind.
MUTATING: Final = frozenset(
    {
        Operation.OPEN,
        Operation.WRITE,
        Operation.PREALLOCATE,
        Operation.ZERO,
        Operation.SYNC,
        Operation.RENAME,
        Operation.UNLINK,
    }
)


class Effect(StrEnum):
    """How a call goes wrong."""

    ERRNO = "errno"  # the call fails and has done nothing
    SHORT = "short"  # only the first `amount` bytes are read or written, as it reports
    TEAR = "tear"  # only the first `amount` bytes are written or zeroed, but it reports all
    MISDIRECT = "misdirect"  # the right bytes, `amount` bytes further on
    FLIP = "flip"  # `amount` bits of what was read are wrong
    LATENCY = "latency"  # the call takes `amount` seconds longer
    HANG = "hang"  # the call does not return until the rule is disarmed
    KILL = "kill"  # SIGKILL of this process, before (0) or after (1) the call


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule; `parse_fault` reads it from text."""

    operations: frozenset[Operation]
    effect: Effect
    amount: float = 0  # errno, bytes, bits or seconds, depending on the effect
    first: int = 1  # the first call that it applies to, counted from arming
    last: int | None = None  # the last call that it applies to; None: no end
    probability: float = 1.0  # of each call between first and last
    within: str = ""  # only paths with this text in them, to fail one drive of several


_DATA_EFFECTS: Final = {Effect.SHORT, Effect.TEAR, Effect.MISDIRECT, Effect.FLIP}
_DATA_OPERATIONS: Final = frozenset({Operation.READ, Operation.WRITE})
_TORN_OPERATIONS: Final = _DATA_OPERATIONS | {Operation.ZERO}
_WHEN: Final = re.compile(r"(?P<nth>\d{1,9})(?P<on>\+?)|(?P<percent>\d{1,3}(?:\.\d{1,4})?)%")
_SECONDS: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(us|ms|s)")
_SECONDS_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_KILL_TIMES: Final = {"before": 0.0, "after": 1.0}


def parse_fault(text: str) -> Fault:
    """Parse a rule; a SettingsError tells what is wrong with it."""
    what, at, when = text.partition("@")
    operations, colon, effect = what.partition(":")
    name, equals, value = effect.partition("=")
    if not colon or name not in set(Effect):
        raise _unknown(text, f"an effect is one of {', '.join(Effect)}")
    found = Effect(name)
    if (found is Effect.HANG) == bool(equals):
        raise _unknown(text, "'hang' takes no value and every other effect needs one")
    places = _parse_operations(text, operations)
    if found is Effect.TEAR and not places <= _TORN_OPERATIONS:
        raise _unknown(text, "'tear' is for read, write and zero")
    if found in _DATA_EFFECTS - {Effect.TEAR} and not places <= _DATA_OPERATIONS:
        raise _unknown(text, f"'{found}' is for read and write")
    amount = 0.0 if found is Effect.HANG else _parse_amount(text, found, value)
    first, last, probability = _parse_when(text, when) if at else (1, None, 1.0)
    return Fault(places, found, amount, first, last, probability)


def _parse_operations(text: str, operations: str) -> frozenset[Operation]:
    if operations == "*":
        return frozenset(Operation) - {Operation.CLOSE}
    names = operations.split("+")
    if not set(names) <= set(Operation):
        raise _unknown(text, f"an operation is '*' or some of {', '.join(Operation)}")
    return frozenset(Operation(name) for name in names)


def _parse_amount(text: str, effect: Effect, value: str) -> float:
    if effect is Effect.ERRNO:
        number = getattr(errno, value, None)
        if not isinstance(number, int):
            raise _unknown(text, "an error is named as in errno.h, such as EIO or ENOSPC")
        return number
    if effect is Effect.KILL:
        if value not in _KILL_TIMES:
            raise _unknown(text, "a process is killed 'before' or 'after' a call")
        return _KILL_TIMES[value]
    if effect is Effect.LATENCY:
        match = _SECONDS.fullmatch(value)
        if match is None:
            raise _unknown(text, "a latency is written as 200ms or 1.5s")
        return float(match[1]) * _SECONDS_UNITS[match[2]]
    return parse_size(value)


def _parse_when(text: str, when: str) -> tuple[int, int | None, float]:
    match = _WHEN.fullmatch(when)
    if match is None or float(match["percent"] or 0) > 100 or match["nth"] == "0":
        raise _unknown(text, "behind '@' stands 3, 3+ or 5%")
    if match["percent"]:
        return 1, None, float(match["percent"]) / 100
    first = int(match["nth"])
    return first, None if match["on"] else first, 1.0


def _unknown(text: str, what: str) -> SettingsError:
    return SettingsError(f"'{text[:60]}' is not a fault: {what}; see forebay.testing.faults.")


class Armed:
    """An armed rule: counts its calls, and releases those that hang when it is disarmed."""

    def __init__(self, fault: Fault, draw: random.Random) -> None:
        self.fault = fault
        self.calls = 0  # that it was matched against since it was armed
        self.fired = 0
        self._draw = draw
        self._released = threading.Event()

    def disarm(self) -> None:
        """Apply the rule to no further call; hanging and delayed ones go on at once."""
        self._released.set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until the time is up or the rule is disarmed."""
        self._released.wait(timeout_s)

    def matches(self, operation: Operation, path: str) -> bool:
        """Count one call; whether this rule applies to it. Called under the rules' lock."""
        fault = self.fault
        if self._released.is_set() or operation not in fault.operations:
            return False
        if fault.within not in path:
            return False
        self.calls += 1
        if self.calls < fault.first or (fault.last is not None and self.calls > fault.last):
            return False
        if fault.probability < 1 and self._draw.random() >= fault.probability:
            return False
        self.fired += 1
        return True


class Rules:
    """The armed rules of one disk; any thread may arm, disarm and call."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._lock = threading.Lock()  # guards the rules, their counters and `calls`
        self._armed: tuple[Armed, ...] = ()
        self.calls: Counter[Operation] = Counter()

    def arm(self, fault: Fault) -> Armed:
        """Add a rule."""
        armed = Armed(fault, self._draw)
        with self._lock:
            self._armed = (*self._armed, armed)
        return armed

    def disarm(self) -> None:
        """Remove every rule; calls that hang go on."""
        with self._lock:
            gone, self._armed = self._armed, ()
        for armed in gone:
            armed.disarm()

    def matching(self, operation: Operation, path: str) -> Sequence[Armed]:
        """Count one call; returns the rules that apply to it, in the order of arming."""
        with self._lock:
            self.calls[operation] += 1
            return [armed for armed in self._armed if armed.matches(operation, path)]

    def draw_bits(self, count: int, size_bits: int) -> list[int]:
        """Random positions of bits to flip."""
        with self._lock:
            return [self._draw.randrange(size_bits) for _ in range(count)]
