"""Terms of a store: what is sent there, what it costs, what it may cost a day.

    send=reused|all         what is sent: only what is asked for again, or long; or everything
    requests=N              requests that this host may make in a day (UTC); 0: no limit
    prices=PUT:GET:MONTH    dollars for 1,000 PUTs or LISTs, for 1,000 GETs, for a GB stored for a
                            month, and after a third colon for a GB read
    warm=SIZE[:SIZE]        how much of what hosts use most is fetched at the start, and how much
                            per second; without it, nothing

These are options of a store's URL. A SettingsError says in one sentence what is wrong with one.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from forebay.errors import SettingsError
from forebay.quantity import parse_size

TERM_OPTIONS: Final = ("send", "requests", "prices", "warm")
WARM_BYTES_A_S: Final = 100 << 20  # the default
REQUESTS_MIN: Final = 1000  # per day; looking at other hosts every ten seconds takes some 17,000
_REQUESTS_DIGITS: Final = 12
_THOUSAND: Final = 1000
_GB: Final = 10**9
_DAYS_A_MONTH: Final = 30
_DOLLARS_MAX: Final = 1e6


class StorePrices(NamedTuple):
    """What a store charges, in dollars; deleting is free everywhere."""

    puts: float = 0.0  # for 1,000 PUTs or LISTs
    gets: float = 0.0  # for 1,000 GETs
    gb_month: float = 0.0  # for a GB (10^9 bytes) stored for 30 days
    read_gb: float = 0.0  # for a GB that leaves the store

    def requests_dollars(self, puts: float, gets: float, read_bytes: float) -> float:
        """The price of requests and of the bytes read; listings count as puts."""
        requests = (puts * self.puts + gets * self.gets) / _THOUSAND
        return requests + read_bytes / _GB * self.read_gb

    def day_dollars(self, stored_bytes: float) -> float:
        """The price of keeping bytes for a day."""
        return stored_bytes / _GB * self.gb_month / _DAYS_A_MONTH

    def __str__(self) -> str:
        return ":".join(f"{dollars:.12g}" for dollars in self)


FREE: Final = StorePrices()
# Amazon S3 Standard, us-east-1, read within the region: list prices of aws.amazon.com/s3/pricing
# of November 2026. For other regions, classes and stores there is the option `prices`.
S3_STANDARD: Final = StorePrices(0.005, 0.0004, 0.023, 0.0)


class WarmLimit(NamedTuple):
    """How much is fetched from a store when a pool starts, before anybody asks for it."""

    limit_bytes: int = 0  # 0: nothing is fetched
    bytes_a_s: int = WARM_BYTES_A_S

    def __str__(self) -> str:
        return f"{self.limit_bytes}:{self.bytes_a_s}"


NOT_WARM: Final = WarmLimit()


class StoreTerms(NamedTuple):
    """The terms of one store."""

    send_all: bool = False  # else only what is reused, or long
    requests_a_day: int = 0  # 0: no limit
    prices: StorePrices | None = None  # None: those known for this kind of store
    warm: WarmLimit = NOT_WARM

    def query(self) -> str:
        """The terms as a part of a URL, after other options."""
        text = "&send=all" if self.send_all else ""
        text += f"&requests={self.requests_a_day}" if self.requests_a_day else ""
        text += f"&prices={self.prices}" if self.prices is not None else ""
        return text + (f"&warm={self.warm}" if self.warm.limit_bytes else "")


def parse_terms(options: Mapping[str, str]) -> StoreTerms:
    """The terms among a URL's options."""
    send = options.get("send", "reused")
    if send not in {"reused", "all"}:
        raise SettingsError(f"'{send[:40]}' is no send; write send=reused or send=all.")
    prices = options.get("prices")
    return StoreTerms(
        send == "all",
        _requests(options.get("requests", "0")),
        None if prices is None else _prices(prices),
        _warm(options.get("warm", "0")),
    )


def _requests(text: str) -> int:
    is_count = text.isdecimal() and len(text) <= _REQUESTS_DIGITS
    if not is_count or 0 < int(text) < REQUESTS_MIN:
        raise SettingsError(
            f"'{text[:40]}' is no number of requests a day; write {REQUESTS_MIN} or more, or 0"
            " for no limit."
        )
    return int(text)


def _warm(text: str) -> WarmLimit:
    size, colon, rate = text.partition(":")
    found = WarmLimit(parse_size(size), parse_size(rate) if colon else WARM_BYTES_A_S)
    if not found.bytes_a_s:
        raise SettingsError(
            f"'{text[:40]}' is no warm start; write how much, and how much of it a second, as"
            " warm=64GiB:100MiB."
        )
    return found


def _prices(text: str) -> StorePrices:
    try:
        dollars = [float(part) for part in text.split(":")]
    except ValueError:
        dollars = []
    is_price = all(math.isfinite(each) and 0 <= each <= _DOLLARS_MAX for each in dollars)
    if not 3 <= len(dollars) <= len(FREE) or not is_price:
        raise SettingsError(
            f"'{text[:40]}' are no prices; write dollars for 1,000 PUTs, 1,000 GETs and a GB-month,"
            f" as prices={S3_STANDARD.puts}:{S3_STANDARD.gets}:{S3_STANDARD.gb_month}."
        )
    return StorePrices(*dollars)
