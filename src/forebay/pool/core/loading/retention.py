"""Keeps chunks in DRAM for requests that have looked up and not asked yet.

Between lookup and ask a request waits in the engine's own queue, up to many seconds, and what was
found at the lookup would be the first to leave, having just been used. Nothing in DRAM leaves
before what continues it, so one pin on the last chunk keeps a whole prefix; the pin moves on as
chunks come from lower tiers, and a chunk that comes out of order has a pin of its own until then.
All of this is a courtesy: it is limited to an engine's share of the load budget, in order of
arrival; it ends after `RETAIN_S`; and it gives way to asks, beginning with the youngest request of
the engine that has most. A prefix that many requests of an engine have in common counts once, and
costs each of them next to nothing.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import takewhile
from typing import Final

from forebay.pool.core.budget import Budget
from forebay.pool.core.dram import Dram
from forebay.pool.core.loading.request import LoadRequest, Retained

RETAIN_S: Final = 30.0


class Retention:
    """Requests without a promise, in order of arrival, and what is retained for each."""

    def __init__(self, dram: Dram) -> None:
        self._dram = dram
        self._arrived: dict[LoadRequest, None] = {}  # in order of arrival, and so of deadlines
        # Those that wait for a tier to ask its medium for a key, by that key.
        self._unknown: dict[bytes, dict[LoadRequest, None]] = {}
        # Those that want more from lower tiers, by engine; the engine whose turn it is comes first.
        self._unread: dict[str, dict[LoadRequest, None]] = {}
        # By engine: key → number of requests that it is retained for.
        self._users: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        # By engine: key → bytes that were taken for it. Chunks of one chain may
        # differ in length, and are not looked up again when they are given back.
        self._taken: defaultdict[str, dict[bytes, int]] = defaultdict(dict)
        self._budget = Budget(dram.half_bytes, dram.processes)

    @property
    def used_bytes(self) -> int:
        """The bytes retained for all engines."""
        return self._budget.used_bytes

    def taken_for(self, engine: str, key: bytes) -> int:
        """The bytes taken from an engine's share for one chunk; 0: none."""
        return self._taken[engine].get(key, 0) if engine in self._taken else 0

    def left_bytes(self, engine: str) -> int:
        """How many more bytes may be retained or read ahead for an engine."""
        loads_bytes = self._dram.load_budget.left_bytes(engine)
        return loads_bytes + self._budget.left_bytes(engine) - self._dram.half_bytes()

    def turns(self) -> list[str]:
        """Every engine that something is to be read for; the first comes last the next time."""
        engines = list(self._unread)
        if engines:
            self._unread[engines[0]] = self._unread.pop(engines[0])
        return engines

    def unread(self, engine: str) -> Iterator[LoadRequest]:
        """An engine's requests that something may have to be read for, in order."""
        while unread := self._unread.get(engine):
            request = next(iter(unread))
            if request.wants_more:
                yield request
            if not request.wants_more:
                self._is_read(request)

    @property
    def has_unread(self) -> bool:
        """Whether there may be something to read for any request."""
        return bool(self._unread)

    def wants_more(self) -> bool:
        """Whether there is something to read for any request."""
        return any(next(self.unread(engine), None) is not None for engine in list(self._unread))

    def _is_read(self, request: LoadRequest) -> None:
        """Nothing more is to be read for this request."""
        unread = self._unread.get(request.engine, {})
        unread.pop(request, None)
        if not unread:
            self._unread.pop(request.engine, None)

    def add(self, request: LoadRequest) -> None:
        """A request has arrived, or wants more than before."""
        self._arrived[request] = None
        if request.unknown_keys:
            self._unknown.setdefault(request.unknown_keys[0], {})[request] = None
        if request.wants_more:
            self._unread.setdefault(request.engine, {})[request] = None
        self.retain(request)

    def retain(self, request: LoadRequest) -> bool:
        """Retain chunks that a request has, or that are on their way; False if some do not fit."""
        if request.next > request.retained.chunks:
            last = self._dram.chunks.get(request.keys[request.next - 1])
            if last is not None:
                self._count(request, last.slot_bytes)
        self._pin(request)
        return request.retained.chunks >= request.next

    def retain_early(self, request: LoadRequest, position: int) -> None:
        """Pin a chunk that came before those that precede it: nothing else would keep it."""
        retained = request.retained
        if not retained.ready <= position < retained.chunks or position in retained.early:
            return
        chunk = self._dram.chunks.get(request.keys[position])
        if chunk is not None and self._dram.chunks.is_ready(chunk.key):
            self._dram.pin(chunk)
            retained.early[position] = chunk

    def asked(self, request: LoadRequest) -> None:
        """A request has asked; what is retained for it stays until its promise."""
        self._arrived.pop(request, None)
        self._is_read(request)
        if request.unknown_keys:
            key = request.unknown_keys[0]
            waiting = self._unknown.get(key, {})
            waiting.pop(request, None)
            if not waiting:
                self._unknown.pop(key, None)

    def end(self, request: LoadRequest) -> None:
        """Retain nothing for a request any more."""
        self.asked(request)
        retained, request.retained = request.retained, Retained()
        for chunk in retained.pinned:
            self._dram.unpin(chunk)
        keys = retained.keys[: retained.chunks]
        users = self._users[request.engine]
        users.subtract(keys)
        unused = [key for key in keys if not users[key]]
        taken = self._taken[request.engine]
        for key in unused:
            del users[key]
        if unused:
            self._budget.give(request.engine, sum(taken.pop(key) for key in unused))
        if not users:
            del self._users[request.engine], self._taken[request.engine]

    def youngest(self) -> LoadRequest | None:
        """The request that gives way first: the youngest of the engine with most retained."""
        engine = max(self._users, key=self._budget.used_by, default="")
        young = reversed(self._arrived)
        return next((each for each in young if each.engine == engine), None)

    def due(self, now: float) -> list[LoadRequest]:
        """Requests that have not asked in time, in order of arrival."""
        return list(takewhile(lambda each: each.deadline <= now, self._arrived))

    def waiting_for(self, learned: Collection[bytes]) -> list[LoadRequest]:
        """Requests that may want more, now that a tier has learned about these keys."""
        return [request for key in learned for request in self._unknown.pop(key, ())]

    def _count(self, request: LoadRequest, slot_bytes: int) -> None:
        """Count more of a request's chunks as retained, as far as the budget allows."""
        keys, before = request.keys, request.retained.chunks
        # Whatever precedes a retained chunk is retained.
        engine, users = request.engine, self._users[request.engine]
        lacks = bisect_left(range(request.next), True, key=lambda at: keys[at] not in users)
        count = min(request.next, lacks + max(0, self.left_bytes(engine)) // slot_bytes)
        users.update(keys[before:count])
        if count > lacks:
            self._budget.take(engine, (count - lacks) * slot_bytes)
            self._taken[engine].update(dict.fromkeys(keys[lacks:count], slot_bytes))
        request.retained.chunks = max(before, count)
        request.retained.keys = keys

    def _pin(self, request: LoadRequest) -> None:
        """Pin the last chunk of the retained run that is in DRAM."""
        keys, chunks, retained = request.keys, self._dram.chunks, request.retained
        ready = retained.ready
        ready += chunks.ready_prefix(keys[ready : retained.chunks])
        last = chunks.get(keys[ready - 1]) if ready > retained.ready else None
        if last is not None:
            self._dram.pin(last)
            if retained.last is not None:
                self._dram.unpin(retained.last)
            retained.last, retained.ready = last, ready
        for position in [position for position in retained.early if position < retained.ready]:
            self._dram.unpin(retained.early.pop(position))
