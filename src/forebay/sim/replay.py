"""Drive a policy with a trace: the production code over a model of DRAM and NVMe, and baselines.

The model is the pool without bytes and time: chunks of one size, writes that are done at once, a
disk of regions overwritten in the order they were written. A chunk leaves both when one before it
is in neither; while DRAM has a shared head, what continues it on disk stays. Of a chain, the prefix
that lies in DRAM or on disk is found; the rest is recomputed, and stored as far as there is room.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.pool.policy.contract import Place, Policy
from forebay.pool.policy.learned import Learned
from forebay.sim.classic import Arc, Cache, Fifo, Lru, Optimum, S3Fifo
from forebay.sim.trace import CHUNK_TOKENS, Request

DISK_REGIONS: Final = 64  # that the simulated disk is cut into
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
    disk_chunks: int = 0
    chunk_bytes: int = CHUNK_TOKENS * 131_072
    budget_bytes_a_day: int | None = None  # of writes to disk


@dataclass(frozen=True, slots=True)
class Result:
    """What one policy made of one trace; tokens are whole chunks, the total is all of them."""

    policy: str
    tokens: int
    dram_tokens: int  # found in DRAM
    disk_tokens: int  # found on disk
    written_bytes: int  # to disk

    @property
    def hit_rate(self) -> float:
        """Of all prompt tokens, those that were not recomputed."""
        return (self.dram_tokens + self.disk_tokens) / self.tokens if self.tokens else 0.0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that no tier had."""
        return self.tokens - self.dram_tokens - self.disk_tokens


class Disk:
    """Regions in a ring; the oldest is overwritten whole."""

    def __init__(self, sizes: Sizes) -> None:
        self._region_chunks = max(1, sizes.disk_chunks // DISK_REGIONS)
        self._regions_max = max(1, sizes.disk_chunks // self._region_chunks)
        self._regions: deque[list[bytes]] = deque([[]])
        self._number = 0  # of the region being written
        self._region_of: dict[bytes, int] = {}
        self.held: dict[bytes, bool] = {}  # with whether it was ever read
        self.written = 0  # chunks

    def write(self, key: bytes) -> list[tuple[bytes, bool]]:
        """Write a chunk; what had to be overwritten for it, and whether it was ever read."""
        gone = []
        if len(self._regions[-1]) >= self._region_chunks:
            if len(self._regions) >= self._regions_max:
                first = self._number - len(self._regions) + 1
                region = self._regions.popleft()
                gone = [(k, self.forget(k)) for k in region if self._region_of.get(k) == first]
            self._regions.append([])
            self._number += 1
        self._regions[-1].append(key)
        self._region_of[key] = self._number
        self.held[key] = False
        self.written += 1
        return gone

    def forget(self, key: bytes) -> bool:
        """Forget a chunk; whether it was ever read."""
        self._region_of.pop(key, None)
        return self.held.pop(key, False)


class Model:
    """DRAM and NVMe under one policy, as the pool would run it."""

    def __init__(self, sizes: Sizes, policy: Policy) -> None:
        self.policy = policy
        self.dram: set[bytes] = set()
        self.disk = Disk(sizes)
        self.admitted = 0  # chunks that the policy offered for the disk
        self._below: dict[bytes, set[bytes]] = {}
        self._sizes = sizes
        self._place = Place(sizes.chunk_bytes)

    def serve(self, keys: Sequence[bytes], now: float) -> tuple[int, int]:
        """One request: how many of its chunks were found in DRAM, and how many on disk alone."""
        found = in_dram = 0
        for key in keys:
            if key in self.dram:
                in_dram += 1
            elif key in self.disk.held:
                self.disk.held[key] = True
            else:
                break
            found += 1
        self.policy.requested(keys, found, now)
        parent: bytes | None = None
        for key in keys:
            if key not in self.dram and (
                self._is_declined(key, parent, now) or not self._store(key, parent, now)
            ):
                break
            parent = key
        self._write(now)
        return in_dram, found - in_dram

    def _is_declined(self, key: bytes, parent: bytes | None, now: float) -> bool:
        """Whether a newcomer gets no slot; what is read from disk passes DRAM in any case."""
        is_full = len(self.dram) >= self._sizes.dram_chunks
        return is_full and key not in self.disk.held and self.policy.declines(key, parent, now)

    def _store(self, key: bytes, parent: bytes | None, now: float) -> bool:
        if len(self.dram) >= self._sizes.dram_chunks:
            victim = self.policy.victim(now, spare_unwritten=True)
            if victim is None:
                self._write(now)
                victim = self.policy.victim(now)
            if victim is None or victim == parent:
                return False  # nothing else can leave
            self.dram.discard(victim)
            self.policy.removed(victim)
            if victim not in self.disk.held:
                self._drop_below(victim)
        if parent is not None:
            if parent not in self.dram and parent not in self.disk.held:
                return False  # it was overwritten meanwhile
            self._below.setdefault(parent, set()).add(key)
        self.dram.add(key)
        self.policy.stored(key, parent, self._place, now)
        if key in self.disk.held:
            self.policy.on_disk(key, True)
        return True

    def _write(self, now: float) -> None:
        while self._sizes.disk_chunks and (key := self.policy.next_write(now)) is not None:
            self.admitted += 1
            gone = self.disk.write(key)
            self.policy.on_disk(key, True)
            if gone:
                self._overwritten(gone, now)

    def _overwritten(self, gone: list[tuple[bytes, bool]], now: float) -> None:
        for key, _ in gone:
            self.policy.on_disk(key, False)
        for key, _ in gone:
            if key not in self.dram:
                self._drop_below(key)
        size_bytes = self._sizes.chunk_bytes
        read = sum(was_read for _, was_read in gone)
        self.policy.region_evicted(len(gone) * size_bytes, read * size_bytes, now)

    def _drop_below(self, key: bytes) -> None:
        """What continues a chunk that is in no tier any more cannot be reached."""
        tree = [key]
        for each in tree:
            tree.extend(self._below.pop(each, ()))
        for each in reversed(tree[1:]):
            self.disk.forget(each)
            if each in self.dram:
                self.dram.discard(each)
                self.policy.removed(each)


def simulate(
    name: str, requests: Sequence[Request], sizes: Sizes, progress: Progress | None = None
) -> Result:
    """Serve all requests with the policy of that name (one of NAMES)."""
    if name == "forebay":
        return _simulate_forebay(requests, sizes, progress)
    dram = _cache(name, sizes.dram_chunks, requests)
    disk = _cache(name, sizes.disk_chunks, requests) if sizes.disk_chunks else None
    tokens = dram_chunks = disk_chunks = 0
    for request in _counted(requests, progress):
        keys = request.keys
        tokens += request.tokens
        found = dram.serve(keys)
        dram_chunks += found
        if disk is not None:
            disk_chunks += max(0, disk.serve(keys) - found)
    written = disk.inserted if disk is not None else 0
    return _result(name, (tokens, dram_chunks, disk_chunks), written * sizes.chunk_bytes)


def _simulate_forebay(
    requests: Iterable[Request], sizes: Sizes, progress: Progress | None
) -> Result:
    policy = Learned(
        disk_bytes=sizes.disk_chunks * sizes.chunk_bytes,
        budget_bytes_a_day=sizes.budget_bytes_a_day,
    )
    model = Model(sizes, policy)
    tokens = dram_chunks = disk_chunks = 0
    for request in _counted(requests, progress):
        in_dram, on_disk = model.serve(request.keys, request.at_s)
        tokens += request.tokens
        dram_chunks += in_dram
        disk_chunks += on_disk
    written_bytes = model.disk.written * sizes.chunk_bytes
    return _result("forebay", (tokens, dram_chunks, disk_chunks), written_bytes)


def _result(name: str, counts: tuple[int, int, int], written_bytes: int) -> Result:
    tokens, dram_chunks, disk_chunks = counts
    return Result(
        name, tokens, dram_chunks * CHUNK_TOKENS, disk_chunks * CHUNK_TOKENS, written_bytes
    )


def _counted(requests: Iterable[Request], progress: Progress | None) -> Iterable[Request]:
    for number, request in enumerate(requests, start=1):
        yield request
        if progress is not None and number % PROGRESS_REQUESTS == 0:
            progress(PROGRESS_REQUESTS)


def _cache(name: str, capacity: int, requests: Sequence[Request]) -> Cache:
    if name == "optimum":
        return Optimum(capacity, requests)
    return _CLASSIC[name](capacity)
