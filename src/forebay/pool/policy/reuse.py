"""When a dialog comes back, learnt from the stream itself, and what that makes a chunk worth.

Every visit (one request's touch of its chain) is watched until its dialog returns. Age is cut into
bins that grow by a constant factor; of each bin it is counted, by kind of visit, how many entered
it and how many returned within it. What is still out counts for the bins it has been through, so
that "not yet" is neither "soon" nor "never".

The worth of keeping a chunk from age a on is the best ratio, over all ages b > a at which one could
give up, of the chance to be used between a and b to the expected time it occupies memory until
then: uses a second a chunk (Gittins' index). For gaps that become ever longer it orders as LRU
does, for a loop as MRU, for "nobody is back before five seconds" it lets the newest go: no mode is
chosen, the ratio knows.
"""

from array import array
from bisect import bisect_right
from typing import Final

BIN_FIRST_S: Final = 0.002
BIN_GROWTH: Final = 1.4
BINS: Final = 54  # up to 22 hours; older is the last bin
EDGES_S: Final = (0.0, *(BIN_FIRST_S * BIN_GROWTH**i for i in range(BINS - 1)))
WIDTHS_S: Final = (*(b - a for a, b in zip(EDGES_S, EDGES_S[1:], strict=False)), EDGES_S[-1])

TURNS: Final = (1, 2, 4)  # kinds of visit: returns of this dialog so far
GAPS_S: Final = (10.0, 30.0, 120.0)  # and its last gap
KINDS: Final = (len(TURNS) + 1) * (len(GAPS_S) + 1)
CELLS: Final = KINDS * BINS

PRIOR_RETURNS: Final = 0.1  # a bin of which nothing is known: one in ten returns
PRIOR_VISITS: Final = 1.0
SHARED_VISITS: Final = 8.0  # what all kinds have in common counts as that many visits of a kind
MEMORY_VISITS: Final = 4096.0  # counts are halved when a kind has seen that many


def bin_of(age_s: float) -> int:
    """The bin of an age."""
    return bisect_right(EDGES_S, age_s) - 1


def kind_of(turns: int, gap_s: float) -> int:
    """The kind of a visit: the dialog's returns so far and the gap before this one."""
    return bisect_right(TURNS, turns) * (len(GAPS_S) + 1) + bisect_right(GAPS_S, gap_s)


class Reuse:
    """Counts of returns, and the worth of each (kind, bin) computed from them."""

    def __init__(self) -> None:
        self._entered = array("d", bytes(8 * CELLS))
        self._returned = array("d", bytes(8 * CELLS))
        self.worth = array("d", bytes(8 * CELLS))  # uses a second a chunk, by kind × BINS + bin
        self.relearn()

    def entered(self, cell: int) -> None:
        """A visit has reached this cell's age."""
        self._entered[cell] += 1

    def returned(self, cell: int) -> None:
        """A visit's dialog came back at this cell's age."""
        self._returned[cell] += 1

    def relearn(self) -> None:
        """Compute `worth` from the counts; forget slowly, so that a change of habits is learnt."""
        shared = [self._shared_chance(number) for number in range(BINS)]
        for kind in range(KINDS):
            start = kind * BINS
            if self._entered[start] > MEMORY_VISITS:
                for cell in range(start, start + BINS):
                    self._entered[cell] /= 2
                    self._returned[cell] /= 2
            self._judge(kind, shared)

    def chance(self, cell: int, shared: float) -> float:
        """The chance that a visit in this cell's bin returns within it."""
        return (self._returned[cell] + SHARED_VISITS * shared) / (
            self._entered[cell] + SHARED_VISITS
        )

    def _shared_chance(self, number: int) -> float:
        returned = sum(self._returned[number::BINS])
        entered = sum(self._entered[number::BINS])
        return (returned + PRIOR_RETURNS) / (max(entered, returned) + PRIOR_VISITS)

    def _judge(self, kind: int, shared: list[float]) -> None:
        start = kind * BINS
        alive, uses, times = 1.0, [], []
        for number in range(BINS):
            chance = min(self.chance(start + number, shared[number]), 1.0)
            uses.append(alive * chance)
            times.append(alive * (1 - chance / 2) * WIDTHS_S[number])
            alive *= 1 - chance
        # From the oldest age down: a bin joins those behind it while they are worth more than it.
        segments: list[tuple[float, float]] = []
        for number in range(BINS - 1, -1, -1):
            use, time = uses[number], times[number]
            while segments and segments[-1][0] * time > use * segments[-1][1]:
                later_use, later_time = segments.pop()
                use, time = use + later_use, time + later_time
            segments.append((use, time))
            self.worth[start + number] = use / time if time > 0 else 0.0
