"""Learns from requests when dialogs come back, and so how much a chunk is worth.

Every visit (one request's touch of its chain) is watched until its dialog returns. Age is cut into
bins that grow by a constant factor; for each bin it is counted how many visits entered it and how
many returned within it. A visit that has not returned counts for the bins it has been through, so
that "not yet" means neither "soon" nor "never".

Three things are learnt, each from as many visits as possible, so that a few hundred suffice:

* the chance by age, for dialogs seen once and for those that have returned before;
* for the latter, how it differs with the dialog's own mean gap;
* how much likelier than that each kind of visit returns: by the turns of its dialog, and by how
  much of the prompt was new.

All of it is learnt for each class of endings (`forebay.identity.endings`) separately, with ages and
gaps that begin at the end of the answer; and once more for all visits, from the request on, which
counts until the answer has ended, and for good if nobody tells that it has.

Counts are smoothed over neighbouring ages and similar mean gaps before they are used: two thousand
gaps in three thousand cells are mostly chance, and evictions based on chance are wrong.

The worth of keeping a chunk from age a on is the best ratio, over all ages b > a at which one could
give up, of the chance to be used between a and b to the expected time it occupies memory until
then: uses a second (Gittins' index). For gaps that become ever longer it orders as LRU does, for a
loop as MRU, for "nobody is back before five seconds" it lets the newest go: no mode is chosen.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from forebay.identity.endings import ENDINGS_MAX

BIN_FIRST_S: Final = 0.002
BIN_GROWTH: Final = 1.25
BINS: Final = 80  # up to 22 hours; anything older is in the last bin
EDGES_S: Final = (0.0, *(BIN_FIRST_S * BIN_GROWTH**i for i in range(BINS - 1)))
WIDTHS_S: Final = (*(b - a for a, b in pairwise(EDGES_S)), EDGES_S[-1])

TURNS: Final = (1, 2, 4, 8)  # edges of kinds: returns of this dialog so far,
NEWS: Final = (0.1, 0.4)  # and the share of the prompt that was new
KINDS: Final = (len(TURNS) + 1) * (len(NEWS) + 1)
SCALE_BINS: Final = 2  # a dialog's mean gap is known in steps of so many bins
NO_GAP: Final = BINS // SCALE_BINS  # the scale of dialogs that were seen once
SCALES: Final = NO_GAP + 1
CELLS: Final = ENDINGS_MAX * KINDS * SCALES * BINS  # (class of the ending, kind, scale, age)

# The prior: one in twenty returns in each bin, which orders as LRU does. A second is
# the shortest time for which people are believed to differ; below, time alone counts.
PRIOR_VISITS: Final = 2.0
PRIOR_CHANCES: Final = tuple(0.05 * min(1.0, width) for width in WIDTHS_S)
SCALE_BLUR: Final = 0.4  # weight of a neighbouring scale's visits
SCALE_VISITS: Final = 1.5  # a scale is believed to be like all until it has seen that many,
KIND_VISITS: Final = 10.0  # and a kind that many
MEMORY_VISITS: Final = 8192.0  # counts are halved at this number, to follow changes
CHANCE_MAX: Final = 0.95
GAP_MEMORY: Final = 0.8  # weight of a dialog's earlier gaps in its mean gap
LEVELS_AN_OCTAVE: Final = 12
LEVELS: Final = 512
LEVEL_FIRST: Final = -20 * LEVELS_AN_OCTAVE  # one use in 12 days


def bin_of(age_s: float) -> int:
    """The bin of an age; a negative age, which no clock should give, is in the first."""
    return max(bisect_right(EDGES_S, age_s) - 1, 0)


def mean_gap_s(before_s: float, gap_s: float) -> float:
    """The mean gap of a dialog after one more gap; `before_s` 0 means that there was none."""
    gap_s = max(gap_s, BIN_FIRST_S)
    if before_s <= 0:
        return gap_s
    return math.exp(GAP_MEMORY * math.log(before_s) + (1 - GAP_MEMORY) * math.log(gap_s))


def cell_of(turns: int, mean_s: float, new_share: float, ending: int = 0) -> int:
    """The cell of a visit of age 0, counted from its request or from its answer's ending."""
    kind = (
        ending * KINDS
        + bisect_right(TURNS, turns) * (len(NEWS) + 1)
        + bisect_right(NEWS, new_share)
    )
    return (kind * SCALES + (bin_of(mean_s) // SCALE_BINS if turns else NO_GAP)) * BINS


def ending_of(cell: int) -> int:
    """The class of ending that a cell's ages are counted from."""
    return cell // (CELLS // ENDINGS_MAX)


class _Curve:
    """How many visits entered each bin, and how many returned within it."""

    def __init__(self) -> None:
        self.entered = array("d", bytes(8 * BINS))
        self.returned = array("d", bytes(8 * BINS))

    def fade(self) -> None:
        """Halve the counts once there are many."""
        if self.entered[0] > MEMORY_VISITS:
            for number in range(BINS):
                self.entered[number] /= 2
                self.returned[number] /= 2


class _Ending:
    """The counts of visits whose answers ended in one class, or have not ended."""

    def __init__(self) -> None:
        self.first = _Curve()
        self.again = _Curve()
        # With an empty curve at each end, so that every scale has two neighbours.
        self.scaled = [_Curve() for _ in range(NO_GAP + 2)]
        self.chances = [list(PRIOR_CHANCES) for _ in range(SCALES)]  # by scale and bin
        self.expected = array("d", [KIND_VISITS] * KINDS)
        self.returned = array("d", [KIND_VISITS] * KINDS)

    def curves(self, scale: int) -> tuple[_Curve, ...]:
        """The curves in which a visit of this scale is counted."""
        return (self.first,) if scale == NO_GAP else (self.again, self.scaled[scale + 1])


class Reuse:
    """What is learnt, and the worth of each cell that results."""

    def __init__(self) -> None:
        self._endings: dict[int, _Ending] = {}  # those ever met
        self._worth: dict[int, list[float]] = {}  # by kind and scale, those seen so far
        self._return: dict[int, list[float]] = {}  # likewise
        self._levels: dict[int, list[int]] = {}  # likewise

    def entered(self, cell: int) -> None:
        """A visit has reached this cell's age."""
        ending, kind, scale, number = self._parts(cell)
        ending.expected[kind] += ending.chances[scale][number]
        for curve in ending.curves(scale):
            curve.entered[number] += 1

    def returned(self, cell: int) -> None:
        """The dialog of a visit at this cell's age came back."""
        ending, kind, scale, number = self._parts(cell)
        ending.returned[kind] += 1
        for curve in ending.curves(scale):
            curve.returned[number] += 1

    def learn(self, group: int) -> None:
        """Recompute one kind and scale from the counts."""
        ending, kind, scale, _ = self._parts(group * BINS)
        for curve in ending.curves(scale):
            curve.fade()
        if ending.expected[kind] > MEMORY_VISITS:
            ending.expected[kind] /= 2
            ending.returned[kind] /= 2
        ending.chances[scale] = _learnt(ending, scale)
        likelier = ending.returned[kind] / ending.expected[kind]
        chances = [min(likelier * chance, CHANCE_MAX) for chance in ending.chances[scale]]
        self._worth[group] = _gittins(chances)
        self._levels[group] = [_level(worth) for worth in self._worth[group]]
        away = 1.0
        for number in range(BINS - 1, -1, -1):
            away *= 1 - chances[number]
            chances[number] = 1 - away
        self._return[group] = chances

    def worth(self, cell: int) -> float:
        """The worth of a chunk in this cell: expected uses a second."""
        group, number = divmod(cell, BINS)
        if group not in self._worth:
            self.learn(group)
        return self._worth[group][number]

    def return_chance(self, cell: int) -> float:
        """The chance that a visit in this cell returns at all."""
        group, number = divmod(cell, BINS)
        if group not in self._return:
            self.learn(group)
        return self._return[group][number]

    def chance_while(self, cell: int, level: int) -> float:
        """The chance that a visit in this cell returns while its worth is at least that level."""
        group, number = divmod(cell, BINS)
        chance = self.return_chance(cell)
        levels = self._levels[group]
        for later in range(number, BINS if level > 0 else 0):
            if levels[later] < level:
                return 1 - (1 - chance) / (1 - self._return[group][later])
        return chance

    def level(self, cell: int) -> int:
        """The worth on a logarithmic scale of whole numbers, lowest first."""
        group, number = divmod(cell, BINS)
        if group not in self._levels:
            self.learn(group)
        return self._levels[group][number]

    def _parts(self, cell: int) -> tuple[_Ending, int, int, int]:
        rest, number = divmod(cell, BINS)
        rest, scale = divmod(rest, SCALES)
        name, kind = divmod(rest, KINDS)
        ending = self._endings.get(name)
        if ending is None:
            ending = self._endings[name] = _Ending()
        return ending, kind, scale, number


def _level(worth: float) -> int:
    if worth <= 0:
        return 0
    level = math.floor(LEVELS_AN_OCTAVE * math.log2(worth)) - LEVEL_FIRST
    return min(max(level, 0), LEVELS - 1)


def _learnt(ending: _Ending, scale: int) -> list[float]:
    """The chance within each bin, smoothed over ages and similar scales."""
    shared = ending.first if scale == NO_GAP else ending.again
    chances = _chances(shared.entered, shared.returned, PRIOR_CHANCES, PRIOR_VISITS)
    if scale == NO_GAP:
        return chances
    below, own, above = ending.scaled[scale : scale + 3]
    entered = _mixed(below.entered, own.entered, above.entered)
    returned = _mixed(below.returned, own.returned, above.returned)
    return _chances(entered, returned, chances, SCALE_VISITS)


def _chances(
    entered: Sequence[float], returned: Sequence[float], prior: Sequence[float], weight: float
) -> list[float]:
    """The chance within each bin; a prior counts as `weight` visits.

    The prior never fades: a bin that nobody reaches for months would end at 0 of 0.
    """
    return [
        (back + weight * chance) / (out + weight)
        for out, back, chance in zip(_blurred(entered), _blurred(returned), prior, strict=True)
    ]


def _mixed(below: Sequence[float], own: Sequence[float], above: Sequence[float]) -> list[float]:
    return [b + SCALE_BLUR * (a + c) for a, b, c in zip(below, own, above, strict=True)]


def _blurred(counts: Sequence[float]) -> list[float]:
    """Each bin averaged with its neighbours, with weights that fall with the distance."""
    for _ in range(2):
        sums = [0.0, *accumulate((0.0, 0.0, *counts, 0.0, 0.0))]
        counts = [(after - before) / 5 for before, after in zip(sums, sums[5:], strict=False)]
    return list(counts)


def _gittins(chances: Sequence[float]) -> list[float]:
    """For each bin, the best ratio of uses to time over all ages at which one could give up."""
    alive, uses, times = 1.0, [], []
    for chance, width_s in zip(chances, WIDTHS_S, strict=True):
        uses.append(alive * chance)
        times.append(alive * (1 - chance / 2) * width_s)
        alive *= 1 - chance
    # From the oldest age down: a bin joins those behind it while they are worth more than it.
    worth: list[float] = []
    segments: list[tuple[float, float]] = []
    for use_alone, time_alone in zip(reversed(uses), reversed(times), strict=True):
        use, time = use_alone, time_alone
        while segments and segments[-1][0] * time > use * segments[-1][1]:
            later_use, later_time = segments.pop()
            use, time = use + later_use, time + later_time
        segments.append((use, time))
        worth.append(use / time if time > 0 else 0.0)
    worth.reverse()
    return worth
