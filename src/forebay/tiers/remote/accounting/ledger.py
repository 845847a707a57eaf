"""Requests of one store: counted before they are made, and kept under what a day may see.

Of a day's budget (UTC, as bills have it) everything may use the first three quarters, loads alone
the last one, and then the store is left alone until the next day. What was used outlasts this
process: `hosts/HOST/spent` in the store holds a number that is never below it, since no request is
made beyond that number before a higher one is there. A process that is killed wastes the rest. A
clock that is put back does not bring a new day's requests, and one that was far ahead ends no more
than a day.

Written by the tier's thread, read by all.
"""

import struct
from collections import Counter, deque
from enum import StrEnum
from typing import Final, NamedTuple

from forebay.terms import StorePrices
from forebay.tiers.contract import StoreUse

_ALL_SHARE: Final = 0.75  # of the budget, for stores, loads and upkeep alike
_RESERVE: Final = 16  # requests for signs of life, eight a day, and what a probe has begun
_STEPS: Final = 64  # in which the number in the store rises over a day
_NO_LIMIT: Final = 1 << 40
_HOUR_S: Final = 3600.0
_HOURS: Final = 24
_SPENT: Final = struct.Struct("<8sQQ")  # magic, day, requests
_MAGIC: Final = b"FOREBAYS"
SPENT_BYTES: Final = _SPENT.size


class RequestKind(StrEnum):
    """What a store is asked for; also the label of `remote_requests`."""

    PUT = "put"
    GET = "get"
    LIST = "list"
    DELETE = "delete"


class RequestCounts(NamedTuple):
    """Requests that were made, and the bytes that went with them."""

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
    """What one host asks of one store."""

    def __init__(self, prices: StorePrices, requests_a_day: int, now: float) -> None:
        """`requests_a_day` 0: counted, without a limit."""
        self._prices, self._began = prices, now
        self.requests_a_day = requests_a_day
        self.counts: Counter[str] = Counter()  # since this process began, by `RequestKind`
        self.sent_bytes = self.received_bytes = 0
        self._day = 0
        self._spent = 0  # requests of that day
        self._kept = 0  # what the store has as spent on it, or has been told
        self._is_restored = False
        self._hours: deque[tuple[int, float]] = deque(maxlen=_HOURS)  # hour → dollars

    def spent_on(self, day: int) -> int:
        """Requests of a day, as far as is known; one that is over by our clock goes on."""
        return self._spent if day <= self._day else 0

    def is_over_for_stores(self, day: int) -> bool:
        """Whether what is left of the day's requests is for loads."""
        return self._is_over(_ALL_SHARE, day)

    def is_over(self, day: int) -> bool:
        """Whether the day's requests are used up, so that the store is left alone."""
        return self._is_over(1.0, day)

    def _is_over(self, share: float, day: int) -> bool:
        limit = share * self.requests_a_day
        return bool(limit) and self.spent_on(day) + _RESERVE > limit

    def fits(self, requests: int, day: int) -> bool:
        """Whether so many may be made now; where not, the store is to be told more first."""
        return requests <= self.room(day)

    def room(self, day: int) -> int:
        """How many may be made now."""
        if not self.requests_a_day:
            return _NO_LIMIT
        kept = self._kept if day <= self._day else 0
        return min(kept, self.requests_a_day) - self.spent_on(day)

    def to_keep(self, day: int) -> bytes | None:
        """What the store is to know before more is asked for; None: nothing now."""
        if day < self._day - 1:  # the clock was far ahead: what was spent stays, and days pass
            self._day = day
        if not self.requests_a_day or self.spent_on(day) >= self.requests_a_day:
            return None
        step = self.requests_a_day // _STEPS
        if day <= self._day and self._kept - self._spent > step // 2:
            return None
        most = min(self.spent_on(day) + step, self.requests_a_day)
        if day <= self._day and most <= self._kept:
            return None
        return _SPENT.pack(_MAGIC, max(day, self._day), most)

    def keeps(self, data: bytes) -> None:
        """The store has this now."""
        _, day, most = _SPENT.unpack(data)
        self._turn(day)
        if day == self._day:
            self._kept = most

    def restore(self, data: bytes, day: int) -> None:
        """What an earlier process left in the store counts, once; anything else says nothing."""
        self._turn(day)
        was_restored, self._is_restored = self._is_restored, True
        if len(data) == SPENT_BYTES and not was_restored:
            magic, then, spent = _SPENT.unpack(data)
            if magic == _MAGIC and then >= day:  # a clock that was put back changes nothing
                self._spent += min(spent, self.requests_a_day)

    def add(self, counts: RequestCounts, now: float, day: int) -> None:
        """Requests are made now, or were: those of maintenance are known when they are done."""
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
        """All of it, for people and metrics."""
        return StoreUse(
            tuple((kind.value, self.counts[kind]) for kind in RequestKind),
            self.sent_bytes,
            self.received_bytes,
            self.spent_on(day),
            self.requests_a_day,
            self.dollars_a_day(stored_bytes, now),
        )

    def dollars_a_day(self, stored_bytes: int, now: float) -> float:
        """An estimate: the requests of the last 24 hours, or at their rate, and what is kept."""
        since = int(now // _HOUR_S) - _HOURS
        spent = sum(dollars for hour, dollars in tuple(self._hours) if hour > since)
        hours = min(float(_HOURS), max(1.0, (now - self._began) / _HOUR_S))
        return spent * _HOURS / hours + self._prices.day_dollars(stored_bytes)

    def _dollars(self, counts: RequestCounts) -> float:
        puts = counts.puts + counts.lists
        return self._prices.requests_dollars(puts, counts.gets, counts.received_bytes)

    def _turn(self, day: int) -> None:
        if day > self._day:
            self._day, self._spent, self._kept = day, 0, 0


NO_REQUESTS: Final = RequestCounts()
COUNTS_BYTES: Final = 8 * len(RequestCounts._fields)


def counts_of(noted: memoryview) -> RequestCounts:
    """Counts as a child notes them."""
    return RequestCounts(*noted[:COUNTS_BYTES].cast("Q"))
