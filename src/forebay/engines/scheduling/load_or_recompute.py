"""Load or recompute: how much of a known prefix comes from the drives, and how much from the GPU.

What lies in DRAM is always loaded: that is ten times faster than any GPU computes it. For the rest,
loading and computing both take time, and both have a queue:

    from the drives   (bytes being read + n tokens' bytes) / their bandwidth
    recomputed        (tokens waiting to be computed + n)  / the GPU's speed

As much is loaded as arrives before it would have been recomputed. So drives that are faster than
the GPU, token for token, load all of it unless their queue is long; slower ones load as much as
they can read while the GPU is busy with other requests.

Waiting for a drive delays only the request that waits; computing delays every request that the GPU
serves. So n recomputed tokens are charged once for each of those as well: an engine with a single
request takes whichever is faster, a busy one loads as long as all requests together gain by it. A
small advantage of the drives is not trusted (`_DOUBT`): the GPU's speed is steady, while drives
often take half as long again.

Where the drives' bandwidth is unknown, or was measured more than a minute ago, one request at a
time measures it; a dozen would wait for one another until their deadlines. If the GPU is idle, that
request reads only a part, since on slow drives all of a long prompt would be late. If the GPU is
busy, it reads all of it: steps are then too long to time a part by, and waiting delays nobody else.
An old measurement in favour of the drives still counts for that request.

Chunks that lie in a store come after those on drives, and the pool says how fast the store is: the
time to its first record, and the bandwidth from then on. The same rule decides (`worth_fetching`):
a distant store pays for long prefixes, and when the GPU is busy.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.pool.messages import StoreRun

_STEP_TOKENS_MIN: Final = 1024  # smaller steps measure a step's overhead, not the GPU's speed
# Read before it says how fast the drives are. A promise brings hundreds of chunks at once, and the
# next may follow within a millisecond: only over a longer time does that mean anything.
_READ_BYTES_MIN: Final = 32 << 20
_READ_S_MIN: Final = 0.25
_TRIED_S_MIN: Final = 0.05  # enough for a first measurement that covers reads from start to end
_TRIED_BYTES: Final = 256 << 20  # what a trial reads: a tenth of a second of a fair drive
_TRIED_TOKENS: Final = 1024  # but at least so many tokens, however large their KV
_PATIENCE: Final = 4.0  # times the expected duration; beyond it the store hangs
_PATIENCE_SHARE: Final = 8  # a load always gets an eighth of the longest time allowed
_TRIED_WAIT_S: Final = 0.5  # a store whose first record would take longer is not tried
_FRESH_S: Final = 60.0  # older measurements are not trusted
_WEIGHT: Final = 0.3  # of a new measurement in a mean
_DOUBT: Final = 1.25  # how much faster than the GPU drives must be for a request that is alone
_STEPS_MAX: Final = 8  # remembered steps that have not been reported


class ThroughputEstimate:
    """The measured speed of the GPU and of the drives. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self.tokens_a_s = 0.0  # 0: not known
        self._reading: dict[int, int] = {}  # request → bytes from the drives that have not arrived
        self._read_bytes_a_s = 0.0
        self._read_at = 0.0  # when that was last measured
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=_STEPS_MAX)  # when, which, tokens
        self._reported_at = 0.0
        self._busy_since = 0.0  # since when the drives have been reading without a pause
        self._busy_s = 0.0  # how long they had been reading before, since the last measurement
        self._arrived_bytes = 0  # bytes that arrived in all that time
        self._is_whole = True  # that time began with nothing being read

    def built(self, now: float, number: int, tokens: int) -> None:
        """A step of so many tokens was handed to the workers."""
        if tokens:
            self._steps.append((now, number, tokens))

    def reported(self, now: float, number: int) -> None:
        """A step was computed; it began when it was built, or when the one before it ended.

        Engines do not report every step: some of those that compute nothing are never heard of.
        """
        while self._steps and self._steps[0][1] <= number:
            built, which, tokens = self._steps.popleft()
            took_s = now - max(built, self._reported_at)
            if which == number and tokens >= _STEP_TOKENS_MIN and took_s > 0:
                self.tokens_a_s = _mixed(self.tokens_a_s, tokens / took_s)
        self._reported_at = now

    def computing(self, now: float) -> int:
        """Tokens of steps handed out and not computed yet, which later steps wait for."""
        if not self._steps:
            return 0
        took_s = now - max(self._steps[0][0], self._reported_at)
        tokens = sum(tokens for _, _, tokens in self._steps)
        return max(0, tokens - int(took_s * self.tokens_a_s))

    def reads(self, now: float, request: int, size_bytes: int) -> None:
        """The drives begin to read so many bytes for a request."""
        if not self._reading:
            self._busy_since = now
            if not (self._is_whole or self.is_fresh(now)):  # what is left of an old measurement
                self._busy_s, self._arrived_bytes, self._is_whole = 0.0, 0, True
        self._reading[request] = size_bytes

    def arrived(self, now: float, request: int, size_bytes: int) -> None:
        """So many bytes have arrived for a request."""
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
        """Whether bytes are still being read for a request."""
        return request in self._reading

    def forget(self, now: float, request: int) -> None:
        """Nothing more is read for a request."""
        if request in self._reading:
            self._end(now, request)
            if not (self._reading or self._arrived_bytes):
                self._busy_s = 0.0  # a read that brought nothing measures nothing

    def _end(self, now: float, request: int) -> None:
        del self._reading[request]
        if not self._reading:
            self._busy_s += now - self._busy_since

    @property
    def reading_bytes(self) -> int:
        """Bytes that were asked for and have not arrived."""
        return sum(self._reading.values())

    @property
    def read_bytes_a_s(self) -> float:
        """The drives' bandwidth as last measured; 0: never."""
        return self._read_bytes_a_s

    def is_fresh(self, now: float) -> bool:
        """Whether the drives' bandwidth was measured in the last minute."""
        return bool(self._read_bytes_a_s) and now < self._read_at + _FRESH_S


@dataclass(frozen=True, slots=True)
class OtherWork:
    """The GPU's work for other requests."""

    tokens: int = 0  # to be computed before the tokens in question
    requests: int = 0  # requests that wait while those are computed


def worth_reading(
    tokens: int,
    token_bytes: int,
    others: OtherWork,
    estimate: ThroughputEstimate,
    now: float,
    *,
    least: int = 1,
) -> int:
    """How many of `tokens` that lie on drives are worth reading, counted from the first.

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
    """How many of `tokens` that lie in a store are worth fetching, counted from the first.

    `tokens_a_s` is the GPU's speed, 0: not known. A store whose speed is not known is tried by one
    request at a time: `is_tried` says that another one is trying it.
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
    """How long to wait for so many bytes from a store, `most_ms` at most.

    A store that stalls costs the first request that meets it an eighth of that time, not all.
    """
    if store.bytes_a_s <= 0:
        return most_ms
    expected_ms = store.first_ms + 1000 * size_bytes / store.bytes_a_s
    return min(most_ms, max(most_ms / _PATIENCE_SHARE, _PATIENCE * expected_ms))


def least_read(near_tokens: int, min_tokens: int, chunk_tokens: int) -> int:
    """The fewest tokens, in whole chunks, for which a request would ask at all."""
    return max(1, -(-(min_tokens - near_tokens) // chunk_tokens)) * chunk_tokens


def _read_sooner(
    tokens: int, token_bytes: int, others: OtherWork, estimate: ThroughputEstimate
) -> int:
    """How many tokens the drives deliver before the GPU would have computed them."""
    bandwidth = estimate.read_bytes_a_s
    drives = _Medium(estimate.reading_bytes / bandwidth, bandwidth)
    return _here_sooner(tokens, token_bytes, others, drives, estimate.tokens_a_s)


class _Medium(NamedTuple):
    first_s: float  # until the first byte of what is asked for
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
