"""Which dialogs are written to a lower tier: those likeliest to return, as many as it can keep.

A full lower tier evicts something for everything it is given, so whatever is admitted shortens the
life of the rest. The share that is admitted shrinks while records are evicted before a third of
them was read, and grows while more is. Within the share the likeliest dialogs come first; equally
likely ones are ordered by a tie-breaker derived from their key, the same each time, so that in a
loop larger than the tier the same dialogs are kept, instead of all of them for too short.

A budget of bytes a day is a bucket that fills at that rate: as it runs low the share narrows, so
that unlikely and large dialogs go first; nothing is written beyond what it holds. No 24 hours see
more than the budget, however often the pool is restarted in them: the bucket starts empty, since
nobody knows what was written before.
"""

import math
from array import array
from typing import Final, NamedTuple

DAY_S: Final = 86_400.0
BURST: Final = 1 / 24  # share of a day's budget that may be written at once
READ_TARGET: Final = 0.31  # share of evicted bytes that should have been read
SHRINKING: Final = 4.0  # a tier full of unread bytes leaves e^-1.2, a third, of the share
SHARE_MIN: Final = 0.02  # at 0 nothing would be learnt any more
CHANCE_BINS: Final = 8
MEMORY_TIERS: Final = 1.0  # candidates remembered, in multiples of the tier's size
# At 100 Gbit/s and a first byte of 150 ms, what large models take as long to compute as to fetch.
LONG_BYTES: Final = 1 << 30


class WriteBudget:
    """Bytes that may be written in any 24 hours; the policies of all tenants take from one."""

    def __init__(self, bytes_a_day: int) -> None:
        self.bytes_a_day = bytes_a_day
        self.allowed_bytes = 0.0  # bytes in the bucket
        self._filled_at_s: float | None = None

    @property
    def left(self) -> float:
        """The share of a full bucket that is left."""
        return self.allowed_bytes / (BURST * self.bytes_a_day)

    def fill(self, now: float) -> None:
        """Add to the bucket what the time since the last call allows."""
        if self._filled_at_s is not None:
            elapsed_s = max(0.0, now - self._filled_at_s)
            # The burst and a day's filling together are the budget of a day.
            self.allowed_bytes += (1 - BURST) * self.bytes_a_day * elapsed_s / DAY_S
        self.allowed_bytes = min(self.allowed_bytes, BURST * self.bytes_a_day)
        self._filled_at_s = now


class LowerTier(NamedTuple):
    """What a policy is told about one lower tier."""

    capacity_bytes: int
    budget_bytes_a_day: int | None = None  # that may be written to it; None: no limit
    reused_only: bool = False  # give it only reused chunks and long chains
    long_bytes: int = LONG_BYTES  # chains of so many bytes count as long
    shared: WriteBudget | None = None  # the budget, if several policies share one


class Admission:
    """Decides which dialogs one tier is given."""

    def __init__(self, tier: LowerTier) -> None:
        a_day = tier.budget_bytes_a_day
        self._tier_bytes = tier.capacity_bytes
        self._reused_only, self._long_bytes = tier.reused_only, tier.long_bytes
        self._budget = tier.shared or (None if a_day is None else WriteBudget(a_day))
        self._asked_bytes = array("d", bytes(8 * CHANCE_BINS))  # bytes of candidates, by chance
        self._asked_sum = 0.0
        self.share = 1.0  # share of the candidates' bytes to admit

    def takes(self, turns: int, size_bytes: int) -> bool:
        """Whether a dialog with so many returns and bytes may be given to the tier at all."""
        return not self._reused_only or turns > 0 or size_bytes >= self._long_bytes

    def admits(self, chance: float, tie_breaker: float, size_bytes: int, now: float) -> bool:
        """Whether a dialog that returns with this chance is written; `tie_breaker` in [0, 1)."""
        number = min(int(chance * CHANCE_BINS), CHANCE_BINS - 1)
        self._asked_bytes[number] += size_bytes
        self._asked_sum += size_bytes
        if self._asked_sum > MEMORY_TIERS * self._tier_bytes:
            for index in range(CHANCE_BINS):
                self._asked_bytes[index] /= 2
            self._asked_sum /= 2
        likelier = sum(self._asked_bytes[number + 1 :])
        rank = (likelier + tie_breaker * self._asked_bytes[number]) / self._asked_sum
        if self._budget is None:
            return rank < self.share
        self._budget.fill(now)
        is_likely = rank < self.share * min(1.0, 2 * self._budget.left)
        return is_likely and size_bytes <= self._budget.allowed_bytes

    def spend(self, size_bytes: int, now: float) -> bool:
        """Take these bytes out of the budget; False when it does not hold them yet."""
        if self._budget is None:
            return True
        self._budget.fill(now)
        if size_bytes > self._budget.allowed_bytes:
            return False
        self._budget.allowed_bytes -= size_bytes
        return True

    def evicted(self, size_bytes: int, read_bytes: int) -> None:
        """The tier evicted records: adjust the admitted share."""
        if not size_bytes or not self._tier_bytes:
            return
        surplus = read_bytes / size_bytes - READ_TARGET
        step = SHRINKING * surplus * size_bytes / self._tier_bytes
        self.share = min(1.0, max(SHARE_MIN, self.share * math.exp(step)))

    def fill(self, now: float) -> None:
        """Let the budget's bucket fill for the time that has passed."""
        if self._budget is not None:
            self._budget.fill(now)
