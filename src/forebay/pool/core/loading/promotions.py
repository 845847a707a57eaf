"""Chunks on their way from lower tiers into DRAM, each read once however many wait for it.

A slot is taken when a read begins and counts against the load budget until it has ended: against
its engine's share as long as anyone waits for it. The chunk is in the table as LOADING all the
while, so that others join it instead of reading it again. What is read for who has not asked stays
inside what may be retained for its engine, and is `AHEAD_READS` at once.
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

AHEAD_READS: Final = 8  # in flight at once for who has not asked; who asks waits for no more
READ_DEADLINE_S: Final = 30.0  # a read not begun by then is given up
# What a read that gave nothing means to the requests that waited for it.
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
Waiting = dict[tuple[LoadRequest, int], None]  # who waits for a chunk, and which of theirs it is


class FetchOutcome(Enum):
    """What became of a chunk that a request wants next."""

    HERE = auto()  # READY in DRAM
    AWAITED = auto()  # LOADING; the request hears when that has ended
    NO_ROOM = auto()  # now
    GONE = auto()  # it cannot be had


class Promotions:
    """All reads in flight. Owned by the pool's thread; `complete` brings them back to it."""

    def __init__(
        self,
        parts: CoreParts,
        retention: Retention,
        ended: Callable[[Chunk, list[TierOperation]], None],
    ) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._complete = parts.clock, parts.complete
        self._retention = retention
        self._ended = ended  # called on the pool's thread for every read; it calls `end`
        self._waiting: dict[Chunk, Waiting] = {}
        self._source: dict[Chunk, int] = {}  # the tier that each is read from, first of all
        self._ahead: set[Chunk] = set()

    @property
    def in_flight(self) -> int:
        """Reads that tiers have not answered yet."""
        return len(self._waiting)

    @property
    def are_too_many_unawaited(self) -> bool:
        """Whether reads that nobody waits for have more than an eighth of DRAM."""
        unawaited_bytes = self._dram.load_budget.used_by(NOBODY)
        return unawaited_bytes > self._dram.slab.cap_bytes // 8

    def begin(
        self, engine: str, name: RecordName, length: int, *, ahead: bool, only_free: bool = False
    ) -> Chunk | None:
        """Begin to read a chunk that a lower tier has; None if there is no slot for it.

        Nor is there one while reads that nobody waits for any more have an eighth of DRAM.
        `only_free`: nor is one freed for it.
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
        """Have a chunk come that a request wants, unless it is here."""
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
        """Begin to read a chunk from a lower tier; None if it is not there or there is no room."""
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
        """Whether DRAM, and what its tenant may hold of it, could hold so much."""
        quotas = self._dram.quotas
        return self._dram.slab.fits(length) and quotas.ever_fits(
            request.tenant, slot_bytes_for(length)
        )

    def _why_not(self, request: LoadRequest, position: int) -> FetchOutcome:
        """A chunk cannot be read: for want of room, or because it cannot be had at all."""
        key = request.keys[position]
        is_leaving = self._dram.chunks.is_leaving(key)  # another copy has to wait for its slot
        length = None if is_leaving else self._stack.length_of(key)
        if length is not None and self._fits_ever(request, length):
            return FetchOutcome.NO_ROOM
        if length is None and request.note.cut is None:  # since its lookup: nobody else says why
            request.note.cut = self.why_gone(key) or Decision.EVICTED
        return FetchOutcome.GONE

    def why_gone(self, key: bytes) -> Decision | None:
        """Why a chunk cannot be had; None: it never was here, as far as is remembered."""
        why = self._dram.lost_keys.reason(key)
        off = None if why is not None else self._stack.why_off(key)
        if off is None:
            return why
        return Decision.REQUEST_BUDGET if off is MissReason.BUDGET else Decision.TIER_OFF

    def in_flight_by_tier(self) -> Counter[int]:
        """Reads that tiers have not answered yet, by tier."""
        return Counter(self._source.values())

    def _join(self, chunk: Chunk, request: LoadRequest, position: int) -> None:
        if chunk.engine == NOBODY:
            self._dram.charge_load(chunk, request.engine)
        self._waiting[chunk][request, position] = None
        if request.state is not LoadState.ARRIVED:
            self._ahead.discard(chunk)

    def asked(self, request: LoadRequest, wanted: range) -> None:
        """A request asks for these of its chunks: it waits for no other, and those are due."""
        self._leave(request, [position for position in request.awaited if position not in wanted])
        for position in request.awaited:
            chunk = self._dram.chunks.get(request.keys[position])
            if chunk is not None:
                self._ahead.discard(chunk)

    def cut_off(self, request: LoadRequest, position: int) -> None:
        """What is at a position cannot be had: a request waits for nothing that follows."""
        self._leave(request, [waited for waited in request.awaited if waited >= position])
        request.cut_off(position)

    def leave(self, request: LoadRequest) -> None:
        """A request waits for nothing any more."""
        self._leave(request, list(request.awaited))

    def _leave(self, request: LoadRequest, positions: list[int]) -> None:
        """It does not wait for these: nobody is charged with what nobody waits for.

        A tier may hang for long, and meanwhile nothing grows with those who have gone.
        """
        for position in positions:
            request.awaited.discard(position)
            chunk = self._dram.chunks.get(request.keys[position])
            waiting = None if chunk is None else self._waiting.get(chunk)
            if chunk is None or waiting is None:
                continue  # it is here, and only hashed again
            waiting.pop((request, position), None)
            if not waiting and chunk.engine != NOBODY:
                self._ahead.discard(chunk)
                self._dram.charge_load(chunk, NOBODY)

    def _ended_on_thread(self, chunk: Chunk, operations: list[TierOperation]) -> None:
        self._complete(partial(self._ended, chunk, operations))

    def end(self, chunk: Chunk, operations: list[TierOperation]) -> Waiting:
        """A read has ended: the chunk is READY, or was dropped. Who waited for it."""
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
        """A chunk could not be read: whoever waits for it, and looks it up later, hears why."""
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
