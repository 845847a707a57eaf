"""Where a request's tokens came from, and why not from the pool, as known so far.

Whoever decides something about a request writes it into its `Attribution`; when the engine begins
to compute the request, that becomes a `RequestOutcome`. This happens once per request, and again
each time the request is rescheduled after a preemption.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from forebay.decisions import Decision

DRAM: Final = "dram"  # the name of tier 0 if the pool did not tell the names of its tiers


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The fate of one request with respect to the pool."""

    request_id: str  # as the engine names it
    decision: Decision
    prompt_tokens: int
    engine_tokens: int = 0  # found in the engine's own prefix cache
    loaded: tuple[tuple[str, int], ...] = ()  # tier → tokens loaded from it, the nearest first
    computed_tokens: int = 0  # computed by the GPU: prompt, and answer before a preemption
    found_tokens: int = 0  # known to the pool, from the first token on
    found_dram_tokens: int = 0  # of these, in DRAM when it answered
    detail: str = ""  # of NOT_SHARED: why, in words, without a full stop
    was_preempted: bool = False  # it was scheduled before, and lost its blocks
    lookup: int = 0  # the number of its last lookup on the connection to the pool; 0: none
    lookup_ms: float = 0.0  # until the pool had answered
    wait_ms: float = 0.0  # from the scheduler's first question to blocks, or to computing
    load_ms: float = 0.0  # from blocks to the last byte
    saved_gpu_ms: float = 0.0  # estimated time to compute what was loaded; 0: not known
    began_ns: int = 0  # Unix time at which it arrived, or was preempted
    ended_ns: int = 0  # Unix time: the engine began to compute it

    @property
    def loaded_tokens(self) -> int:
        """Tokens loaded from all tiers."""
        return sum(tokens for _, tokens in self.loaded)


class Attribution:
    """What is known so far. Owned by the scheduler's thread."""

    __slots__ = (
        "asked_at",
        "began_ns",
        "begun_at",
        "decision",
        "detail",
        "engine",
        "found",
        "is_told",
        "load_s",
        "loaded",
        "lookup",
        "lookup_s",
        "ready",
        "wait_s",
        "was_preempted",
    )

    def __init__(self, *, was_preempted: bool = False) -> None:
        self.was_preempted = was_preempted
        self.began_ns = time.time_ns()
        self.decision: Decision | None = None
        self.detail = ""
        self.lookup = 0  # the number of its last lookup
        self.lookup_s = 0.0
        self.found = 0  # tokens
        self.ready = 0  # tokens of these that were in DRAM
        self.asked_at = 0.0  # monotonic: when the scheduler first asked; 0: not yet
        self.begun_at = 0.0  # monotonic: when blocks were allocated for a load
        self.engine = 0  # tokens that the engine had itself at that time
        self.wait_s = 0.0
        self.load_s = 0.0
        self.loaded: Counter[int] = Counter()  # tier, as the pool numbers them → tokens
        self.is_told = False

    def asked(self, now: float) -> None:
        """Note that the scheduler asks about this request; only the first time counts."""
        if not self.asked_at:
            self.asked_at = now

    def begin_load(self, now: float, engine: int) -> None:
        """Blocks are allocated for a load that follows so many tokens of the engine's own."""
        self.begun_at, self.engine = now, engine
        self.wait_s = now - self.asked_at if self.asked_at else 0.0

    def engine_tokens(self, decision: Decision, computed: int) -> int:
        """How many tokens the engine had itself, given that it has `computed` of them now."""
        if decision is Decision.ENDED:
            return 0
        if decision is Decision.LOADED:  # of a whole prompt it computes the last token again
            return self.engine
        return max(0, computed - self.loaded.total())

    def end_load(self, now: float, loaded: Counter[int], *, failed: bool) -> None:
        """A load has ended: `loaded` are the tokens that came from each tier."""
        self.load_s = now - self.begun_at
        self.loaded = loaded
        self.decision = Decision.LOAD_FAILED if failed else Decision.LOADED
