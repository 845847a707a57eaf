"""Write-behind: writes chunks from DRAM to the lower tiers, as fast as each tier takes them.

What is written, and in which order, is the policy's decision; see `forebay.pool.policy.writing`.
"""

from functools import partial
from typing import Final

from forebay.metrics.catalog import Ended
from forebay.metrics.labels import OK, Direction, ErrorKind
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.stack import TierOperation
from forebay.record.header import Digest
from forebay.tiers.contract import Dropped, DropReason

WRITES_MAX: Final = 16  # writes in flight or queued at a tier; the rest waits in DRAM
_LATER: Final = frozenset({DropReason.TIER_OFF, DropReason.IO_ERROR, DropReason.ORPHAN})
_TRIES_MAX: Final = 3  # tries of a write that fails; a write that never began does not count
_TRIES_KEPT: Final = 4096  # chunks whose tries are remembered
_WRITES_SHARE: Final = 8  # an eighth of DRAM, since a tier that hangs keeps what it is writing


class WriteBehind:
    """All writes to lower tiers. Owned by the pool's thread; `complete` brings results back."""

    def __init__(self, parts: CoreParts) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._complete = parts.clock, parts.complete
        self._in_flight = [0] * len(self._stack)  # by tier
        self._in_flight_bytes = [0] * len(self._stack)  # likewise
        self._tries: dict[tuple[bytes, int], int] = {}  # key and tier → writes that failed
        self._is_held = [False] * len(self._stack)  # by tier: it accepts nothing now

    @property
    def in_flight(self) -> int:
        """Writes that tiers have not finished."""
        return sum(self._in_flight)

    @property
    def nearest_in_flight(self) -> int:
        """Unfinished writes to the nearest tier; slow writes to further ones hold up nothing."""
        return self._in_flight[0] if self._in_flight else 0

    def in_flight_at(self, tier: int) -> int:
        """Unfinished writes to one tier."""
        return self._in_flight[tier]

    def run(self, *, idle: bool = False) -> None:
        """Begin the writes that the policy offers for each tier, while there is room."""
        for tier in range(len(self._stack)):
            is_held = not self._stack.takes_stores(tier)
            if is_held is not self._is_held[tier]:
                self._is_held[tier] = is_held
                self._dram.policies.hold_writes(tier, held=is_held)
            while not is_held and self._has_room(tier) and self._write_next(tier, idle=idle):
                pass

    def _has_room(self, tier: int) -> bool:
        share_bytes = self._dram.slab.cap_bytes // _WRITES_SHARE
        if self._in_flight_bytes[tier] > share_bytes:  # verify: bytes of writes
            return False
        return self._in_flight[tier] < WRITES_MAX

    def hurry(self) -> None:
        """An engine found no slot: begin whatever can be written."""
        self.run(idle=True)
        has_room = any(map(self._has_room, range(len(self._stack))))
        if has_room and self._dram.policies.queued_bytes:
            self._metrics.error(ErrorKind.IDLE_DRIVE)  # writes wait although a drive is idle: a bug

    def _write_next(self, tier: int, *, idle: bool) -> bool:
        """Begin the next write to a tier; False if nothing is to be written now."""
        dram = self._dram
        is_idle = idle or dram.must_write
        offered = dram.policies.next_write(tier, self._clock.monotonic(), idle=is_idle)
        if offered is None:
            return False
        chunk = dram.chunks.get(offered.key)
        if chunk is None or not self._is_writable(chunk, tier):
            dram.policies.of(offered.tenant).write_failed(offered.key, tier)
            return True
        dram.policies.written(tier, offered.tenant, chunk.slot_bytes)
        dram.begin_write(chunk, tier)
        self._in_flight[tier] += 1
        self._in_flight_bytes[tier] += chunk.slot_bytes
        source = dram.slab.view(chunk.offset, chunk.length)
        done = partial(self._ended_on_thread, chunk)
        digest = Digest(chunk.digest, chunk.shards)
        self._stack.store(tier, chunk.name, source, chunk.length, done=done, digest=digest)
        return True

    def _is_writable(self, chunk: Chunk, tier: int) -> bool:
        if chunk.state is not SlotState.READY or tier in chunk.writing_to:
            return False
        return not self._dram.is_condemned(chunk)

    def _ended_on_thread(self, chunk: Chunk, operation: TierOperation) -> None:
        self._complete(partial(self._ended, chunk, operation))

    def _ended(self, chunk: Chunk, operation: TierOperation) -> None:
        tier, outcome = operation.tier, operation.outcome
        self._in_flight[tier] -= 1
        self._in_flight_bytes[tier] -= chunk.slot_bytes
        label = outcome.reason if isinstance(outcome, Dropped) else OK
        self._dram.end_write(chunk, tier, is_stored=label in (OK, DropReason.DUPLICATE))
        if self._is_for_later(chunk.key, tier, label):
            policy = self._dram.policies.of(chunk.name.tenant)
            policy.write_again(chunk.key, tier, self._clock.monotonic())
        way = (self._stack.name_of(tier), Direction.STORE)
        ended = Ended(chunk.length, operation.waited_s, operation.took_s)
        self._metrics.tiers.record(way, label, ended)

    def _is_for_later(self, key: bytes, tier: int, label: str) -> bool:
        """Whether to write again later: the tier was off, or is about to be, but comes back."""
        tries = self._tries.pop((key, tier), 0)
        if not self._stack.comes_back(tier) or label not in _LATER:
            return False
        # A write that fails by itself, or because its parent failed, is not tried for ever.
        self._tries[key, tier] = tries + (label != DropReason.TIER_OFF)
        if len(self._tries) > _TRIES_KEPT:
            del self._tries[next(iter(self._tries))]
        return tries < _TRIES_MAX
