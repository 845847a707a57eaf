"""Runs a policy on a trace: the production code over a model of the tiers, and baselines.

The model is the pool without bytes and time: chunks of one size, writes that are done at once,
lower tiers with regions as large as on a drive, evicted whole and in the order of the disk tier.
When a chunk is in no tier any more, all that continue it are dropped; while DRAM has a shared
head, what continues it in lower tiers stays. The prefix of a chain that lies in any tier is found;
the rest is recomputed, and stored as far as there is room.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.contract import Ending, Policy
from forebay.pool.policy.learned import Learned
from forebay.sim.classic import Arc, Cache, Fifo, Lru, Optimum, S3Fifo
from forebay.sim.trace import CHUNK_TOKENS, Request
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.regions.directory import REGIONS_MIN
from forebay.tiers.eviction_order import EvictionOrder

REGION_BYTES: Final = Options().region_bytes
PROGRESS_REQUESTS: Final = 256
NAMES: Final = ("forebay", "lru", "fifo", "s3fifo", "arc", "optimum")
_CLASSIC: Final[dict[str, Callable[[int], Cache]]] = {
    "lru": Lru,
    "fifo": Fifo,
    "s3fifo": S3Fifo,
    "arc": Arc,
}
Progress = Callable[[int], None]  # requests served since the last call


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is simulated, in chunks of one size."""

    dram_chunks: int
    lower_chunks: tuple[int, ...] = ()  # of each tier below DRAM, the nearest first
    chunk_bytes: int = CHUNK_TOKENS * 131_072
    budget_bytes_a_day: int | None = None  # for writes to the nearest lower tier

    def region_chunks(self, tier_chunks: int) -> int:
        """Chunks per region in a tier of this size, as the disk tier would have it."""
        return max(1, min(REGION_BYTES // self.chunk_bytes, tier_chunks // REGIONS_MIN))

    def lower_tiers(self) -> list[LowerTier]:
        """The tiers below DRAM, in the form that a policy is given."""
        budgets = [self.budget_bytes_a_day, *[None] * len(self.lower_chunks)]
        return [
            LowerTier(chunks * self.chunk_bytes, budget)
            for chunks, budget in zip(self.lower_chunks, budgets, strict=False)
        ]


@dataclass(frozen=True, slots=True)
class SimResult:
    """The result of one policy on one trace; tokens are whole chunks, but the total is all."""

    policy: str
    tokens: int
    dram_tokens: int  # found in DRAM
    lower_tokens: int  # found only in a lower tier
    written_bytes: int  # to lower tiers

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were not recomputed."""
        return (self.dram_tokens + self.lower_tokens) / self.tokens if self.tokens else 0.0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that no tier had."""
        return self.tokens - self.dram_tokens - self.lower_tokens


class _ChunkPlace(NamedTuple):
    """A chunk's place in a tier."""

    region: int
    turn: int  # the last request that asked for it
    depth: int  # chunks before it in its chain


class SimulatedTier:
    """Regions filled one after another, each evicted whole when the tier is full."""

    def __init__(self, chunks: int, region_chunks: int) -> None:
        self._region_chunks = region_chunks
        self._regions_max = max(1, chunks // region_chunks)
        self._regions: dict[int, list[bytes]] = {0: []}  # oldest first; the last is being filled
        self._number = 0  # of the region being written
        self._place: dict[bytes, _ChunkPlace] = {}
        self._order = EvictionOrder()
        self.held: dict[bytes, bool] = {}  # → whether it was ever read
        self.written = 0  # chunks

    def has(self, key: bytes) -> bool:
        """Whether a chunk can be read."""
        return key in self.held

    def read(self, key: bytes) -> None:
        """Read a chunk that the tier has."""
        self.held[key] = True

    def asked(self, keys: Sequence[bytes]) -> None:
        """A request asked for these chunks."""
        turn, place_of = self._order.begin_turn(), self._place
        lowest: dict[int, int] = {}
        for key in keys:
            place = place_of.get(key)
            if place is not None:
                place_of[key] = place._replace(turn=turn)
                lowest.setdefault(place.region, place.depth)  # the first is the lowest
        for region, depth in lowest.items():
            self._order.asked(region, turn, depth)

    def write(self, key: bytes, parent: bytes | None) -> list[tuple[bytes, bool]]:
        """Write a chunk; returns the chunks evicted for it, with whether each was ever read."""
        evicted = []
        if len(self._regions[self._number]) >= self._region_chunks:
            if len(self._regions) >= self._regions_max:
                evicted = self._evict(self._first_to_go())
            self._number += 1
            self._regions[self._number] = []
        above = None if parent is None else self._place.get(parent)
        turn = self._order.turn_of_stored(above.turn if above else 0)
        depth = above.depth + 1 if above else 0
        self._regions[self._number].append(key)
        self._place[key] = _ChunkPlace(self._number, turn, depth)
        self._order.asked(self._number, turn, depth)
        self.held[key] = False
        self.written += 1
        return evicted

    def forget(self, key: bytes) -> bool:
        """Forget a chunk; returns whether it was ever read."""
        self._place.pop(key, None)
        return self.held.pop(key, False)

    def _first_to_go(self) -> int:
        first = self._order.first(self._regions)
        assert first is not None, "one is always being written"
        return first

    def _evict(self, region: int) -> list[tuple[bytes, bool]]:
        self._order.forget(region)
        keys, place_of = self._regions.pop(region), self._place
        here = [key for key in keys if key in place_of and place_of[key].region == region]
        return [(key, self.forget(key)) for key in here]


class SimulatedPool:
    """DRAM and lower tiers under one policy, which is called as the pool calls it."""

    def __init__(self, sizes: Sizes, policy: Policy) -> None:
        self.policy = policy
        self.dram: set[bytes] = set()
        self.lower = [
            SimulatedTier(chunks, sizes.region_chunks(chunks)) for chunks in sizes.lower_chunks
        ]
        self.admitted = 0  # chunks that the policy offered for lower tiers
        self._children: dict[bytes, set[bytes]] = {}
        self._parent: dict[bytes, bytes | None] = {}
        self._answers: list[tuple[float, int, bytes, Ending]] = []  # a heap by time of their end
        self._answered = 0
        self._sizes = sizes

    def serve(self, keys: Sequence[bytes], now: float, *, stores: bool = True) -> tuple[int, int]:
        """Serve a request: how many of its chunks were found in DRAM, and how many only below."""
        found = in_dram = 0
        for key in keys:
            if key in self.dram:
                in_dram += 1
            elif not self._read(key):
                break
            found += 1
        self.policy.requested(keys, found, now)
        for tier in self.lower:
            tier.asked(keys[:found])
        parent: bytes | None = None
        for key in keys if stores else keys[:found]:
            if key not in self.dram and (
                self._is_declined(key, parent, now) or not self._store(key, parent, now)
            ):
                break
            parent = key
        self._write(now)
        return in_dram, found - in_dram

    def answer(self, request: Request) -> None:
        """A request was served; note when its answer will end, if the trace tells how it ends."""
        if request.keys and request.ending is not None:
            self._answered += 1
            at_s = request.at_s + request.answer.duration_s
            heapq.heappush(self._answers, (at_s, self._answered, request.keys[-1], request.ending))

    def end_answers(self, now: float) -> None:
        """Tell the policy of all answers that have ended by now."""
        while self._answers and self._answers[0][0] <= now:
            at_s, _, key, ending = heapq.heappop(self._answers)
            self.policy.ended(key, ending, at_s)

    def has(self, key: bytes) -> bool:
        """Whether any tier has a chunk."""
        return key in self.dram or self._is_below(key)

    def _is_below(self, key: bytes) -> bool:
        return any(tier.has(key) for tier in self.lower)

    @property
    def written_bytes(self) -> int:
        """What was written to lower tiers."""
        return sum(tier.written for tier in self.lower) * self._sizes.chunk_bytes

    def _read(self, key: bytes) -> bool:
        """Read a chunk from the nearest lower tier that has it; False if none has."""
        for tier in self.lower:
            if tier.has(key):
                tier.read(key)
                return True
        return False

    def _is_declined(self, key: bytes, parent: bytes | None, now: float) -> bool:
        """Whether a new chunk gets no slot; what is read from a lower tier always gets one."""
        is_full = len(self.dram) >= self._sizes.dram_chunks
        if not is_full or self.has(key):
            return False
        return self.policy.declines(key, parent, now, self._sizes.chunk_bytes)

    def _store(self, key: bytes, parent: bytes | None, now: float) -> bool:
        if len(self.dram) >= self._sizes.dram_chunks and not self._evict(parent, now):
            return False
        if parent is not None:
            if not self.has(parent):
                return False  # the parent was evicted meanwhile
            self._children.setdefault(parent, set()).add(key)
        self._arrive(key, parent, now)
        return True

    def _arrive(self, key: bytes, parent: bytes | None, now: float) -> None:
        """Put a chunk into DRAM and tell the policy."""
        self._parent[key] = parent
        self.dram.add(key)
        self.policy.stored(key, parent, self._sizes.chunk_bytes, now)
        self._tell(key)

    def _evict(self, parent: bytes | None, now: float) -> bool:
        """Free a slot in DRAM; False if nothing can leave.

        The new chunk's parent can leave if a lower tier has it, so that prompts may be longer than
        DRAM.
        """
        slot_bytes = self._sizes.chunk_bytes
        victim = self.policy.victim(now, slot_bytes, spare_unwritten=True)
        if victim is None or (victim == parent and not self._is_below(victim)):
            self._write(now)
            victim = self.policy.victim(now, slot_bytes)
        if victim is None or (victim == parent and not self._is_below(victim)):
            return False
        self._leave(victim)
        return True

    def _leave(self, victim: bytes) -> None:
        self.dram.discard(victim)
        self.policy.removed(victim)
        if not self.has(victim):
            self._drop_descendants(victim)

    def _tell(self, key: bytes) -> None:
        self.policy.in_tiers(key, [n for n, tier in enumerate(self.lower) if tier.has(key)])

    def _write(self, now: float) -> None:
        for number in range(len(self.lower)):
            while (key := self.policy.next_write(number, now)) is not None:
                self._write_one(number, key, now)

    def _write_one(self, number: int, key: bytes, now: float) -> None:
        self.admitted += 1
        evicted = self.lower[number].write(key, self._parent[key])
        self._tell(key)
        if evicted:
            self._evicted(number, evicted, now)

    def _evicted(self, number: int, evicted: list[tuple[bytes, bool]], now: float) -> None:
        for key, _ in evicted:
            self._tell(key)
        for key, _ in evicted:
            if not self.has(key):
                self._drop_descendants(key)
        size_bytes = self._sizes.chunk_bytes
        read = sum(was_read for _, was_read in evicted)
        self.policy.evicted(number, len(evicted) * size_bytes, read * size_bytes, now)

    def _drop_descendants(self, key: bytes) -> None:
        """Drop all that continues a chunk that is in no tier any more: it cannot be reached."""
        tree = [key]
        for each in tree:
            tree.extend(self._children.pop(each, ()))
        for each in reversed(tree[1:]):
            for tier in self.lower:
                tier.forget(each)
            if each in self.dram:
                self.dram.discard(each)
                self.policy.removed(each)


class ClassicTiers:
    """DRAM and lower tiers, each a separate cache that stores every chunk."""

    def __init__(self, name: str, sizes: Sizes, requests: Sequence[Request]) -> None:
        self._chunk_bytes = sizes.chunk_bytes
        self._dram, *self._lower = (
            Optimum(chunks, requests) if name == "optimum" else _CLASSIC[name](chunks)
            for chunks in (sizes.dram_chunks, *sizes.lower_chunks)
        )

    def serve(self, keys: Sequence[bytes], _now: float, *, stores: bool = True) -> tuple[int, int]:
        """One request: how many of its chunks were found in DRAM, and how many below it alone."""
        found = self._dram.serve(keys, stores=stores)
        below = [tier.serve(keys, stores=stores) for tier in self._lower]
        return found, max([found, *below]) - found

    @property
    def written_bytes(self) -> int:
        """What was written to lower tiers."""
        return sum(tier.inserted for tier in self._lower) * self._chunk_bytes


def simulate(
    name: str, requests: Sequence[Request], sizes: Sizes, progress: Progress | None = None
) -> SimResult:
    """Serve all requests with the policy of that name (one of NAMES)."""
    pool: SimulatedPool | ClassicTiers = (
        SimulatedPool(sizes, Learned(sizes.lower_tiers()))
        if name == "forebay"
        else ClassicTiers(name, sizes, requests)
    )
    tokens = dram_tokens = lower_tokens = 0
    for number, request in enumerate(requests, start=1):
        if isinstance(pool, SimulatedPool):
            pool.end_answers(request.at_s)
        in_dram, below = pool.serve(request.keys, request.at_s, stores=request.stores)
        if isinstance(pool, SimulatedPool):
            pool.answer(request)
        tokens += request.tokens
        dram_tokens += in_dram * CHUNK_TOKENS
        lower_tokens += below * CHUNK_TOKENS
        if progress is not None and number % PROGRESS_REQUESTS == 0:
            progress(PROGRESS_REQUESTS)
    return SimResult(name, tokens, dram_tokens, lower_tokens, pool.written_bytes)
