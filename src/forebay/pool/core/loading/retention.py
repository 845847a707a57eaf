"""Chunks kept in DRAM for requests that have looked up and not asked yet.

Between lookup and ask lies the engine's own queue, up to many seconds, and what was found at the
lookup would be the first to leave: it has just been used. Nothing in DRAM leaves before what
continues it, so one pin on the last chunk keeps a whole prefix; it moves on as chunks come from
lower tiers, and what comes before its turn has a pin of its own until then. All of this is a
courtesy: it has the load budget only, in order of arrival, ends after `RETAIN_S`, and gives way to
asks, the youngest first. What many requests begin with counts once, and costs each next to nothing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Final

from forebay.pool.core.chunks import SlotState
from forebay.pool.core.dram import Dram
from forebay.pool.core.loading.request import LoadRequest, Retained

RETAIN_S: Final = 30.0


class Retention:
    """Requests in order of arrival, and what is retained for them."""

    def __init__(self, dram: Dram) -> None:
        self._dram = dram
        self._arrived: dict[LoadRequest, None] = {}
        self._unread: dict[LoadRequest, None] = {}  # of these, those that want more from below
        self._users: Counter[bytes] = Counter()  # what is retained → for how many requests
        self.used_bytes = 0

    @property
    def left_bytes(self) -> int:
        """What more may be retained or read ahead."""
        return self._dram.load_budget.left_bytes - self.used_bytes

    def unread(self) -> Iterator[LoadRequest]:
        """Those of which something is still to be read, in order."""
        while self._unread:
            request = next(iter(self._unread))
            if request.wants_more:
                yield request
            if not request.wants_more:
                self._unread.pop(request, None)

    def add(self, request: LoadRequest) -> None:
        """A request has come, or wants more than before."""
        self._arrived[request] = None
        if request.wants_more:
            self._unread[request] = None
        self.retain(request)

    def retain(self, request: LoadRequest) -> bool:
        """Keep what a request has come by, in DRAM or on its way there; False: not all of it."""
        if request.next > request.retained.chunks:
            last = self._dram.chunks.get(request.keys[request.next - 1])
            if last is not None:
                self._count(request, last.slot_bytes)
        self._pin(request)
        return request.retained.chunks >= request.next

    def retain_early(self, request: LoadRequest, position: int) -> None:
        """A chunk is here, maybe before those that precede it: nothing else would keep it."""
        retained = request.retained
        if not retained.ready <= position < retained.chunks or position in retained.early:
            return
        chunk = self._dram.chunks.get(request.keys[position])
        if chunk is not None and chunk.state is SlotState.READY:
            self._dram.pin(chunk)
            retained.early[position] = chunk

    def asked(self, request: LoadRequest) -> None:
        """It has asked; what is retained for it stays until it has its promise."""
        self._arrived.pop(request, None)
        self._unread.pop(request, None)

    def end(self, request: LoadRequest) -> None:
        """Nothing is retained for it any more."""
        self.asked(request)
        retained, request.retained = request.retained, Retained()
        for chunk in retained.pinned:
            self._dram.unpin(chunk)
        keys = request.keys[: retained.chunks]
        self._users.subtract(keys)
        unused = [key for key in keys if not self._users[key]]
        for key in unused:
            del self._users[key]
        self.used_bytes -= len(unused) * retained.slot_bytes

    def youngest(self) -> LoadRequest | None:
        """Who gives way first."""
        return next(reversed(self._arrived), None)

    def arrived(self) -> list[LoadRequest]:
        """All that have not asked yet, in order of arrival."""
        return list(self._arrived)

    def _count(self, request: LoadRequest, slot_bytes: int) -> None:
        """Count more of a request's chunks as retained, as far as the budget goes."""
        keys, before = request.keys, request.retained.chunks
        # Before what is retained, all is retained.
        lacks = bisect_left(range(request.next), True, key=lambda at: self._lacks(keys[at]))
        count = min(request.next, lacks + max(0, self.left_bytes) // slot_bytes)
        self._users.update(keys[before:count])
        self.used_bytes += max(0, count - lacks) * slot_bytes
        request.retained.chunks, request.retained.slot_bytes = max(before, count), slot_bytes

    def _lacks(self, key: bytes) -> bool:
        return key not in self._users

    def _pin(self, request: LoadRequest) -> None:
        """Pin the last chunk of those that are retained and here without a hole."""
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
