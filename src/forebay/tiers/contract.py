"""What every tier promises, and the outcomes it answers with.

A tier holds records by name. Loading gives exactly what was stored, or a miss; no exception, no
partial bytes in a hit. Storing never waits for space: what does not fit is dropped, with a reason.

Buffers belong to the tier from the call until `done` is called, exactly once, on any thread; until
then nobody else may touch them, even if the caller has long stopped waiting. They are page-aligned
and of whole pages (`forebay.sys.memory.allocate`), so that bytes go straight to the medium.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forebay.record.header import Damage, RecordHeader, RecordName


class MissReason(StrEnum):
    """Why a load is a miss; also the metric label."""

    ABSENT = "absent"  # never stored, evicted, or its prefix is gone
    DEADLINE = "deadline"  # not begun or not done in time
    CORRUPT = "corrupt"  # the bytes are damaged; the record is forgotten
    WRONG_RECORD = "wrong_record"  # undamaged bytes of something else; the record is forgotten
    IO_ERROR = "io_error"  # the medium failed
    TIER_OFF = "tier_off"  # switched off by its error budget, or closed
    BUSY = "busy"  # more loads are waiting than may wait
    NO_POOL = "no_pool"  # no pool answers, or it went away; joined again when it is back


class DropReason(StrEnum):
    """Why a store was dropped; also the metric label."""

    DUPLICATE = "duplicate"  # stored already, or being stored
    ORPHAN = "orphan"  # the chunk before it is not in this tier
    TOO_LARGE = "too_large"  # larger than a region, or than the tier
    NO_SPACE = "no_space"  # the medium is full
    BUSY = "busy"  # more bytes are waiting to be written than may wait
    IO_ERROR = "io_error"  # the medium failed
    TIER_OFF = "tier_off"  # switched off by its error budget, or closed


@dataclass(frozen=True, slots=True)
class Hit:
    """The payload is in the target buffer, verified."""

    length: int  # payload bytes; what lies behind them in the target is undefined
    header: RecordHeader | None = field(default=None, compare=False)  # as it stood on the medium


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing was loaded; the target's content is undefined."""

    reason: MissReason
    damage: Damage | None = None  # what verification found, where it found something


@dataclass(frozen=True, slots=True)
class Stored:
    """The record can be loaded from now on."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing was stored."""

    reason: DropReason


LoadOutcome = Hit | Miss
StoreOutcome = Stored | Dropped


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tier holds."""

    records: int
    payload_bytes: int  # of records that can be loaded
    used_bytes: int  # taken from the medium
    cap_bytes: int  # never exceeded


class Tier(ABC):
    """One medium. Methods may be called from any thread; none but close waits for the medium."""

    @abstractmethod
    def prefix(self, keys: Sequence[bytes]) -> int:
        """How many of these chained keys, full or short, are here, counted from the first."""

    @abstractmethod
    def submit_load(
        self,
        name: RecordName,
        target: memoryview,
        done: Callable[[LoadOutcome], None],
        deadline: float,
    ) -> None:
        """Load into `target`; a load not begun at `deadline` (monotonic) is a miss.

        `name.parent` is not compared: a key names its whole prefix.
        """

    @abstractmethod
    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: Callable[[StoreOutcome], None],
        digest: bytes | None = None,
    ) -> None:
        """Store the first `length` bytes of `source`; needs the parent here, or on its way.

        `digest` is their hash, where it is known already: a source that has changed since will
        be found damaged when it is loaded.
        """

    @abstractmethod
    def remove(self, key: bytes) -> None:
        """Forget a record and all that continue it."""

    @abstractmethod
    def usage(self) -> Usage:
        """What is held now."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, as far as `timeout_s` allows, and let go of the medium."""
