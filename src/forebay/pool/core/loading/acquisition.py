"""Acquiring what requests want: reading ahead for those that wait, pinning for those that asked.

Chunks of an ask are pinned one after another inside its engine's share of the load budget; those in
lower tiers are read first (joined, where another request reads them already). The promise is given
when all are verified, when the share holds no more (of a stream when it is half full), or at the
deadline with what is verified by then. While no ask of an engine waits for room, what the engine
has looked up is read ahead. An ask overtakes those of its engine that wait if DRAM has all of it.
"""

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from forebay.decisions import Decision
from forebay.identity.groups import rule_of
from forebay.metrics.labels import DRAM, Direction, ErrorKind
from forebay.pool.core.budget import NOBODY
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.hashing import Hasher, payload_of
from forebay.pool.core.loading.asks import Asks
from forebay.pool.core.loading.orphaned_pins import OrphanedPins
from forebay.pool.core.loading.promotions import Promotions, Waiting
from forebay.pool.core.loading.replies import Replies
from forebay.pool.core.loading.request import LoadRequest, LoadRequests, LoadState
from forebay.pool.core.loading.retention import Retention
from forebay.pool.core.parts import CoreParts
from forebay.pool.messages import Found
from forebay.pool.session import Session
from forebay.record.header import ROOT, RecordName
from forebay.tiers.contract import MissReason
from forebay.tiers.dram.slab import slot_bytes_for

AHEAD_READS: Final = 8  # in flight at once for who has not asked; who asks waits for no more
TELL_CHUNKS: Final = 16  # come into DRAM before an engine hears of it
_LOADED: Final = (DRAM, Direction.LOAD)
PATIENCE_S: Final = 0.25  # how long an ask waits for what other engines hold beyond their share


class Acquisition:
    """Turns lookups into retained chunks and asks into promises. Owned by the pool's thread.

    It alone changes a request's state, `next`, `stop`, `held` and `awaited` after the lookup.
    """

    def __init__(self, parts: CoreParts, hasher: Hasher | None) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._barrier = parts.clock, parts.barrier
        self._replies = Replies(parts)
        self._promotions = Promotions(parts, self._promoted)
        self._hasher = hasher  # where everything is hashed again before it is promised
        self._retention = Retention(parts.dram)
        self.requests = LoadRequests(parts.dram.processes)
        self.orphaned_pins = OrphanedPins()
        self._asked = Asks()
        self._answering: LoadRequest | None = None  # whose promise is the answer to its ask

    def add(self, request: LoadRequest) -> None:
        """A request was looked up: retain what is here of it, and begin to read the rest."""
        self.requests.add(request)
        self._retention.add(request)
        self.read_ahead()

    def begin(self, request: LoadRequest, first: int, count: int) -> None:
        """A request asks for these chunks; the promise follows, now or later."""
        self._retention.asked(request)
        request.state, request.asked_at = LoadState.ASKED, self._clock.monotonic()
        request.first = request.next = request.run = max(0, first)
        wanted = range(request.first, min(len(request.keys), request.first + max(0, count)))
        request.stop = len(request.keys) if request.local else wanted.stop
        request.awaited = {waited for waited in request.awaited if waited in wanted}
        self._asked.add(request)
        self._answering = request
        self._advance(request)
        if request.state is LoadState.ASKED:
            self._answering = None

    def refuse(self, session: Session, number: int, first: int) -> None:
        """Answer an ask for what was not looked up, or was asked for before."""
        self._replies.promise(session, number, first, [], 0)

    def release(self, request: LoadRequest, positions: list[int]) -> None:
        """An engine has copied these chunks; none named: all of them, and the request is over."""
        if not positions:
            self.end(request)
            return
        copied = list(filter(None, [request.held.pop(at, None) for at in positions]))
        self._copied(request, len(copied))
        self._dram.unpin_for_load(request.engine, *copied)

    def _copied(self, request: LoadRequest, count: int) -> None:
        """So many chunks of a promise were released."""
        if count and request.state is LoadState.PROMISED:
            took_s = self._clock.monotonic() - request.promised_at
            self._metrics.tiers.seconds.observe(took_s, _LOADED, count)

    def answered(self) -> None:
        """A promise was sent: what was retained for it need not be any more."""
        request, self._answering = self._answering, None
        if request is not None:
            self._retention.end(request)

    def expire(self, now: float) -> None:
        """Cut promises whose deadline has come, and stop retaining what was not asked for."""
        for request in self._asked.due(now):
            self._metrics.loads.promises_cut.add()
            request.note.cut = request.note.cut or Decision.DEADLINE
            self._guarded(request, partial(self._promise, request, request.contiguous()))
            self._promotions.disown()
        for request in self._retention.due(now):
            self._guarded(request, partial(self.stop_retaining, request))

    def learned(self, learned: Collection[bytes]) -> None:
        """A tier knows these keys now, or that it has them not: who waits for one may want more."""
        for request in self._retention.waiting_for(learned):
            keys = request.unknown_keys
            if request.stop < len(request.keys):
                continue
            ready = self._dram.chunks.ready_prefix(keys)
            more, is_unknown, _, _ = self._stack.prefix(keys, ready)
            request.unknown_keys = keys[more:] if is_unknown else []
            request.keys = request.keys + keys[:more]
            request.stop = request.ahead_stop = len(request.keys)
            self._retention.add(request)
            if more:
                ready = request.retained.ready
                request.session.send(Found(request.number, request.stop, ready))
        self.read_ahead()

    def pump(self) -> None:
        """Let everyone go on who waited for room: asks by engine, in order; then reading ahead."""
        for engine in self._asked.turns():
            while (request := self._asked.first(engine)) is not None:
                self._guarded(request, partial(self._advance, request))
                if request.wants_more:
                    break  # those behind it wait, however little they want
        self.read_ahead()

    def _guarded(self, request: LoadRequest, step: Callable[[], None]) -> None:
        """Do something for one request; an exception ends that request alone."""
        if not self._barrier.call("a load", step):
            request.stop = request.next  # whatever happens, it is not tried again
            self._barrier.call("the end of a load", self._give_up, request)

    def _give_up(self, request: LoadRequest) -> None:
        if request.state is LoadState.ASKED:
            self.refuse(request.session, request.number, request.first)
        self.end(request)

    def wait_for_room(self) -> bool:
        """Whether anyone, asked or only arrived, has not begun to load all that it wants."""
        return self._retention.wants_more() or any(request.wants_more for request in self._asked)

    @property
    def may_fetch_ahead(self) -> bool:
        """Whether a chunk that nobody has asked for may be read, if there is a free slot for it."""
        return not (self._promotions.are_too_many_unawaited or self.wait_for_room())

    def fetch_ahead(self, name: RecordName, length: int) -> Chunk | None:
        """Begin to read a chunk that nobody has asked for; None if there is no free slot for it."""
        return self._promotions.begin(NOBODY, name, length, ahead=False, only_free=True)

    def damaged(self, chunk: Chunk) -> None:
        """A slot does not hold what it should: forget it."""
        self._metrics.error(ErrorKind.DRAM_CORRUPT)
        for request in [each for each in self.requests if chunk in each.retained.pinned]:
            self.stop_retaining(request)
        self._dram.drop_damaged(chunk)

    def refuse_all_of(self, tenant: bytes) -> None:
        """A tenant is forgotten: nothing more is promised of what its requests looked up."""
        for request in [each for each in self.requests if each.tenant == tenant]:
            if request.state is not LoadState.PROMISED:
                self._guarded(request, partial(self._give_up, request))
            elif not request.is_acquired:
                self._guarded(request, partial(self._cut, request))

    def _cut(self, request: LoadRequest) -> None:
        """Of a stream, no more comes than has come without a hole."""
        self._fail(request, request.contiguous())
        self._end_if_complete(request)

    @property
    def reads_in_flight(self) -> int:
        """Chunks on their way from lower tiers."""
        return self._promotions.in_flight

    def queue_depths(self) -> tuple[int, Counter[int]]:
        """Asks that have no promise yet; and reads in flight, by tier."""
        return self._asked.waiting, self._promotions.in_flight_by_tier()

    @property
    def retained_bytes(self) -> int:
        """What stays in DRAM for requests that have not been promised it yet."""
        return self._retention.used_bytes

    def retained_for(self, engine: str, key: bytes) -> int:
        """Of these, what was taken from an engine's share for one chunk."""
        return self._retention.taken_for(engine, key)

    # Acquiring chunks for an ask.

    def _advance(self, request: LoadRequest) -> None:
        """Acquire as much as there is room for, and promise if that is all there will be."""
        is_first, before = self._asked.first(request.engine) is request, request.next
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
        """Pin what lies in DRAM and fits, in one go: most asks want nothing else, and now.

        `whole`: all that is wanted, or nothing.
        """
        left_bytes = self._dram.load_budget.left_bytes(request.engine)
        group, run = request.group, list[Chunk]()
        for chunk in self._dram.chunks.ready(request.keys[request.next : request.stop]):
            left_bytes -= 0 if chunk.load_pins else chunk.slot_bytes
            if request.local:
                group = request.group_at(request.next + len(run))
            if not _is_of(request, chunk, group):  # verify: dram run namespace
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
        """Whether a request has all the room it will get: more than that comes only in a stream.

        What its engine holds for other requests comes back. What other engines hold, if they are
        alive, comes back as well, and is waited for a little; orphaned pins may stay for long.
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
        """Whether a request holds so much of what its tenant may that no more fits beside it."""
        held_bytes = sum(chunk.slot_bytes for chunk in request.held.values())
        return not self._dram.quotas.ever_fits(request.tenant, held_bytes + wanted_bytes)

    def _will_pause(self, request: LoadRequest) -> bool:
        """Whether a stream needs more than all of the room, and half of it has been filled by now.

        Its engine has to have copied something by the time that the room is full. Tiers that were
        too slow for this, or leave a hole, have to fill all of it before they are relied upon.
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
        """Pin or await one chunk; False if there is no room for it now."""
        if position in request.awaited:
            request.next = position + 1  # since its lookup
            return True
        chunk = self._dram.chunks.get(request.keys[position])
        if chunk is None or chunk.state is SlotState.FILLING:
            chunk = None if chunk is not None else self._read(request, position)
            if chunk is None:
                return self._is_gone(request, position)
        elif not _is_of(request, chunk, request.group_at(position)):
            self._fail(request, position)  # verify: dram namespace
            return True
        elif chunk.state is SlotState.READY and not self._pin_ready(request, position, chunk):
            return False
        if chunk.state is SlotState.LOADING:
            if chunk.engine == NOBODY and not self._fits(request, chunk.slot_bytes):
                return False
            self._promotions.join(chunk, request, position)
            request.awaited.add(position)
        request.next = position + 1
        return True

    def _is_gone(self, request: LoadRequest, position: int) -> bool:
        """A chunk cannot be read: for want of room (False), or because it cannot be had at all."""
        length = self._stack.length_of(request.keys[position])
        if length is not None and self._fits_ever(request, length):
            return False
        if length is None and request.note.cut is None:  # since its lookup: nobody else says why
            request.note.cut = self.why_gone(request.keys[position]) or Decision.EVICTED
        self._fail(request, position)
        return True

    def why_gone(self, key: bytes) -> Decision | None:
        """Why a chunk cannot be had; None: it never was here, as far as is remembered."""
        why = self._dram.lost_keys.reason(key)
        off = None if why is not None else self._stack.why_off(key)
        if off is None:
            return why
        return Decision.REQUEST_BUDGET if off is MissReason.BUDGET else Decision.TIER_OFF

    def _fits_ever(self, request: LoadRequest, length: int) -> bool:
        """Whether DRAM, and what its tenant may hold of it, could hold so much."""
        quotas = self._dram.quotas
        return self._dram.slab.fits(length) and quotas.ever_fits(
            request.tenant, slot_bytes_for(length)
        )

    def _pin_ready(self, request: LoadRequest, position: int, chunk: Chunk) -> bool:
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
        """A slot was hashed again before a promise."""
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
            self._fail(request, position)
        self._advance(request)

    def _fits(self, request: LoadRequest, slot_bytes: int) -> bool:
        if request.state is LoadState.ARRIVED:
            left_bytes = self._retention.left_bytes(request.engine)
            return self._promotions.ahead < AHEAD_READS and slot_bytes <= left_bytes
        return self._dram.load_budget.fits(request.engine, slot_bytes)

    def _make_way(self, request: LoadRequest) -> bool:
        """Let go of what is retained for one that has not asked, or asked later; if there was any.

        It frees slots; who waits for the load budget would gain nothing by it.
        """
        if not self._fits(request, self._slot_bytes(request.keys[request.next])):
            return False
        behind = [each for each in self._asked if each is not request][::-1]
        others = (each for each in (*behind, request) if each.retained.pinned)
        other = self._retention.youngest() or next(others, None)
        if other is None or self._waits_to_be_written(other):
            return False
        self.stop_retaining(other)
        return True

    def _waits_to_be_written(self, request: LoadRequest) -> bool:
        """Whether what is retained for a request could not leave anyway before it is written."""
        last = request.retained.last
        return last is not None and not last.tiers and self._dram.policies.queued_bytes > 0

    def _slot_bytes(self, key: bytes) -> int:
        """What a chunk takes in DRAM, whether it is there or not."""
        chunk = self._dram.chunks.get(key)
        if chunk is not None:
            return chunk.slot_bytes
        length = self._stack.length_of(key)
        return 0 if length is None else slot_bytes_for(length)

    # Reading from lower tiers.

    def _read(self, request: LoadRequest, position: int) -> Chunk | None:
        """Begin to read a chunk from a lower tier; None if it is not there or there is no room."""
        key = request.keys[position]
        length = self._stack.length_of(key)
        if length is None or not self._fits_ever(request, length):
            return None
        if not self._fits(request, slot_bytes_for(length)):
            return None
        previous, group = (
            request.keys[position - 1] if position else ROOT,
            request.group_at(position),
        )
        parent = rule_of(group).parent_of(previous)
        name = RecordName(request.namespace, group, key, parent, request.tenant)
        is_ahead = request.state is LoadState.ARRIVED
        return self._promotions.begin(request.engine, name, length, ahead=is_ahead)

    def _promoted(self, chunk: Chunk, waiting: Waiting) -> None:
        for request, position in waiting:
            self._received(request, position, chunk)
        self.pump()

    def _received(self, request: LoadRequest, position: int, chunk: Chunk) -> None:
        """A chunk that a request waits for is READY, or was dropped."""
        # What was read ahead may not have been asked for, but something else at its position.
        if position not in request.awaited or request.keys[position] != chunk.key:
            return
        request.awaited.discard(position)
        has_asked = request.state is not LoadState.ARRIVED
        is_due = has_asked and position < request.next  # else it was read ahead
        if chunk.state is not SlotState.READY:
            self._fail(request, position)
        elif is_due:
            self._dram.pin_for_load(request.engine, chunk)
            self._hold(request, position, chunk)
        if not has_asked:
            self._retain(request)
        if not is_due:
            self._retention.retain_early(request, position)
        if has_asked:
            self._advance(request)

    def _fail(self, request: LoadRequest, position: int) -> None:
        """A chunk cannot be had: what follows it is cut off."""
        request.stop = min(request.stop, position)
        request.next = min(request.next, request.stop)
        request.awaited = {waited for waited in request.awaited if waited < position}
        if request.state is LoadState.PROMISED:
            # What was handed out behind it stays pinned until released: it may be being copied.
            self._replies.failed(request, position)
            return
        for behind in [held for held in request.held if held > position]:
            self._dram.unpin_for_load(request.engine, request.held.pop(behind))

    def read_ahead(self) -> None:
        """Read what engines looked up and have not asked for yet, while none of their asks waits.

        Each engine's in order of arrival, and the engines in turn.
        """
        for engine in self._retention.turns():
            if self._asked.first(engine) is None:
                self._read_ahead_of(engine)

    def _read_ahead_of(self, engine: str) -> None:
        chunks = self._dram.chunks
        for request in self._retention.unread(engine):
            # Nothing is read behind what cannot be retained.
            while self._retain(request) and request.wants_more:
                if chunks.is_ready(request.keys[request.next]):
                    request.next += chunks.ready_prefix(request.keys[request.next : request.stop])
                    self._retention.retain(request)
                    position = min(request.next, request.retained.chunks) - 1
                    self._retention.retain_early(request, position)
                elif not self._acquire(request, request.next):
                    return
            if request.retained.chunks < request.next:
                return

    def _retain(self, request: LoadRequest) -> bool:
        """A request has come by more of what it will want: keep it, and tell; False: not all."""
        retained = request.retained.chunks
        if request.next > retained and not self._is_here(request.keys[request.next - 1]):
            request.next = retained  # there was no room to retain it, and it left
        is_all = self._retention.retain(request)
        ready = request.retained.ready
        if ready >= request.told + TELL_CHUNKS or ready >= request.stop > request.told:
            request.told = ready
            request.session.send(Found(request.number, request.stop, ready))
        return is_all

    def _is_here(self, key: bytes) -> bool:
        return self._dram.chunks.get(key) is not None

    def stop_retaining(self, request: LoadRequest) -> None:
        """Retain nothing for a request; what it holds since it asked stays."""
        self._retention.end(request)
        if request.state is LoadState.ARRIVED and request.awaited:
            request.awaited.clear()
            self._promotions.disown()

    # Promises, and the end.

    def _promise(self, request: LoadRequest, stop: int) -> None:
        """Promise [first, stop), hand out what is held of it without a hole, let go of the rest."""
        request.stop = min(stop, request.stop)
        request.next = min(request.contiguous(), request.stop)
        for behind in [held for held in request.held if held >= request.next]:
            self._dram.unpin_for_load(request.engine, request.held.pop(behind))
        request.awaited.clear()
        self._hand_out(request)

    def _hand_out(self, request: LoadRequest) -> None:
        """Promise all that is still wanted, and hand out what is held of it."""
        end = min(request.contiguous(), request.stop)
        held = [request.held[position] for position in range(request.first, end)]
        request.state = LoadState.PROMISED
        if request is not self._answering:  # whoever comes next may use what was retained for it
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
            self._asked.remove(request)
            if not request.held:
                self.end(request)

    def end(self, request: LoadRequest) -> None:
        """It is over, in whatever state it was: nothing is held, awaited or retained for it."""
        self._copied(request, len(request.held))
        self._dram.unpin_for_load(request.engine, *request.held.values())
        request.held.clear()
        had_awaited = bool(request.awaited)
        request.awaited.clear()
        request.stop = request.next = 0
        request.state = LoadState.OVER
        self._retention.end(request)
        self._asked.remove(request)
        self.requests.remove(request)
        if had_awaited:
            self._promotions.disown()


def _is_of(request: LoadRequest, chunk: Chunk, group: int) -> bool:
    """Whether a chunk that has a wanted key is what the request means by it."""
    name = chunk.name
    named = (name.namespace, name.group, name.tenant)
    return named == (request.namespace, group, request.tenant)
