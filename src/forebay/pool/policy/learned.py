"""The default policy: keep what is likely to be used soonest, per second and chunk.

See `reuse` for how that is learnt, `visits` for how the least valuable chunk is found in a few
microseconds, `admission` for what goes to disk.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from forebay.pool.policy.contract import Place, Policy
from forebay.pool.policy.forest import NONE, OFFERED, ON_DISK, REFUSED, Forest
from forebay.pool.policy.reuse import BINS, Reuse, kind_of
from forebay.pool.policy.visits import AWAY, Visits

DISK_LOSS: Final = 0.25  # a chunk that the disk has as well costs that much less to lose
REMEMBERED_VISITS_MAX: Final = 1 << 16
RELEARN_REQUESTS: Final = 64

# Shelves of a lane, by what is lost with a chunk.
PLAIN: Final = 0  # it is lost
PENDING: Final = 1  # it is lost, and was to be written
BACKED: Final = 2  # the disk has it
SHELVES: Final = 3


class Learned(Policy):
    """One pool's judgement. `floors` are bytes of DRAM that no other tenant may take."""

    def __init__(self, *, disk: bool = False, floors: Mapping[int, int] | None = None) -> None:
        self._forest = Forest()
        self._reuse = Reuse()
        self._visits = Visits(self._reuse)
        self._disk = disk
        self._floors = dict(floors or {})
        self._held_bytes: dict[int, int] = {}  # by tenant
        self._lanes: dict[Place, int] = {}
        self._lane_places: list[Place] = []
        self._ends: dict[bytes, int] = {}  # last key of a chain -> the visit that asked for it
        self._requests = 0
        self._unwritten: deque[bytes] = deque()

    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        self._visits.age(now)
        if not keys:
            return
        self._requests += 1
        if self._requests % RELEARN_REQUESTS == 0:
            self._reuse.relearn()
            self._visits.reorder()
        visit = self._begin(keys, now)
        forest, visits = self._forest, self._visits
        row_of, visit_of, tip = forest.row_of, forest.visit, visits.tip
        # Chains have thousands of chunks and touch few visits: the loops over chunks do no more.
        rows = [row for row in map(row_of.get, keys[:found]) if row is not None]
        touched = set(map(visit_of.__getitem__, rows))
        for row in rows:
            visit_of[row] = visit
        for before in touched:
            if tip[before] != NONE and visit_of[tip[before]] == visit:
                tip[before] = NONE
                self._emptied(before)
        if rows:
            visits.tip[visit] = rows[-1]
            self._shelve(visit)
        if list(map(forest.parent.__getitem__, rows[1:])) != rows[:-1]:
            self._part(rows, now)

    def stored(self, key: bytes, parent: bytes | None, place: Place, now: float) -> None:
        forest, visits = self._forest, self._visits
        if key in forest.row_of:
            return
        row = forest.add(key, parent, self._lane(place))
        self._held_bytes[place.tenant] = self._held_bytes.get(place.tenant, 0) + place.size_bytes
        above = forest.parent[row]
        visit = self._joined(key, above, now)
        forest.visit[row] = visit
        visits.tip[visit] = row
        if self._disk:
            forest.flags[row] = OFFERED
            self._unwritten.append(key)
        self._shelve(visit)

    def removed(self, key: bytes) -> None:
        forest = self._forest
        if key not in forest.row_of:
            return
        row, above = forest.drop(key)
        place = self._lane_places[forest.lane[row]]
        self._held_bytes[place.tenant] -= place.size_bytes
        visit = forest.visit[row]
        if self._visits.tip[visit] == row:
            follows = above != NONE and forest.visit[above] == visit
            self._visits.tip[visit] = above if follows else NONE
            if follows:
                self._shelve(visit)
            else:
                self._emptied(visit)
        if above != NONE and not forest.children[above]:
            self._expose(above)

    def pin(self, key: bytes) -> None:
        row = self._forest.row_of.get(key, NONE)
        if row != NONE:
            self._forest.pins[row] += 1

    def unpin(self, key: bytes) -> None:
        forest = self._forest
        row = forest.row_of.get(key, NONE)
        if row != NONE and forest.pins[row]:
            forest.pins[row] -= 1
            if not forest.pins[row] and self._visits.tip[forest.visit[row]] == row:
                self._shelve(forest.visit[row])

    def victim(
        self, now: float, size_class: int = 0, *, spare_unwritten: bool = False
    ) -> bytes | None:
        self._visits.age(now)
        while True:
            visit = self._least(size_class, spare_unwritten=spare_unwritten)
            if visit == NONE:
                return None
            row = self._visits.tip[visit]
            if not self._forest.pins[row]:
                return self._forest.key[row]
            self._visits.move(visit, AWAY)  # until it is unpinned

    def on_disk(self, key: bytes, present: bool) -> None:
        forest = self._forest
        row = forest.row_of.get(key, NONE)
        if row != NONE:
            forest.flags[row] = ON_DISK if present else 0
            if self._visits.tip[forest.visit[row]] == row:
                self._shelve(forest.visit[row])

    def write_failed(self, key: bytes) -> None:
        row = self._forest.row_of.get(key, NONE)
        if row != NONE:
            self._forest.flags[row] = REFUSED

    def next_write(self, now: float, *, idle: bool = False) -> bytes | None:
        while self._unwritten:
            key = self._unwritten.popleft()
            row = self._forest.row_of.get(key, NONE)
            if row != NONE and self._forest.flags[row] & OFFERED:
                return key
        return None

    def region_evicted(self, size_bytes: int, read_bytes: int, now: float) -> None:
        pass

    def _part(self, rows: Sequence[int], now: float) -> None:
        """Give what lies above a hole in a chain a visit and tip of its own: else it cannot leave.

        `rows` are of one visit, root first; the last run of them keeps it.
        """
        forest, visits = self._forest, self._visits
        visit = forest.visit[rows[-1]]
        kind, turns = visits.cell[visit] // BINS, visits.turns[visit]
        start = 0
        for end in range(1, len(rows)):
            if forest.parent[rows[end]] == rows[end - 1]:
                continue
            own = visits.begin(kind, turns, None, now)
            for row in rows[start:end]:
                forest.visit[row] = own
            visits.tip[own] = rows[end - 1]
            self._shelve(own)
            start = end

    def _begin(self, keys: Sequence[bytes], now: float) -> int:
        """The visit of a request; the one it continues, if any is known, has returned."""
        visits, ends = self._visits, self._ends
        turns, gap_s = 0, 0.0
        for key in reversed(keys):
            before = ends.get(key, NONE)
            if before != NONE:
                turns, gap_s = visits.turns[before] + 1, now - visits.at_s[before]
                self._reuse.returned(visits.cell[before])
                self._end(before)
                break
        visit = visits.begin(kind_of(turns, gap_s), turns, keys[-1], now)
        ends[keys[-1]] = visit
        if len(ends) > REMEMBERED_VISITS_MAX:
            oldest = visits.oldest_away()
            if oldest is not None:
                self._end(oldest)
        return visit

    def _end(self, visit: int) -> None:
        """Watch a visit no longer; it lives on only for the chunks it holds."""
        end = self._visits.end[visit]
        if end is not None:
            del self._ends[end]
            self._visits.end[visit] = None
        if self._visits.tip[visit] == NONE:
            self._visits.forget(visit)

    def _emptied(self, visit: int) -> None:
        """A visit holds nothing any more; it is remembered for its return, if it is watched."""
        if self._visits.end[visit] is None:
            self._visits.forget(visit)
        else:
            self._visits.move(visit, AWAY)

    def _joined(self, key: bytes, above: int, now: float) -> int:
        """The visit that a new chunk belongs to: its parent's if it continues it, or a new one."""
        visits = self._visits
        if above == NONE:
            visit = self._ends.get(key, NONE)
            if visit != NONE and visits.tip[visit] == NONE:
                return visit
            return visits.begin(kind_of(0, 0.0), 0, None, now)
        visit = self._forest.visit[above]
        if visits.tip[visit] == above:
            return visit
        kind = visits.cell[visit] // BINS
        return visits.begin(kind, visits.turns[visit], None, now)

    def _expose(self, row: int) -> None:
        """A chunk has nothing below it any more: it may be its visit's tip."""
        visits, visit = self._visits, self._forest.visit[row]
        if visits.tip[visit] == NONE:
            visits.tip[visit] = row
        if visits.tip[visit] == row:
            self._shelve(visit)

    def _shelve(self, visit: int) -> None:
        forest, row = self._forest, self._visits.tip[visit]
        if forest.children[row] or forest.pins[row]:
            self._visits.move(visit, AWAY)
            return
        flags = forest.flags[row]
        shelf = BACKED if flags & ON_DISK else PENDING if flags & OFFERED else PLAIN
        self._visits.move(visit, 1 + forest.lane[row] * SHELVES + shelf)

    def _lane(self, place: Place) -> int:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = len(self._lane_places)
            self._lane_places.append(place)
            self._visits.shelves(1 + (lane + 1) * SHELVES)
        return lane

    def _least(self, size_class: int, *, spare_unwritten: bool) -> int:
        visit, worth_least = NONE, 0.0
        for lane, place in enumerate(self._lane_places):
            if place.size_class != size_class or self._within_floor(place):
                continue
            for shelf in range(SHELVES):
                if shelf == PENDING and spare_unwritten:
                    continue
                found = self._visits.least(1 + lane * SHELVES + shelf)
                if found is None:
                    continue
                worth = found[1] * DISK_LOSS if shelf == BACKED else found[1]
                if visit == NONE or worth < worth_least:
                    visit, worth_least = found[0], worth
        return visit

    def _within_floor(self, place: Place) -> bool:
        floor = self._floors.get(place.tenant)
        return floor is not None and self._held_bytes[place.tenant] - place.size_bytes < floor
