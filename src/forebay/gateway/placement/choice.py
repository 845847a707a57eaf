"""Which engine a request should go to: the least expected time to its first token.

    T(e) = Q(e)/R + C/R + max(0, D - G(e))/L + n(e) * SEQUENCE_S

Q: uncached prompt tokens in flight at e. C: tokens that e has to compute: those that no engine has,
and those that only another engine has, the latter divided by how often they were asked for, since
many requests will share the new copy; from `HOT_VISITS` on they count nothing. Loading is divided
likewise. So a prefix that is often asked for is soon on every engine. G(e), D: tokens that e's GPU
and its host's pool likely have. R, L: the rates of e for computing and loading. n: requests running
at e. A dialog stays with its engine unless that is slower by more than both `STAY_S` and
`STAY_SHARE`. Engines that cannot start the request now are no candidates, so nothing waits for one
of them while another is free. Pure logic.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.prefixes import NOTHING, LikelyPrefix
from forebay.gateway.placement.request import RoutedRequest

STAY_S: Final = 0.020
STAY_SHARE: Final = 0.10
HOT_VISITS: Final = 8  # visits from which a further copy of a prefix counts as free
SEQUENCE_S: Final = 0.002  # what each running request adds to the next one's time to first token
DIALOGS_MAX: Final = 100_000  # dialogs whose last engine is remembered
_PARTS_SEARCHED: Final = 64  # last parts of a prompt in which its dialog is looked for
_COMMON: Final = 4  # if so many requests ended with the same part, it names no single dialog
_ROUNDED_S: Final = 0.001  # smaller differences are ignored


class Reason(StrEnum):
    """Why an engine was chosen, as the answer's header reports it."""

    ONLY = "only"  # no other could start the request
    DIALOG = "dialog"  # it answered this dialog before
    CACHED = "cached"  # it likely has most of the prompt
    POOL = "pool"  # the pool has what its GPU does not
    IDLE = "idle"  # it is the least busy
    WOKEN = "woken"  # it slept when the request came
    RETRY = "retry"  # another engine failed


class Choice(NamedTuple):
    """An engine for a request, and what is expected of it."""

    engine: EngineState
    reason: Reason
    expected_s: float
    uncached_tokens: float
    loaded_tokens: float


class DialogPlaces(NamedTuple):
    """The last engine of dialogs: by session, or by the prompt that the next turn begins with."""

    sessions: "OrderedDict[tuple[str, str], str]"  # key and session → engine
    prompts: "OrderedDict[int, tuple[str, int]]"  # last part → engine, requests

    @classmethod
    def none(cls) -> "DialogPlaces":
        """Without any dialog, as when a gateway starts."""
        return cls(OrderedDict(), OrderedDict())

    def last_engine(self, request: RoutedRequest) -> str:
        """The engine that answered this dialog before; empty if none is known."""
        if request.session:
            return self.sessions.get((request.key, request.session), "")
        for part in reversed(request.chain[-_PARTS_SEARCHED:]):
            engine, count = self.prompts.get(part.name, ("", 0))
            if engine:
                return "" if count >= _COMMON else engine
        return ""

    def remember(self, request: RoutedRequest, engine: str) -> None:
        """Note that a request of this dialog went to an engine."""
        if request.session:
            self.sessions[request.key, request.session] = engine
            self.sessions.move_to_end((request.key, request.session))
            if len(self.sessions) > DIALOGS_MAX:
                self.sessions.popitem(last=False)
        if request.chain:
            name = request.chain[-1].name
            _, count = self.prompts.pop(name, ("", 0))
            self.prompts[name] = (engine, count + 1)
            if len(self.prompts) > DIALOGS_MAX:
                self.prompts.popitem(last=False)


def choose(
    request: RoutedRequest,
    engines: Sequence[EngineState],
    pools: dict[str, LikelyPrefix],
    last: str,
) -> Choice:
    """The best of these engines (at least one); `pools` has what each host's pool likely holds."""
    held = [engine.prefixes.likely(request.chain) for engine in engines]
    most = max(held)
    found = [
        _cost(request, engine, likely, most, pools)
        for engine, likely in zip(engines, held, strict=True)
    ]
    if len(found) == 1:
        return found[0]._replace(reason=Reason.ONLY)
    best = min(found, key=_order)
    stays = next((each for each in found if each.engine.setting.name == last), None)
    limit_s = best.expected_s + max(STAY_S, STAY_SHARE * best.expected_s)
    if stays is not None and stays.expected_s <= limit_s:
        return stays._replace(reason=Reason.DIALOG)
    return best


def _order(choice: Choice) -> tuple[int, int, int]:
    engine = choice.engine
    return (round(choice.expected_s / _ROUNDED_S), engine.running, engine.started)


def _cost(
    request: RoutedRequest,
    engine: EngineState,
    likely: LikelyPrefix,
    most: LikelyPrefix,
    pools: dict[str, LikelyPrefix],
) -> Choice:
    pool = pools.get(engine.setting.host, NOTHING) if engine.setting.pool else NOTHING
    per_token = request.bytes_per_token
    has_bytes = max(likely.size_bytes, pool.size_bytes)
    uncached = (request.prompt_bytes - has_bytes) / per_token
    loaded = max(0, pool.size_bytes - likely.size_bytes) / per_token
    copied = max(0, most.size_bytes - has_bytes) / per_token
    share = 0.0 if most.visits >= HOT_VISITS else 1 / max(1, most.visits)
    expected_s = (
        (engine.prefill_tokens + uncached - copied * (1 - share)) / engine.prefill_rate
        + loaded * share / engine.load_rate
        + engine.running * SEQUENCE_S
    )
    reason = Reason.IDLE
    if likely.size_bytes and likely.size_bytes >= pool.size_bytes:
        reason = Reason.CACHED
    elif pool.size_bytes:
        reason = Reason.POOL
    return Choice(engine, reason, expected_s, uncached, loaded)
