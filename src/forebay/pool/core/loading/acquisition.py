"""Acquires what requests ask for, chunk by chunk, until it is promised and released.

Chunks of an ask are pinned one after another within its engine's share of the load budget; those in
lower tiers are read first (if another request reads one already, this one joins). The promise is
given when all are verified, when the share holds no more (for a stream when it is half full), or at
the deadline with what is verified by then. An ask overtakes others of its engine if DRAM has all of
it.
"""

from functools import partial
from typing import Final

from forebay.metrics.labels import DRAM, Direction, ErrorKind
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.hashing import Hasher, payload_of
from forebay.pool.core.loading.orphaned_pins import OrphanedPins
from forebay.pool.core.loading.promotions import FetchOutcome
from forebay.pool.core.loading.read_ahead import LoadParts, ReadAhead
from forebay.pool.core.loading.replies import Replies
from forebay.pool.core.loading.request import LoadRequest, LoadState
from forebay.pool.core.parts import CoreParts
from forebay.pool.session import Session
from forebay.tiers.dram.slab import slot_bytes_for

_LOADED: Final = (DRAM, Direction.LOAD)
PATIENCE_S: Final = 0.25  # how long an ask waits for other engines to give back room


class Acquisition:
    """Turns asks into promises, and ends loads. Owned by the pool's thread.

    Only this class changes a request's state and, after the ask, its `next`, `stop`, `held` and
    `awaited`.
    """

    def __init__(
        self, parts: CoreParts, hasher: Hasher | None, loads: LoadParts, read_ahead: ReadAhead
    ) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._deferred = parts.clock, parts.deferred
        self._replies = Replies(parts)
        self._hasher = hasher  # None: slots are not hashed again before a promise
        self._requests, self._asks = loads.requests, loads.asks
        self._retention, self._promotions = loads.retention, loads.promotions
        self._read_ahead = read_ahead
        self.orphaned_pins = OrphanedPins()
        self._answering: LoadRequest | None = None  # whose ask is being answered now

    def begin(self, request: LoadRequest, first: int, count: int) -> None:
        """A request asks for these chunks; the promise follows, at once or later."""
        self._retention.asked(request)
        request.state, request.asked_at = LoadState.ASKED, self._clock.monotonic()
        request.first = request.next = request.run = max(0, first)
        wanted = range(request.first, min(len(request.keys), request.first + max(0, count)))
        request.stop = len(request.keys) if request.local else wanted.stop
        self._asks.add(request)
        self._answering = request
        self.advance(request)
        self._answering = None

    def refuse(self, session: Session, number: int, first: int) -> None:
        """Answer an ask for a request that was not looked up, or has asked before."""
        self._replies.promise(session, number, first, [], 0)

    def release(self, request: LoadRequest, positions: list[int]) -> None:
        """An engine has copied these chunks; an empty list: all, and the request is over."""
        if not positions:
            self.end(request)
            return
        copied = list(filter(None, [request.held.pop(at, None) for at in positions]))
        self._copied(request, len(copied))
        self._dram.unpin_for_load(request.engine, *copied)

    def _copied(self, request: LoadRequest, count: int) -> None:
        """Count chunks of a promise that were released."""
        if count and request.state is LoadState.PROMISED:
            took_s = self._clock.monotonic() - request.promised_at
            self._metrics.tiers.seconds.observe(took_s, _LOADED, count)

    def give_up(self, request: LoadRequest) -> None:
        """End a request; if it waits for a promise, promise nothing."""
        if request.state is LoadState.ASKED:
            self.refuse(request.session, request.number, request.first)
        self.end(request)

    def disconnected(self, request: LoadRequest) -> None:
        """End a request whose connection is over; what its engine may be copying stays pinned."""
        if request.state is LoadState.PROMISED and request.held:
            self.orphaned_pins.take_over(request)
        self.end(request)

    def settled(self, engine: str) -> None:
        """An engine reads nothing any more: unpin all it was promised."""
        for chunk in self.orphaned_pins.end(engine):
            self._dram.unpin_for_load(engine, chunk)
        for request in self._requests.of_engine(engine):
            self.end(request)

    def damaged(self, chunk: Chunk) -> None:
        """A slot is damaged: drop the chunk, and promise it to nobody."""
        self._metrics.error(ErrorKind.DRAM_CORRUPT)
        for request in [each for each in self._requests if chunk in each.retained.pinned]:
            self._read_ahead.stop_retaining(request)
        asked = [each for each in self._requests if each.state is LoadState.ASKED]
        waiting = [request for request in asked if chunk in request.held.values()]
        for request in waiting:
            position = next(at for at, held in request.held.items() if held is chunk)
            self._dram.unpin_for_load(request.engine, request.held.pop(position))
            self._truncate(request, position)
        self._dram.drop_damaged(chunk)
        for request in waiting:
            self.advance(request)

    def end_stream(self, request: LoadRequest) -> None:
        """End a stream after what has come without a hole."""
        self._truncate(request, request.contiguous())
        self._end_if_complete(request)

    # Acquiring chunks for an ask.

    def advance(self, request: LoadRequest) -> None:
        """Acquire as much as there is room for; promise it if no more room will come."""
        is_first, before = self._asks.first(request.engine) is request, request.next
        is_asked = request.state is LoadState.ASKED
        if is_asked and not (request.awaited or self._hasher):
            self._pin_run(request, whole=not is_first)
        while is_first and request.wants_more:
            if not self._acquire(request, request.next) and not self._make_way(request):
                break
        if request.next > before:
            request.waits_since = None
        if not is_asked:
            self._end_if_complete(request)
        elif not request.awaited and (
            not request.wants_more or (is_first and self._has_all_room(request))
        ):
            self._promise(request, request.stop if request.stream else request.next)
        elif is_first and self._will_pause(request):
            self._hand_out(request)

    def _pin_run(self, request: LoadRequest, *, whole: bool) -> None:
        """Pin what lies in DRAM and fits, all at once, which is all that most asks need.

        `whole`: pin everything that is wanted, or nothing.
        """
        left_bytes = self._dram.load_budget.left_bytes(request.engine)
        group, run = request.group, list[Chunk]()
        for chunk in self._dram.chunks.ready(request.keys[request.next : request.stop]):
            left_bytes -= 0 if chunk.load_pins else chunk.slot_bytes
            if request.local:
                group = request.group_at(request.next + len(run))
            if not request.is_its(chunk, group):  # verify: dram run namespace
                break
            if left_bytes < 0:
                break
            run.append(chunk)
        if whole and len(run) < request.stop - request.next:
            return
        self._dram.pin_for_load(request.engine, *run)
        request.held.update(enumerate(run, request.next))
        request.next += len(run)
        request.in_dram += len(run)

    def _has_all_room(self, request: LoadRequest) -> bool:
        """Whether a request has all the room it will get without being promised as a stream.

        What its engine holds for other requests comes back. What other engines hold comes back as
        well if they are alive, and is waited for a little; orphaned pins may stay for long.
        """
        budget, engine = self._dram.load_budget, request.engine
        pinned = {*request.held.values(), *self.orphaned_pins}
        if budget.used_bytes <= sum(chunk.slot_bytes for chunk in pinned):
            return bool(request.held)
        wanted_bytes = self._slot_bytes(request.keys[request.next])
        if self._is_all_of_its_tenant(request, wanted_bytes):
            return bool(request.held)
        if self._fits(request, wanted_bytes):
            return False  # it waits for a slot, not for its share
        mine = {*request.held.values(), *self.orphaned_pins.of(engine)}
        charged = (chunk for chunk in mine if next(iter(chunk.load_pins)) == engine)
        if budget.used_by(engine) > sum(chunk.slot_bytes for chunk in charged):
            return False
        now = self._clock.monotonic()
        if request.waits_since is None:
            request.waits_since = now
        return now - request.waits_since >= PATIENCE_S

    def _is_all_of_its_tenant(self, request: LoadRequest, wanted_bytes: int) -> bool:
        """Whether a request holds so much of its tenant's quota that no more fits beside it."""
        held_bytes = sum(chunk.slot_bytes for chunk in request.held.values())
        return not self._dram.quotas.ever_fits(request.tenant, held_bytes + wanted_bytes)

    def _will_pause(self, request: LoadRequest) -> bool:
        """Whether a stream needs more than all of its room, and has filled half of it in time.

        Then it is promised now: its engine has to copy something by the time the room is full. If
        tiers were too slow for this, or left a hole, all of the room is filled first.
        """
        if not request.stream or request.first not in request.held:
            return False
        share_bytes = self._dram.load_budget.share_bytes(request.engine)
        room = share_bytes // request.held[request.first].slot_bytes
        if request.stop - request.first <= room or self._clock.monotonic() > request.half_time:
            return False
        half = request.first + request.in_dram + (room - request.in_dram + 1) // 2
        return request.first + len(request.held) >= half <= request.contiguous()

    def _acquire(self, request: LoadRequest, position: int) -> bool:
        """Pin one chunk, or wait for it; False if there is no room for it now."""
        if position not in request.awaited:  # it may be awaited since its lookup
            outcome = self._promotions.fetch(request, position)
            if outcome is FetchOutcome.GONE:
                self._truncate(request, position)
                return True
            if outcome is FetchOutcome.NO_ROOM:
                return False
            if outcome is FetchOutcome.AWAITED:
                request.awaited.add(position)
            elif not self._pin_ready(request, position):
                return False
        request.next = position + 1
        return True

    def _pin_ready(self, request: LoadRequest, position: int) -> bool:
        chunk = self._dram.chunks.get(request.keys[position])
        assert chunk is not None
        if not chunk.load_pins and not self._fits(request, chunk.slot_bytes):
            return False
        self._dram.pin_for_load(request.engine, chunk)
        request.in_dram += 1
        if self._hasher is None:
            self._hold(request, position, chunk)
            return True
        check = partial(self._hashed, request, position, chunk)
        self._hasher.submit([payload_of(self._dram, chunk)], check)
        request.awaited.add(position)
        return True

    def _hold(self, request: LoadRequest, position: int, chunk: Chunk) -> None:
        request.held[position] = chunk
        if request.state is LoadState.PROMISED:
            self._replies.ready(request, position, chunk)

    def _hashed(
        self, request: LoadRequest, position: int, chunk: Chunk, digests: list[bytes]
    ) -> None:
        """A slot was hashed again before a promise: hold the chunk, or fail it."""
        self._dram.unpin_for_load(request.engine, chunk)
        sound = digests == [chunk.digest]  # verify: dram hash
        if position not in request.awaited:
            return
        request.awaited.discard(position)
        if sound:
            self._dram.pin_for_load(request.engine, chunk)
            self._hold(request, position, chunk)
        else:
            self.damaged(chunk)
            self._truncate(request, position)
        self.advance(request)

    def _fits(self, request: LoadRequest, slot_bytes: int) -> bool:
        return self._dram.load_budget.fits(request.engine, slot_bytes)

    def _make_way(self, request: LoadRequest) -> bool:
        """Stop retaining for a request that has not asked, or asked later; False if none does.

        This frees slots; a request that waits for its share of the load budget gains nothing by it.
        """
        if not self._fits(request, self._slot_bytes(request.keys[request.next])):
            return False
        behind = [each for each in self._asks if each is not request][::-1]
        others = (each for each in (*behind, request) if each.retained.pinned)
        other = self._retention.youngest() or next(others, None)
        if other is None or self._waits_to_be_written(other):
            return False
        self._read_ahead.stop_retaining(other)
        return True

    def _waits_to_be_written(self, request: LoadRequest) -> bool:
        """Whether what is retained for a request could not leave anyway before it is written."""
        last = request.retained.last
        return last is not None and not last.tiers and self._dram.policies.queued_bytes > 0

    def _slot_bytes(self, key: bytes) -> int:
        """The size of a chunk's slot, whether the chunk is in DRAM or not."""
        chunk = self._dram.chunks.get(key)
        if chunk is not None:
            return chunk.slot_bytes
        length = self._stack.length_of(key)
        return 0 if length is None else slot_bytes_for(length)

    def received(self, request: LoadRequest, position: int, chunk: Chunk) -> None:
        """A chunk that a request may wait for has become READY, or was dropped."""
        if not request.stop_awaiting(position, chunk.key):
            return
        is_due = position < request.next  # otherwise it was read ahead
        if chunk.state is not SlotState.READY:
            self._truncate(request, position)
        elif is_due:
            self._dram.pin_for_load(request.engine, chunk)
            self._hold(request, position, chunk)
        if not is_due:
            self._retention.retain_early(request, position)
        self.advance(request)

    def _truncate(self, request: LoadRequest, position: int) -> None:
        """A chunk failed: want nothing from its position on, and unpin what follows it."""
        self._promotions.truncate(request, position)
        if request.state is LoadState.PROMISED:
            # What was handed out after it stays pinned until released: it may be being copied.
            self._replies.failed(request, position)
            return
        for behind in [held for held in request.held if held > position]:
            self._dram.unpin_for_load(request.engine, request.held.pop(behind))

    # Promises, and the end.

    def promise_what_is_here(self, request: LoadRequest) -> None:
        """Promise what is verified by now, and wait for nothing more."""
        self._promise(request, request.contiguous())

    def _promise(self, request: LoadRequest, stop: int) -> None:
        """Promise [first, stop) up to the first hole, and let go of the rest."""
        request.stop = min(stop, request.stop)
        request.next = min(request.contiguous(), request.stop)
        for behind in [held for held in request.held if held >= request.next]:
            self._dram.unpin_for_load(request.engine, request.held.pop(behind))
        if request.awaited:
            self._promotions.stop_awaiting(request)
        self._hand_out(request)

    def _hand_out(self, request: LoadRequest) -> None:
        """Promise everything that is still wanted, and hand out what is held of it."""
        end = min(request.contiguous(), request.stop)
        held = [request.held[position] for position in range(request.first, end)]
        request.state = LoadState.PROMISED
        if request is self._answering:
            self._deferred.add(partial(self._retention.end, request))
        else:  # what was retained for it is of use to the next request
            self._retention.end(request)
        total = max(0, request.stop - request.first)
        request.promised_at = self._clock.monotonic()
        self._metrics.loads.promised(total, request.promised_at - request.asked_at)
        self._replies.promise(request.session, request.number, request.first, held, total)
        for position in sorted(position for position in request.held if position >= end):
            self._replies.ready(request, position, request.held[position])
        self._end_if_complete(request)

    def _end_if_complete(self, request: LoadRequest) -> None:
        if request.state is LoadState.PROMISED and request.is_acquired:
            self._asks.remove(request)
            if not request.held:
                self.end(request)

    def end(self, request: LoadRequest) -> None:
        """End a request in any state: hold, await and retain nothing for it."""
        self._copied(request, len(request.held))
        self._dram.unpin_for_load(request.engine, *request.held.values())
        request.held.clear()
        if request.awaited:
            self._promotions.stop_awaiting(request)
        request.stop = request.next = 0
        request.state = LoadState.OVER
        self._retention.end(request)
        self._asks.remove(request)
        self._requests.remove(request)
