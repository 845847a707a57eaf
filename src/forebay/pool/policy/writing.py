"""Write-behind: which chunk goes to NVMe next, and when.

Chunks wait in the order in which they came, parents first, until they are near the cold end: as
old as half of what evicted chunks last had. The door (`admission`) is asked once a dialog and
turn, as late as that, when most is known; a dialog that was let in stays in, one that was turned
away is asked about again, whole, when it returns. An idle drive takes hot chunks too, and a pool
that cannot evict before it has written (`hurry`) takes all. While the budget of bytes does not hold
what is next, nobody need wait for it to be written.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from forebay.pool.policy.admission import Admission
from forebay.pool.policy.forest import NONE, OFFERED, ON_DISK, QUEUED, REFUSED, Forest
from forebay.pool.policy.reuse import Reuse
from forebay.pool.policy.visits import ADMITTED, TURNED_AWAY, UNDECIDED, Visits

WAITING_MAX: Final = 1 << 18
COLD_SHARE: Final = 0.5  # of the age at which chunks are evicted
SETTLED: Final = ON_DISK | OFFERED | QUEUED  # nothing is to be decided about such a chunk
AGE_MEMORY: Final = 0.95  # of that age, which each eviction leaves


class Writing:
    """The chunks of one pool that may have to be written."""

    def __init__(
        self,
        forest: Forest,
        visits: Visits,
        reuse: Reuse,
        door: Admission,
        mark: Callable[[int, int], None],  # gives a row other flags, and its visit its shelf
    ) -> None:
        self._forest, self._visits, self._reuse, self._door = forest, visits, reuse, door
        self._mark = mark
        self.is_stuck = False  # the budget of bytes does not hold what is next
        self._waiting: deque[tuple[bytes, float]] = deque()
        self._evicted_age_s = 0.0
        self._hurried = False

    def wait(self, row: int, now: float) -> None:
        """A chunk in DRAM may have to be written."""
        if not self._door.open or row == NONE or self._forest.flags[row] & SETTLED:
            return
        self._mark(row, QUEUED)
        self._waiting.append((self._forest.key[row], now))
        if len(self._waiting) > WAITING_MAX:
            self._refuse(self._forest.row_of.get(self._waiting.popleft()[0], NONE))

    def evicted(self, age_s: float) -> None:
        """DRAM let a chunk go that was last used so long ago."""
        self._evicted_age_s += (1 - AGE_MEMORY) * (age_s - self._evicted_age_s)

    def hurry(self) -> None:
        """Nothing can be evicted before more is written."""
        self._hurried = bool(self._waiting)

    def next(self, now: float, *, idle: bool) -> bytes | None:
        """The next chunk to write."""
        young_s = now - COLD_SHARE * self._evicted_age_s
        while self._waiting:
            key, since_s = self._waiting[0]
            if since_s > young_s and not (idle or self._hurried or self.is_stuck):
                return None
            row = self._forest.row_of.get(key, NONE)
            if row == NONE or not self._forest.flags[row] & QUEUED or not self._wanted(row, now):
                self._waiting.popleft()
                continue
            self.is_stuck = not self._door.spend(self._size_bytes(row), now)
            if self.is_stuck:
                return None
            self._waiting.popleft()
            self._mark(row, OFFERED)
            return key
        self._hurried = self.is_stuck = False
        return None

    def admits(self, visit: int, chunk_bytes: int, now: float) -> bool:
        """Whether a visit's dialog is to be written; the door is asked if it was not yet."""
        visits = self._visits
        if self._door.open and visits.verdict[visit] == UNDECIDED:
            size_bytes = max(visits.depth[visit], 1) * chunk_bytes
            chance = self._reuse.return_chance(visits.cell[visit])
            admitted = self._door.admits(chance, visits.lot[visit], size_bytes, now)
            visits.verdict[visit] = ADMITTED if admitted else TURNED_AWAY
        return visits.verdict[visit] == ADMITTED

    def _wanted(self, row: int, now: float) -> bool:
        forest = self._forest
        above = forest.parent[row]
        if self.admits(forest.visit[row], self._size_bytes(row), now) and (
            above == NONE or forest.flags[above] & (ON_DISK | OFFERED)
        ):
            return True
        self._refuse(row)
        return False

    def _refuse(self, row: int) -> None:
        if row != NONE:
            self._mark(row, REFUSED)

    def _size_bytes(self, row: int) -> int:
        return self._forest.places[self._forest.lane[row]].size_bytes
