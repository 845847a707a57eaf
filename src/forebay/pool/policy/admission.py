"""What is written to a lower tier: the dialogs likeliest to return, as many as it keeps until then.

A lower tier that is full evicts something for whatever it is given, so all that is admitted
shortens the life of everything else. The share that is admitted shrinks while records are evicted
before a third of them was read, and grows while more is. Within the share the likeliest dialogs
come first; those equally likely are told apart by a tie-breaker drawn from their key, the same each
time, so that a loop larger than the tier keeps the same dialogs instead of all of them for too
short.

A budget of bytes a day is a bucket that fills at that rate: as it runs low the share narrows, so
that the unlikely and the large go first, and nothing is written that it does not hold. What any
24 hours see is at most the budget, however often the pool is started in them: the bucket begins
empty, since nobody knows what was written before.
"""

import math
from array import array
from typing import Final, NamedTuple

DAY_S: Final = 86_400.0
BURST: Final = 1 / 24  # of a day's budget that may be written at once; the rest is its rate
READ_TARGET: Final = 0.31  # of a record's bytes, by the time it is evicted
SHRINKING: Final = 4.0  # a tier full of unread bytes leaves e^-1.2, a third, of the share
SHARE_MIN: Final = 0.02  # at nothing, nothing would ever be learnt again
CHANCE_BINS: Final = 8
MEMORY_TIERS: Final = 1.0  # how many tiers full of candidates are remembered
# At 100 Gbit/s and a first byte of 150 ms, what large models take as long to compute as to fetch.
LONG_BYTES: Final = 1 << 30


class WriteBudget:
    """Bytes that may be written in any 24 hours; the policies of all tenants take from one."""

    def __init__(self, bytes_a_day: int) -> None:
        self.bytes_a_day = bytes_a_day
        self.allowed_bytes = 0.0  # in the bucket
        self._filled_at_s: float | None = None

    @property
    def left(self) -> float:
        """Of a full bucket, how much is in it."""
        return self.allowed_bytes / (BURST * self.bytes_a_day)

    def fill(self, now: float) -> None:
        """Time has passed: the bucket holds more."""
        if self._filled_at_s is not None:
            elapsed_s = max(0.0, now - self._filled_at_s)
            # The burst and a day's filling together are the budget of a day.
            self.allowed_bytes += (1 - BURST) * self.bytes_a_day * elapsed_s / DAY_S
        self.allowed_bytes = min(self.allowed_bytes, BURST * self.bytes_a_day)
        self._filled_at_s = now


class LowerTier(NamedTuple):
    """What a policy is told of one tier below DRAM."""

    capacity_bytes: int
    budget_bytes_a_day: int | None = None  # that may be written to it; None: as many as there are
    reused_only: bool = False  # it is given what was asked for again, and long chains
    long_bytes: int = LONG_BYTES  # of a chain: so much is worth it at first sight
    shared: WriteBudget | None = None  # instead, where several policies have one budget


class Admission:
    """Which dialogs one tier is given."""

    def __init__(self, tier: LowerTier) -> None:
        a_day = tier.budget_bytes_a_day
        self._tier_bytes = tier.capacity_bytes
        self._reused_only, self._long_bytes = tier.reused_only, tier.long_bytes
        self._budget = tier.shared or (None if a_day is None else WriteBudget(a_day))
        self._asked_bytes = array("d", bytes(8 * CHANCE_BINS))  # candidates, by their chance
        self._asked_sum = 0.0
        self.share = 1.0  # of the candidates' bytes that are admitted

    def takes(self, turns: int, size_bytes: int) -> bool:
        """Whether a dialog of so many returns and bytes is worth the tier at all."""
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
        """The tier evicted records: admit a little more or less."""
        if not size_bytes or not self._tier_bytes:
            return
        surplus = read_bytes / size_bytes - READ_TARGET
        step = SHRINKING * surplus * size_bytes / self._tier_bytes
        self.share = min(1.0, max(SHARE_MIN, self.share * math.exp(step)))

    def fill(self, now: float) -> None:
        """Time has passed: the bucket holds more."""
        if self._budget is not None:
            self._budget.fill(now)
