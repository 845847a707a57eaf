"""Decides which chunk is written to a lower tier next, and when.

Chunks wait in the order in which they came, parents first, until they are near the cold end: half
as old as evicted chunks were of late. The tier's admission is asked once per dialog and turn, as
late as that, when most is known; a dialog that was admitted stays admitted, one that was rejected
is asked about again, as a whole, when it returns. An idle tier takes recently used chunks too, and
a pool that cannot evict before it has written (`hurry`) takes all. While the budget does not cover
the next chunk, or the tier accepts nothing (`hold`), nobody waits for the write: the chunk waits as
long as DRAM has it. A tier that is given only reused chunks gets a chunk that a request has asked
for again, and all of a dialog that came back or is long.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from forebay.pool.policy.admission import Admission
from forebay.pool.policy.forest import HELD, NONE, OFFERED, QUEUED, REFUSED, Forest
from forebay.pool.policy.reuse import Reuse
from forebay.pool.policy.visits import ADMITTED, REJECTED, UNDECIDED, Visits

WAITING_MAX: Final = 1 << 18
COLD_SHARE: Final = 0.5  # share of the age at which chunks are evicted
DECIDED: Final = HELD | OFFERED | QUEUED  # such a chunk needs no decision
AGE_MEMORY: Final = 0.95  # weight of earlier evictions in that age


class Writing:
    """The chunks of one pool that may have to be written to one lower tier."""

    def __init__(
        self,
        tier: int,
        forest: Forest,
        visits: Visits,
        reuse: Reuse,
        admission: Admission,
        *,
        mark: Callable[[int, int, int], None],  # (tier, row, flags)
    ) -> None:
        self._tier = tier
        self._forest, self._visits, self._reuse = forest, visits, reuse
        self._flags, self._verdict = forest.flags[tier], visits.verdicts[tier]
        self.admission = admission
        self._mark = mark
        self._is_stuck = False  # the budget does not cover the next chunk
        self._waiting: deque[tuple[bytes, float]] = deque()
        self._evicted_age_s = 0.0
        self._is_hurried = False
        self._is_held = False  # the tier accepts nothing now

    @property
    def can_write(self) -> bool:
        """Whether a chunk waits, the budget covers it and the tier accepts it."""
        return bool(self._waiting) and not (self._is_stuck or self._is_held)

    def hold(self, *, held: bool) -> None:
        """Offer nothing while the tier accepts nothing."""
        self._is_held = held

    def queue(self, row: int, now: float) -> None:
        """A chunk that came into DRAM may have to be written."""
        if self._flags[row] & DECIDED:
            return
        self._mark(self._tier, row, QUEUED)
        self._waiting.append((self._forest.key[row], now))
        if len(self._waiting) > WAITING_MAX:
            self._refuse(self._forest.row_of.get(self._waiting.popleft()[0], NONE))

    def dram_evicted(self, age_s: float) -> None:
        """DRAM evicted a chunk that was last used `age_s` ago."""
        self._evicted_age_s += (1 - AGE_MEMORY) * (age_s - self._evicted_age_s)

    def hurry(self) -> None:
        """Write all that waits: nothing can be evicted before."""
        self._is_hurried = bool(self._waiting)

    def next(self, now: float, *, idle: bool) -> bytes | None:
        """The next chunk to write, if any."""
        self.admission.fill(now)
        young_s = now - COLD_SHARE * self._evicted_age_s
        while self._waiting and not self._is_held:
            key, since_s = self._waiting[0]
            if since_s > young_s and not (idle or self._is_hurried or self._is_stuck):
                return None
            row = self._forest.row_of.get(key, NONE)
            if row != NONE and self._flags[row] & QUEUED and self._is_parent_queued(row):
                self._waiting.rotate(-1)
                continue
            if row == NONE or not self._flags[row] & QUEUED or not self._is_wanted(row, now):
                self._waiting.popleft()
                continue
            self._is_stuck = not self.admission.spend(self._forest.size_of(row), now)
            if self._is_stuck:
                return None
            self._waiting.popleft()
            self._mark(self._tier, row, OFFERED)
            return key
        self._is_hurried = self._is_stuck = False
        return None

    def admits(self, visit: int, chunk_bytes: int, now: float) -> bool:
        """Whether a visit's dialog is to be written; asks the admission the first time."""
        return self._takes(visit, chunk_bytes) and self._is_admitted(visit, chunk_bytes, now)

    def _takes(self, visit: int, chunk_bytes: int) -> bool:
        visits = self._visits
        return self.admission.takes(visits.turns[visit], visits.depth[visit] * chunk_bytes)

    def _is_admitted(self, visit: int, chunk_bytes: int, now: float) -> bool:
        if self._verdict[visit] == UNDECIDED:
            visits = self._visits
            size_bytes = max(visits.depth[visit], 1) * chunk_bytes
            chance = self._reuse.return_chance(visits.cell[visit])
            admitted = self.admission.admits(chance, visits.tie_breaker[visit], size_bytes, now)
            self._verdict[visit] = ADMITTED if admitted else REJECTED
        return self._verdict[visit] == ADMITTED

    def _is_parent_queued(self, row: int) -> bool:
        """Whether the parent waits behind its child: it was refused, and asked for again since."""
        above = self._forest.parent[row]
        return above != NONE and bool(self._flags[above] & QUEUED)

    def _is_wanted(self, row: int, now: float) -> bool:
        forest = self._forest
        above, visit, size_bytes = forest.parent[row], forest.visit[row], forest.size_of(row)
        if (
            (forest.reused[row] or self._takes(visit, size_bytes))
            and self._is_admitted(visit, size_bytes, now)
            and (above == NONE or self._flags[above] & (HELD | OFFERED))
        ):
            return True
        self._refuse(row)
        return False

    def _refuse(self, row: int) -> None:
        if row != NONE:
            self._mark(self._tier, row, REFUSED)
