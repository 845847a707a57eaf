"""From lookup to release: what is known, what is promised, what is read for it.

Arrival: the longest known prefix is found; what DRAM has of it is kept, and the rest read ahead, in
order of arrival, as far as the load budget goes and asks leave it (see `arrivals`). Ask: chunks are
pinned one after another inside that budget, those on disk are read first (joined, where another
request reads them already), and the promise is given when all are verified, when the budget holds
no more (of a stream when it is half full), or at the deadline with what is verified by then.

What was promised may be being read after its connection is over: see `strays`.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from forebay.pool.core.checker import Checker
from forebay.pool.core.chunks import Chunk, State
from forebay.pool.core.loading.answers import Answers
from forebay.pool.core.loading.arrivals import Arrivals
from forebay.pool.core.loading.reads import Reads
from forebay.pool.core.loading.request import Request
from forebay.pool.core.loading.strays import Strays
from forebay.pool.core.room import Room
from forebay.pool.messages import Ask, Found, Lookup, Release, short_keys
from forebay.pool.session import Session
from forebay.record.header import ROOT, RecordName
from forebay.sys.clock import Clock
from forebay.tiers.dram.slab import slot_bytes_for

REQUESTS_MAX: Final = 4096  # a session; more are answered with "unknown"
AHEAD_READS: Final = 8  # in flight at once for who has not asked; who asks waits for no more


class Loads:
    """All requests of all sessions. Owned by the pool's thread."""

    def __init__(
        self,
        room: Room,
        reads: Reads,
        answers: Answers,
        counters: Counter[str],
        clock: Clock,
    ) -> None:
        self._room = room
        self._counters = counters
        self._clock = clock
        self._answers = answers
        self._reads = reads
        reads.done = self._read_done
        self.checker: Checker | None = None  # set where every promise must be re-hashed
        self._requests: dict[Session, dict[int, Request]] = {}
        self.strays = Strays()
        self._arrivals = Arrivals(room)
        room.loads_wait = self._wants_room
        self._asked: dict[Request, None] = {}  # asked and not over, in order of asking
        self._unheard: list[tuple[list[bytes], int]] = []  # requests the policy is still to hear of
        self._asking: Request | None = None  # whose promise is the answer to its ask

    def lookup(self, session: Session, message: Lookup) -> None:
        """Answer how much is known; keep what is here of it, and begin to read the rest."""
        keys = _unrepeated(short_keys(message.keys))
        ready = self._room.chunks.ready_prefix(keys)
        known = self._known(keys, ready)
        self._unheard.append((keys, known))
        if ready < known:
            self.catch_up()  # before room is made for what will be read ahead
        session.send(Found(message.request, known, ready))
        self._counters["lookups"] += 1
        self._counters["lookup.chunks"] += len(keys)
        self._counters["lookup.known"] += known
        mine = self._requests.setdefault(session, {})
        if known and message.request not in mine and len(mine) < REQUESTS_MAX:
            name = (message.namespace, message.group)
            request = Request(session, message.request, name, keys[:known])
            request.stop = known
            mine[message.request] = request
            self._arrivals.add(request, ready, self._clock.monotonic())
            self._read_ahead()

    def catch_up(self) -> None:
        """Do what answers need not wait for: the policy hears, what was kept is let go of."""
        if self._asking is not None:
            self._arrivals.end(self._asking)
            self._asking = None
        if self._unheard:
            now = self._clock.monotonic()
            for keys, known in self._unheard:
                self._room.policy.requested(keys, known, now)
            self._unheard.clear()

    def ask(self, session: Session, message: Ask) -> None:
        """Begin to acquire the chunks of a request; the promise follows, now or later."""
        request = self._requests.get(session, {}).get(message.request)
        if request is None or request.asked:
            self._answers.promise(session, message.request, message.first, [], 0)
            return
        self._arrivals.asked(request)
        request.begin(max(0, message.first))
        request.stop = min(len(request.keys), request.first + max(0, message.count))
        wanted = range(request.first, request.stop)
        request.awaited = {waited for waited in request.awaited if waited in wanted}
        request.stream = message.stream
        now, wait_s = self._clock.monotonic(), max(0, message.deadline_ms) / 1000
        request.half_time, request.deadline = now + wait_s / 2, now + wait_s
        self._asked[request] = None
        self._asking = request
        self._advance(request)
        if not request.promised:
            self._asking = None

    def release(self, session: Session, message: Release) -> None:
        """Unpin what an engine has copied."""
        request = self._requests.get(session, {}).get(message.request)
        if request is None:
            return
        for position in message.chunks or list(request.held):
            chunk = request.held.pop(position, None)
            if chunk is not None:
                self._unpin(chunk)
        if not message.chunks:
            self._forget(request)
        self.pump()

    def cancel(self, session: Session, number: int) -> None:
        """Forget a request in whatever state."""
        request = self._requests.get(session, {}).get(number)
        if request is not None:
            self._forget(request)
            self.pump()

    def left(self, session: Session) -> None:
        """Forget all of a session's requests; what they were promised may still be being read."""
        for request in list(self._requests.pop(session, {}).values()):
            if request.promised and request.held:
                self.strays.take_over(request)
            self._forget(request)
        self.pump()

    def settled(self, engine: str) -> None:
        """Nobody reads what was promised to an engine, on whichever of its connections."""
        for chunk in self.strays.end(engine):
            self._unpin(chunk)
        for request in [each for each in self.requests() if each.session.engine == engine]:
            self._forget(request)
        self.pump()

    def lends(self, engine: str) -> bool:
        """Whether an engine may be reading what was promised on a connection that is over."""
        return engine in self.strays

    def _known(self, keys: list[bytes], ready: int) -> int:
        """How many keys, from the first, are in DRAM or on disk; the first are known to be."""
        at = ready
        while at < len(keys):
            chunk = self._room.chunks.get(keys[at])
            if chunk is not None and chunk.state is not State.FILLING:
                at += 1
                continue
            more = self._reads.prefix(keys[at:])
            if not more:
                break
            at += more
        return at

    def tick(self, now: float) -> None:
        """Cut promises whose deadline has come; then whoever waited for room may go on."""
        for request in [r for r in self._asked if not r.promised and r.deadline <= now]:
            self._counters["promises.cut_by_deadline"] += 1
            self._promise(request, request.contiguous())
        for request in self._arrivals.expired(now):
            self._let_go(request)
        self.pump()

    def pump(self) -> None:
        """Let everyone go on who waited for room: asks in order, then reading ahead."""
        for request in list(self._asked):
            if request.next < request.stop:
                self._advance(request)
                if request.next < request.stop:
                    break  # those behind it wait, however little they want
        self._read_ahead()

    def requests(self) -> Iterator[Request]:
        """Every request that is not forgotten yet."""
        for mine in self._requests.values():
            yield from mine.values()

    def keep_nothing(self) -> None:
        """Keep nothing for those that have not been promised it: an operator comes first."""
        for request in list(self.requests()):
            if not request.promised:
                self._let_go(request)

    @property
    def loading(self) -> int:
        """Reads in flight."""
        return self._reads.in_flight

    @property
    def kept_bytes(self) -> int:
        """What stays in DRAM for requests that have not been promised it yet."""
        return self._arrivals.kept_bytes

    @property
    def held_requests(self) -> int:
        """Requests that are not forgotten yet."""
        return sum(map(len, self._requests.values()))

    def _advance(self, request: Request) -> None:
        """Acquire as much as there is room for, and promise if that is all there will be.

        Room goes to one request after the other. Were it given to all at once, each would hold a
        part of what it wants and wait for the others, until the deadline of all of them.
        """
        first = next((other for other in self._asked if other.next < other.stop), None)
        if first is request and not (request.promised or request.awaited or self.checker):
            self._pin_run(request)
        while first is request and request.next < request.stop:
            if not self._acquire(request, request.next) and not self._make_way(request):
                break
        if request.promised:
            self._end_if_over(request)
        elif not request.awaited and (request.next >= request.stop or self._is_alone(request)):
            self._promise(request, request.stop if request.stream else request.next)
        elif first is request and self._will_pause(request):
            self._hand_out(request)

    def _pin_run(self, request: Request) -> None:
        """Pin what lies in DRAM and fits, in one go: most asks want nothing else, and now."""
        left_bytes = self._room.load_budget_bytes - self._room.pinned_bytes
        named, run, taken_bytes = (request.namespace, request.group), [], 0
        for chunk in self._room.chunks.ready(request.keys[request.next : request.stop]):
            own_bytes = 0 if chunk.asks else chunk.slot_bytes
            if (chunk.name.namespace, chunk.name.group) != named:  # verify: dram run namespace
                break
            if taken_bytes + own_bytes > left_bytes:
                break
            taken_bytes += own_bytes
            chunk.asks += 1
            run.append(chunk)
        self._room.pinned_bytes += taken_bytes
        self._room.pin(*run)
        request.held.update(enumerate(run, request.next))
        request.next += len(run)
        request.near += len(run)

    def _is_alone(self, request: Request) -> bool:
        """Whether a request has all the room there is: more than that comes only in a stream."""
        # Strays may stay for long: who waited for their room would wait for its deadline.
        there_is = sum(chunk.slot_bytes for chunk in {*request.held.values(), *self.strays})
        return bool(request.held) and self._room.pinned_bytes <= there_is

    def _will_pause(self, request: Request) -> bool:
        """Whether a stream needs more than all of the room, and half of it has been filled by now.

        Its engine has to have copied something by the time that the room is full. Drives that were
        too slow for this, or leave a hole, have to fill all of it before they are relied upon.
        """
        if not request.stream or request.first not in request.held:
            return False
        room = self._room.load_budget_bytes // request.held[request.first].slot_bytes
        if request.stop - request.first <= room or self._clock.monotonic() > request.half_time:
            return False
        half = request.first + request.near + (room - request.near + 1) // 2
        return request.first + len(request.held) >= half <= request.contiguous()

    def _acquire(self, request: Request, position: int) -> bool:
        """Pin or await one chunk; False if there is no room for it now."""
        if position in request.awaited:
            request.next = position + 1  # since its arrival
            return True
        chunk = self._room.chunks.get(request.keys[position])
        if chunk is None or chunk.state is State.FILLING:
            chunk = None if chunk is not None else self._read(request, position)
            if chunk is None:
                return self._gone(request, position)
        elif (chunk.name.namespace, chunk.name.group) != (request.namespace, request.group):
            self._fail(request, position)  # verify: dram namespace
            return True
        elif chunk.state is State.READY and not self._pin_ready(request, position, chunk):
            return False
        if chunk.state is State.LOADING:
            chunk.awaited.append((request, position))
            request.awaited.add(position)
        request.next = position + 1
        return True

    def _gone(self, request: Request, position: int) -> bool:
        """A chunk cannot be read: for want of room (False), or because it is no more."""
        if self._reads.length_of(request.keys[position]) is not None:
            return False
        self._fail(request, position)
        return True

    def _pin_ready(self, request: Request, position: int, chunk: Chunk) -> bool:
        if not chunk.asks and not self._fits(request, chunk.slot_bytes):
            return False
        self._pin(chunk)
        request.near += 1
        if self.checker is not None and chunk.digest is not None:
            check = partial(self._checked, request, position, chunk)
            payload = self._room.slab.payload(chunk.offset, chunk.length)
            if self.checker.submit([payload], check):
                request.awaited.add(position)
                return True
        self._hold(request, position, chunk)
        return True

    def _hold(self, request: Request, position: int, chunk: Chunk) -> None:
        request.held[position] = chunk
        if request.promised:
            self._answers.ready(request, position, chunk)

    def _checked(self, request: Request, position: int, chunk: Chunk, digests: list[bytes]) -> None:
        """A slot was hashed again before a promise."""
        self._unpin(chunk)
        sound = digests == [chunk.digest]  # verify: dram hash
        if position not in request.awaited:
            return
        request.awaited.discard(position)
        if sound:
            self._pin(chunk)
            self._hold(request, position, chunk)
        else:
            self.damaged(chunk)
            self._fail(request, position)
        self._advance(request)

    def damaged(self, chunk: Chunk) -> None:
        """A slot does not hold what it should: forget it; the disk's copy is verified anyway."""
        self._counters["misses.dram_corrupt"] += 1
        for request in [each for each in self.requests() if chunk in each.pinned_ahead]:
            self._let_go(request)
        if not chunk.is_busy and self._room.chunks.get(chunk.key) is chunk:
            self._room.drop(chunk)
            if not chunk.on_disk:
                self._room.drop_tree(chunk.key)

    def _fits(self, request: Request, slot_bytes: int) -> bool:
        if not request.asked:
            return self._reads.ahead < AHEAD_READS and slot_bytes <= self._arrivals.left_bytes
        pinned = self._room.pinned_bytes
        return not pinned or pinned + slot_bytes <= self._room.load_budget_bytes

    def _wants_room(self) -> bool:
        """Whether anyone, asked or only arrived, has not begun to load all that it wants."""
        waits = any(request.next < request.stop for request in self._asked)
        return waits or next(self._arrivals.unread(), None) is not None

    def _make_way(self, request: Request) -> bool:
        """Let go of what is kept for one that has not asked, or asked later; whether there was.

        It frees slots; who waits for the load budget would gain nothing by it.
        """
        if not self._fits(request, self._slot_bytes(request.keys[request.next])):
            return False
        behind = (each for each in reversed(self._asked) if each is not request)
        others = (each for each in (*behind, request) if each.pinned_ahead)
        other = self._arrivals.youngest() or next(others, None)
        if other is None or self._waits_for_the_disk(other):
            return False
        self._let_go(other)
        return True

    def _waits_for_the_disk(self, request: Request) -> bool:
        """Whether what is kept for a request could not leave anyway before it is written."""
        kept = request.kept
        return kept is not None and not kept.on_disk and self._room.policy.queued_bytes > 0

    def _slot_bytes(self, key: bytes) -> int:
        """What a chunk takes in DRAM, whether it is there or not."""
        chunk = self._room.chunks.get(key)
        if chunk is not None:
            return chunk.slot_bytes
        length = self._reads.length_of(key)
        return 0 if length is None else slot_bytes_for(length)

    def _let_go(self, request: Request) -> None:
        """Keep nothing for a request; what it holds since it asked stays."""
        self._arrivals.end(request)
        if not request.asked:
            request.awaited.clear()

    def _pin(self, chunk: Chunk) -> None:
        if not chunk.asks and chunk.state is State.READY:
            self._room.pinned_bytes += chunk.slot_bytes
        chunk.asks += 1
        self._room.pin(chunk)

    def _unpin(self, chunk: Chunk) -> None:
        chunk.asks -= 1
        self._room.unpin(chunk)
        if not chunk.asks:
            self._room.pinned_bytes -= chunk.slot_bytes

    def _read(self, request: Request, position: int) -> Chunk | None:
        """Begin to read a chunk from disk; None if it is not there or there is no room."""
        key = request.keys[position]
        length = self._reads.length_of(key)
        if length is None or not self._fits(request, slot_bytes_for(length)):
            return None
        parent = request.keys[position - 1] if position else ROOT
        name = RecordName(request.namespace, request.group, key, parent)
        return self._reads.begin(name, length, ahead=not request.asked)

    def _read_done(self, chunk: Chunk, awaiting: list[tuple[Request, int]]) -> None:
        for request, position in awaiting:
            self._arrived_at(request, position, chunk)
        self.pump()

    def _arrived_at(self, request: Request, position: int, chunk: Chunk) -> None:
        if position not in request.awaited:
            return
        request.awaited.discard(position)
        is_due = request.asked and position < request.next  # else it was read ahead
        if chunk.state is not State.READY:
            self._fail(request, position)
        elif is_due:
            self._pin(chunk)
            self._hold(request, position, chunk)
        if not request.asked:
            self._keep(request)
        if not is_due:
            self._arrivals.hold_early(request, position)
        if request.asked:
            self._advance(request)

    def _fail(self, request: Request, position: int) -> None:
        """A chunk cannot be had: what follows it is cut off."""
        request.stop = min(request.stop, position)
        request.next = min(request.next, request.stop)
        request.awaited = {waited for waited in request.awaited if waited < position}
        if request.promised:
            # What was handed out behind it stays pinned until released: it may be being copied.
            self._answers.lost(request, position)
            return
        for behind in [held for held in request.held if held > position]:
            self._unpin(request.held.pop(behind))

    def _promise(self, request: Request, stop: int) -> None:
        """Promise [first, stop), hand out what is held of it without a hole, let go of the rest."""
        request.stop = min(stop, request.stop)
        request.next = min(request.contiguous(), request.stop)
        for behind in [held for held in request.held if held >= request.next]:
            self._unpin(request.held.pop(behind))
        request.awaited.clear()
        self._hand_out(request)

    def _hand_out(self, request: Request) -> None:
        """Promise all that is still wanted, and hand out what is held of it."""
        end = min(request.contiguous(), request.stop)
        held = [request.held[position] for position in range(request.first, end)]
        request.promised = True
        if request is not self._asking:  # whoever comes next may use what it kept
            self._arrivals.end(request)
        total = max(0, request.stop - request.first)
        self._counters["promises"] += 1
        self._counters["promised.chunks"] += total
        self._answers.promise(request.session, request.number, request.first, held, total)
        for position in sorted(position for position in request.held if position >= end):
            self._answers.ready(request, position, request.held[position])
        self._end_if_over(request)

    def _end_if_over(self, request: Request) -> None:
        if request.promised and request.is_over:
            self._asked.pop(request, None)
            if not request.held:
                self._forget(request)

    def _forget(self, request: Request) -> None:
        for chunk in request.held.values():
            self._unpin(chunk)
        request.held.clear()
        request.awaited.clear()
        request.stop = request.next = 0
        self._arrivals.end(request)
        self._asked.pop(request, None)
        mine = self._requests.get(request.session)
        if mine is not None and mine.get(request.number) is request:
            del mine[request.number]

    def _read_ahead(self) -> None:
        """Read what arrived and was not asked for yet, in order, while no ask waits for room."""
        if any(request.next < request.stop for request in self._asked):
            return
        chunks = self._room.chunks
        for request in self._arrivals.unread():
            # Nothing is read behind what cannot be kept.
            while self._keep(request) and request.next < request.stop:
                if chunks.is_ready(request.keys[request.next]):
                    request.next += chunks.ready_prefix(request.keys[request.next : request.stop])
                    self._arrivals.keep(request)
                    self._arrivals.hold_early(request, min(request.next, request.kept_chunks) - 1)
                elif not self._acquire(request, request.next):
                    return
            if request.kept_chunks < request.next:
                return

    def _keep(self, request: Request) -> bool:
        """A request has come by more of what it will want: keep it, and tell; False: not all."""
        is_all = self._arrivals.keep(request)
        self._answers.tell(request)
        return is_all


def _unrepeated(keys: list[bytes]) -> list[bytes]:
    """A chain up to its first repeated key: a true one has none, since keys name whole prefixes."""
    if len(set(keys)) == len(keys):
        return keys
    seen: set[bytes] = set()
    for at, key in enumerate(keys):
        if key in seen:
            return keys[:at]
        seen.add(key)
    return keys
