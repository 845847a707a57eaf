"""Chunks on their way from disk into DRAM, each read once however many wait for it.

A slot is taken when a read begins and counts against the load budget until it has ended; the chunk
is in the table as LOADING all the while, so that others join it instead of reading it again.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from forebay.pool.core.checker import Complete
from forebay.pool.core.chunks import Chunk, State
from forebay.pool.core.loading.request import Request
from forebay.pool.core.room import Room
from forebay.record.header import RecordName
from forebay.sys.clock import Clock
from forebay.tiers.contract import Hit, LoadOutcome
from forebay.tiers.disk import DiskTier

READ_DEADLINE_S: Final = 30.0  # a read not begun by then is given up
Awaiting = list[tuple[Request, int]]  # who waits for a chunk, and which of theirs it is


class Reads:
    """All reads in flight. Owned by the pool's thread; `complete` brings them back to it."""

    def __init__(
        self,
        room: Room,
        disk: DiskTier | None,
        counters: Counter[str],
        clock: Clock,
        complete: Complete,
    ) -> None:
        self.done: Callable[[Chunk, Awaiting], None] = lambda _chunk, _awaiting: None
        self.in_flight = 0
        self._room = room
        self._disk = disk
        self._counters = counters
        self._clock = clock
        self._complete = complete
        self._ahead: set[Chunk] = set()

    @property
    def ahead(self) -> int:
        """Reads in flight for requests that had not asked when they began."""
        return len(self._ahead)

    def prefix(self, keys: list[bytes]) -> int:
        """How many keys, from the first, the disk has."""
        return self._disk.prefix(keys).chunks if self._disk is not None else 0

    def length_of(self, key: bytes) -> int | None:
        """What a chunk on disk holds; None if it is not there."""
        return self._disk.length_of(key) if self._disk is not None else None

    def begin(self, name: RecordName, length: int, *, ahead: bool) -> Chunk | None:
        """Begin to read a chunk that the disk has; None if there is no slot for it."""
        offset = self._room.take(length)
        if offset is None:
            return None
        chunk = Chunk(name, State.LOADING, offset, length)
        chunk.slot_bytes = self._room.slab.slot_bytes_at(offset)
        self._room.chunks.add(chunk)
        self._room.pinned_bytes += chunk.slot_bytes
        self.in_flight += 1
        if ahead:
            self._ahead.add(chunk)
        deadline = self._clock.monotonic() + READ_DEADLINE_S
        target = self._room.slab.view(offset, length)
        assert self._disk is not None
        self._disk.submit_load(name, target, partial(self._ended_on_thread, chunk), deadline)
        return chunk

    def _ended_on_thread(self, chunk: Chunk, outcome: LoadOutcome) -> None:
        self._complete(partial(self._ended, chunk, outcome))

    def _ended(self, chunk: Chunk, outcome: LoadOutcome) -> None:
        self.in_flight -= 1
        self._ahead.discard(chunk)
        self._room.pinned_bytes -= chunk.slot_bytes
        awaiting, chunk.awaited = chunk.awaited, []
        if isinstance(outcome, Hit) and outcome.header is not None:
            self._counters["disk.loaded"] += 1
            self._counters["disk.loaded_bytes"] += chunk.length
            self._room.chunks.adopt(chunk, outcome.header.name)
            chunk.digest = outcome.header.payload_hash
            self._room.chunks.settle(chunk)
            place = self._room.place_of(chunk)
            self._room.policy.stored(chunk.key, chunk.parent, place, self._clock.monotonic())
            self._room.policy.on_disk(chunk.key, present=True)
        else:
            reason = "io_error" if isinstance(outcome, Hit) else outcome.reason.value
            self._counters[f"misses.{reason}"] += 1
            self._room.drop(chunk)
        self.done(chunk, awaiting)
