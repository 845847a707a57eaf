"""The textbook policies that ours is compared with, and the unreachable optimum.

Each is one cache of `capacity` chunks of equal size. `serve` returns how many chunks of a chain
were found, counted from the root, and then stores the chain. Chains are stored from their tail, so
that these policies evict a prompt from its end.
"""

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Sequence
from typing import Final

from forebay.sim.trace import Request

NEVER: Final = 1 << 62


class Cache(ABC):
    """One cache; `inserted` counts the chunks ever stored, which are writes if it is a disk."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.inserted = 0

    @property
    @abstractmethod
    def held(self) -> Container[bytes]:
        """What is in the cache."""

    @abstractmethod
    def take(self, keys: Sequence[bytes]) -> None:
        """Touch the chunks of this chain that are held, and store the others."""

    def found(self, keys: Sequence[bytes]) -> int:
        """How many chunks of the chain are held, counted from the root."""
        held = self.held
        for number, key in enumerate(keys):
            if key not in held:
                return number
        return len(keys)

    def serve(self, keys: Sequence[bytes], *, stores: bool = True) -> int:
        """Serve a request: how many chunks were found; afterwards the chain is stored, if asked."""
        found = self.found(keys)
        self.take(keys if stores else keys[:found])
        return found


class Lru(Cache):
    """Least recently used, tails first, as in vLLM."""

    is_refreshed = True  # whether a hit makes a chunk the most recent

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._held: OrderedDict[bytes, None] = OrderedDict()

    @property
    def held(self) -> Container[bytes]:
        return self._held

    def take(self, keys: Sequence[bytes]) -> None:
        held = self._held
        for key in reversed(keys):
            if key not in held:
                held[key] = None
                self.inserted += 1
            elif self.is_refreshed:
                held.move_to_end(key)
        while len(held) > self.capacity:
            held.popitem(last=False)


class Fifo(Lru):
    """First in, first out: a hit changes nothing."""

    is_refreshed = False


class S3Fifo(Cache):
    """Three queues: a small one for newcomers, a main one with second chances, a ghost queue."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_max = max(1, capacity // 10)
        self._hits: dict[bytes, int] = {}  # chunks held, with their hits, at most 3
        self._small: deque[bytes] = deque()
        self._main: deque[bytes] = deque()
        self._ghost: OrderedDict[bytes, None] = OrderedDict()

    @property
    def held(self) -> Container[bytes]:
        return self._hits

    def take(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            hits = self._hits.get(key)
            if hits is not None:
                self._hits[key] = min(hits + 1, 3)
                continue
            while len(self._hits) >= self.capacity:
                self._evict()
            self.inserted += 1
            self._hits[key] = 0
            if key in self._ghost:
                del self._ghost[key]
                self._main.append(key)
            else:
                self._small.append(key)

    def _evict(self) -> None:
        if self._small and (len(self._small) >= self._small_max or not self._main):
            key = self._small.popleft()
            if self._hits[key] > 1:
                self._hits[key] = 0
                self._main.append(key)
                return
            self._ghost[key] = None
            if len(self._ghost) > self.capacity:
                self._ghost.popitem(last=False)
        else:
            key = self._main.popleft()
            if self._hits[key]:
                self._hits[key] -= 1
                self._main.append(key)
                return
        del self._hits[key]


class Arc(Cache):
    """Adaptive replacement: recent and frequent lists, balanced by hits in their ghost lists."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._target = 0.0  # chunks meant for the recent list
        self._held: dict[bytes, None] = {}
        self._recent: OrderedDict[bytes, None] = OrderedDict()
        self._frequent: OrderedDict[bytes, None] = OrderedDict()
        self._recent_ghost: OrderedDict[bytes, None] = OrderedDict()
        self._frequent_ghost: OrderedDict[bytes, None] = OrderedDict()

    @property
    def held(self) -> Container[bytes]:
        return self._held

    def take(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self._held:
                self._recent.pop(key, None)
                self._frequent[key] = None
                self._frequent.move_to_end(key)
            else:
                self._take_missing(key)

    def _take_missing(self, key: bytes) -> None:
        recent_ghost, frequent_ghost = self._recent_ghost, self._frequent_ghost
        home = self._frequent
        if key in recent_ghost:
            step = max(1.0, len(frequent_ghost) / len(recent_ghost))
            self._target = min(float(self.capacity), self._target + step)
            self._make_room(from_frequent_ghost=False)
            del recent_ghost[key]
        elif key in frequent_ghost:
            step = max(1.0, len(recent_ghost) / len(frequent_ghost))
            self._target = max(0.0, self._target - step)
            self._make_room(from_frequent_ghost=True)
            del frequent_ghost[key]
        else:
            home = self._recent
            if len(self._recent) + len(recent_ghost) >= self.capacity and recent_ghost:
                recent_ghost.popitem(last=False)
            self._make_room(from_frequent_ghost=False)
            if len(self._held) + len(recent_ghost) + len(frequent_ghost) >= 2 * self.capacity:
                (frequent_ghost or recent_ghost).popitem(last=False)
        home[key] = self._held[key] = None
        self.inserted += 1

    def _make_room(self, *, from_frequent_ghost: bool) -> None:
        if len(self._held) < self.capacity:
            return
        size = len(self._recent)
        exact = from_frequent_ghost and size == int(self._target)
        if size and (size > self._target or exact or not self._frequent):
            key, _ = self._recent.popitem(last=False)
            self._recent_ghost[key] = None
        else:
            key, _ = self._frequent.popitem(last=False)
            self._frequent_ghost[key] = None
        del self._held[key]


class Optimum(Cache):
    """Clairvoyant: holds the chunks that will be used again soonest, and stores no others.

    It must be served exactly the requests that it was created with. A chunk is used again no later
    than those that continue it, so the one used last is always a tail.
    """

    def __init__(self, capacity: int, requests: Iterable[Request]) -> None:
        super().__init__(capacity)
        self._uses = _next_uses(requests)
        self._now = 0
        self._held: dict[bytes, int] = {}  # → number of the request that uses it next
        self._farthest: list[tuple[int, int, bytes]] = []  # (-next use, -depth, key), some stale

    @property
    def held(self) -> Container[bytes]:
        return self._held

    def take(self, keys: Sequence[bytes]) -> None:
        held, heap = self._held, self._farthest
        for depth, (key, use) in enumerate(zip(keys, self._uses[self._now], strict=False)):
            if use == NEVER:
                held.pop(key, None)
                continue
            self.inserted += key not in held
            held[key] = use
            heapq.heappush(heap, (-use, -depth, key))
        self._now += 1
        while len(held) > self.capacity:
            use, _, key = heapq.heappop(heap)
            if held.get(key) == -use:
                del held[key]


def _next_uses(requests: Iterable[Request]) -> list[list[int]]:
    """For each request and chunk, the number of the next request that asks for it."""
    order = list(requests)
    later: dict[bytes, int] = {}
    uses: list[list[int]] = []
    for number in range(len(order) - 1, -1, -1):
        keys = order[number].keys
        uses.append([later.get(key, NEVER) for key in keys])
        for key in keys:
            later[key] = number
    uses.reverse()
    return uses
