"""Reading ahead: loads chunks before they are asked for, while no ask waits for room.

What an engine has looked up is retained if it is in DRAM, and read if it is not, unless an ask of
that engine waits: the requests of an engine in order of arrival, and the engines in turn. The
engine hears how much has come. Chunks that nobody has looked up may be read as well, into free
slots.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from forebay.pool.core.budget import NOBODY
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.loading.asks import Asks
from forebay.pool.core.loading.promotions import FetchOutcome, Promotions
from forebay.pool.core.loading.request import LoadRequest, LoadRequests, LoadState
from forebay.pool.core.loading.retention import Retention
from forebay.pool.core.parts import CoreParts
from forebay.pool.messages import Found
from forebay.record.header import RecordName

TELL_CHUNKS: Final = 16  # chunks that come into DRAM before an engine hears of it


@dataclass(frozen=True, slots=True)
class LoadParts:
    """The objects that the parts of loading share; made once, when the pool begins."""

    requests: LoadRequests
    asks: Asks
    retention: Retention
    promotions: Promotions


class ReadAhead:
    """Reads ahead for ARRIVED loads; until the ask only it changes `next`, `stop`, `awaited`.

    Owned by the pool's thread.
    """

    def __init__(self, parts: CoreParts, loads: LoadParts) -> None:
        self._dram, self._stack = parts.dram, parts.stack
        self._asks, self._retention = loads.asks, loads.retention
        self._promotions = loads.promotions

    def add(self, request: LoadRequest) -> None:
        """A request was looked up: retain what DRAM has of it, and begin to read the rest."""
        self._retention.add(request)
        self.run()

    def learned(self, learned: Collection[bytes]) -> None:
        """A tier found out whether it has these keys: requests that wait for one may want more."""
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
        self.run()

    def run(self) -> None:
        """Read what may be read now, for each engine that has no waiting ask."""
        for engine in self._retention.turns():
            if self._asks.first(engine) is None:
                self._read_for(engine)

    def received(self, request: LoadRequest, position: int, chunk: Chunk) -> None:
        """A chunk that a request may wait for has become READY, or was dropped."""
        if not request.stop_awaiting(position, chunk.key):
            return
        if chunk.state is not SlotState.READY:
            self._promotions.truncate(request, position)
        self._retain_and_tell(request)
        self._retention.retain_early(request, position)

    def stop_retaining(self, request: LoadRequest) -> None:
        """Retain nothing for a request; what it holds since its ask stays."""
        self._retention.end(request)
        if request.state is LoadState.ARRIVED and request.awaited:
            self._promotions.stop_awaiting(request)

    def _read_for(self, engine: str) -> None:
        chunks = self._dram.chunks
        for request in self._retention.unread(engine):
            # Nothing is read after a chunk that cannot be retained.
            while self._retain_and_tell(request) and request.wants_more:
                if chunks.is_ready(request.keys[request.next]):
                    request.next += chunks.ready_prefix(request.keys[request.next : request.stop])
                    self._retention.retain(request)
                    position = min(request.next, request.retained.chunks) - 1
                    self._retention.retain_early(request, position)
                elif not self._fetch(request, request.next):
                    return
            if request.retained.chunks < request.next:
                return

    def _fetch(self, request: LoadRequest, position: int) -> bool:
        """Fetch one chunk that is not in DRAM; False if there is no room for it now."""
        if position not in request.awaited:
            outcome = self._promotions.fetch(request, position)
            if outcome is FetchOutcome.NO_ROOM:
                return False
            if outcome is FetchOutcome.GONE:
                self._promotions.truncate(request, position)
                return True
            request.awaited.add(position)
        request.next = position + 1
        return True

    def _retain_and_tell(self, request: LoadRequest) -> bool:
        """Retain what has come for a request, and tell its engine; False if not all of it fits."""
        retained = request.retained.chunks
        if request.next > retained and not self._is_here(request.keys[request.next - 1]):
            request.next = retained  # it could not be retained, and left
        is_all = self._retention.retain(request)
        ready = request.retained.ready
        if ready >= request.told + TELL_CHUNKS or ready >= request.stop > request.told:
            request.told = ready
            request.session.send(Found(request.number, request.stop, ready))
        return is_all

    def _is_here(self, key: bytes) -> bool:
        return self._dram.chunks.get(key) is not None

    # Reads that no request has asked for.

    def wait_for_room(self) -> bool:
        """Whether any request, asked or not, has not begun to load all that it wants."""
        return self._retention.wants_more() or any(request.wants_more for request in self._asks)

    @property
    def may_fetch_ahead(self) -> bool:
        """Whether a chunk that no request wants may be read into a free slot."""
        return not (self._promotions.are_too_many_unawaited or self.wait_for_room())

    def fetch_ahead(self, name: RecordName, length: int) -> Chunk | None:
        """Begin to read a chunk that no request wants; None if there is no free slot."""
        return self._promotions.begin(NOBODY, name, length, ahead=False, only_free=True)

    @property
    def reads_in_flight(self) -> int:
        """All reads from lower tiers that are in flight."""
        return self._promotions.in_flight
