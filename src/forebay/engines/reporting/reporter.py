"""Tells the pool who this engine is, and what became of its requests.

Nothing costs a message of its own: outcomes go out with whatever the engine says next. While there
is no pool the last `_PENDING_MAX` outcomes are kept and told to the next one; `age_ms` says how old
they are.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from forebay.engines.reporting.attribution import DRAM, Attribution, RequestOutcome
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import (
    MODEL_LETTERS_MAX,
    OUTCOMES_MAX,
    REQUEST_LETTERS_MAX,
    SENTENCE_MAX,
    AnswerEnd,
    AnswersEnded,
    Describe,
    Outcome,
    RequestOutcomes,
)

_PENDING_MAX: Final = 256  # outcomes kept while there is no pool


class Reporter:
    """What one engine tells its pool. Owned by the scheduler's thread."""

    def __init__(self, pool: PoolSession) -> None:
        # Called at once with each outcome, for example to make spans.
        self.on_outcome: Callable[[RequestOutcome], None] = lambda _: None
        self._pool = pool
        self._pending: deque[tuple[float, RequestOutcome]] = deque(maxlen=_PENDING_MAX)
        self._ends: deque[tuple[float, AnswerEnd]] = deque(maxlen=_PENDING_MAX)
        self._description: Describe | None = None
        self._has_told = False  # something was told in the last step
        self._described: tuple[str, Describe | None] = ("", None)  # session, and what it was told

    @property
    def has_unsent(self) -> bool:
        """Whether something told in the last step has still to go out."""
        return self._has_told and self._pool.has_output

    def describe(self, description: Describe) -> None:
        """Set this engine's description; told to the pool when it changes."""
        self._description = description

    def tell(self, outcome: RequestOutcome) -> None:
        """Record what became of a request."""
        self._pending.append((time.monotonic(), outcome))
        self.on_outcome(outcome)

    def tell_end(self, end: AnswerEnd) -> None:
        """Record how an answer ended."""
        self._ends.append((time.monotonic(), end))

    def send(self) -> None:
        """Hand over what the pool has not heard yet; called once a step, sent with the next one."""
        self._has_told = False
        if not self._pool.is_joined:
            self._ends.clear()  # the next pool was not asked for these
            return
        told = (self._pool.engine, self._description)
        if self._description is not None and told != self._described:
            self._pool.post(self._description, later=True)
            self._described, self._has_told = told, True
        if self._pending:
            now, tiers = time.monotonic(), self._pool.tiers
            outcomes = [_message(outcome, tiers, now - at) for at, outcome in self._pending]
            self._pending.clear()
            self._has_told = True
            for first in range(0, len(outcomes), OUTCOMES_MAX):
                self._pool.post(RequestOutcomes(outcomes[first : first + OUTCOMES_MAX]), later=True)

        if self._ends:
            now = time.monotonic()
            ends = [
                msgspec.structs.replace(end, age_ms=int(1000 * (now - at)))
                for at, end in self._ends
            ]
            self._ends.clear()
            self._has_told = True
            for first in range(0, len(ends), OUTCOMES_MAX):
                self._pool.post(AnswersEnded(ends[first : first + OUTCOMES_MAX]), later=True)

    def loaded_by_tier(self, attribution: Attribution) -> tuple[tuple[str, int], ...]:
        """Tokens by the names of tiers, the nearest first."""
        names = self._pool.tiers or (DRAM,)
        return tuple(
            (names[tier] if tier < len(names) else f"tier {tier}", tokens)
            for tier, tokens in sorted(attribution.loaded.items())
            if tokens
        )


def description_of(
    model: str, engine: str, sharing: str, why: str, namespace: bytes, **more: int
) -> Describe:
    """A description cut to the message's limits."""
    return Describe(
        printable(model, MODEL_LETTERS_MAX),
        printable(engine, REQUEST_LETTERS_MAX),
        sharing,
        printable(why, SENTENCE_MAX),
        namespace,
        more.get("chunk_tokens", 0),
        bool(more.get("prefix_caching", 1)),
        more.get("gpu_cache_bytes", 0),
    )


def printable(text: str, letters_max: int) -> str:
    """Text cut to a length, with letters replaced that a terminal cannot print."""
    cut = text[:letters_max]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def _message(outcome: RequestOutcome, tiers: Sequence[str], age_s: float) -> Outcome:
    by_tier = dict(outcome.loaded)
    return Outcome(
        request=printable(outcome.request_id, REQUEST_LETTERS_MAX),
        decision=outcome.decision.value,
        detail=printable(outcome.detail, MODEL_LETTERS_MAX),
        lookup=outcome.lookup,
        prompt_tokens=outcome.prompt_tokens,
        engine_tokens=outcome.engine_tokens,
        found_tokens=outcome.found_tokens,
        loaded=[by_tier.get(name, 0) for name in tiers],
        computed_tokens=outcome.computed_tokens,
        lookup_ms=round(outcome.lookup_ms, 3),
        wait_ms=round(outcome.wait_ms, 3),
        load_ms=round(outcome.load_ms, 3),
        saved_gpu_ms=round(outcome.saved_gpu_ms, 3),
        was_preempted=outcome.was_preempted,
        age_ms=int(age_s * 1000),
    )
