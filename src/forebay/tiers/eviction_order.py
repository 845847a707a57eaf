"""Decides which region is evicted: the one whose records were not asked for for longest.

Regions are filled one after another, but need not be evicted in that order: each is written from
its first byte on and evicted as a whole, whichever it is. A request asks for a whole chain at once,
so all records of the chain count as used together, even those that DRAM has too. Of regions that
the same request was the last to ask, the one with the end of the chain goes first: without its
start no chain is of use. Records never asked for since the start count as oldest, and go in the
order in which they were written.

Pure logic: no lock, no clock. The disk tier and the simulator use it.
"""

from collections.abc import Iterable
from typing import Final

_NEVER: Final = (0, 0)


class EvictionOrder:
    """For each region, by number, the last turn in which one of its records was asked for."""

    def __init__(self) -> None:
        self._turn = 0
        self._is_new = False  # no new chain was stored since this turn began
        self._last: dict[int, tuple[int, int]] = {}  # turn, and minus the lowest depth asked for

    def begin_turn(self) -> int:
        """A new request's number, higher than all before; the first is 1."""
        self._turn, self._is_new = self._turn + 1, True
        return self._turn

    def turn_of_stored(self, parent_turn: int) -> int:
        """The turn to count for a record that is stored now: its parent's, if that is known.

        It may be written long after its chain was asked for. Chains that nobody asks for get a turn
        each, so that they leave in the order in which they came.
        """
        if parent_turn:
            return parent_turn
        turn = self._turn if self._is_new else self.begin_turn()
        self._is_new = False
        return turn

    def asked(self, region: int, turn: int, depth: int) -> None:
        """A record of this region, at this depth in its chain, was asked for in this turn."""
        self._last[region] = max(self._last.get(region, _NEVER), (turn, -depth))

    def forget(self, region: int) -> None:
        """A region is gone."""
        self._last.pop(region, None)

    def first(self, regions: Iterable[int]) -> int | None:
        """The region to evict first, of these, given oldest first; None if there are none."""
        return min(regions, key=lambda number: self._last.get(number, _NEVER), default=None)
