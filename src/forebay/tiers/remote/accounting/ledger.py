"""Counts a store's requests before they are made, and keeps them within a daily budget.

Everything may use the first three quarters of a day's budget (UTC, as bills have it), loads alone
the last one; then the store is left alone until the next day. The count outlasts this process:
`hosts/HOST/spent` in the store holds a number that is never below it, since no request is made
beyond that number before a higher one is stored. A process that is killed wastes the rest of its
number. A clock that is set back does not bring a new day's requests, and one that was far ahead
costs no more than a day.

Written by the tier's thread, read by all.
"""

import struct
from collections import Counter, deque
from enum import StrEnum
from typing import Final, NamedTuple

from forebay.terms import StorePrices
from forebay.tiers.contract import StoreUse

_ALL_SHARE: Final = 0.75  # share of the budget for stores, loads and upkeep alike
_RESERVE: Final = 16  # for signs of life, eight a day, and for a probe under way
_STEPS: Final = 64  # steps in which the number in the store rises over a day
_NO_LIMIT: Final = 1 << 40
_HOUR_S: Final = 3600.0
_HOURS: Final = 24
_SPENT: Final = struct.Struct("<8sQQ")  # magic, day, requests
_MAGIC: Final = b"FOREBAYS"
SPENT_BYTES: Final = _SPENT.size


class RequestKind(StrEnum):
    """A kind of request to a store; also the label of `remote_requests`."""

    PUT = "put"
    GET = "get"
    LIST = "list"
    DELETE = "delete"


class RequestCounts(NamedTuple):
    """Requests that were made, and the bytes they moved."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def requests(self) -> int:
        """All of them."""
        return self.puts + self.gets + self.lists + self.deletes


class Ledger:
    """What one host asks of one store, and may ask."""

    def __init__(self, prices: StorePrices, requests_a_day: int, now: float) -> None:
        """`requests_a_day` 0: requests are counted, without a limit."""
        self._prices, self._began = prices, now
        self.requests_a_day = requests_a_day
        self.counts: Counter[str] = Counter()  # since this process started, by `RequestKind`
        self.sent_bytes = self.received_bytes = 0
        self._day = 0
        self._spent = 0  # requests of that day
        self._persisted = 0  # the number stored in the store for that day
        self._is_restored = False
        self._hours: deque[tuple[int, float]] = deque(maxlen=_HOURS)  # hour → dollars

    def spent_on(self, day: int) -> int:
        """A day's requests so far; a clock that is set back stays on the later day."""
        return self._spent if day <= self._day else 0

    def is_over_for_stores(self, day: int) -> bool:
        """Whether the rest of the day's requests is reserved for loads."""
        return self._is_over(_ALL_SHARE, day)

    def is_over(self, day: int) -> bool:
        """Whether the day's requests are used up, so that the store is left alone."""
        return self._is_over(1.0, day)

    def _is_over(self, share: float, day: int) -> bool:
        limit = share * self.requests_a_day
        return bool(limit) and self.spent_on(day) + _RESERVE > limit

    def allows(self, requests: int, day: int) -> bool:
        """Whether so many may be made now; if not, a higher number must be stored first."""
        return requests <= self.room(day)

    def room(self, day: int) -> int:
        """How many requests may be made now."""
        if not self.requests_a_day:
            return _NO_LIMIT
        persisted = self._persisted if day <= self._day else 0
        return min(persisted, self.requests_a_day) - self.spent_on(day)

    def to_persist(self, day: int) -> bytes | None:
        """The number to store before more requests are made; None if that is not needed now."""
        if day < self._day - 1:  # the clock was far ahead: the count stays, and days pass again
            self._day = day
        if not self.requests_a_day or self.spent_on(day) >= self.requests_a_day:
            return None
        step = self.requests_a_day // _STEPS
        if day <= self._day and self._persisted - self._spent > step // 2:
            return None
        most = min(self.spent_on(day) + step, self.requests_a_day)
        if day <= self._day and most <= self._persisted:
            return None
        return _SPENT.pack(_MAGIC, max(day, self._day), most)

    def persisted(self, data: bytes) -> None:
        """The store has this now."""
        _, day, most = _SPENT.unpack(data)
        self._turn(day)
        if day == self._day:
            self._persisted = most

    def restore(self, data: bytes, day: int) -> None:
        """Count what an earlier process left in the store, once; other content is ignored."""
        self._turn(day)
        was_restored, self._is_restored = self._is_restored, True
        if len(data) == SPENT_BYTES and not was_restored:
            magic, then, spent = _SPENT.unpack(data)
            if magic == _MAGIC and then >= day:  # a clock that was set back changes nothing
                self._spent += min(spent, self.requests_a_day)

    def add(self, counts: RequestCounts, now: float, day: int) -> None:
        """Count requests that begin now; those of maintenance are known when it has ended."""
        self._turn(day)
        self._spent += counts.requests
        for kind, count in zip(RequestKind, counts, strict=False):
            self.counts[kind] += count
        self.sent_bytes += counts.sent_bytes
        self.received_bytes += counts.received_bytes
        hour, dollars = int(now // _HOUR_S), self._dollars(counts)
        if self._hours and self._hours[-1][0] == hour:
            dollars += self._hours.pop()[1]
        self._hours.append((hour, dollars))

    def use(self, stored_bytes: int, now: float, day: int) -> StoreUse:
        """All of this, for people and metrics."""
        return StoreUse(
            tuple((kind.value, self.counts[kind]) for kind in RequestKind),
            self.sent_bytes,
            self.received_bytes,
            self.spent_on(day),
            self.requests_a_day,
            self.dollars_a_day(stored_bytes, now),
        )

    def dollars_a_day(self, stored_bytes: int, now: float) -> float:
        """Estimated cost a day: requests of the last 24 hours, or at their rate, and storage."""
        since = int(now // _HOUR_S) - _HOURS
        spent = sum(dollars for hour, dollars in tuple(self._hours) if hour > since)
        hours = min(float(_HOURS), max(1.0, (now - self._began) / _HOUR_S))
        return spent * _HOURS / hours + self._prices.day_dollars(stored_bytes)

    def _dollars(self, counts: RequestCounts) -> float:
        puts = counts.puts + counts.lists
        return self._prices.requests_dollars(puts, counts.gets, counts.received_bytes)

    def _turn(self, day: int) -> None:
        if day > self._day:
            self._day, self._spent, self._persisted = day, 0, 0


NO_REQUESTS: Final = RequestCounts()
COUNTS_BYTES: Final = 8 * len(RequestCounts._fields)


def counts_of(noted: memoryview) -> RequestCounts:
    """Counts as noted by a child."""
    return RequestCounts(*noted[:COUNTS_BYTES].cast("Q"))
