"""Metrics of requests as engines saw them: one call per request, once its outcome is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forebay.metrics.kinds import Unit
from forebay.metrics.labels import PreemptedSource, TokenSource
from forebay.metrics.registry import SECONDS, Registry


@dataclass(frozen=True, slots=True)
class RequestSample:
    """What one request got from the pool; tokens are those of its prompt."""

    outcome: str  # one of the code's decisions: a bounded set
    prompt_tokens: int = 0
    engine_tokens: int = 0  # from the engine's own prefix cache
    loaded_tokens: Mapping[str, int] = field(default_factory=dict)  # by tier
    wait_s: float = 0.0  # time that it waited for the pool: lookup and load
    saved_s: float = 0.0  # GPU time saved, by the engine's estimate
    was_preempted: bool = False  # the sample is of a request that continued after a preemption

    @property
    def from_pool(self) -> int:
        """Tokens that were loaded from any tier."""
        return sum(self.loaded_tokens.values())

    @property
    def computed_tokens(self) -> int:
        """Tokens that the engine had to compute."""
        return max(0, self.prompt_tokens - self.engine_tokens - self.from_pool)


class RequestMetrics:
    """Counts requests and their tokens by outcome."""

    def __init__(self, registry: Registry, tiers: Sequence[str]) -> None:
        tokens = Unit.TOKENS
        self.requests = registry.counter(
            "requests", "Requests of engines, by what came of them.", ("outcome",)
        )
        self.tokens = registry.counter(
            "request_tokens",
            "Prompt tokens of requests, by where they came from: the engine's own prefix cache, a"
            " tier of the pool, or computed.",
            ("source",),
            tokens,
        )
        self.tokens.preset([(source,) for source in (*TokenSource, *tiers)])
        self.wait = registry.histogram(
            "request_wait_seconds", "Time that a request waited for the pool.", SECONDS
        )
        self.saved_tokens = registry.counter(
            "saved_tokens", "Prompt tokens that were loaded and not recomputed.", (), tokens
        )
        self.saved_seconds = registry.counter(
            "saved_gpu_seconds_estimate",
            "GPU time that it would have taken to compute these: an estimate.",
            (),
            Unit.SECONDS,
        )
        self.preemptions = registry.counter(
            "preemptions", "Requests that went on after the engine had preempted them."
        )
        self.preempted = registry.counter(
            "preempted_tokens",
            "Tokens of these, by whether they were loaded again or recomputed.",
            ("source",),
            tokens,
        )
        self.preempted.preset([(source,) for source in PreemptedSource])

    def record(self, request: RequestSample) -> None:
        """Count a request whose outcome is known."""
        self.wait.observe(request.wait_s)
        if request.was_preempted:
            self.preemptions.add()
            self.preempted.add(request.from_pool, (PreemptedSource.LOADED,))
            self.preempted.add(request.computed_tokens, (PreemptedSource.RECOMPUTED,))
        else:  # a preempted request, and its tokens, were counted the first time
            self.requests.add(1, (request.outcome,))
            self.tokens.add(request.engine_tokens, (TokenSource.ENGINE,))
            self.tokens.add(request.computed_tokens, (TokenSource.COMPUTED,))
            for tier, count in request.loaded_tokens.items():
                self.tokens.add(count, (tier,))
        self.saved_tokens.add(request.from_pool)
        self.saved_seconds.add(max(0.0, request.saved_s))
