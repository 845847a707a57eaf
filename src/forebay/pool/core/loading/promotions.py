"""Chunks on their way from lower tiers into DRAM, each read once, however many wait for it.

A read takes a slot when it begins, and counts against the load budget until it has ended: against
its engine's share as long as anyone waits for it. In the meantime the chunk is in the table as
LOADING, so that others join the read instead of reading it again. Reads for requests that have not
asked stay within what may be retained for their engine, `AHEAD_READS` at once.
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final

from forebay.decisions import Decision
from forebay.identity.groups import rule_of
from forebay.metrics.catalog import Ended
from forebay.metrics.labels import OK, Direction
from forebay.pool.core.budget import NOBODY
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.loading.request import LoadRequest, LoadState
from forebay.pool.core.loading.retention import Retention
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.stack import TierOperation
from forebay.record.header import ROOT, RecordName
from forebay.tiers.contract import Hit, Miss, MissReason
from forebay.tiers.dram.slab import slot_bytes_for

AHEAD_READS: Final = 8  # in flight at once for requests that have not asked
READ_DEADLINE_S: Final = 30.0  # a read not begun by then is given up
# What a failed read means to the requests that waited for it.
_WHY: Final = {
    MissReason.CORRUPT: Decision.CORRUPT,
    MissReason.WRONG_RECORD: Decision.CORRUPT,
    MissReason.NO_KEY: Decision.TIER_OFF,
    MissReason.IO_ERROR: Decision.IO_ERROR,
    MissReason.TIER_OFF: Decision.TIER_OFF,
    MissReason.BUDGET: Decision.REQUEST_BUDGET,
    MissReason.DEADLINE: Decision.DEADLINE,
    MissReason.BUSY: Decision.DEADLINE,
}
Waiting = dict[tuple[LoadRequest, int], None]  # who waits for a chunk, and at which position


class FetchOutcome(Enum):
    """What became of a chunk that a request wants."""

    HERE = auto()  # READY in DRAM
    AWAITED = auto()  # LOADING; the request hears when the read has ended
    NO_ROOM = auto()  # there is no room for it now
    GONE = auto()  # it cannot be loaded


class Promotions:
    """All reads in flight. Owned by the pool's thread; `complete` brings results back to it."""

    def __init__(
        self,
        parts: CoreParts,
        retention: Retention,
        ended: Callable[[Chunk, list[TierOperation]], None],
    ) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._complete = parts.clock, parts.complete
        self._retention = retention
        self._ended = ended  # called on the pool's thread after every read; has to call `end`
        self._waiting: dict[Chunk, Waiting] = {}
        self._source: dict[Chunk, int] = {}  # the tier that is tried first
        self._ahead: set[Chunk] = set()

    @property
    def in_flight(self) -> int:
        """Reads that tiers have not finished."""
        return len(self._waiting)

    @property
    def are_too_many_unawaited(self) -> bool:
        """Whether reads that nobody waits for hold more than an eighth of DRAM."""
        unawaited_bytes = self._dram.load_budget.used_by(NOBODY)
        return unawaited_bytes > self._dram.slab.cap_bytes // 8

    def begin(
        self, engine: str, name: RecordName, length: int, *, ahead: bool, only_free: bool = False
    ) -> Chunk | None:
        """Begin to read a chunk from a lower tier; None if there is no slot for it.

        No slot is given while reads that nobody waits for hold an eighth of DRAM. `only_free`: nor
        is a chunk evicted for it.
        """
        if self.are_too_many_unawaited:  # verify: unawaited
            return None
        chunk = self._dram.begin_load(engine, name, length, only_free=only_free)
        if chunk is None:
            return None
        self._waiting[chunk] = {}
        if ahead:
            self._ahead.add(chunk)
        deadline = self._clock.monotonic() + READ_DEADLINE_S
        target = self._dram.slab.view(chunk.offset, length)
        ended = partial(self._ended_on_thread, chunk)
        self._source[chunk] = self._stack.load(name, target, ended, deadline)
        return chunk

    def fetch(self, request: LoadRequest, position: int) -> FetchOutcome:
        """Bring a chunk that a request wants into DRAM, unless it is there."""
        key = request.keys[position]
        chunk = self._dram.chunks.get(key)
        if chunk is None:
            chunk = self._read(request, position)
        elif not self._dram.chunks.is_coming_or_ready(key):  # verify: damaged, in use
            chunk = None
        if chunk is None:
            return self._why_not(request, position)
        if not request.is_its(chunk, request.group_at(position)):  # verify: dram namespace
            return FetchOutcome.GONE
        if chunk.state is SlotState.READY:
            return FetchOutcome.HERE
        if chunk.engine == NOBODY and not self._has_room(request, chunk.slot_bytes):
            return FetchOutcome.NO_ROOM
        self._join(chunk, request, position)
        return FetchOutcome.AWAITED

    def _read(self, request: LoadRequest, position: int) -> Chunk | None:
        """Begin to read a chunk from a lower tier; None if none has it or there is no room."""
        key = request.keys[position]
        length = self._stack.length_of(key)
        if length is None or not self._fits_ever(request, length):
            return None
        if not self._has_room(request, slot_bytes_for(length)):
            return None
        previous = request.keys[position - 1] if position else ROOT
        group = request.group_at(position)
        parent = rule_of(group).parent_of(previous)
        name = RecordName(request.namespace, group, key, parent, request.tenant)
        is_ahead = request.state is LoadState.ARRIVED
        return self.begin(request.engine, name, length, ahead=is_ahead)

    def _has_room(self, request: LoadRequest, slot_bytes: int) -> bool:
        if request.state is LoadState.ARRIVED:
            left_bytes = self._retention.left_bytes(request.engine)
            return len(self._ahead) < AHEAD_READS and slot_bytes <= left_bytes
        return self._dram.load_budget.fits(request.engine, slot_bytes)

    def _fits_ever(self, request: LoadRequest, length: int) -> bool:
        """Whether a payload could ever fit into DRAM, and within its tenant's quota."""
        quotas = self._dram.quotas
        return self._dram.slab.fits(length) and quotas.ever_fits(
            request.tenant, slot_bytes_for(length)
        )

    def _why_not(self, request: LoadRequest, position: int) -> FetchOutcome:
        """Why a chunk is not read: NO_ROOM for now, or GONE."""
        key = request.keys[position]
        is_condemned = self._dram.chunks.is_condemned(key)  # its slot has to be free first
        length = None if is_condemned else self._stack.length_of(key)
        if length is not None and self._fits_ever(request, length):
            return FetchOutcome.NO_ROOM
        if length is None and request.note.cut is None:  # lost since the lookup: note why here
            request.note.cut = self.why_gone(key) or Decision.EVICTED
        return FetchOutcome.GONE

    def why_gone(self, key: bytes) -> Decision | None:
        """Why a chunk cannot be loaded; None if it never was here, as far as is remembered."""
        why = self._dram.lost_keys.reason(key)
        off = None if why is not None else self._stack.why_off(key)
        if off is None:
            return why
        return Decision.REQUEST_BUDGET if off is MissReason.BUDGET else Decision.TIER_OFF

    def in_flight_by_tier(self) -> Counter[int]:
        """Reads that tiers have not finished, by tier."""
        return Counter(self._source.values())

    def _join(self, chunk: Chunk, request: LoadRequest, position: int) -> None:
        if chunk.engine == NOBODY:
            self._dram.charge_load(chunk, request.engine)
        self._waiting[chunk][request, position] = None
        if request.state is not LoadState.ARRIVED:
            self._ahead.discard(chunk)

    def asked(self, request: LoadRequest, wanted: range) -> None:
        """A request asks for these of its chunks: stop waiting for others; these are due."""
        self._stop_awaiting(
            request, [position for position in request.awaited if position not in wanted]
        )
        for position in request.awaited:
            chunk = self._dram.chunks.get(request.keys[position])
            if chunk is not None:
                self._ahead.discard(chunk)

    def truncate(self, request: LoadRequest, position: int) -> None:
        """A chunk cannot be loaded: the request stops waiting for it and all that follows."""
        self._stop_awaiting(request, [waited for waited in request.awaited if waited >= position])
        request.truncate(position)

    def stop_awaiting(self, request: LoadRequest) -> None:
        """A request stops waiting for anything."""
        self._stop_awaiting(request, list(request.awaited))

    def _stop_awaiting(self, request: LoadRequest, positions: list[int]) -> None:
        """Stop waiting at these positions; a read that nobody waits for is charged to nobody.

        So nothing grows with requests that have gone while a tier hangs.
        """
        for position in positions:
            request.awaited.discard(position)
            chunk = self._dram.chunks.get(request.keys[position])
            waiting = None if chunk is None else self._waiting.get(chunk)
            if chunk is None or waiting is None:
                continue  # it is in DRAM, and just being hashed again
            waiting.pop((request, position), None)
            if not waiting and chunk.engine != NOBODY:
                self._ahead.discard(chunk)
                self._dram.charge_load(chunk, NOBODY)

    def _ended_on_thread(self, chunk: Chunk, operations: list[TierOperation]) -> None:
        self._complete(partial(self._ended, chunk, operations))

    def end(self, chunk: Chunk, operations: list[TierOperation]) -> Waiting:
        """A read has ended: make the chunk READY, or drop it; returns who waited for it."""
        waiting = self._waiting.pop(chunk)
        self._ahead.discard(chunk)
        del self._source[chunk]
        for operation in operations:
            self._count(chunk, operation)
        outcome = operations[-1].outcome
        is_whole = isinstance(outcome, Hit) and outcome.length == chunk.length
        header = outcome.header if isinstance(outcome, Hit) and is_whole else None
        if header is not None:
            chunk.source = operations[-1].tier + 1
        else:
            self._note(chunk, waiting, operations[-1])
        self._dram.end_load(chunk, header)
        return waiting

    def _note(self, chunk: Chunk, waiting: Waiting, operation: TierOperation) -> None:
        """Note why a chunk could not be read, for those who wait and for later lookups."""
        outcome = operation.outcome
        reason = outcome.reason if isinstance(outcome, Miss) else MissReason.WRONG_RECORD
        why = _WHY.get(reason, Decision.EVICTED)
        if why in (Decision.CORRUPT, Decision.IO_ERROR):
            self._dram.lost_keys.note(chunk.key, why)
        for request, _ in waiting:
            if request.note.cut is None:
                request.note.cut = why

    def _count(self, chunk: Chunk, operation: TierOperation) -> None:
        tier, outcome = self._stack.name_of(operation.tier), operation.outcome
        if isinstance(outcome, Miss):
            label: str = outcome.reason
        else:
            is_whole = isinstance(outcome, Hit) and outcome.length == chunk.length
            label = OK if is_whole else MissReason.WRONG_RECORD
        took = Ended(chunk.length, operation.waited_s, operation.took_s)
        self._metrics.tiers.record((tier, Direction.LOAD), label, took)
        if isinstance(outcome, Hit) and outcome.used_at is not None:
            gap_s = max(0.0, operation.submitted - outcome.used_at)
            self._metrics.evictions.gap.observe(gap_s, (tier,))
