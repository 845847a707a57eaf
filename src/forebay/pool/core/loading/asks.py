"""Requests that have asked: in order within each engine, and the engines in turn.

Of one engine, room goes to one request after the other: if all got some at once, each would hold a
part of what it wants and wait for the others, until all their deadlines. Requests of one engine do
not wait for what another engine waits for. The tenants of one engine take turns: a request waits
for as many of each other tenant as of its own. Deadlines are a heap: checking them costs nothing
while none has come, however many requests wait.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from forebay.pool.core.loading.request import LoadRequest, LoadState

_SLACK: Final = 64


class Asks:
    """Requests that are ASKED, or PROMISED in part. Owned by the pool's thread."""

    def __init__(self) -> None:
        # Engines in turn; of each engine, its requests in order, with (round, number).
        self._by_engine: dict[str, dict[LoadRequest, tuple[int, int]]] = {}
        # Deadlines of requests that were ASKED when added; some have their promise by now.
        self._deadlines: list[tuple[float, int, LoadRequest]] = []
        self._numbers = count()

    def __iter__(self) -> Iterator[LoadRequest]:
        for asks in self._by_engine.values():
            yield from asks

    @property
    def waiting(self) -> int:
        """How many requests have no promise yet."""
        return sum(map(_waits, self))

    def add(self, request: LoadRequest) -> None:
        """Add a request that has asked."""
        number = next(self._numbers)
        asks = self._by_engine.setdefault(request.engine, {})
        is_last = self._put(asks, request, number)
        if not is_last:
            self._by_engine[request.engine] = dict(sorted(asks.items(), key=lambda each: each[1]))
        heappush(self._deadlines, (request.deadline, number, request))

    def _put(
        self, asks: dict[LoadRequest, tuple[int, int]], request: LoadRequest, number: int
    ) -> bool:
        """Give a request the round after its tenant's last one; whether it comes last now."""
        rounds = [now for now, _ in asks.values()]
        own = [now + 1 for each, (now, _) in asks.items() if each.tenant == request.tenant]
        asks[request] = (max([*own, *rounds[:1]], default=0), number)  # not in a round that is over
        return asks[request][0] >= max(rounds, default=0)

    def remove(self, request: LoadRequest) -> None:
        """A request has all that it will get; does nothing if it was removed before."""
        asks = self._by_engine.get(request.engine, {})
        asks.pop(request, None)
        if not asks:
            self._by_engine.pop(request.engine, None)

    def due(self, now: float) -> list[LoadRequest]:
        """Requests without a promise whose deadline has come, each once."""
        asks = sum(map(len, self._by_engine.values()))
        if len(self._deadlines) > 2 * asks + _SLACK:  # verify: forgotten deadlines
            self._deadlines = [each for each in self._deadlines if _waits(each[2])]
            heapify(self._deadlines)
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            found.append(heappop(self._deadlines)[2])
        return list(filter(_waits, found))

    def first(self, engine: str) -> LoadRequest | None:
        """An engine's first request that has not acquired all it wants, if any."""
        asks = self._by_engine.get(engine, ())
        return next((request for request in asks if request.wants_more), None)

    def turns(self) -> list[str]:
        """Every engine once; the one that comes first now comes last the next time."""
        engines = list(self._by_engine)
        if engines:
            self._by_engine[engines[0]] = self._by_engine.pop(engines[0])
        return engines


def _waits(request: LoadRequest) -> bool:
    return request.state is LoadState.ASKED
