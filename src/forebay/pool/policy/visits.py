"""Visits, in memory and remembered, ordered by what their chunks are worth.

A visit is one request's touch of its chain. Its chunks have one age and one kind, so they are
ranked together: a visit lies in the place of its shelf, kind and age bin, and gives its chunks from
the tail on. Shelf 0 is for visits that cannot give one: all gone, pinned, or with others below.

Finding the least valuable visit is finding the lowest set bit: places are numbered by the worth of
their cell, and each shelf has an integer with a bit for each that is not empty.
"""

import heapq
from array import array
from collections import OrderedDict
from typing import Final

from forebay.pool.policy.forest import NONE
from forebay.pool.policy.reuse import BINS, CELLS, EDGES_S, Reuse, bin_of

AWAY: Final = 0  # the shelf of visits that cannot give a chunk now


class Visits:
    """Columns of visits, their places, and the order of the places."""

    def __init__(self, reuse: Reuse) -> None:
        self._reuse = reuse
        self.at_s = array("d")
        self.cell = array("i")  # kind × BINS + bin
        self.shelf = array("i")  # NONE: the number is free
        self.tip = array("i")  # the deepest row that this visit touched last, or NONE
        self.turns = array("i")
        self.end: list[bytes | None] = []  # the chain's last key, by which a return is known
        self._free: list[int] = []
        self._places: dict[int, OrderedDict[int, None]] = {}
        self._ranks: list[int] = [0]  # by shelf
        self._due: list[tuple[float, int]] = []  # when the first visit of a place grows older
        self._rank_of = array("i", bytes(4 * CELLS))
        self._cell_of = array("i", bytes(4 * CELLS))
        self.reorder()

    def begin(self, kind: int, turns: int, end: bytes | None, now: float) -> int:
        """A new visit of age 0, away until it is shelved."""
        if self._free:
            visit = self._free.pop()
        else:
            visit = len(self.end)
            for column in (self.cell, self.shelf, self.tip, self.turns):
                column.append(0)
            self.at_s.append(now)
            self.end.append(None)
        self.at_s[visit], self.tip[visit], self.turns[visit] = now, NONE, turns
        self.end[visit] = end
        self.shelf[visit], self.cell[visit] = NONE, kind * BINS
        if end is not None:
            self._reuse.entered(kind * BINS)
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
            visits = self._places.get(place)
            if visits:
                self._age_place(place, visits, now)

    def least(self, shelf: int) -> tuple[int, float] | None:
        """The least valuable visit of a shelf, and its worth in uses a second a chunk."""
        ranks = self._ranks[shelf]
        if not ranks:
            return None
        cell = self._cell_of[(ranks & -ranks).bit_length() - 1]
        visits = self._places[shelf * CELLS + cell]
        worth = self._reuse.worth
        # Within a bin the order goes on as it does to the next bin.
        rising = cell % BINS < BINS - 1 and worth[cell + 1] > worth[cell]
        return next(reversed(visits) if rising else iter(visits)), worth[cell]

    def oldest_away(self) -> int | None:
        """Of the visits that hold nothing, one that has been away among the longest."""
        for number in range(BINS - 1, -1, -1):
            for cell in range(number, CELLS, BINS):
                for visit in self._places.get(cell, ()):
                    if self.tip[visit] == NONE:
                        return visit
        return None

    def shelves(self, count: int) -> None:
        """There are that many shelves."""
        self._ranks.extend([0] * (count - len(self._ranks)))

    def reorder(self) -> None:
        """Number the cells by their worth, after it was learnt anew."""
        order = sorted(range(CELLS), key=self._reuse.worth.__getitem__)
        self._cell_of = array("i", order)
        for rank, cell in enumerate(order):
            self._rank_of[cell] = rank
        self._ranks = [0] * len(self._ranks)
        for place, visits in self._places.items():
            if visits:
                shelf, cell = divmod(place, CELLS)
                self._ranks[shelf] |= 1 << self._rank_of[cell]

    def _put(self, visit: int) -> None:
        shelf, cell = self.shelf[visit], self.cell[visit]
        place = shelf * CELLS + cell
        visits = self._places.get(place)
        if visits is None:
            visits = self._places[place] = OrderedDict()
        if not visits:
            self._ranks[shelf] |= 1 << self._rank_of[cell]
            self._expect(place, visit)
        visits[visit] = None

    def _take(self, visit: int) -> None:
        shelf, cell = self.shelf[visit], self.cell[visit]
        if shelf == NONE:
            return
        visits = self._places[shelf * CELLS + cell]
        del visits[visit]
        if not visits:
            self._ranks[shelf] &= ~(1 << self._rank_of[cell])

    def _expect(self, place: int, visit: int) -> None:
        number = place % BINS
        if number < BINS - 1:
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
