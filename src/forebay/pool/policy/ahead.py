"""What is read before it is asked for: dialogs from drives, and known chunks from a store.

A dialog's chunks leave DRAM from its end on, so of those that DRAM lacks the first one left last:
`DialogsToRead` keeps them in that order, 16 bytes each, for dialogs that are watched. Once an
answer has ended and it is known how, the most valuable of these dialogs is read back, chunk by
chunk, if

* it is worth more than what would leave for it, which is never of that dialog itself; and
* the chance is `CHANCE_MIN` that it returns before it is worth less than that.

Pure logic and arithmetic. A GPU that is busy may load what takes longer than computing it: that is
for the engine to say, which knows, when it asks (`forebay.engines.scheduling.load_or_recompute`).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from forebay.identity.endings import EndingClass
from forebay.pool.policy.contract import ToRead
from forebay.pool.policy.forest import NONE, SAVED, Forest
from forebay.pool.policy.reuse import LEVELS_AN_OCTAVE, Reuse, ending_of
from forebay.pool.policy.visits import AHEAD, Visits
from forebay.record.region import SHORT_KEY_BYTES
from forebay.settings import PrefetchMode
from forebay.tiers.contract import TierSpeed

SAVED_LEVELS: Final = 2 * LEVELS_AN_OCTAVE  # a chunk that a lower tier has costs a quarter to lose
CHANCE_MIN: Final = 0.7  # so three in ten reads may be wasted
KINDS_MAX: Final = 4  # kinds of dialogs that one decision looks at
CHUNKS_MAX: Final = 1 << 17  # chunks remembered that have left DRAM


class DialogsToRead:
    """Chunks of watched visits that lower tiers have and DRAM lacks; picks the next to read."""

    def __init__(
        self,
        which: PrefetchMode,
        forest: Forest,
        visits: Visits,
        reuse: Reuse,
        *,
        least: Callable[[int], tuple[int, int]],  # slot bytes → visit to lose one, and its level
    ) -> None:
        self._which, self._least = which, least
        self._forest, self._visits, self._reuse = forest, visits, reuse
        # By visit, the keys that left DRAM, the last one last; no list is empty.
        self._left: OrderedDict[int, bytearray] = OrderedDict()
        self._slot_bytes: dict[int, int] = {}  # by visit, slot bytes of the last one
        self._chunks = 0
        self._reading: dict[bytes, int] = {}  # key on its way → the visit it is read for

    def removed(self, visit: int, row: int, key: bytes) -> None:
        """A chunk leaves DRAM; `visit` was the last to touch it."""
        if self._which is PrefetchMode.OFF or self._visits.end[visit] is None:
            return
        if self._forest.safety[row] != SAVED or len(key) != SHORT_KEY_BYTES:
            self.forget(visit)  # what follows it is of no use now
            return
        left = self._left.pop(visit, None) or bytearray()
        left += key
        self._left[visit], self._slot_bytes[visit] = left, self._forest.size_of(row)
        self._chunks += 1
        self.judge(visit)
        while self._chunks > CHUNKS_MAX:
            self.forget(next(iter(self._left)))

    def judge(self, visit: int) -> None:
        """Decide again whether a visit may be read ahead."""
        visits = self._visits
        ending = ending_of(visits.cell[visit])
        is_told = visits.began_cell[visit] != NONE and ending != EndingClass.NOT_KNOWN
        is_wanted = self._which is PrefetchMode.ON or ending == EndingClass.EXPECTED
        visits.set_ahead(visit, is_ahead=visit in self._left and is_told and is_wanted)

    def forget(self, visit: int) -> None:
        """Read nothing more of a visit: it has returned, or lower tiers have lost it."""
        left = self._left.pop(visit, None)
        if left is not None:
            self._chunks -= len(left) // SHORT_KEY_BYTES
            del self._slot_bytes[visit]
            self._visits.set_ahead(visit, is_ahead=False)
        for key in [key for key, of in self._reading.items() if of == visit]:
            del self._reading[key]

    def next(self, has_room: Callable[[int], bool]) -> ToRead | None:
        """See Policy."""
        visits, forest = self._visits, self._forest
        losers: dict[int, tuple[int, int]] = {}  # by slot bytes, each found once: that is slow
        for looked_at, (visit, level) in enumerate(visits.most(AHEAD)):
            if looked_at == KINDS_MAX:
                break
            if self._reuse.return_chance(visits.cell[visit]) < CHANCE_MIN:
                continue
            slot_bytes, least, victim = self._slot_bytes[visit], -1, None
            if not has_room(slot_bytes):
                if slot_bytes not in losers:
                    losers[slot_bytes] = self._least(slot_bytes)
                loser, least = losers[slot_bytes]
                # What is read stays in a lower tier as well.
                least += SAVED_LEVELS
                if loser in (NONE, visit) or level <= least:  # verify: worth more
                    break
                row = visits.tail[loser]
                if forest.pins[row]:
                    break
                victim = forest.key[row]
            end = visits.end[visit]
            assert end is not None, "it is watched"
            if self._reuse.chance_while(visits.cell[visit], least + 1) >= CHANCE_MIN:
                return ToRead(self._take(visit), victim, end)
        return None

    def came(self, key: bytes) -> int:
        """A chunk is readable in DRAM: the visit that it was read ahead for, or NONE."""
        return self._reading.pop(key, NONE) if self._reading else NONE

    def failed(self, key: bytes) -> None:
        """A chunk could not be read: drop what follows it, too."""
        visit = self._reading.pop(key, NONE)
        if visit != NONE:
            self.forget(visit)

    def _take(self, visit: int) -> bytes:
        left = self._left[visit]
        key = bytes(left[-SHORT_KEY_BYTES:])
        del left[-SHORT_KEY_BYTES:]
        self._chunks -= 1
        self._reading[key] = visit
        if not left:
            del self._left[visit], self._slot_bytes[visit]
            self._visits.set_ahead(visit, is_ahead=False)
        return key


def is_read_ahead(size_bytes: int, speed: TierSpeed, gpu_bytes_a_s: float) -> bool:
    """Whether so many bytes of a store are worth reading before they are asked for.

    Yes if it is not known to be slower than the GPU: only reading tells how fast a store is.
    """
    if not (speed.bytes_a_s and gpu_bytes_a_s):
        return True
    return speed.first_s + size_bytes / speed.bytes_a_s <= size_bytes / gpu_bytes_a_s
