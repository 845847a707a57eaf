"""A pool over a drive that takes time, which reads dialogs back before they are asked for.

The drive reads and writes one chunk after another, what requests ask for first; while it has nothing
to do the policy says what is read ahead (`forebay.pool.policy.ahead`). As elsewhere in this package
requests themselves take no time: how long they waited for the drive is what this leaves out.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.pool.policy.contract import Ending, Policy
from forebay.sim.replay import SimulatedPool, Sizes
from forebay.sim.trace import Request

LOOK_S: Final = 1.0  # how often an idle drive looks again
LOOKS_MAX: Final = 50  # between two events, however long that is
SHORTEST_HINT_S: Final = 0.01


@dataclass(slots=True)
class ReadsAhead:
    """Chunks."""

    made: int = 0
    used: int = 0  # of these, found in DRAM by a request; no other one counts as useful

    @property
    def wasted_share(self) -> float:
        """Of what was read, what nobody asked for before it left."""
        return 1 - self.used / self.made if self.made else 0.0


class TimedPool(SimulatedPool):
    """DRAM and a drive under one policy."""

    def __init__(self, sizes: Sizes, policy: Policy, bytes_a_s: float) -> None:
        super().__init__(sizes, policy)
        self.reads = ReadsAhead()
        self._chunk_s = sizes.chunk_bytes / bytes_a_s
        self._dram_chunks = sizes.dram_chunks
        self._unused: set[bytes] = set()  # read ahead, and not asked for since
        self._idle_at = 0.0  # when the drive has done all that it was asked

    def serve(self, keys: Sequence[bytes], now: float) -> tuple[int, int]:
        """See SimulatedPool; the drive is busy with it from now on, or a little later."""
        before = self._written
        unused = self._unused.intersection(keys)
        self.reads.used += len(unused & self.dram)
        self._unused -= unused
        in_dram, below = super().serve(keys, now)
        self._work(now, below + self._written - before)
        return in_dram, below

    def end_answers(self, now: float) -> None:
        """See SimulatedPool; between the answers the drive reads ahead."""
        while self._answers and self._answers[0][0] <= now:
            ends_at = self._answers[0][0]
            self._read_ahead(ends_at)
            super().end_answers(ends_at)
        self._read_ahead(now)

    @property
    def _written(self) -> int:
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
        """Write one chunk that was used recently, as a pool's idle drive does."""
        key = self.policy.next_write(0, now, idle=True) if self.lower else None
        if key is not None:
            self._write_one(0, key, now)
            self._work(now, 1)
        return key is not None

    def _read_one(self, now: float) -> bool:
        """Read one chunk, if one is worth it; it is there when the drive is idle again."""
        found = self.policy.next_read(now, lambda _: len(self.dram) < self._dram_chunks)
        if found is None:
            return False
        key = found.key
        if key in self.dram or not self._is_below(key):
            self.policy.read_failed(key)
            return True
        if found.victim is not None:
            self._leave(found.victim)
        before = self._written
        self._read(key)
        self._arrive(key, self._parent[key], now + self._chunk_s)
        self._unused.add(key)
        self.reads.made += 1
        self._work(now, 1 + self._written - before)
        return True


def with_hints(requests: Sequence[Request], spread: float, seed: int = 1) -> list[Request]:
    """The same requests, where callers say when they return, wrong by that much of its logarithm.

    Who does not return says nothing.
    """
    draw, last = random.Random(seed), dict[bytes, int]()  # noqa: S311 - an error, not a secret
    hinted = list(requests)
    for at, request in enumerate(requests):
        ends = (key for key in reversed(request.keys) if key in last)
        before = last.pop(next(ends, b""), None)
        ending = None if before is None else hinted[before].ending
        if before is not None and ending is not None:
            gap_s = request.at_s - requests[before].at_s - ending.duration_s
            said_s = max(gap_s, SHORTEST_HINT_S) * draw.lognormvariate(0, spread)
            hinted[before] = hinted[before]._replace(ending=ending._replace(returns_in_s=said_s))
        if request.keys:
            last[request.keys[-1]] = at
    return hinted
