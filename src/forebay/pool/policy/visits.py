"""Visits, ordered by what their chunks are worth.

A visit is one request's touch of its chain. Its chunks have one age and one kind, so they are
ranked together: a visit lies in one eviction queue, there in the bucket of its kind and age, and
its chunks leave from the tail on. Queue 0 is for visits of which no chunk can leave: all gone,
pinned, or with others below. Queue 1 is for visits that may be read ahead, which lie in another
queue as well.

Finding the least valuable visit is finding the lowest set bit: worth is cut into levels, and each
queue has an integer with a bit for each level at which it has a bucket that is not empty.
"""

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from forebay.identity.endings import PRIORITY_MAX
from forebay.pool.policy.forest import NONE
from forebay.pool.policy.reuse import BINS, CELLS, EDGES_S, LEVELS, Reuse, bin_of

NOT_EVICTABLE: Final = 0  # the queue of visits none of whose chunks can leave now
AHEAD: Final = 1  # a second queue, of those that may be read ahead
EVICTABLE: Final = 2  # the first of the queues from which chunks leave
# Ranks: one per priority, and above all of them visits that are kept for a while.
USUAL: Final = PRIORITY_MAX
KEPT: Final = 2 * PRIORITY_MAX + 1
RANKS: Final = KEPT + 1
# Answers of a tier's admission.
UNDECIDED: Final = 0
ADMITTED: Final = 1
REJECTED: Final = 2


class Visits:
    """Columns of visits, their buckets, and the order of the buckets."""

    def __init__(self, reuse: Reuse, tiers: int) -> None:
        self._reuse = reuse
        self.at_s = array("d")
        self.began_s = array("d")  # when its request arrived; `at_s` is when its answer ended
        self.mean_s = array("d")  # mean gap of its dialog; 0: none seen
        self.new_share = array("d")  # share of its prompt that was new
        self.cell = array("i")
        self.began_cell = array("i")  # cell by age since the request, once the answer has ended
        self.queue = array("i")  # NONE: this visit's number is free
        self.tail = array("i")  # the deepest row that this visit was the last to touch, or NONE
        self.turns = array("i")  # returns of its dialog so far
        self.depth = array("i")  # number of chunks of its chain
        self.unanswered = array("i")  # requests with its last key whose answers have not ended
        self.rank = array("b")  # one of `RANKS`, as its caller asked
        self.tie_breaker = array("d")  # its dialog's order among equals, the same each time
        self.verdicts = [bytearray() for _ in range(tiers)]  # by lower tier: is it written there?
        # Its dialog's mean gap after each class of ending; None: none seen.
        self.gaps: list[dict[int, float] | None] = []
        self.end: list[bytes | None] = []  # the chain's last key, by which a return is recognised
        self.start: list[bytes | None] = []  # the first key that DRAM still lacks
        self._free: list[int] = []
        self._buckets: dict[
            int, OrderedDict[int, None]
        ] = {}  # queue and cell -> its visits; no bucket is empty
        self._level_of: dict[int, int] = {}  # level of each bucket
        self._of_group: dict[int, set[int]] = {}  # kind and scale -> buckets
        self._at_level: dict[int, OrderedDict[int, None]] = {}  # queue and level -> buckets
        self.is_ahead = bytearray()  # 1: on the queue AHEAD as well
        self._levels: list[int] = [0] * EVICTABLE  # by queue, a bit for each level that has buckets
        self._due: list[tuple[float, int]] = []  # when a bucket's first visit reaches the next bin
        self._watched: set[int] = set()  # buckets in `_due`, each once
        self._to_learn: list[int] = []

    def begin(self, cell: int, end: bytes | None, now: float) -> int:
        """A new visit of age 0, on no queue yet."""
        if self._free:
            visit = self._free.pop()
        else:
            visit = len(self.end)
            for column in (self.cell, self.began_cell, self.queue, self.tail):
                column.append(0)
            for column in (self.turns, self.depth, self.unanswered):
                column.append(0)
            for times in (self.at_s, self.began_s, self.mean_s, self.new_share, self.tie_breaker):
                times.append(0.0)
            self.gaps.append(None)
            self.rank.append(USUAL)
            self.is_ahead.append(0)
            for verdict in self.verdicts:
                verdict.append(UNDECIDED)
            self.end.append(None)
            self.start.append(None)
        self.at_s[visit], self.tail[visit], self.end[visit] = now, NONE, end
        self.began_s[visit], self.began_cell[visit] = now, NONE
        self.new_share[visit], self.gaps[visit], self.rank[visit] = 0.0, None, USUAL
        self.turns[visit], self.depth[visit], self.mean_s[visit] = 0, 0, 0.0
        self.unanswered[visit] = 0
        self.tie_breaker[visit] = 0.0
        for verdict in self.verdicts:
            verdict[visit] = UNDECIDED
        self.queue[visit], self.cell[visit] = NONE, cell
        if end is not None:
            self._reuse.entered(cell)
        self.move(visit, NOT_EVICTABLE)
        return visit

    def copy_dialog(self, source: int, target: int) -> None:
        """Give a visit another one's dialog."""
        self.tie_breaker[target], self.depth[target] = self.tie_breaker[source], self.depth[source]
        if self.rank[source] != KEPT:  # being kept ends with the visit that it was asked for
            self.rank[target] = self.rank[source]
        for verdict in self.verdicts:
            verdict[target] = verdict[source]

    def move(self, visit: int, queue: int) -> None:
        """Put a visit on a queue; its cell stays."""
        if self.queue[visit] != queue:
            self._take(visit)
            self.queue[visit] = queue
            self._put(visit)

    def forget(self, visit: int) -> None:
        """A visit is over; its number is reused."""
        self._take(visit)
        self.queue[visit], self.end[visit], self.gaps[visit] = NONE, None, None
        self.is_ahead[visit] = 0
        self._free.append(visit)

    def set_ahead(self, visit: int, *, is_ahead: bool) -> None:
        """Set whether a visit may be read ahead."""
        if self.is_ahead[visit] != is_ahead:
            self._take(visit)
            self.is_ahead[visit] = is_ahead
            self._put(visit)

    def ended(self, visit: int, cell: int, now: float) -> None:
        """The answer has ended: from now on the visit's age is counted from here."""
        self._take(visit)
        if self.began_cell[visit] == NONE:
            self.began_cell[visit] = self.cell[visit]
        self.cell[visit], self.at_s[visit] = cell, now
        self._reuse.entered(cell)
        self._put(visit)

    def returned(self, visit: int, now: float) -> None:
        """The dialog came back: count that at the visit's age, and at its age since its request."""
        self._reuse.returned(self.cell[visit])
        if self.began_cell[visit] != NONE:
            self._age_since_request(visit, now)
            self._reuse.returned(self.began_cell[visit])

    def age(self, now: float) -> None:
        """Move visits that have reached the next bin, and count them there."""
        due = self._due
        while due and due[0][0] <= now:
            _, bucket = heapq.heappop(due)
            self._watched.discard(bucket)
            visits = self._buckets.get(bucket)
            if visits:
                self._age_bucket(bucket, visits, now)

    def least(self, queue: int) -> tuple[int, int] | None:
        """The least valuable visit of a queue, and the level of its worth."""
        levels = self._levels[queue]
        if not levels:
            return None
        level = (levels & -levels).bit_length() - 1
        bucket = next(iter(self._at_level[queue * LEVELS + level]))
        cell = bucket % CELLS
        visits = self._buckets[bucket]
        # Within a bin, worth changes in the same direction as to the next bin.
        rising = cell % BINS < BINS - 1 and self._reuse.worth(cell + 1) > self._reuse.worth(cell)
        return next(reversed(visits) if rising else iter(visits)), level

    def most(self, queue: int) -> Iterator[tuple[int, int]]:
        """Visits of a queue, one per kind and age, the most valuable first, with their levels.

        The queue must not change meanwhile.
        """
        levels = self._levels[queue]
        while levels:
            level = levels.bit_length() - 1
            levels ^= 1 << level
            for bucket in self._at_level[queue * LEVELS + level]:
                yield next(iter(self._buckets[bucket])), level

    def add_queues(self, count: int) -> None:
        """Make sure that there are that many queues."""
        self._levels.extend([0] * (count - len(self._levels)))

    def learn(self) -> None:
        """Recompute one kind; called often, and short, so that nobody waits for it."""
        if not self._to_learn:
            self._to_learn = [group for group, buckets in self._of_group.items() if buckets]
        if self._to_learn:
            group = self._to_learn.pop()
            self._reuse.learn(group)
            for bucket in tuple(self._of_group[group]):
                level = self._reuse.level(bucket % CELLS)
                if level != self._level_of[bucket]:
                    self._unlist(bucket)
                    self._list(bucket, level)

    def _put(self, visit: int) -> None:
        self._enter(self.queue[visit] * CELLS + self.cell[visit], visit)
        if self.is_ahead[visit]:
            self._enter(AHEAD * CELLS + self.cell[visit], visit)

    def _enter(self, bucket: int, visit: int) -> None:
        visits = self._buckets.get(bucket)
        if visits is None:
            visits = self._buckets[bucket] = OrderedDict()
            self._list(bucket, self._reuse.level(self.cell[visit]))
            self._watch(bucket, visit)
        visits[visit] = None

    def _take(self, visit: int) -> None:
        if self.queue[visit] == NONE:
            return
        self._leave(self.queue[visit] * CELLS + self.cell[visit], visit)
        if self.is_ahead[visit]:
            self._leave(AHEAD * CELLS + self.cell[visit], visit)

    def _leave(self, bucket: int, visit: int) -> None:
        visits = self._buckets[bucket]
        del visits[visit]
        if not visits:
            del self._buckets[bucket]
            self._unlist(bucket)

    def _list(self, bucket: int, level: int) -> None:
        queue = bucket // CELLS
        self._level_of[bucket] = level
        self._of_group.setdefault(bucket % CELLS // BINS, set()).add(bucket)
        self._levels[queue] |= 1 << level
        self._at_level.setdefault(queue * LEVELS + level, OrderedDict())[bucket] = None

    def _unlist(self, bucket: int) -> None:
        queue, level = bucket // CELLS, self._level_of.pop(bucket)
        self._of_group[bucket % CELLS // BINS].discard(bucket)
        buckets = self._at_level[queue * LEVELS + level]
        del buckets[bucket]
        if not buckets:
            self._levels[queue] &= ~(1 << level)

    def _watch(self, bucket: int, visit: int) -> None:
        number = bucket % BINS
        if number < BINS - 1 and bucket not in self._watched:
            self._watched.add(bucket)
            heapq.heappush(self._due, (self.at_s[visit] + EDGES_S[number + 1], bucket))

    def _age_bucket(self, bucket: int, visits: OrderedDict[int, None], now: float) -> None:
        edge_s = EDGES_S[bucket % BINS + 1]
        while visits:
            visit = next(iter(visits))
            if self.at_s[visit] + edge_s > now:
                self._watch(bucket, visit)
                return
            self._take(visit)
            before = self.cell[visit]
            after = before - before % BINS + bin_of(now - self.at_s[visit])
            after = max(after, before + 1)  # the sum above may round up past the edge
            if self.end[visit] is not None:
                for cell in range(before + 1, after + 1):
                    self._reuse.entered(cell)
                if self.began_cell[visit] != NONE:
                    self._age_since_request(visit, now)
            self.cell[visit] = after
            self._put(visit)

    def _age_since_request(self, visit: int, now: float) -> None:
        """Count the ages since its request that a visit whose answer has ended came through."""
        before = self.began_cell[visit]
        after = before - before % BINS + bin_of(now - self.began_s[visit])
        for cell in range(before + 1, after + 1):
            self._reuse.entered(cell)
        self.began_cell[visit] = max(before, after)
