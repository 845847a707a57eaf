"""Requests of one model that wait for an engine: keys in turn, the cheapest of a key first.

Keys are served by deficit round robin: who is in turn may have `QUANTUM_TOKENS` times its weight,
and what it had beyond that is taken off its next turns. Inside a key the cheapest request goes
first, and each second of waiting is worth `AGEING_TOKENS_S` tokens, so that none waits for ever.
Long prompts may have to wait while short ones go on. Not thread-safe.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from forebay.gateway.placement.request import RoutedRequest

QUANTUM_TOKENS: Final = 16  # small: whose turn it is matters more than long runs
AGEING_TOKENS_S: Final = 200.0
_Entry = tuple[float, int, RoutedRequest]


class _Lane:
    """Requests of one key, short ones and long ones apart; a heap each."""

    def __init__(self) -> None:
        self.short: list[_Entry] = []
        self.long: list[_Entry] = []

    def heaps(self, *, with_long: bool) -> list[list[_Entry]]:
        return [heap for heap in (self.short, self.long if with_long else []) if heap]

    def __iter__(self) -> Iterator[RoutedRequest]:
        return (entry[2] for heap in (self.short, self.long) for entry in heap)


class RequestQueue:
    """Requests of each key by cost and age, and the keys in turn."""

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._lanes: dict[str, _Lane] = {}
        self._left: dict[str, float] = {}  # tokens left of a turn; who is in turn comes first
        self._count = 0
        self._pushed = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RoutedRequest]:
        return (request for lane in self._lanes.values() for request in lane)

    def waiting_of(self, key: str) -> int:
        """How many requests of a key wait."""
        lane = self._lanes.get(key)
        return len(lane.short) + len(lane.long) if lane else 0

    def push(self, request: RoutedRequest) -> None:
        """One more request waits; its cost and time of arrival are set."""
        lane = self._lanes.setdefault(request.key, _Lane())
        self._left.setdefault(request.key, 0.0)
        self._pushed += 1
        self._count += 1
        entry = (request.cost + AGEING_TOKENS_S * request.arrived, self._pushed, request)
        heapq.heappush(lane.long if request.is_long else lane.short, entry)

    def pop(self, *, with_long: bool) -> RoutedRequest | None:
        """The request that goes next; None: none may."""
        key = self._in_turn(with_long=with_long)
        if key is None:
            return None
        heap = min(self._lanes[key].heaps(with_long=with_long), key=lambda each: each[0])
        request = heapq.heappop(heap)[2]
        self._count -= 1
        self.correct(key, request.cost)
        self._leave_if_empty(key)
        return request

    def remove(self, request: RoutedRequest) -> bool:
        """It does not wait any more; whether it did."""
        lane = self._lanes.get(request.key)
        for heap in (lane.short, lane.long) if lane else ():
            kept = [entry for entry in heap if entry[2] is not request]
            if len(kept) < len(heap):
                heap[:] = kept
                heapq.heapify(heap)
                self._count -= 1
                self._leave_if_empty(request.key)
                return True
        return False

    def correct(self, key: str, tokens: float) -> None:
        """A request took so many tokens more than was counted, or fewer."""
        if len(self._left) > 1 and key in self._left:  # who is alone owes nobody anything
            self._left[key] -= tokens

    def _in_turn(self, *, with_long: bool) -> str | None:
        ready = {key for key, lane in self._lanes.items() if lane.heaps(with_long=with_long)}
        if not ready:
            return None
        if len(ready) == 1:
            return next(iter(ready))
        turns = {key: QUANTUM_TOKENS * self._weight_of(key) for key in ready}
        if (found := self._go_round(turns)) is not None:
            return found
        # Pass over the rounds in which nobody can be served: costs may be large.
        rounds = max(0, int(min(-self._left[key] // turn for key, turn in turns.items())))
        for key, turn in turns.items():
            self._left[key] += rounds * turn
        found = self._go_round(turns) or self._go_round(turns)
        assert found is not None, "somebody has tokens left after two rounds more"
        return found

    def _go_round(self, turns: Mapping[str, int]) -> str | None:
        """Who has tokens left; whoever has none gets its turn's, and goes to the end."""
        for key in [each for each in self._left if each in turns]:
            if self._left[key] > 0:
                return key
            self._left[key] = self._left.pop(key) + turns[key]
        return None

    def _leave_if_empty(self, key: str) -> None:
        lane = self._lanes[key]
        if not lane.short and not lane.long:
            del self._lanes[key], self._left[key]
