"""What reading dialogs ahead from a drive would bring: `python tools/prefetch_bounds.py TRACE`.

A model of dialogs, by the chances that the pool's policy learns: DRAM holds a prefix of each, the
least valuable end leaves, a drive reads one chunk after another, and what a request asks for comes
first. While the drive has nothing to do, the most valuable dialog that DRAM lacks is read ahead: if
it is worth more than what leaves, and likely to return before it would be worth less than that.
Not modelled: the drive's own evictions, and prefixes that dialogs share.
"""

import argparse
import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from forebay.pool.policy.contract import Ending
from forebay.pool.policy.learned import Learned
from forebay.pool.policy.reuse import BINS
from forebay.sim.trace import CHUNK_TOKENS, Request, read_trace, schedule

CHUNK_BYTES = CHUNK_TOKENS * 131_072
BATCH_CHUNKS = 8  # read ahead before anything is decided anew
LOOK_S = 1.0  # how often an idle drive looks again
HINT_SPREAD = 0.2  # of the logarithm of what callers say
NEVER_S = 1e9


class Known(StrEnum):
    """What is known of when dialogs return."""

    KEYS = "keys and times alone"
    ENDINGS = "how answers ended"
    HINTS = "that, and returns_in_s within 20 %"
    TIMES = "when each dialog returns"


@dataclass(frozen=True, slots=True)
class Point:
    """What is modelled."""

    known: Known
    dram_chunks: int
    bytes_a_s: float
    chance_min: float | None  # of a return in time; None: nothing is read ahead


@dataclass(slots=True)
class Counts:
    """Chunks."""

    asked: int = 0  # of dialogs that returned
    in_dram: int = 0  # of these
    late: int = 0  # of those asked, while the drive was at work for earlier requests
    made: int = 0  # reads ahead
    wasted: int = 0  # of these, evicted or not asked for


@dataclass(slots=True)
class Dialog:
    """One chain, since its last request."""

    depth: int
    held: int  # chunks in DRAM, from the first on
    returns_at: float
    ahead: range = field(default_factory=lambda: range(0))  # of these, read ahead


class Chances(Learned):
    """The pool's policy, asked about dialogs whatever DRAM has of them."""

    def age(self, now: float) -> None:
        """Time has passed."""
        self._age(now)

    def worth(self, key: bytes) -> float:
        """Uses a second of the dialog that ends with this key."""
        return self._reuse.worth(self._visits.cell[self._ends[key]])

    def chance_until(self, key: bytes, least: float) -> float:
        """The chance that a dialog returns before it is worth less than that."""
        first = self._visits.cell[self._ends[key]]
        end = first - first % BINS + BINS
        cell = first
        while cell < end and self._reuse.worth(cell) >= least:
            cell += 1
        stays_away = 1 - self._reuse.return_chance(first)
        return 1 - stays_away / (1 - self._reuse.return_chance(cell) if cell < end else 1)


class Model:
    """DRAM, a drive and what is known."""

    def __init__(self, point: Point, requests: Sequence[Request]) -> None:
        self.counts = Counts()
        self._point, self._policy = point, Chances()
        self._requests, self._before, self._found = requests, *_continued(requests)
        self._returns_at = {
            before: requests[at].at_s for at, before in enumerate(self._before) if before >= 0
        }
        self._draw = random.Random(1)
        self._chunk_s = CHUNK_BYTES / point.bytes_a_s
        self._dialogs: dict[bytes, Dialog] = {}  # by last key
        self._used = 0  # chunks of DRAM
        self._now = self._busy_until = 0.0

    def run(self) -> Counts:
        """Serve all requests."""
        for at_s, serve in self._events():
            if self._point.chance_min is not None:
                self._read_ahead(at_s)
            self._now = at_s
            serve()
        return self.counts

    def _events(self) -> Iterator[tuple[float, Callable[[], None]]]:
        answers: list[tuple[float, int, bytes, Ending]] = []
        for at, request in enumerate(self._requests):
            while answers and answers[0][0] <= request.at_s:
                at_s, _, key, ended = heapq.heappop(answers)
                yield at_s, partial(self._policy.ended, key, ended, at_s)
            yield request.at_s, partial(self._serve, at)
            ending = self._ending(at)
            if ending is not None and request.keys:
                end_s = request.at_s + ending.duration_s
                heapq.heappush(answers, (end_s, at, request.keys[-1], ending))

    def _ending(self, at: int) -> Ending | None:
        ending = self._requests[at].ending
        if ending is None or self._point.known is Known.KEYS:
            return None
        if self._point.known is not Known.HINTS or at not in self._returns_at:
            return ending
        gap_s = self._returns_at[at] - self._requests[at].at_s - ending.duration_s
        said_s = max(gap_s, 0.01) * self._draw.lognormvariate(0, HINT_SPREAD)
        return ending._replace(returns_in_s=said_s)

    def _serve(self, at: int) -> None:
        request, before, found = self._requests[at], self._before[at], self._found[at]
        counts, here = self.counts, 0
        if before >= 0:
            dialog = self._dialogs.pop(self._requests[before].keys[-1])
            here = min(dialog.held, found)
            counts.asked, counts.in_dram = counts.asked + found, counts.in_dram + here
            counts.late += found if self._busy_until > self._now else 0
            counts.wasted += len([chunk for chunk in dialog.ahead if chunk >= found])
            self._used -= dialog.held
        begin_s = max(self._busy_until, self._now)
        self._busy_until = begin_s + (len(request.keys) - here) * self._chunk_s  # reads and writes
        self._policy.requested(request.keys, found, self._now)
        if request.keys:
            depth = min(len(request.keys), self._point.dram_chunks)
            returns_at = self._returns_at.get(at, NEVER_S)
            self._dialogs[request.keys[-1]] = Dialog(depth, depth, returns_at)
            self._used += depth
            self._evict(self._used - self._point.dram_chunks)

    def _worth(self, key: bytes) -> float:
        if self._point.known is Known.TIMES:
            return 1 / max(0.001, self._dialogs[key].returns_at - self._now)
        return self._policy.worth(key)

    def _least(self, but: bytes | None = None) -> bytes | None:
        held = (key for key, dialog in self._dialogs.items() if dialog.held and key != but)
        return min(held, key=self._worth, default=None)

    def _evict(self, chunks: int, but: bytes | None = None) -> None:
        while chunks > 0 and (least := self._least(but)) is not None:
            dialog = self._dialogs[least]
            count = min(chunks, dialog.held)
            chunks, dialog.held, self._used = (
                chunks - count,
                dialog.held - count,
                self._used - count,
            )
            kept = range(dialog.ahead.start, min(dialog.ahead.stop, dialog.held))
            self.counts.wasted += len(dialog.ahead) - len(kept)
            dialog.ahead = kept

    def _read_ahead(self, until_s: float) -> None:
        self._now = max(self._now, self._busy_until)
        while self._now < until_s:
            self._policy.age(self._now)
            count = self._read_some()
            idle_s = max(LOOK_S, (until_s - self._now) / 50)
            self._now += count * self._chunk_s if count else idle_s
            if count:
                self._busy_until = self._now

    def _read_some(self) -> int:
        """Begin to read ahead; how many chunks."""
        free = self._point.dram_chunks - self._used
        lowest = self._least() if free < BATCH_CHUNKS else None
        least = 0.0 if lowest is None else self._worth(lowest)
        key = self._best(least)
        if key is None:
            return 0
        dialog = self._dialogs[key]
        count = min(BATCH_CHUNKS, dialog.depth - dialog.held)
        self._evict(count - free, but=key)
        first = dialog.ahead.start if dialog.ahead else dialog.held
        dialog.held, self._used = dialog.held + count, self._used + count
        dialog.ahead = range(first, dialog.held)
        self.counts.made += count
        return count

    def _best(self, least: float) -> bytes | None:
        """The most valuable dialog of which DRAM lacks something, if it is to be read."""
        best, most = None, least
        for key, dialog in self._dialogs.items():
            if dialog.held < dialog.depth and (worth := self._worth(key)) > most:
                chance = (
                    float(dialog.returns_at < NEVER_S)
                    if self._point.known is Known.TIMES
                    else self._policy.chance_until(key, least)
                )
                if chance >= (self._point.chance_min or 0.0):
                    best, most = key, worth
        return best


def _continued(requests: Sequence[Request]) -> tuple[list[int], list[int]]:
    """For each request the one that it continues, or -1, and how many chunks of it."""
    last: dict[bytes, int] = {}
    before, found = [-1] * len(requests), [0] * len(requests)
    for at, request in enumerate(requests):
        for depth in range(len(request.keys), 0, -1):
            if request.keys[depth - 1] in last:
                before[at], found[at] = last.pop(request.keys[depth - 1]), depth
                break
        if request.keys:
            last[request.keys[-1]] = at
    return before, found


def main() -> None:
    """Print what is found in DRAM, without and with reading ahead, by what is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--users", type=int, default=0)
    parser.add_argument("--dram-tokens", type=float, default=0.5e6)
    parser.add_argument("--gbps", type=float, default=6.5)
    parser.add_argument("--chances", type=float, nargs="+", default=[0.0, 0.7])
    parsed = parser.parse_args()
    requests = list(schedule(read_trace(parsed.trace), parsed.users))
    for known in Known:
        for chance_min in (None, *parsed.chances):
            chunks = int(parsed.dram_tokens / CHUNK_TOKENS)
            counts = Model(Point(known, chunks, parsed.gbps * 1e9, chance_min), requests).run()
            wasted = counts.wasted / max(1, counts.made)
            how = "nothing ahead" if chance_min is None else f"ahead at chances of {chance_min}"
            print(
                f"{known:36} {how:24} in DRAM {counts.in_dram / max(1, counts.asked):.3f},"
                f" asked of a busy drive {counts.late / max(1, counts.asked):.2f},"
                f" {counts.made} chunks read ahead, {wasted:.2f} wasted",
                flush=True,
            )


if __name__ == "__main__":
    main()
