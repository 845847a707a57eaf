"""Visits, in memory and remembered, ordered by what their chunks are worth.

A visit is one request's touch of its chain. Its chunks have one age and one kind, so they are
ranked together: a visit lies in the place of its shelf, kind and age bin, and gives its chunks from
the tail on. Shelf 0 is for visits that cannot give one: all gone, pinned, or with others below.

Finding the least valuable visit is finding the lowest set bit: worth is cut into levels, and each
shelf has an integer with a bit for each level at which it has a place that is not empty.
"""

import heapq
from array import array
from collections import OrderedDict
from typing import Final

from forebay.pool.policy.forest import NONE
from forebay.pool.policy.reuse import BINS, CELLS, EDGES_S, LEVELS, Reuse, bin_of

AWAY: Final = 0  # the shelf of visits that cannot give a chunk now
# Verdicts.
UNDECIDED: Final = 0
ADMITTED: Final = 1
TURNED_AWAY: Final = 2


class Visits:
    """Columns of visits, their places, and the order of the places."""

    def __init__(self, reuse: Reuse) -> None:
        self._reuse = reuse
        self.at_s = array("d")
        self.mean_s = array("d")  # gap of its dialog; 0: none seen
        self.cell = array("i")
        self.shelf = array("i")  # NONE: the number is free
        self.tip = array("i")  # the deepest row that this visit touched last, or NONE
        self.turns = array("i")  # returns of its dialog
        self.depth = array("i")  # chunks of its chain
        self.lot = array("d")  # of its dialog: tells equals apart, the same way each time
        self.verdict = bytearray()  # on writing its dialog to disk
        self.end: list[bytes | None] = []  # the chain's last key, by which a return is known
        self.start: list[bytes | None] = []  # the first key that DRAM lacked and has not got yet
        self._free: list[int] = []
        self._places: dict[int, OrderedDict[int, None]] = {}  # shelf and cell -> visits, none empty
        self._level_of: dict[int, int] = {}  # of these places
        self._of_group: dict[int, set[int]] = {}  # kind and scale -> places
        self._at_level: dict[int, OrderedDict[int, None]] = {}  # shelf and level -> places
        self._levels: list[int] = [0]  # by shelf, a bit for each level that has places
        self._due: list[tuple[float, int]] = []  # when the first visit of a place grows older
        self._watched: set[int] = set()  # places in `_due`, each once
        self._turn: list[int] = []

    def begin(self, cell: int, end: bytes | None, now: float) -> int:
        """A new visit of age 0, away until it is shelved."""
        if self._free:
            visit = self._free.pop()
        else:
            visit = len(self.end)
            for column in (self.cell, self.shelf, self.tip, self.turns, self.depth):
                column.append(0)
            self.at_s.append(now)
            self.mean_s.append(0.0)
            self.lot.append(0.0)
            self.verdict.append(UNDECIDED)
            self.end.append(None)
            self.start.append(None)
        self.at_s[visit], self.tip[visit], self.end[visit] = now, NONE, end
        self.turns[visit], self.depth[visit], self.mean_s[visit] = 0, 0, 0.0
        self.lot[visit], self.verdict[visit] = 0.0, UNDECIDED
        self.shelf[visit], self.cell[visit] = NONE, cell
        if end is not None:
            self._reuse.entered(cell)
        self.move(visit, AWAY)
        return visit

    def move(self, visit: int, shelf: int) -> None:
        """Put a visit on a shelf, in the cell where it is."""
        if self.shelf[visit] != shelf:
            self._take(visit)
            self.shelf[visit] = shelf
            self._put(visit)

    def forget(self, visit: int) -> None:
        """The visit is over; its number is used again."""
        self._take(visit)
        self.shelf[visit], self.end[visit] = NONE, None
        self._free.append(visit)

    def age(self, now: float) -> None:
        """Move on what has grown older, and count it."""
        due = self._due
        while due and due[0][0] <= now:
            _, place = heapq.heappop(due)
            self._watched.discard(place)
            visits = self._places.get(place)
            if visits:
                self._age_place(place, visits, now)

    def least(self, shelf: int) -> tuple[int, int] | None:
        """The least valuable visit of a shelf, and the level of its worth."""
        levels = self._levels[shelf]
        if not levels:
            return None
        level = (levels & -levels).bit_length() - 1
        place = next(iter(self._at_level[shelf * LEVELS + level]))
        cell = place % CELLS
        visits = self._places[place]
        # Within a bin the order goes on as it does to the next bin.
        rising = cell % BINS < BINS - 1 and self._reuse.worth(cell + 1) > self._reuse.worth(cell)
        return next(reversed(visits) if rising else iter(visits)), level

    def shelves(self, count: int) -> None:
        """There are that many shelves."""
        self._levels.extend([0] * (count - len(self._levels)))

    def learn(self) -> None:
        """Judge the next kind anew; a step is short, so that nobody waits for it."""
        if not self._turn:
            self._turn = [group for group, places in self._of_group.items() if places]
        if self._turn:
            group = self._turn.pop()
            self._reuse.learn(group)
            for place in tuple(self._of_group[group]):
                level = self._reuse.level(place % CELLS)
                if level != self._level_of[place]:
                    self._unlist(place)
                    self._list(place, level)

    def _put(self, visit: int) -> None:
        place = self.shelf[visit] * CELLS + self.cell[visit]
        visits = self._places.get(place)
        if visits is None:
            visits = self._places[place] = OrderedDict()
            self._list(place, self._reuse.level(self.cell[visit]))
            self._expect(place, visit)
        visits[visit] = None

    def _take(self, visit: int) -> None:
        if self.shelf[visit] == NONE:
            return
        place = self.shelf[visit] * CELLS + self.cell[visit]
        visits = self._places[place]
        del visits[visit]
        if not visits:
            del self._places[place]
            self._unlist(place)

    def _list(self, place: int, level: int) -> None:
        shelf = place // CELLS
        self._level_of[place] = level
        self._of_group.setdefault(place % CELLS // BINS, set()).add(place)
        self._levels[shelf] |= 1 << level
        self._at_level.setdefault(shelf * LEVELS + level, OrderedDict())[place] = None

    def _unlist(self, place: int) -> None:
        shelf, level = place // CELLS, self._level_of.pop(place)
        self._of_group[place % CELLS // BINS].discard(place)
        places = self._at_level[shelf * LEVELS + level]
        del places[place]
        if not places:
            self._levels[shelf] &= ~(1 << level)

    def _expect(self, place: int, visit: int) -> None:
        number = place % BINS
        if number < BINS - 1 and place not in self._watched:
            self._watched.add(place)
            heapq.heappush(self._due, (self.at_s[visit] + EDGES_S[number + 1], place))

    def _age_place(self, place: int, visits: OrderedDict[int, None], now: float) -> None:
        edge_s = EDGES_S[place % BINS + 1]
        while visits:
            visit = next(iter(visits))
            if self.at_s[visit] + edge_s > now:
                self._expect(place, visit)
                return
            self._take(visit)
            before = self.cell[visit]
            after = before - before % BINS + bin_of(now - self.at_s[visit])
            after = max(after, before + 1)  # the sum above may round up past the edge
            if self.end[visit] is not None:
                for cell in range(before + 1, after + 1):
                    self._reuse.entered(cell)
            self.cell[visit] = after
            self._put(visit)
