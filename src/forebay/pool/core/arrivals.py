"""Requests that have looked up and not asked yet: what they will want stays, and is read ahead.

Between the two lies the engine's own queue, up to many seconds, and what was found at the lookup
would be the first to leave: it has just been used. Nothing in DRAM leaves before what continues it,
so one pin on the last chunk keeps a whole prefix. All of this is a courtesy: it has the load budget
only, in order of arrival, ends after `KEEP_S`, and gives way to asks, the youngest first. What many
requests begin with counts once.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Final

from forebay.pool.core.request import Request
from forebay.pool.core.room import Room

KEEP_S: Final = 30.0


class Arrivals:
    """Requests in order of arrival, and what is kept for them."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._arrived: dict[Request, None] = {}
        self._reading: dict[Request, None] = {}  # of these, those that want something from disk
        self._unread: dict[Request, None] = {}  # of these, those that have not got all of it
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
            self._reading[request] = self._unread[request] = None
        last = self._room.chunks.get(request.keys[ready - 1]) if ready else None
        if last is not None:
            self._keep(request, ready, last.slot_bytes)

    def _keep(self, request: Request, ready: int, slot_bytes: int) -> None:
        """Keep as much of what lies in DRAM as may be."""
        keys, keepers = request.keys, self._keepers
        # Before what is kept, all is kept.
        shared = bisect_left(range(ready), True, key=lambda at: keys[at] not in keepers)
        count = min(ready, shared + max(0, self.left_bytes) // slot_bytes)
        last = self._room.chunks.get(keys[count - 1]) if count else None
        if last is not None:
            self._room.pin(last)
            request.kept, request.kept_chunks = last, count
            keepers.update(keys[:count])
            self.kept_bytes += (count - shared) * slot_bytes

    @property
    def left_bytes(self) -> int:
        """What more may be kept or read ahead."""
        return self._room.load_budget_bytes - self._room.pinned_bytes - self.kept_bytes

    def asked(self, request: Request) -> None:
        """It arrives no longer; what is kept for it stays until it has its promise."""
        for requests in (self._arrived, self._reading, self._unread):
            requests.pop(request, None)

    def end(self, request: Request) -> None:
        """Nothing is kept for it any more."""
        self.asked(request)
        if request.kept is not None:
            self._room.unpin(request.kept)
            keys = request.keys[: request.kept_chunks]
            self._keepers.subtract(keys)
            over = [key for key in keys if not self._keepers[key]]
            for key in over:
                del self._keepers[key]
            self.kept_bytes -= len(over) * request.kept.slot_bytes
            request.kept, request.kept_chunks = None, 0

    def youngest(self) -> Request | None:
        """Who gives way first."""
        return next(reversed(self._arrived), None)

    def youngest_reading(self) -> Request | None:
        """Who gives way first of those that hold what was read ahead."""
        return next(reversed(self._reading), None)

    def expired(self, now: float) -> list[Request]:
        """Whose time is over."""
        return [request for request in self._arrived if request.deadline <= now]
