"""Which region gives way: the one of which nothing has been asked for longest.

Regions are filled one after another, but need not be evicted in that order: each is written from
its first byte on and evicted whole, whichever it is. A request asks for a whole chain at once, so
all records of it count as used together, those that DRAM has too. Of regions that one request was
the last to ask, the one with the end of its chain goes first: without its start no chain is of use.
What was never asked for since the start counts as oldest, and goes in the order it was written.

Pure logic: no lock, no clock. The disk tier and the simulator decide by it.
"""

from collections.abc import Iterable
from typing import Final

_NEVER: Final = (0, 0)


class AskOrder:
    """For each region, by number, the last turn that asked for one of its records."""

    def __init__(self) -> None:
        self._turn = 0
        self._is_new = False  # since this turn began, no chain was stored that none was known of
        self._last: dict[int, tuple[int, int]] = {}  # turn, and minus the lowest depth asked for

    def begin_turn(self) -> int:
        """The number of a request, later than all before; the first is 1."""
        self._turn, self._is_new = self._turn + 1, True
        return self._turn

    def turn_of_stored(self, parent_turn: int) -> int:
        """When a record that is stored now counts as asked for: with its parent, if that is known.

        It is written late, when its chain has long been asked for. Chains that nobody asks for have
        a turn each, so that they leave in the order in which they came.
        """
        if parent_turn:
            return parent_turn
        turn = self._turn if self._is_new else self.begin_turn()
        self._is_new = False
        return turn

    def asked(self, region: int, turn: int, depth: int) -> None:
        """A record of this region, so deep in its chain, was asked for in this turn."""
        self._last[region] = max(self._last.get(region, _NEVER), (turn, -depth))

    def forget(self, region: int) -> None:
        """A region is gone."""
        self._last.pop(region, None)

    def first(self, regions: Iterable[int]) -> int | None:
        """Of these regions, given oldest first, the one to evict first; None: there are none."""
        return min(regions, key=lambda number: self._last.get(number, _NEVER), default=None)
