"""Our span below vLLM's span of a request, made in the process that makes vLLM's.

`RequestSpans` listens to the spans that end in its process. Once a request's span (`llm_request`)
has ended and its outcome is known, in whichever order, a span of ours becomes its child. It covers
the time in which the pool was asked and waited for, and has the tokens of each tier.

If the request's span does not come (the request was aborted, or ended in another API server than
the one that vLLM sent its statistics to), ours becomes a child of the client's span instead, a
sibling of vLLM's; without a client's trace it is dropped. This module is imported only if vLLM
traces, and assumes the OpenTelemetry that vLLM uses for that. Nothing in it can fail a request.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from forebay.engines.boundary import Boundary

NAME: Final = "forebay.request"
OUTCOMES_MAX: Final = 1 << 12  # outcomes of requests whose span has not ended
OUTCOME_S: Final = 600.0  # how long such an outcome waits for its span
ENDED_MAX: Final = 1 << 10  # ended spans of requests whose outcome is not known yet
_EACH_MAX: Final = 64  # outcomes of one request, which may be preempted often
_REQUEST: Final = "llm_request"  # as vLLM names a request's span
_ID: Final = "gen_ai.request.id"
_SAMPLES_MAX: Final = 128  # samples of one request (its `n`) whose spans are told apart
# vLLM adds eight letters of its own to a request's id, and puts the number of a sample before it.
_INTERNAL: Final = re.compile(r"(?P<id>.*)-[0-9a-f]{8}", re.DOTALL)
_SAMPLE: Final = re.compile(r"\d{1,4}_(?P<id>.*)", re.DOTALL)


class RequestSpans(SpanProcessor):
    """Makes our span for every request. Used by the thread that handles vLLM's outputs."""

    def __init__(self, provider: TracerProvider) -> None:
        self._boundary = Boundary()
        self._tracer = provider.get_tracer("forebay")
        # By the id that the client knows, the oldest first; with the time (monotonic) of the first.
        self._outcomes: OrderedDict[str, tuple[float, list[dict[str, Any]]]] = OrderedDict()
        self._ended: OrderedDict[str, trace.SpanContext] = OrderedDict()
        provider.add_span_processor(self)

    @classmethod
    def beside_vllm(cls) -> "RequestSpans | None":
        """Listens to vLLM's spans in this process; None if vLLM makes none here."""
        provider = trace.get_tracer_provider()
        return cls(provider) if isinstance(provider, TracerProvider) else None

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended; only those of requests matter."""
        if span.name == _REQUEST:
            self._boundary.call(lambda: None, lambda: self._request_ended(span))

    def take(self, outcomes: Iterable[dict[str, Any]]) -> None:
        """Take over outcomes of requests."""
        self._boundary.call(lambda: None, lambda: self._take(outcomes))

    def _request_ended(self, span: ReadableSpan) -> None:
        request, context = (span.attributes or {}).get(_ID), span.context
        if not isinstance(request, str) or context is None:
            return
        for key in _names_of_samples(request):
            if key in self._outcomes:
                for outcome in self._outcomes.pop(key)[1]:
                    self._make(outcome, context)
                return
        self._ended[request] = context
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _take(self, outcomes: Iterable[dict[str, Any]]) -> None:
        now = time.monotonic()
        for outcome in outcomes:
            key = client_id(outcome["request"])
            sample = _SAMPLE.fullmatch(key)
            ended = self._ended.pop(key, None)
            if ended is None and sample is not None:
                ended = self._ended.pop(sample["id"], None)
            if ended is not None:
                self._make(outcome, ended)
                continue
            mine = self._outcomes.setdefault(key, (now, []))[1]
            if len(mine) < _EACH_MAX:
                mine.append(outcome)
        while self._outcomes:
            at, _ = next(iter(self._outcomes.values()))
            if len(self._outcomes) <= OUTCOMES_MAX and now - at < OUTCOME_S:
                break
            for outcome in self._outcomes.popitem(last=False)[1][1]:
                self._make(outcome, None)

    def _make(self, outcome: dict[str, Any], parent: trace.SpanContext | None) -> None:
        """Make our span below vLLM's span, or below the client's."""
        if parent is None:
            carrier = dict(outcome["headers"])
            beneath = TraceContextTextMapPropagator().extract(carrier)
            if not trace.get_current_span(beneath).get_span_context().is_valid:
                return
        else:
            beneath = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        span = self._tracer.start_span(
            NAME,
            context=beneath,
            start_time=outcome["began_ns"],
            attributes={_ID: client_id(outcome["request"]), **outcome["attributes"]},
        )
        span.end(end_time=outcome["ended_ns"])


def client_id(request_id: str) -> str:
    """The id by which the client knows a request, given the id in vLLM's scheduler."""
    found = _INTERNAL.fullmatch(request_id)
    return request_id if found is None else found["id"]


def _names_of_samples(request: str) -> Iterator[str]:
    """The ids under which outcomes of a request may be kept."""
    yield request
    for number in range(_SAMPLES_MAX):
        yield f"{number}_{request}"
