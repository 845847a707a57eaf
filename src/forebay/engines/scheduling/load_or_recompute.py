"""Load or recompute: how much of a known prefix comes from the drives, and how much from the GPU.

What lies in DRAM is always loaded: it comes ten times faster than any GPU computes it. For the rest
both ways take their time, and both have a queue:

    from the drives   (bytes being read + n tokens' bytes) / their bandwidth
    recomputed        (tokens waiting to be computed + n)  / the GPU's speed

As much is loaded as is there before it would have been recomputed. Drives that are faster than the
GPU, token for token, so give all of it unless their queue is long; slower ones give as much as they
can read while the GPU is busy with others.

Waiting for a drive delays only the request that waits; computing delays every request that the GPU
serves. So n recomputed tokens are charged once for each of these as well: an engine with a single
request takes whichever way is faster, a busy one loads as long as all requests together gain by it.
A small advantage of the drives is not trusted (`_DOUBT`): the GPU's speed is steady, drives often
take half as long again.

Where the drives' bandwidth is unknown, or was measured more than a minute ago, one request at a
time measures it; a dozen would wait for one another until their deadlines. If the GPU is idle, that
request reads only a part, since on slow drives all of a long prompt would be late. If the GPU is
busy, it reads all of it: steps are then too long to time a part by, and waiting delays nobody else.
An old measurement in favour of the drives still counts for that request.

What lies in a store that hosts share comes behind what drives have, and the pool says how fast that
store is: how long until its first record is here, and the bandwidth from then on. The same holds
for it (`worth_fetching`): a store at a distance pays for long prefixes, and for GPUs that are busy.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.pool.messages import StoreRun

_STEP_TOKENS_MIN: Final = 1024  # smaller steps say how long a step takes, not how fast it goes
# Read before it says how fast the drives are. A promise brings hundreds of chunks at once, and the
# next may follow within a millisecond: only over a longer time does that mean anything.
_READ_BYTES_MIN: Final = 32 << 20
_READ_S_MIN: Final = 0.25
_TRIED_S_MIN: Final = 0.05  # less will do to begin with, if it was seen from beginning to end
_TRIED_BYTES: Final = 256 << 20  # a tenth of a second of a fair drive
_TRIED_TOKENS: Final = 1024  # at least, however large they are
_PATIENCE: Final = 4.0  # times what a store should take: then it hangs, or is another one by now
_PATIENCE_SHARE: Final = 8  # of the longest time that a load may take, an eighth is always given
_TRIED_WAIT_S: Final = 0.5  # a store that nobody has heard from for so long is not tried
_FRESH_S: Final = 60.0  # what was seen longer ago may be otherwise by now
_WEIGHT: Final = 0.3  # of what is new
_DOUBT: Final = 1.25  # by so much drives must be faster than the GPU, for one that waits alone
_STEPS_MAX: Final = 8  # that are remembered; an engine that does not tell is not believed


class ThroughputEstimate:
    """How fast the GPU computes and the drives read, as seen. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self.tokens_a_s = 0.0  # 0: not known
        self._reading: dict[int, int] = {}  # request → bytes from the drives that have not arrived
        self._read_bytes_a_s = 0.0
        self._read_at = 0.0  # when that was last seen
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=_STEPS_MAX)  # when, which, tokens
        self._reported_at = 0.0
        self._busy_since = 0.0  # the drives have been reading for us without a pause
        self._busy_s = 0.0  # they had been before, since bandwidth was last seen
        self._arrived_bytes = 0  # in all that time
        self._is_whole = True  # and that time begins when they had nothing to read

    def built(self, now: float, number: int, tokens: int) -> None:
        """A step of so many tokens is on its way."""
        if tokens:
            self._steps.append((now, number, tokens))

    def reported(self, now: float, number: int) -> None:
        """A step is computed; it began when it was built, or after the one before.

        Engines do not tell of every step: of those that compute nothing, some are never heard of.
        """
        while self._steps and self._steps[0][1] <= number:
            built, which, tokens = self._steps.popleft()
            took_s = now - max(built, self._reported_at)
            if which == number and tokens >= _STEP_TOKENS_MIN and took_s > 0:
                self.tokens_a_s = _mixed(self.tokens_a_s, tokens / took_s)
        self._reported_at = now

    def computing(self, now: float) -> int:
        """Tokens of steps on their way that are not computed yet; what is built next waits."""
        if not self._steps:
            return 0
        took_s = now - max(self._steps[0][0], self._reported_at)
        tokens = sum(tokens for _, _, tokens in self._steps)
        return max(0, tokens - int(took_s * self.tokens_a_s))

    def reads(self, now: float, request: int, size_bytes: int) -> None:
        """So much is being read for a request."""
        if not self._reading:
            self._busy_since = now
            if not (self._is_whole or self.is_fresh(now)):  # a rest of what was seen long ago
                self._busy_s, self._arrived_bytes, self._is_whole = 0.0, 0, True
        self._reading[request] = size_bytes

    def arrived(self, now: float, request: int, size_bytes: int) -> None:
        """So much of it is here."""
        left = self._reading.get(request)
        if left is None:
            return
        size_bytes = min(left, size_bytes)
        self._reading[request] = left - size_bytes
        self._arrived_bytes += size_bytes
        if left == size_bytes:
            self._end(now, request)
        took_s = self._busy_s + (now - self._busy_since if self._reading else 0.0)
        is_try = self._is_whole and not (self._reading or self.is_fresh(now))
        enough_s = _TRIED_S_MIN if is_try else _READ_S_MIN
        if self._arrived_bytes >= _READ_BYTES_MIN and took_s >= enough_s:
            before = self._read_bytes_a_s if self.is_fresh(now) else 0.0
            self._read_bytes_a_s = _mixed(before, self._arrived_bytes / took_s)
            self._read_at, self._busy_since, self._busy_s, self._arrived_bytes = now, now, 0.0, 0
            self._is_whole = not self._reading

    def __contains__(self, request: int) -> bool:
        """Whether something that is being read for a request has not arrived."""
        return request in self._reading

    def forget(self, now: float, request: int) -> None:
        """Nothing more is read for a request."""
        if request in self._reading:
            self._end(now, request)
            if not (self._reading or self._arrived_bytes):
                self._busy_s = 0.0  # that nothing came of it says nothing

    def _end(self, now: float, request: int) -> None:
        del self._reading[request]
        if not self._reading:
            self._busy_s += now - self._busy_since

    @property
    def reading_bytes(self) -> int:
        """What is asked for and has not arrived."""
        return sum(self._reading.values())

    @property
    def read_bytes_a_s(self) -> float:
        """The drives' bandwidth as last seen; 0: never."""
        return self._read_bytes_a_s

    def is_fresh(self, now: float) -> bool:
        """Whether that was lately."""
        return bool(self._read_bytes_a_s) and now < self._read_at + _FRESH_S


@dataclass(frozen=True, slots=True)
class OtherWork:
    """What else the GPU has to compute."""

    tokens: int = 0  # that it computes before those in question
    requests: int = 0  # that it serves, and that wait while it computes them


def worth_reading(
    tokens: int,
    token_bytes: int,
    others: OtherWork,
    estimate: ThroughputEstimate,
    now: float,
    *,
    least: int = 1,
) -> int:
    """How many of so many tokens that lie on drives are worth reading, from the first.

    Fewer than `least` would not be asked for.
    """
    if estimate.is_fresh(now):
        return _read_sooner(tokens, token_bytes, others, estimate)
    if estimate.reading_bytes:
        return 0
    tried = tokens
    if others == OtherWork():
        tried = min(tokens, max(_TRIED_TOKENS, _TRIED_BYTES // token_bytes, least))
    seen = _read_sooner(tokens, token_bytes, others, estimate) if estimate.read_bytes_a_s else 0
    return max(tried, seen)


def worth_fetching(
    tokens: int,
    token_bytes: int,
    others: OtherWork,
    store: StoreRun,
    tokens_a_s: float,
    *,
    is_tried: bool,
) -> int:
    """How many of so many tokens that lie in a store are worth fetching, from the first.

    `tokens_a_s` is the GPU's speed, 0: not known. A store whose speed is not known is tried by one
    request at a time: `is_tried` says that another one does, or that it has waited long.
    """
    first_s = store.first_ms / 1000
    if store.bytes_a_s > 0:
        return _here_sooner(
            tokens, token_bytes, others, _Medium(first_s, store.bytes_a_s), tokens_a_s
        )
    if is_tried or first_s > _TRIED_WAIT_S:
        return 0
    if others == OtherWork():
        return min(tokens, max(_TRIED_TOKENS, _TRIED_BYTES // token_bytes))
    return tokens


def fetching_ms(size_bytes: int, store: StoreRun, most_ms: float) -> float:
    """How long to wait for so many bytes of a store, `most_ms` at most.

    A store that stalls costs the first request that meets it an eighth of that, not all.
    """
    if store.bytes_a_s <= 0:
        return most_ms
    expected_ms = store.first_ms + 1000 * size_bytes / store.bytes_a_s
    return min(most_ms, max(most_ms / _PATIENCE_SHARE, _PATIENCE * expected_ms))


def least_read(near_tokens: int, min_tokens: int, chunk_tokens: int) -> int:
    """Tokens in whole chunks, one at least, without which a request would not ask at all."""
    return max(1, -(-(min_tokens - near_tokens) // chunk_tokens)) * chunk_tokens


def _read_sooner(
    tokens: int, token_bytes: int, others: OtherWork, estimate: ThroughputEstimate
) -> int:
    """How many of them are here before they would have been computed, by what was seen."""
    bandwidth = estimate.read_bytes_a_s
    drives = _Medium(estimate.reading_bytes / bandwidth, bandwidth)
    return _here_sooner(tokens, token_bytes, others, drives, estimate.tokens_a_s)


class _Medium(NamedTuple):
    first_s: float  # until it begins to bring what is asked for
    bytes_a_s: float


def _here_sooner(
    tokens: int, token_bytes: int, others: OtherWork, medium: _Medium, speed: float
) -> int:
    if not speed:
        return tokens
    # Seconds by which the medium is behind the GPU at the first token, and at each further one.
    behind_s = medium.first_s - others.tokens / speed
    behind_a_token_s = token_bytes / medium.bytes_a_s - (1 / _DOUBT + others.requests) / speed
    if behind_s + tokens * behind_a_token_s <= 0:
        return tokens
    if behind_a_token_s <= 0 or behind_s >= 0:
        return 0
    return int(-behind_s / behind_a_token_s)


def _mixed(before: float, seen: float) -> float:
    return seen if not before else before + _WEIGHT * (seen - before)
