"""Loads, from ask to release: what engines say about them, and whose turn it is.

A load begins with a lookup (`lookups`): what DRAM has of it is retained, and the rest is read ahead
(`retention`, `read_ahead`, `promotions`). Ask: its chunks are pinned and read, and promised
(`acquisition`). Release: they are unpinned. Records of local groups are looked up one by one, and
asked for with the chunks that they belong to. What was promised may be being read after its
connection is over: see `orphaned_pins`. `request` draws the states of a load.

Whatever brings room, a chunk or a deadline comes here, and is passed on to the module that acts on
it.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from forebay.decisions import Decision
from forebay.identity.tenants import masked
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.hashing import Hasher
from forebay.pool.core.loading.acquisition import Acquisition
from forebay.pool.core.loading.asks import Asks
from forebay.pool.core.loading.promotions import Promotions
from forebay.pool.core.loading.read_ahead import LoadParts, ReadAhead
from forebay.pool.core.loading.request import LoadRequest, LoadRequests, LoadState, unrepeated
from forebay.pool.core.loading.retention import Retention
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.stack import TierOperation
from forebay.pool.core.warming.demand import ChunkDemand
from forebay.pool.messages import Ask, Release, short_keys
from forebay.pool.session import Session
from forebay.record.region import SHORT_KEY_BYTES

DEADLINE_S_MAX: Final = 60.0  # the latest deadline of an ask; later ones count as this


class Loads:
    """All requests of all sessions. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts, demand: ChunkDemand, hasher: Hasher | None) -> None:
        self._clock, self._tenants, self._barrier = parts.clock, parts.tenants, parts.barrier
        self._metrics, self._demand, self._dram = parts.metrics.loads, demand, parts.dram
        self.requests, self._asks = LoadRequests(parts.dram.processes), Asks()
        self._retention = Retention(parts.dram)
        self._promotions = Promotions(parts, self._retention, self._read_ended)
        self.parts = LoadParts(self.requests, self._asks, self._retention, self._promotions)
        self.read_ahead = ReadAhead(parts, self.parts)
        self.acquisition = Acquisition(parts, hasher, self.parts, self.read_ahead)

    def ask(self, session: Session, message: Ask) -> None:
        """Begin to acquire the chunks of a request; the promise follows, at once or later."""
        request = self.requests.get(session, message.request)
        if request is None or request.state is not LoadState.ARRIVED:
            self.acquisition.refuse(session, message.request, message.first)
            return
        now, wait_s = self._clock.monotonic(), max(0, message.deadline_ms) / 1000
        wait_s = min(wait_s, DEADLINE_S_MAX)
        request.half_time, request.deadline = now + wait_s / 2, now + wait_s
        request.stream = message.stream
        if request.awaited:
            wanted = range(max(0, message.first), message.first + max(0, message.count))
            self._promotions.asked(request, wanted)
        local = self._add_local(request, message) if message.local else []
        if local is None:
            self.acquisition.refuse(session, message.request, message.first)
            return
        self.acquisition.begin(request, message.first, message.count)
        for keys in local:
            self._demand.asked_for(request.tenant, keys, len(keys))

    def _add_local(self, request: LoadRequest, message: Ask) -> list[list[bytes]] | None:
        """The keys of the ask's local records, by run, added to the request; None if refused."""
        mask = self._tenants.mask(request.tenant)[:SHORT_KEY_BYTES]
        runs = [
            (run.group, unrepeated(short_keys(masked(run.keys, mask)))) for run in message.local
        ]
        count = sum(len(keys) for _, keys in runs)
        chunks = message.first + message.count
        is_known = 0 <= message.first <= chunks <= len(request.keys)
        if not (is_known and self.requests.admits_more(request, count)):
            return None
        request.add_local(chunks, runs)
        return [keys for _, keys in runs]

    def release(self, session: Session, message: Release) -> None:
        """Unpin what an engine has copied."""
        request = self.requests.get(session, message.request)
        if request is not None:
            self.acquisition.release(request, message.chunks)
            self._take_turns()

    def cancel(self, session: Session, number: int) -> None:
        """Forget a request, in any state."""
        request = self.requests.get(session, number)
        if request is not None:
            self.acquisition.end(request)
            self._take_turns()

    def disconnected(self, session: Session) -> None:
        """Forget all of a session's requests; what they were promised may still be being read."""
        for request in self.requests.of(session):
            self.acquisition.disconnected(request)
        self._take_turns()

    def settled(self, engine: str) -> None:
        """An engine reads no promised chunk any more, on any of its connections: unpin them."""
        self.acquisition.settled(engine)
        self._take_turns()

    def lends(self, engine: str) -> bool:
        """Whether an engine may be reading what was promised on a connection that is over."""
        return engine in self.acquisition.orphaned_pins

    def tick(self, now: float) -> None:
        """Handle deadlines, then let requests go on that wait for room."""
        for request in self._asks.due(now):
            self._metrics.promises_cut.add()
            request.note.cut = request.note.cut or Decision.DEADLINE
            self._guarded(request, partial(self.acquisition.promise_what_is_here, request))
        for request in self._retention.due(now):
            self._guarded(request, partial(self.read_ahead.stop_retaining, request))
        self._take_turns()

    def retain_nothing(self) -> None:
        """Retain nothing for requests without a promise, since an operator goes first."""
        for request in list(self.requests):
            if request.state < LoadState.PROMISED:
                self.read_ahead.stop_retaining(request)

    def refuse_all_of(self, tenant: bytes) -> None:
        """A tenant is forgotten: promise nothing more of its requests."""
        for request in [each for each in self.requests if each.tenant == tenant]:
            if request.state is not LoadState.PROMISED:
                self._guarded(request, partial(self.acquisition.give_up, request))
            elif not request.is_acquired:
                self._guarded(request, partial(self.acquisition.end_stream, request))

    def _read_ended(self, chunk: Chunk, operations: list[TierOperation]) -> None:
        waiting = list(self._promotions.end(chunk, operations))
        is_here = chunk.state is SlotState.READY
        if is_here:  # verify: what one of them makes room for leaves the others their chunk
            self._dram.pin(chunk)
        for request, position in waiting:
            has_asked = request.state is not LoadState.ARRIVED
            owner = self.acquisition if has_asked else self.read_ahead
            self._guarded(request, partial(owner.received, request, position, chunk))
        if is_here:
            self._dram.unpin(chunk)
        self._take_turns()

    def _take_turns(self) -> None:
        """Let all go on that wait for room: asks, engine by engine; then reading ahead."""
        for engine in self._asks.turns():
            while (request := self._asks.first(engine)) is not None:
                self._guarded(request, partial(self.acquisition.advance, request))
                if request.wants_more:
                    break  # those after it wait, however little they want
        if self._retention.has_unread:
            self.read_ahead.run()

    def _guarded(self, request: LoadRequest, step: Callable[[], None]) -> None:
        """Run a step for one request; an exception ends that request alone."""
        if not self._barrier.call("a load", step):
            request.stop = request.next  # even if ending it fails, it is not tried again
            self._barrier.call("the end of a load", self.acquisition.give_up, request)

    @property
    def retained_bytes(self) -> int:
        """What is retained in DRAM for requests that have not been promised it yet."""
        return self._retention.used_bytes

    def retained_for(self, engine: str, key: bytes) -> int:
        """The part of this that was taken from an engine's share for one chunk."""
        return self._retention.taken_for(engine, key)

    @property
    def reads_in_flight(self) -> int:
        """Chunks on their way from lower tiers."""
        return self._promotions.in_flight

    def queue_depths(self) -> tuple[int, Counter[int]]:
        """How many asks have no promise yet; and reads in flight, by tier."""
        return self._asks.waiting, self._promotions.in_flight_by_tier()
