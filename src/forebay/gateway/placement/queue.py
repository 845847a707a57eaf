"""Requests that wait for engines: keys in turn, the cheapest of a key first.

Models that share an engine or a GPU wait in one queue, so that keys take turns whatever model they
ask for. Keys are served by deficit round robin: in its turn a key may use `QUANTUM_TOKENS` times
its weight, and what it uses beyond that is deducted from its next turns. Of a key's requests the
cheapest goes first, and each second of waiting counts as `AGEING_TOKENS_S` tokens, so that none
waits forever. Requests that no engine can start now are passed over. Not thread-safe.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from forebay.gateway.placement.request import Needs, RoutedRequest

QUANTUM_TOKENS: Final = 16  # small: short turns matter more than long runs of one key
AGEING_TOKENS_S: Final = 200.0
_Entry = tuple[float, int, RoutedRequest]


class _Lane:
    """The requests of one key, in one heap for each kind of needs."""

    def __init__(self) -> None:
        self.left = 0.0  # tokens left of its turn
        self.heaps: dict[Needs, list[_Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.heaps.values()))

    def __iter__(self) -> Iterator[RoutedRequest]:
        return (entry[2] for heap in self.heaps.values() for entry in heap)


class RequestQueue:
    """Requests of each key by cost and age, and the keys in turn."""

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._lanes: dict[str, _Lane] = {}  # the key in turn comes first
        self._counts: Counter[Needs] = Counter()
        self._pushed = 0

    def __len__(self) -> int:
        return self._counts.total()

    def __iter__(self) -> Iterator[RoutedRequest]:
        return (request for lane in self._lanes.values() for request in lane)

    @property
    def models(self) -> set[str]:
        """The models that requests wait for."""
        return {needs.model for needs in self._counts}

    def of(self, model: str) -> list[RoutedRequest]:
        """The requests that wait for a model."""
        if not self.count(model):
            return []
        return [request for request in self if request.model == model]

    def count(self, model: str) -> int:
        """How many requests wait for a model."""
        return sum(count for needs, count in self._counts.items() if needs.model == model)

    def waiting_of(self, key: str) -> int:
        """How many requests of a key wait."""
        return len(self._lanes.get(key, ()))

    def push(self, request: RoutedRequest) -> None:
        """Add a request; its cost, needs and time of arrival must be set."""
        lane = self._lanes.setdefault(request.key, _Lane())
        self._pushed += 1
        self._counts[request.needs] += 1
        entry = (request.cost + AGEING_TOKENS_S * request.arrived, self._pushed, request)
        heapq.heappush(lane.heaps.setdefault(request.needs, []), entry)

    def pop(self, may_start: Callable[[Needs], bool]) -> RoutedRequest | None:
        """Take out the next request of those that may start; None if none may."""
        ready = {needs for needs in self._counts if may_start(needs)}
        keys = {key for key, lane in self._lanes.items() if not lane.heaps.keys().isdisjoint(ready)}
        if not keys:
            return None
        lane = self._lanes[self._in_turn(keys)]
        needs = min(ready & lane.heaps.keys(), key=lambda each: lane.heaps[each][0])
        request = heapq.heappop(lane.heaps[needs])[2]
        if len(keys) > 1:  # else no other key could have gone
            lane.left -= request.cost
            request.charged = lane
        self._forget(request)
        return request

    def remove(self, request: RoutedRequest) -> bool:
        """Take out a request that need not wait any more; False if it did not wait here."""
        lane = self._lanes.get(request.key)
        heap = lane.heaps.get(request.needs, []) if lane else []
        kept = [entry for entry in heap if entry[2] is not request]
        if len(kept) == len(heap):
            return False
        heap[:] = kept
        heapq.heapify(heap)
        self._forget(request)
        return True

    def correct(self, request: RoutedRequest, tokens: float) -> None:
        """Charge a key for the tokens that a request took beyond its expected cost, or give back.

        A key that meanwhile had no request waiting has started anew, and is not charged.
        """
        lane = self._lanes.get(request.key)
        if lane is not None and lane is request.charged:
            lane.left -= tokens

    def take(self, other: "RequestQueue") -> None:
        """Take over all requests of another queue, which is not used any more."""
        for request in sorted(other, key=lambda each: each.arrived):
            self.push(request)

    def _forget(self, request: RoutedRequest) -> None:
        """Update the counts after a request was taken out of its heap."""
        lane, needs = self._lanes[request.key], request.needs
        if not lane.heaps[needs]:
            del lane.heaps[needs]
        if not lane.heaps:
            del self._lanes[request.key]
        self._counts[needs] -= 1
        if not self._counts[needs]:
            del self._counts[needs]

    def _in_turn(self, keys: Collection[str]) -> str:
        if len(keys) == 1:
            return next(iter(keys))
        turns = {key: QUANTUM_TOKENS * self._weight_of(key) for key in keys}
        if (found := self._go_round(turns)) is not None:
            return found
        # Skip the rounds in which no key can be served: costs may be large.
        left = {key: self._lanes[key].left for key in turns}
        rounds = max(0, int(min(-left[key] // turn for key, turn in turns.items())))
        for key, turn in turns.items():
            self._lanes[key].left += rounds * turn
        found = self._go_round(turns) or self._go_round(turns)
        assert found is not None, "somebody has tokens left after two rounds more"
        return found

    def _go_round(self, turns: Mapping[str, int]) -> str | None:
        """The first key with tokens left; one without gets a turn's tokens and goes to the end."""
        for key in [each for each in self._lanes if each in turns]:
            lane = self._lanes[key]
            if lane.left > 0:
                return key
            lane.left += turns[key]
            self._lanes[key] = self._lanes.pop(key)
        return None
