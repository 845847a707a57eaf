"""Sessions named by callers: one dialog, even if a prompt does not continue the one before.

Of a session it is remembered what its last visit knew of the dialog, for the next visit that was
not recognised by its chain. The last `SESSIONS_MAX` sessions are kept; pure logic.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from forebay.pool.policy.contract import Ending
from forebay.pool.policy.reuse import mean_gap_s
from forebay.pool.policy.visits import Visits

SESSIONS_MAX: Final = 1 << 14


class _Session(NamedTuple):
    """What is known when an answer of a session has ended."""

    turns: int
    gaps: dict[int, float]  # mean gap after an answer, by the class of its ending
    ending: int
    ended_s: float


class Sessions:
    """The sessions of one policy."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._known: OrderedDict[bytes, _Session] = OrderedDict()

    def ended(self, ending: Ending, visit: int, now: float) -> None:
        """An answer of a session has ended; a visit that knew no dialog gets the session's."""
        visits = self._visits
        before = self._known.pop(ending.session, None)
        if before is not None and not visits.turns[visit]:
            gap_s = visits.began_s[visit] - before.ended_s
            mean_s = mean_gap_s(before.gaps.get(before.ending, 0.0), gap_s)
            visits.turns[visit] = before.turns + 1
            visits.gaps[visit] = before.gaps | {before.ending: mean_s}
        known = _Session(visits.turns[visit], visits.gaps[visit] or {}, ending.kind, now)
        self._known[ending.session] = known
        if len(self._known) > SESSIONS_MAX:
            self._known.popitem(last=False)
