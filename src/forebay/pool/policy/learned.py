"""The default policy: keep what is likely to be used soonest, per second and chunk.

See `reuse` for how that is learnt, `visits` for how the least valuable chunk is found in a few
microseconds, `admission` for what goes to disk.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from forebay.pool.policy.admission import Admission
from forebay.pool.policy.contract import Place, Policy
from forebay.pool.policy.forest import NONE, OFFERED, ON_DISK, QUEUED, REFUSED, Forest
from forebay.pool.policy.reuse import BINS, LEVELS_AN_OCTAVE, Reuse, cell_of, mean_gap_s
from forebay.pool.policy.visits import ADMITTED, AWAY, UNDECIDED, Visits
from forebay.pool.policy.writing import SETTLED, Writing

DISK_LEVELS: Final = 2 * LEVELS_AN_OCTAVE  # a chunk the disk has as well costs a quarter to lose
REMEMBERED_VISITS_MAX: Final = 1 << 16
LEARN_REQUESTS: Final = 4
USUAL_REQUESTS: Final = 256  # over which the usual length of a first prompt is taken

# Shelves of a lane, by what is lost with a chunk.
PLAIN: Final = 0  # it is lost
PENDING: Final = 1  # it is lost, and was to be written
BACKED: Final = 2  # the disk has it
SHELVES: Final = 3


class Learned(Policy):
    """One pool's judgement.

    `disk_bytes` is what the NVMe tier holds (0: there is none), `budget_bytes_a_day` what may be
    written to it, `floors` the bytes of DRAM, by tenant, that no other tenant may take.
    """

    def __init__(
        self,
        *,
        disk_bytes: int = 0,
        budget_bytes_a_day: int | None = None,
        floors: Mapping[int, int] | None = None,
    ) -> None:
        self._forest = Forest()
        self._reuse = Reuse()
        self._visits = Visits(self._reuse)
        self._door = Admission(disk_bytes, budget_bytes_a_day)
        self._writing = Writing(self._forest, self._visits, self._reuse, self._door, self._mark_row)
        self._floors = dict(floors or {})
        self._held_bytes: dict[int, int] = {}  # by tenant
        self._lanes: dict[Place, int] = {}
        self._ends: dict[bytes, int] = {}  # last key of a chain -> the visit that asked for it
        self._starts: dict[bytes, int] = {}  # first key that DRAM lacks -> the visit that stores it
        self._usual_depth = 0.0  # chunks of a dialog's first prompt
        self._requests = 0

    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        self._visits.age(now)
        if not keys:
            return
        self._requests += 1
        if self._requests % LEARN_REQUESTS == 0:
            self._visits.learn()
        visit = self._begin(keys, found, now)
        rows = list(map(self._forest.row_of.get, keys[:found]))
        start = self._touch(visit, keys, rows)
        if start is None and found < len(keys):
            start = keys[found]
        if start is not None:
            self._visits.start[visit], self._starts[start] = start, visit
        if self._door.open:
            flags = self._forest.flags
            for row in rows:
                if row is not None and not flags[row] & SETTLED:
                    self._writing.wait(row, now)

    def stored(self, key: bytes, parent: bytes | None, place: Place, now: float) -> None:
        forest, visits = self._forest, self._visits
        if key in forest.row_of:
            return
        row = forest.add(key, parent, self._lane(place))
        self._held_bytes[place.tenant] = self._held_bytes.get(place.tenant, 0) + place.size_bytes
        above = forest.parent[row]
        visit = self._joined(key, above, now)
        self._started(visit, key)
        forest.visit[row] = visit
        visits.tip[visit] = row
        self._writing.wait(row, now)
        self._shelve(visit)

    def removed(self, key: bytes) -> None:
        forest = self._forest
        if key not in forest.row_of:
            return
        row, above = forest.drop(key)
        place = forest.places[forest.lane[row]]
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

    def pin(self, *keys: bytes) -> None:
        pins = self._forest.pins
        for row in map(self._forest.row_of.get, keys):
            if row is not None:
                pins[row] += 1

    def unpin(self, key: bytes) -> None:
        forest = self._forest
        row = forest.row_of.get(key, NONE)
        if row != NONE and forest.pins[row]:
            forest.pins[row] -= 1
            if not forest.pins[row] and self._visits.tip[forest.visit[row]] == row:
                self._shelve(forest.visit[row])

    def declines(self, key: bytes, parent: bytes | None, now: float, size_class: int = 0) -> bool:
        self._visits.age(now)
        newcomer = self._starts.get(key, NONE)
        if newcomer == NONE and parent is not None:
            above = self._forest.row_of.get(parent, NONE)
            newcomer = NONE if above == NONE else self._forest.visit[above]
        visit, least = self._least(size_class, spare_unwritten=False)
        if NONE in (newcomer, visit):
            return False
        if visit != newcomer and self._reuse.level(self._visits.cell[newcomer]) >= least:
            return False
        # The way to disk leads through DRAM: who is to be written gets a slot for so long.
        lane = self._forest.lane[self._visits.tip[visit]]
        return not self._writing.admits(newcomer, self._forest.places[lane].size_bytes, now)

    def victim(
        self, now: float, size_class: int = 0, *, spare_unwritten: bool = False
    ) -> bytes | None:
        self._visits.age(now)
        spare = spare_unwritten and not self._writing.is_stuck
        while True:
            visit, _ = self._least(size_class, spare_unwritten=spare)
            if visit == NONE:
                if spare_unwritten:
                    self._writing.hurry()
                return None
            row = self._visits.tip[visit]
            if not self._forest.pins[row]:
                self._writing.evicted(now - self._visits.at_s[visit])
                return self._forest.key[row]
            self._visits.move(visit, AWAY)  # until it is unpinned

    def on_disk(self, key: bytes, present: bool) -> None:
        self._mark(key, ON_DISK if present else 0)

    def write_failed(self, key: bytes) -> None:
        self._mark(key, REFUSED)

    def next_write(self, now: float, *, idle: bool = False) -> bytes | None:
        self._visits.age(now)
        return self._writing.next(now, idle=idle)

    @property
    def queued_bytes(self) -> int:
        return 0 if self._writing.is_stuck else self._forest.queued_bytes

    def region_evicted(self, size_bytes: int, read_bytes: int, now: float) -> None:
        self._visits.age(now)
        self._door.region_evicted(size_bytes, read_bytes)

    def _mark(self, key: bytes, flags: int) -> None:
        row = self._forest.row_of.get(key, NONE)
        if row != NONE:
            self._mark_row(row, flags)

    def _mark_row(self, row: int, flags: int) -> None:
        self._forest.mark(row, flags)
        if self._visits.tip[self._forest.visit[row]] == row:
            self._shelve(self._forest.visit[row])

    def _begin(self, keys: Sequence[bytes], found: int, now: float) -> int:
        """The visit of a request; the one it continues, if any is known, has returned."""
        visits, ends = self._visits, self._ends
        turns, mean_s, known = 0, 0.0, found
        lot, verdict = zlib.crc32(keys[-1]) / 2**32, UNDECIDED
        for key in reversed(keys):
            before = ends.get(key, NONE)
            if before != NONE and visits.depth[before] > 1:
                turns = visits.turns[before] + 1
                mean_s = mean_gap_s(visits.mean_s[before], now - visits.at_s[before])
                known, lot = visits.depth[before], visits.lot[before]
                if visits.verdict[before] == ADMITTED and found >= known:
                    verdict = ADMITTED  # what was written of it is still there to be continued
                self._reuse.returned(visits.cell[before])
                self._end(before)
                break
        new_share = 1 - known / len(keys) if turns else self._relative_depth(len(keys))
        visit = visits.begin(cell_of(turns, mean_s, new_share), keys[-1], now)
        visits.turns[visit], visits.mean_s[visit] = turns, mean_s
        visits.depth[visit], visits.lot[visit] = len(keys), lot
        visits.verdict[visit] = verdict
        if keys[-1] in ends:
            self._end(ends[keys[-1]])
        ends[keys[-1]] = visit
        if len(ends) > REMEMBERED_VISITS_MAX:
            self._end(next(iter(ends.values())))
        return visit

    def _touch(self, visit: int, keys: Sequence[bytes], rows: list[int | None]) -> bytes | None:
        """Give a visit what DRAM has of a chain, as rows; the first key that it lacks."""
        held = [row for row in rows if row is not None]
        count = len(held)
        if held == rows[:count] and self._forest.is_path(held):
            self._take_over(visit, held)
            return keys[count] if count < len(rows) else None
        return self._touch_parts(visit, keys, rows)

    def _take_over(self, visit: int, rows: list[int]) -> None:
        """Give a visit a path from a root on; of thousands of chunks, only few visits matter."""
        visit_of, tip = self._forest.visit, self._visits.tip
        touched = set(map(visit_of.__getitem__, rows))
        for row in rows:
            visit_of[row] = visit
        for before in touched:
            if tip[before] != NONE and visit_of[tip[before]] == visit:
                tip[before] = NONE
                self._emptied(before)
        if rows:
            tip[visit] = rows[-1]
            self._shelve(visit)

    def _touch_parts(
        self, visit: int, keys: Sequence[bytes], rows: list[int | None]
    ) -> bytes | None:
        """The same where chunks are missing in between, each part with a visit of its own."""
        visit_of, tip = self._forest.visit, self._visits.tip
        owner, below, lacking = visit, NONE, None
        tips: list[int] = []
        for key, row in zip(reversed(keys[: len(rows)]), reversed(rows), strict=True):
            if row is None:
                lacking = key
                continue
            if tips and self._forest.parent[below] != row:
                owner = self._like(visit)  # what lies above a hole can only leave on its own
            before, visit_of[row] = visit_of[row], owner
            if owner not in tips:
                tips.append(owner)
                deepest = row
            if tip[before] == row:
                tip[before] = NONE
                self._emptied(before)
            if tip[owner] == NONE:
                tip[owner] = deepest
            below = row
        for owner in tips:
            self._shelve(owner)
        return lacking

    def _like(self, visit: int) -> int:
        """Another visit of the same kind and age, which nobody watches."""
        visits = self._visits
        other = visits.begin(visits.cell[visit], None, visits.at_s[visit])
        visits.turns[other], visits.mean_s[other] = visits.turns[visit], visits.mean_s[visit]
        visits.lot[other], visits.verdict[other] = visits.lot[visit], visits.verdict[visit]
        visits.depth[other] = visits.depth[visit]
        return other

    def _relative_depth(self, depth: int) -> float:
        """Of a first prompt, all is new: its length tells more, against what is usual here."""
        self._usual_depth += (depth - self._usual_depth) / min(self._requests, USUAL_REQUESTS)
        return 0.2 * depth / self._usual_depth

    def _end(self, visit: int) -> None:
        """Watch a visit no longer; it lives on only for the chunks it holds."""
        end = self._visits.end[visit]
        if end is not None:
            del self._ends[end]
            self._visits.end[visit] = None
        if self._visits.tip[visit] == NONE:
            self._forget(visit)

    def _forget(self, visit: int) -> None:
        self._started(visit, self._visits.start[visit])
        self._visits.forget(visit)

    def _started(self, visit: int, key: bytes | None) -> None:
        """Nobody needs to know any more where a visit's stores begin, if they begin with `key`."""
        if key is not None and self._starts.get(key) == visit:
            del self._starts[key]
            self._visits.start[visit] = None

    def _emptied(self, visit: int) -> None:
        """A visit holds nothing any more; it is remembered for its return, if it is watched."""
        if self._visits.end[visit] is None:
            self._forget(visit)
        else:
            self._visits.move(visit, AWAY)

    def _joined(self, key: bytes, above: int, now: float) -> int:
        """The visit that a new chunk belongs to: the one it continues, or a new one like it."""
        visits, forest = self._visits, self._forest
        visit = self._starts.get(key, NONE)
        if visit == NONE and above != NONE:
            visit = forest.visit[above]
        if visit == NONE:
            return visits.begin(cell_of(0, 0.0, 1.0), None, now)
        if visits.tip[visit] == above:  # both NONE: a chain of which DRAM had nothing
            return visit
        cell = visits.cell[visit]
        copy = visits.begin(cell - cell % BINS, None, now)
        visits.lot[copy], visits.verdict[copy] = visits.lot[visit], visits.verdict[visit]
        visits.depth[copy] = visits.depth[visit]
        return copy

    def _expose(self, row: int) -> None:
        """A chunk has nothing below it any more: it is its visit's tip."""
        visits, visit = self._visits, self._forest.visit[row]
        if visits.tip[visit] not in (NONE, row):
            visit = self._part(row, visit)
        visits.tip[visit] = row
        self._shelve(visit)

    def _part(self, row: int, visit: int) -> int:
        """A chunk was lost out of a path (it was damaged): what is above it gets its own visit."""
        forest, part = self._forest, self._like(visit)
        while row != NONE and forest.visit[row] == visit:
            forest.visit[row] = part
            row = forest.parent[row]
        return part

    def _shelve(self, visit: int) -> None:
        forest, row = self._forest, self._visits.tip[visit]
        if forest.children[row] or forest.pins[row]:
            self._visits.move(visit, AWAY)
            return
        flags = forest.flags[row]
        shelf = BACKED if flags & ON_DISK else PENDING if flags & (OFFERED | QUEUED) else PLAIN
        self._visits.move(visit, 1 + forest.lane[row] * SHELVES + shelf)

    def _lane(self, place: Place) -> int:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = len(self._forest.places)
            self._forest.places.append(place)
            self._visits.shelves(1 + (lane + 1) * SHELVES)
        return lane

    def _least(self, size_class: int, *, spare_unwritten: bool) -> tuple[int, int]:
        """The least valuable visit that can give a chunk of a class, and its level."""
        visit, least = NONE, 0
        for lane, place in enumerate(self._forest.places):
            if place.size_class != size_class or self._within_floor(place):
                continue
            for shelf in range(SHELVES):
                if shelf == PENDING and spare_unwritten:
                    continue
                found = self._visits.least(1 + lane * SHELVES + shelf)
                if found is None:
                    continue
                level = found[1] - DISK_LEVELS if shelf == BACKED else found[1]
                if visit == NONE or level < least:
                    visit, least = found[0], level
        return visit, least

    def _within_floor(self, place: Place) -> bool:
        floor = self._floors.get(place.tenant)
        return floor is not None and self._held_bytes[place.tenant] - place.size_bytes < floor
