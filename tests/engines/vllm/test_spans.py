"""Whose child our span becomes, with OpenTelemetry's own tracer and no engine."""

from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
CLIENT_TRACE, CLIENT_SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADERS = {"traceparent": f"00-{CLIENT_TRACE:032x}-{CLIENT_SPAN:016x}-01"}


class Traced:
    """A tracer like vLLM's, whose spans stay in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from forebay.engines.vllm.observing.spans import RequestSpans

        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("vllm")
        self.spans = RequestSpans(provider)

    def end_request(self, name: str) -> int:
        """What vLLM does when a request has ended; the id of its span."""
        span = self._tracer.start_span("llm_request", attributes={"gen_ai.request.id": name})
        span.end()
        return int(span.get_span_context().span_id)

    def ours(self) -> list[Any]:
        return [each for each in self._exporter.get_finished_spans() if "forebay" in each.name]

    def parents(self) -> list[int]:
        return [span.parent.span_id for span in self.ours()]


def outcome(request: str, number: int = 0, headers: dict[str, str] | None = None) -> dict[str, Any]:
    times = {"began_ns": 1_000 + number, "ended_ns": 2_000 + number}
    attributes = {"forebay.cached_tokens.dram": number}
    return {"request": request, **times, "headers": headers or {}, "attributes": attributes}


@pytest.mark.parametrize("is_first", [True, False])
def test_ours_is_the_child_of_vllms_in_whichever_order(is_first: bool) -> None:
    traced = Traced()
    if is_first:
        traced.spans.take([outcome("cmpl-1-0-01234567", 512)])
        assert not traced.ours()
    parent = traced.end_request("cmpl-1-0")
    if not is_first:
        traced.spans.take([outcome("cmpl-1-0-01234567", 512)])
    assert traced.parents() == [parent]
    (ours,) = traced.ours()
    assert (ours.start_time, ours.end_time) == (1_512, 2_512)
    assert dict(ours.attributes) == {
        "gen_ai.request.id": "cmpl-1-0",
        "forebay.cached_tokens.dram": 512,
    }


def test_a_preempted_request_has_several_and_an_id_may_come_again() -> None:
    traced = Traced()
    traced.spans.take([outcome("mine-01234567", 1), outcome("mine-01234567", 2)])
    first = traced.end_request("mine")
    traced.spans.take([outcome("mine-89abcdef", 3)])
    second = traced.end_request("mine")
    assert traced.parents() == [first, first, second]


def test_a_request_that_never_ends_here_is_beneath_its_clients_span_or_nowhere() -> None:
    from forebay.engines.vllm.observing.spans import OUTCOMES_MAX

    traced = Traced()
    traced.spans.take([outcome("traced-01234567", headers=HEADERS), outcome("untraced-01234567")])
    traced.spans.take(outcome(f"{number}-01234567") for number in range(OUTCOMES_MAX))
    (ours,) = traced.ours()
    assert (ours.parent.trace_id, ours.parent.span_id) == (CLIENT_TRACE, CLIENT_SPAN)
    assert ours.attributes["gen_ai.request.id"] == "traced"


def test_nothing_that_is_odd_reaches_vllm() -> None:
    traced = Traced()
    traced.spans.take([{"request": "odd"}, outcome("mine-01234567")])
    traced.end_request("odd")  # which has no times
    parent = traced.end_request("mine")
    assert traced.parents() == [parent]
