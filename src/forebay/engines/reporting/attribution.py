"""Where the tokens of a request came from, and why not from the pool: kept while it is scheduled.

An `Attribution` is written by whoever decides something for its request; when the engine begins to
compute the request, it becomes a `RequestOutcome`. That happens once a request, and once more each
time that the request is scheduled again after a preemption.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from forebay.decisions import Decision

DRAM: Final = "dram"  # what tier 0 of `Promise.sources` is called where the pool did not say


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The fate of one request with respect to the pool."""

    request_id: str  # as the engine names it
    decision: Decision
    prompt_tokens: int
    engine_tokens: int = 0  # that the engine's own prefix cache had
    loaded: tuple[tuple[str, int], ...] = ()  # tier → tokens that came from it, the nearest first
    computed_tokens: int = 0  # of the prompt, and after a preemption of the answer: by the GPU
    found_tokens: int = 0  # that the pool knew, from the first token on
    found_dram_tokens: int = 0  # of these, in DRAM when it answered
    detail: str = ""  # of NOT_SHARED: why, in words, without a full stop
    was_preempted: bool = False  # it was scheduled before, and lost its blocks
    lookup: int = 0  # the number of its last lookup on the connection to the pool; 0: none
    lookup_ms: float = 0.0  # until the pool had answered
    wait_ms: float = 0.0  # from the scheduler's first question to blocks, or to computing
    load_ms: float = 0.0  # from blocks to the last byte
    saved_gpu_ms: float = 0.0  # estimate: to compute what was loaded; 0: speed not known yet
    began_ns: int = 0  # Unix time: it arrived, or was preempted
    ended_ns: int = 0  # Unix time: the engine began to compute it

    @property
    def loaded_tokens(self) -> int:
        """From all tiers."""
        return sum(tokens for _, tokens in self.loaded)


class Attribution:
    """What is known so far. Owned by the scheduler's thread."""

    __slots__ = (
        "asked_at",
        "began_ns",
        "begun_at",
        "decision",
        "detail",
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
        self.ready = 0  # tokens, of these in DRAM
        self.asked_at = 0.0  # monotonic: when the scheduler first asked; 0: not yet
        self.begun_at = 0.0  # monotonic: when blocks were allocated for a load
        self.wait_s = 0.0
        self.load_s = 0.0
        self.loaded: Counter[int] = Counter()  # tier, as the pool numbers them → tokens
        self.is_told = False

    def asked(self, now: float) -> None:
        """The scheduler asks, maybe again."""
        if not self.asked_at:
            self.asked_at = now

    def begin_load(self, now: float) -> None:
        """Blocks are allocated."""
        self.begun_at = now
        self.wait_s = now - self.asked_at if self.asked_at else 0.0

    def end_load(self, now: float, loaded: Counter[int], *, failed: bool) -> None:
        """A load has ended with so many tokens of each tier."""
        self.load_s = now - self.begun_at
        self.loaded = loaded
        self.decision = Decision.LOAD_FAILED if failed else Decision.LOADED
