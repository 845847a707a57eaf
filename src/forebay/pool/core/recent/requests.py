"""The ring of recent requests: what engines tell about them, and what the pool itself knows.

An engine refers to a request by the number of its lookup. What the pool found then, why it found no
more, and what cut the promise short is kept in a `LookupNote` until the engine has told, or for the
next `NOTES_MAX` lookups. No token, text or key is kept with a request.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from forebay.decisions import REFINED_BY_POOL, WORDS, Decision, decision_of
from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.requests import RequestSample
from forebay.pool.core.recent.engines import DescribedEngines
from forebay.pool.core.recent.prompt_tags import PromptTags
from forebay.pool.messages import (
    ENGINES_LISTED_MAX,
    FRAME_BYTES_MAX,
    REQUESTS_KEPT,
    Describe,
    Outcome,
    RequestOutcomes,
    RequestsQuery,
    RequestsReply,
)
from forebay.pool.session import Session, Work, public_id

NOTES_MAX: Final = 4096
AT_ONCE: Final = 16  # requests written per turn: some tenths of a millisecond
_REQUESTS_BYTES_MAX: Final = FRAME_BYTES_MAX - (1 << 19)  # of an answer; the rest is for engines
_COMMA: Final = b", "
_TOKENS_MAX: Final = 1 << 27  # tokens of one request; larger numbers make no sense
_MS_MAX: Final = 86_400_000  # a day
_DIGITS: Final = 16  # digits of a namespace, as `forebay stats` shows it
_NO_ENGINE: Final = Describe("", "", "", "", b"", 0)


class LookupNote:
    """What the pool knows of one lookup."""

    __slots__ = ("beyond", "cut", "found", "namespace")

    def __init__(self, namespace: bytes, found: Sequence[int], beyond: Decision | None) -> None:
        self.namespace = namespace
        self.found = found  # chunks by tier, DRAM first
        self.beyond = beyond  # why no more was known; None: it was never stored
        self.cut: Decision | None = None  # why less was promised than asked for


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """One request whose outcome is known."""

    number: int  # in order of arrival here, from 1
    at: float  # Unix time at which the engine began to compute it
    engine: str  # its public id
    description: Describe
    namespace: bytes
    outcome: Outcome
    decision: Decision
    beyond: Decision | None
    found: tuple[tuple[str, int], ...]  # (tier, tokens) known at the lookup, the nearest tier first
    loaded: tuple[tuple[str, int], ...]  # (tier, tokens) loaded, likewise

    def to_json(self) -> bytes:
        """The request as JSON in UTF-8."""
        return msgspec.json.encode(self.to_builtins())

    def to_builtins(self) -> dict[str, object]:
        """The request as plain values; docs/why.md explains each of them."""
        outcome, words = self.outcome, WORDS[self.decision]
        detail = outcome.detail or (
            self.description.why if self.decision is Decision.DECLINED else ""
        )
        return {
            "number": self.number,
            "time_s": round(self.at, 3),
            "request": outcome.request,
            "engine": self.engine,
            "model": self.description.model,
            "namespace": self.namespace.hex()[:_DIGITS],
            "decision": self.decision.value,
            "detail": detail,
            "what": words.what,
            "advice": words.advice,
            "beyond": None if self.beyond is None else self.beyond.value,
            "prompt_tokens": outcome.prompt_tokens,
            "engine_tokens": outcome.engine_tokens,
            "found_tokens": dict(self.found),
            "loaded_tokens": dict(self.loaded),
            "computed_tokens": outcome.computed_tokens,
            "lookup_ms": outcome.lookup_ms,
            "wait_ms": outcome.wait_ms,
            "load_ms": outcome.load_ms,
            "saved_gpu_ms_estimate": outcome.saved_gpu_ms,
            "was_preempted": outcome.was_preempted,
            "told_late": outcome.age_ms > _LATE_MS,
            "prefix_caching": self.description.prefix_caching,
        }


_LATE_MS: Final = 1000


class RecentRequests:
    """The ring, and the notes. Owned by the pool's thread."""

    def __init__(self, metrics: PoolMetrics) -> None:
        self.engines = DescribedEngines()
        self._tiers = metrics.tier_names  # by number, DRAM first
        self._metrics = metrics.requests
        self.prompts = PromptTags()
        self._ring: deque[RecentRequest] = deque(maxlen=REQUESTS_KEPT)
        self._numbers = 0
        self._notes: dict[
            tuple[Session, int], LookupNote
        ] = {}  # by session and lookup; the oldest first

    def __len__(self) -> int:
        return len(self._ring)

    def handle(self, session: Session, message: Describe | RequestOutcomes, now: float) -> None:
        """An engine tells about itself, or about its requests."""
        if isinstance(message, Describe):
            self.engines.describe(session.engine, message, now)
        else:
            for outcome in message.outcomes:
                self.told(session, outcome)

    def looked_up(self, session: Session, lookup: int, note: LookupNote) -> None:
        """A request was looked up, and answered."""
        self._notes.pop((session, lookup), None)
        self._notes[session, lookup] = note
        if len(self._notes) > NOTES_MAX:
            del self._notes[next(iter(self._notes))]

    def disconnected(self, session: Session) -> None:
        """A session is over, so its lookups will not be told."""
        for key in [key for key in self._notes if key[0] is session]:
            del self._notes[key]

    def told(self, session: Session, outcome: Outcome) -> RecentRequest | None:
        """An engine tells a request's outcome; None if it makes no sense."""
        decision = decision_of(outcome.decision)
        if decision is None or not _is_sensible(outcome):
            return None
        engine = self.engines.get(session.engine)
        description = _NO_ENGINE if engine is None else engine.description
        note = self._notes.pop((session, outcome.lookup), None) if outcome.lookup else None
        self._numbers += 1
        found, size = note.found if note is not None else (), description.chunk_tokens
        request = RecentRequest(
            self._numbers,
            time.time() - outcome.age_ms / 1000,
            public_id(session.engine),
            description,
            note.namespace if note is not None else description.namespace,
            outcome,
            _refined(decision, note),
            note.beyond if note is not None else None,
            self._by_tier([chunks * size for chunks in found]),
            self._by_tier(outcome.loaded),
        )
        self._ring.append(request)
        self._metrics.record(_sample(request))
        return request

    def found(self, query: RequestsQuery) -> list[RecentRequest]:
        """The last requests that match a query, the newest last."""
        last = min(max(0, query.last), REQUESTS_KEPT)
        named = (
            each
            for each in reversed(self._ring)
            if each.number > query.after and each.outcome.request.startswith(query.request)
        )
        return list(islice(named, last))[::-1]

    def reply(self, session: Session, query: RequestsQuery, now: float) -> Work:
        """Answer a query, a few requests per turn; the oldest that do not fit are left out."""
        found, texts, left_bytes = self.found(query), list[bytes](), _REQUESTS_BYTES_MAX
        for number, request in enumerate(reversed(found), 1):
            text = request.to_json()
            left_bytes -= len(text) + len(_COMMA)
            if left_bytes < 0:
                break
            texts.append(text)
            if not number % AT_ONCE:
                yield
        rest = {
            "version": 1,
            "newest": self._numbers,
            "kept": len(self._ring),
            "left_out": len(found) - len(texts),
            "engines": self.engines.listing(now),
            "engines_more": max(0, len(self.engines) - ENGINES_LISTED_MAX),
        }
        head, requests = msgspec.json.encode(rest)[:-1], _COMMA.join(reversed(texts))
        session.send(RequestsReply(head + b', "requests": [' + requests + b"]}"))

    def _by_tier(self, tokens: Sequence[int]) -> tuple[tuple[str, int], ...]:
        return tuple((name, n) for name, n in zip(self._tiers, tokens, strict=False) if n)


def _refined(decision: Decision, note: LookupNote | None) -> Decision:
    """The engine's decision, made more precise by what the pool knows."""
    if decision not in REFINED_BY_POOL or note is None:
        return decision
    if decision is Decision.OTHER_SALT and note.beyond is Decision.OTHER_MODEL:
        return decision
    return note.cut or note.beyond or decision


def _sample(request: RecentRequest) -> RequestSample:
    """A request as metrics count it."""
    outcome, loaded = request.outcome, dict(request.loaded)
    return RequestSample(
        request.decision.value,
        outcome.engine_tokens + sum(loaded.values()) + outcome.computed_tokens,
        outcome.engine_tokens,
        loaded,
        (outcome.wait_ms + outcome.load_ms) / 1000,
        outcome.saved_gpu_ms / 1000,
        outcome.was_preempted,
    )


def _is_sensible(outcome: Outcome) -> bool:
    tokens = (
        outcome.prompt_tokens,
        outcome.engine_tokens,
        outcome.computed_tokens,
        *outcome.loaded,
    )
    waits = (outcome.lookup_ms, outcome.wait_ms, outcome.load_ms)
    times = (*waits, outcome.saved_gpu_ms, outcome.age_ms)
    return (
        outcome.request.isprintable()
        and outcome.detail.isprintable()
        and all(0 <= n <= _TOKENS_MAX for n in tokens)
        and all(math.isfinite(each) and 0 <= each <= _MS_MAX for each in times)
    )
