"""Outcomes of requests on their way to the process that makes vLLM's spans, if vLLM traces.

vLLM makes a request's span when the request has ended, in the process of its API server, and nobody
knows that span's id before. So the scheduler's side sends outcomes along with its statistics, and
`spans` makes our span there. An outcome that finds no room is dropped and counted. Nothing here
needs OpenTelemetry.
"""

from collections.abc import Mapping
from typing import Any, Final

from forebay.engines.reporting.attribution import RequestOutcome

OUTCOMES_MAX: Final = 1 << 10  # outcomes of one step
_HEADERS_MAX: Final = 1 << 14  # requests with a client's trace
_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_HEADER_LETTERS_MAX: Final = 512  # the least that W3C demands


class TracedRequests:
    """Outcomes for spans. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self._dropped = 0  # outcomes dropped since the last step
        self._headers: dict[str, dict[str, str]] = {}  # trace headers, by request
        self._outcomes: list[dict[str, Any]] = []

    def arrived(self, request: Any) -> None:
        """A request has arrived, maybe with the trace of its client."""
        headers: Mapping[str, str] | None = getattr(request, "trace_headers", None)
        if headers and len(self._headers) < _HEADERS_MAX:
            self._headers[request.request_id] = {
                name: headers[name][:_HEADER_LETTERS_MAX]
                for name in (_PARENT, _STATE)
                if name in headers
            }

    def told(self, outcome: RequestOutcome) -> None:
        """A request's outcome is known."""
        if len(self._outcomes) >= OUTCOMES_MAX:
            self._dropped += 1
            return
        self._outcomes.append(
            {
                "request": outcome.request_id,
                "began_ns": outcome.began_ns,
                "ended_ns": outcome.ended_ns,
                "headers": self._headers.get(outcome.request_id, {}),
                "attributes": _attributes(outcome),
            }
        )

    def finished(self, request_id: str) -> None:
        """A request has ended."""
        self._headers.pop(request_id, None)

    def take(self, counts: dict[str, int]) -> list[dict[str, Any]]:
        """The outcomes since the last step, as plain values; dropped ones are counted."""
        if self._dropped:
            counts["dropped.spans"], self._dropped = self._dropped, 0
        outcomes, self._outcomes = self._outcomes, []
        return outcomes


def _attributes(outcome: RequestOutcome) -> dict[str, str | int | float | bool]:
    """The attributes of a span; docs/tracing.md explains each of them."""
    found: dict[str, str | int | float | bool] = {
        "forebay.decision": outcome.decision.value,
        "forebay.prompt_tokens": outcome.prompt_tokens,
        "forebay.cached_tokens": outcome.engine_tokens + outcome.loaded_tokens,
        "forebay.cached_tokens.engine": outcome.engine_tokens,
        "forebay.found_tokens": outcome.found_tokens,
        "forebay.found_tokens.dram": outcome.found_dram_tokens,
        "forebay.computed_tokens": outcome.computed_tokens,
        "forebay.was_preempted": outcome.was_preempted,
        "forebay.lookup_ms": round(outcome.lookup_ms, 3),
        "forebay.wait_ms": round(outcome.wait_ms, 3),
        "forebay.load_ms": round(outcome.load_ms, 3),
        "forebay.saved_gpu_ms_estimate": round(outcome.saved_gpu_ms, 3),
    }
    for tier, tokens in outcome.loaded:
        found[f"forebay.cached_tokens.{tier.replace(' ', '_')}"] = tokens
    if outcome.detail:
        found["forebay.detail"] = outcome.detail
    return found
