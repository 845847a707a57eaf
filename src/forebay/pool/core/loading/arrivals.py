"""Requests that have looked up and not asked yet: what they will want stays, and is read ahead.

Between the two lies the engine's own queue, up to many seconds, and what was found at the lookup
would be the first to leave: it has just been used. Nothing in DRAM leaves before what continues it,
so one pin on the last chunk keeps a whole prefix; it moves on as chunks come from disk, and what
comes before its turn has a pin of its own until then. All of this is a courtesy: it has the load
budget only, in order of arrival, ends after `KEEP_S`, and gives way to asks, the youngest first.
What many requests begin with counts once, and costs each next to nothing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Final

from forebay.pool.core.chunks import State
from forebay.pool.core.loading.request import Request
from forebay.pool.core.room import Room

KEEP_S: Final = 30.0


class Arrivals:
    """Requests in order of arrival, and what is kept for them."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._arrived: dict[Request, None] = {}
        self._unread: dict[Request, None] = {}  # of these, those that want something from disk
        self._keepers: Counter[bytes] = Counter()  # what is kept → for how many
        self.kept_bytes = 0

    def unread(self) -> Iterator[Request]:
        """Those of which something is still to be read, in order."""
        while self._unread:
            request = next(iter(self._unread))
            if request.next < request.stop:
                yield request
            if request.next >= request.stop:
                self._unread.pop(request, None)

    def add(self, request: Request, ready: int, now: float) -> None:
        """A request has come; its first `ready` chunks lie in DRAM."""
        self._arrived[request] = None
        request.deadline = now + KEEP_S
        request.next = request.told = ready
        if ready < request.stop:
            self._unread[request] = None
        self.keep(request)

    def keep(self, request: Request) -> bool:
        """Keep what a request has come by, in DRAM or on its way there; False: not all of it."""
        if request.next > request.kept_chunks:
            last = self._room.chunks.get(request.keys[request.next - 1])
            if last is None:
                request.next = request.kept_chunks  # there was no room to keep it, and it left
            else:
                self._count(request, last.slot_bytes)
        self._pin(request)
        return request.kept_chunks >= request.next

    def hold_early(self, request: Request, position: int) -> None:
        """A chunk is here, maybe before those that precede it: nothing else would keep it."""
        if not request.ready <= position < request.kept_chunks or position in request.early:
            return
        chunk = self._room.chunks.get(request.keys[position])
        if chunk is not None and chunk.state is State.READY:
            self._room.pin(chunk)
            request.early[position] = chunk

    def _count(self, request: Request, slot_bytes: int) -> None:
        """Count more of a request's chunks as kept, as far as the budget goes."""
        keys, kept = request.keys, request.kept_chunks
        # Before what is kept, all is kept.
        lacks = bisect_left(range(request.next), True, key=lambda at: self._lacks(keys[at]))
        count = min(request.next, lacks + max(0, self.left_bytes) // slot_bytes)
        self._keepers.update(keys[kept:count])
        self.kept_bytes += max(0, count - lacks) * slot_bytes
        request.kept_chunks, request.slot_bytes = max(kept, count), slot_bytes

    def _lacks(self, key: bytes) -> bool:
        return key not in self._keepers

    def _pin(self, request: Request) -> None:
        """Pin the last chunk of those that are kept and here without a hole."""
        keys, chunks, ready = request.keys, self._room.chunks, request.ready
        ready += chunks.ready_prefix(keys[ready : request.kept_chunks])
        last = chunks.get(keys[ready - 1]) if ready > request.ready else None
        if last is not None:
            self._room.pin(last)
            if request.kept is not None:
                self._room.unpin(request.kept)
            request.kept, request.ready = last, ready
        for position in [position for position in request.early if position < request.ready]:
            self._room.unpin(request.early.pop(position))

    @property
    def left_bytes(self) -> int:
        """What more may be kept or read ahead."""
        return self._room.load_budget_bytes - self._room.pinned_bytes - self.kept_bytes

    def asked(self, request: Request) -> None:
        """It arrives no longer; what is kept for it stays until it has its promise."""
        self._arrived.pop(request, None)
        self._unread.pop(request, None)

    def end(self, request: Request) -> None:
        """Nothing is kept for it any more."""
        self.asked(request)
        for chunk in request.pinned_ahead:
            self._room.unpin(chunk)
        request.early.clear()
        keys = request.keys[: request.kept_chunks]
        self._keepers.subtract(keys)
        over = [key for key in keys if not self._keepers[key]]
        for key in over:
            del self._keepers[key]
        self.kept_bytes -= len(over) * request.slot_bytes
        request.kept, request.kept_chunks, request.ready = None, 0, 0

    def youngest(self) -> Request | None:
        """Who gives way first."""
        return next(reversed(self._arrived), None)

    def expired(self, now: float) -> list[Request]:
        """Whose time is over."""
        return [request for request in self._arrived if request.deadline <= now]
