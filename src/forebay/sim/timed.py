"""Simulates a pool over a slow drive that reads dialogs back before they are asked for.

The drive reads and writes one chunk after another, and requests come first; while it is idle it
writes what was used recently, and reads ahead what the policy says (`forebay.pool.policy.ahead`).
Chunks that a request uses are pinned while it is served. As elsewhere in this package, requests
themselves take no time: their wait for the drive is left out.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.pool.policy.contract import Policy
from forebay.pool.policy.learned import Learned
from forebay.settings import PrefetchMode
from forebay.sim.replay import SimulatedPool, Sizes
from forebay.sim.trace import Request

LOOK_S: Final = 1.0  # between two checks of an idle drive
LOOKS_MAX: Final = 50  # checks between two events, however far apart these are
PINNED_SHARE: Final = 3 / 4  # of DRAM, as in a pool; a larger request is streamed
SHORTEST_HINT_S: Final = 0.01


@dataclass(slots=True)
class ReadsAhead:
    """Counts of chunks that were read ahead."""

    made: int = 0
    used: int = 0  # of these, found in DRAM by a request

    @property
    def wasted_share(self) -> float:
        """The share of chunks that were read ahead and not used."""
        return 1 - self.used / self.made if self.made else 0.0


class TimedPool(SimulatedPool):
    """DRAM and a drive under one policy."""

    def __init__(self, sizes: Sizes, policy: Policy, bytes_a_s: float) -> None:
        super().__init__(sizes, policy)
        self.reads = ReadsAhead()
        self._chunk_s = sizes.chunk_bytes / bytes_a_s
        self._dram_chunks = sizes.dram_chunks
        self._unused: set[bytes] = set()  # read ahead, and not asked for since
        self._pinned: list[bytes] = []  # for the request that is being served
        self._is_pinning = False
        self._idle_at = 0.0  # when the drive will have done everything so far

    def serve(self, keys: Sequence[bytes], now: float, *, stores: bool = True) -> tuple[int, int]:
        """See SimulatedPool; adds the reads and writes to the drive's work."""
        before = self.written
        unused = self._unused.intersection(keys)
        self.reads.used += len(unused & self.dram)
        self._unused -= unused
        self._is_pinning = len(keys) <= PINNED_SHARE * self._dram_chunks
        if self._is_pinning:
            self._pin(*[key for key in keys if key in self.dram])
        in_dram, below = super().serve(keys, now, stores=stores)
        self._is_pinning = False
        for key in self._pinned:
            self.policy.unpin(key)
        self._pinned.clear()
        self._work(now, below + self.written - before)
        return in_dram, below

    def _arrive(self, key: bytes, parent: bytes | None, now: float) -> None:
        super()._arrive(key, parent, now)
        if self._is_pinning:
            self._pin(key)

    def _pin(self, *keys: bytes) -> None:
        """Keep chunks in DRAM while the current request is served."""
        self.policy.pin(*keys)
        self._pinned += keys

    def end_answers(self, now: float) -> None:
        """See SimulatedPool; between answers the drive reads ahead."""
        while self._answers and self._answers[0][0] <= now:
            ends_at = self._answers[0][0]
            self._read_ahead(ends_at)
            super().end_answers(ends_at)
        self._read_ahead(now)

    @property
    def written(self) -> int:
        """Chunks written to lower tiers."""
        return sum(tier.written for tier in self.lower)

    def _work(self, now: float, chunks: int) -> None:
        self._idle_at = max(self._idle_at, now) + chunks * self._chunk_s

    def _read_ahead(self, until: float) -> None:
        pause_s = max(LOOK_S, (until - self._idle_at) / LOOKS_MAX)
        while self._idle_at < until:
            if self._written_idly(self._idle_at) or self._read_one(self._idle_at):
                continue
            self._idle_at += pause_s

    def _written_idly(self, now: float) -> bool:
        """Write one recently used chunk, as a pool's idle drive does; False if there is none."""
        key = self.policy.next_write(0, now, idle=True) if self.lower else None
        if key is not None:
            self._write_one(0, key, now)
            self._work(now, 1)
        return key is not None

    def _read_one(self, now: float) -> bool:
        """Read one chunk ahead; False if none is worth it."""
        found = self.policy.next_read(now, lambda _: len(self.dram) < self._dram_chunks)
        if found is None:
            return False
        key = found.key
        if key in self.dram or not self._is_below(key):
            self.policy.read_failed(key)
            return True
        if found.victim is not None:
            self._leave(found.victim)
        before = self.written
        self._read(key)
        self._arrive(key, self._parent[key], now + self._chunk_s)
        self._unused.add(key)
        self.reads.made += 1
        self._work(now, 1 + self.written - before)
        return True


def with_hints(
    requests: Sequence[Request], spread: float, seed: int = 1, *, wrong_share: float = 0.0
) -> list[Request]:
    """The same requests with hints on when dialogs return, wrong by a log-normal factor.

    `spread` is the standard deviation of its logarithm. The times come from the trace's own future.
    Dialogs that do not return give no hint, except a `wrong_share` of them: these repeat another's.
    """
    draw, last = random.Random(seed), dict[bytes, int]()  # noqa: S311 - an error, not a secret
    hinted, all_said = list(requests), list[float]()
    for at, request in enumerate(requests):
        ends = (key for key in reversed(request.keys) if key in last)
        before = last.pop(next(ends, b""), None)
        ending = None if before is None else hinted[before].ending
        if before is not None and ending is not None:
            answered_s = requests[before].at_s + requests[before].answer.duration_s
            gap_s = request.at_s - answered_s
            said_s = max(gap_s, SHORTEST_HINT_S) * draw.lognormvariate(0, spread)
            hinted[before] = hinted[before]._replace(ending=ending._replace(returns_in_s=said_s))
            all_said.append(said_s)
        if request.keys:
            last[request.keys[-1]] = at
    for at in last.values():
        ending = hinted[at].ending
        if ending is not None and all_said and draw.random() < wrong_share:
            said = ending._replace(returns_in_s=draw.choice(all_said))
            hinted[at] = hinted[at]._replace(ending=said)
    return hinted


@dataclass(frozen=True, slots=True)
class TimedResult:
    """What was found of one trace, in chunks, with one mode of reading ahead."""

    prefetch: PrefetchMode
    dram: int  # found in DRAM
    lower: int  # found only in a lower tier
    written: int  # to lower tiers
    reads: ReadsAhead

    @property
    def dram_share(self) -> float:
        """The share of what was found that was found in DRAM."""
        return self.dram / max(1, self.dram + self.lower)


def simulate_timed(
    requests: Sequence[Request], sizes: Sizes, bytes_a_s: float, prefetch: PrefetchMode
) -> TimedResult:
    """Serve all requests with a drive of this speed."""
    pool = TimedPool(sizes, Learned(sizes.lower_tiers(), prefetch), bytes_a_s)
    in_dram = in_lower = 0
    for request in requests:
        pool.end_answers(request.at_s)
        from_dram, from_lower = pool.serve(request.keys, request.at_s, stores=request.stores)
        in_dram, in_lower = in_dram + from_dram, in_lower + from_lower
        pool.answer(request)
    return TimedResult(prefetch, in_dram, in_lower, pool.written, pool.reads)
