"""What the gateway knows of one engine: whether to use it, its current work and its speed.

Only connection failures, answers 502 and 503, and answers that break off count against an engine; a
client's errors never do. An engine that is down is asked for its health, and gets one request on
trial before it is fully used again. Not thread-safe: the event loop owns it.
"""

from collections import deque
from enum import StrEnum
from typing import Final

from forebay.gateway.config import EngineSetting
from forebay.gateway.placement.power import RESTING, Power
from forebay.gateway.placement.prefixes import PrefixMap
from forebay.gateway.placement.request import RoutedRequest

FAILURES_MAX: Final = 3  # so many within FAILURES_S take an engine out of use
FAILURES_S: Final = 30.0
PREFILL_TOKENS_S: Final = 5000.0  # assumed until answers were seen
LOAD_TOKENS_S: Final = 50_000.0  # assumed until answers were seen
_LEARN_TOKENS_MIN: Final = 128  # with fewer, the time to the first token says little about rates
_LEARN_SHARE: Final = 0.3  # weight of a new observation in the average
_LEARN_STEP: Final = 2.0  # factor by which an observation may differ from the rate at most
_KV_TOKENS_UNKNOWN: Final = 100_000  # assumed, only for the map of prefixes


class Condition(StrEnum):
    """Whether an engine is used."""

    NEW = "new"  # not asked yet; used like one that is up
    UP = "up"
    TRIAL = "trial"  # healthy again: one request at a time until one succeeds
    DOWN = "down"
    OTHER_MODEL = "other model"  # it answers, but does not serve the model that the file names


_USED: Final = frozenset({Condition.NEW, Condition.UP, Condition.TRIAL})


class EngineState:
    """The state of one engine."""

    def __init__(self, setting: EngineSetting) -> None:
        self.setting = setting
        self.condition = Condition.NEW
        self.why = "not asked yet"
        self.models: dict[str, dict[str, object]] = {}  # what it lists, by id
        self.kv_tokens = setting.kv_tokens  # 0: unknown
        self.prefixes = PrefixMap()
        self.running = 0  # requests
        self.started = 0  # requests, ever
        self.pieces = 0  # of answers, received so far
        self.prefill_tokens = 0.0  # uncached, of requests whose first token has not come
        self.long_prefills = 0  # how many of these requests are long
        self.kv_in_use = 0.0  # tokens that running requests need beyond what was cached
        self.prefill_rate = PREFILL_TOKENS_S
        self.load_rate = LOAD_TOKENS_S
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)
        self.power = Power.AWAKE  # only swap/ changes it
        self.power_since = 0.0
        self.power_why = ""
        self.rest = ""  # how it rests, if it shares its GPU
        self.wake_s = 0.0  # how long waking it takes; 0: it never sleeps
        self.idle_since = 0.0  # when it last had a request

    @property
    def is_used(self) -> bool:
        """Whether requests may be sent to it or, if it sleeps, wait for it."""
        return self.condition in _USED

    @property
    def takes_more(self) -> bool:
        """Whether requests may be sent to it now, even if they have to wait there."""
        is_used = self.condition in {Condition.NEW, Condition.UP}
        return is_used and self.power is Power.AWAKE

    @property
    def has_room(self) -> bool:
        """Whether it can start one more request now."""
        if self.power is not Power.AWAKE:
            return False
        if self.condition is Condition.TRIAL:
            return self.running == 0
        kv_is_free = not self.kv_tokens or self.kv_in_use < self.kv_tokens
        return self.is_used and self.running < self.setting.max_num_seqs and kv_is_free

    @property
    def takes_long(self) -> bool:
        """Whether it can start one more long prompt now."""
        return self.has_room and self.long_prefills < self.setting.long_prefills

    def begin(self, request: RoutedRequest) -> None:
        """A request was given to this engine."""
        request.was_alone = self.prefill_tokens < 1.0
        self.running += 1
        self.started += 1
        self.prefill_tokens += request.uncached_tokens
        self.long_prefills += request.is_long
        self.kv_in_use += request.uncached_tokens + request.output_tokens
        self.prefixes.add(
            request.chain, (self.kv_tokens or _KV_TOKENS_UNKNOWN) * request.bytes_per_token
        )

    def prefilled(self, request: RoutedRequest) -> None:
        """A request's first token came, or is assumed to have come; only the first call counts."""
        if not request.is_prefilled:
            request.is_prefilled = True
            self.prefill_tokens -= request.uncached_tokens
            self.long_prefills -= request.is_long

    def end(self, request: RoutedRequest) -> None:
        """A request has left this engine, however it ended."""
        self.prefilled(request)
        self.running -= 1
        self.kv_in_use -= request.uncached_tokens + request.output_tokens
        if not self.running:
            self.prefill_tokens = self.kv_in_use = 0.0  # sums of floats drift

    def learn(self, request: RoutedRequest, ttft_s: float) -> None:
        """Update a rate: a request whose prompt ran alone had its first token after `ttft_s`."""
        if request.loaded_tokens >= _LEARN_TOKENS_MIN:
            load_s = max(ttft_s - request.uncached_tokens / self.prefill_rate, 0.001)
            self.load_rate = _moved(self.load_rate, request.loaded_tokens / load_s)
        elif request.uncached_tokens >= _LEARN_TOKENS_MIN:
            self.prefill_rate = _moved(
                self.prefill_rate, request.uncached_tokens / max(ttft_s, 0.001)
            )

    def began_answer(self) -> None:
        """It has begun an answer. Earlier failures still count, since the answer may break off."""
        if self.condition in {Condition.NEW, Condition.TRIAL}:
            self.condition, self.why = Condition.UP, ""

    def succeeded(self) -> None:
        """It has answered a request completely."""
        self._failures.clear()
        self.began_answer()

    def failed(self, why: str, now: float, *, is_gone: bool) -> None:
        """A request failed through this engine's fault; `is_gone`: nobody listens at its address.

        Failures while it is not awake do not count.
        """
        if self.power is not Power.AWAKE:
            return
        self._failures.append(now)
        is_often = len(self._failures) == FAILURES_MAX and now - self._failures[0] <= FAILURES_S
        if is_gone or is_often or self.condition is Condition.TRIAL:
            self.take_down(why)

    def set_power(self, power: Power, why: str, now: float) -> None:
        """Set its power state from now on; at rest it loses its KV cache."""
        if power is Power.AWAKE:
            self.idle_since = now
        elif power in RESTING:
            self.prefixes.clear()
        self.power, self.power_why, self.power_since = power, why, now

    def take_down(self, why: str) -> None:
        """Stop using it until it is healthy again; what its KV cache held is likely gone."""
        self.condition, self.why = Condition.DOWN, why
        self.kv_tokens = self.setting.kv_tokens  # the next process may have more or less
        self._failures.clear()
        self.prefixes.clear()

    def clear_down(self) -> None:
        """If it was down, use it again: its process is a new one, or can be started."""
        if self.condition is Condition.DOWN:
            self.condition, self.why = Condition.NEW, ""

    def found_healthy(self) -> None:
        """It has answered when asked for its health and models: judge if it can be used."""
        if self.setting.model not in self.models:
            self.condition = Condition.OTHER_MODEL
            self.why = f"it does not serve {self.setting.model}"
        elif self.condition in {Condition.DOWN, Condition.OTHER_MODEL}:
            self.condition, self.why = Condition.TRIAL, "healthy again, on trial"
        elif self.condition is Condition.NEW:
            self.condition, self.why = Condition.UP, ""


def _moved(rate: float, seen: float) -> float:
    seen = min(max(seen, rate / _LEARN_STEP), rate * _LEARN_STEP)
    return rate + _LEARN_SHARE * (seen - rate)
