"""How often documents were asked for lately: a bounded table of decayed counts, without any text.

Promised: the table never exceeds its limit, and each count takes a bounded number of steps. When it
is full, the least popular of the `_LOOKED_AT` entries that were looked at longest ago is dropped. A
count halves over `HALF_LIFE` requests. Names are keyed hashes that mean nothing outside this
process. Assumed: one thread at a time. Everything is lost when the process ends.
"""

import math
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from typing import Final

HALF_LIFE: Final = 20_000  # requests of one table
DOCUMENTS_MAX: Final = 65_536  # that are remembered; 160 bytes each
_LOOKED_AT: Final = 8  # the least popular of so many documents is dropped
_EXPONENT_MIN: Final = -1000.0  # smaller powers of two add nothing
UNKNOWN: Final = -math.inf


class Popularity:
    """Decayed counts of one tenant's documents."""

    def __init__(self, limit: int = DOCUMENTS_MAX) -> None:
        self._limit = limit
        self._secret = secrets.token_bytes(32)
        self._scores: dict[int, float] = {}  # binary logarithms of decayed counts
        self._requests = 0

    def __len__(self) -> int:
        return len(self._scores)

    def name(self, digest: bytes, scope: bytes) -> int:
        """The name of a document in this table; it differs between scopes."""
        hashed = blake2b(scope, digest_size=8, key=self._secret, salt=digest[:16])
        return int.from_bytes(hashed.digest())

    def score(self, name: int) -> float:
        """A document's popularity, only for comparison with others; UNKNOWN is the least."""
        return self._scores.get(name, UNKNOWN)

    def count(self, names: Iterable[int]) -> None:
        """Count the documents of one request, each of them once."""
        # Instead of decaying all counts, each new one weighs more: the order is the same.
        weight = self._requests / HALF_LIFE
        self._requests += 1
        for name in dict.fromkeys(names):
            before = self._scores.get(name)
            if before is None:
                self._make_room()
                self._scores[name] = weight
            else:
                self._scores[name] = _sum(before, weight)

    def _make_room(self) -> None:
        scores = self._scores
        if len(scores) < self._limit:
            return
        first = list(islice(scores.items(), _LOOKED_AT))
        least = min(first, key=lambda each: each[1])[0]
        for name, score in first:  # move the others to the end
            del scores[name]
            if name != least:
                scores[name] = score


def _sum(one: float, other: float) -> float:
    """The logarithm of the sum of two numbers, given their logarithms."""
    high, low = max(one, other), min(one, other)
    return high + math.log2(1.0 + 2.0 ** max(low - high, _EXPONENT_MIN))
