"""The figures of `forebay bench serve` are those of vLLM's own benchmark, for the same requests.

When a token was sent and when it was seen to come is tested against a server that keeps its own
times (tests/bench/load/test_accuracy.py); here, what is made of such times.
"""

import contextlib
import os
import random
from typing import Any

import pytest
from tests.engines.vllm.real import forked

from forebay.bench.load.client import Completion
from forebay.bench.load.clients import ClientsResult, FinishedRequest
from forebay.bench.result.summary import step_of
from forebay.plan.measured import TimeStats

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
SECONDS = 12.5  # of the whole run
PERCENTILES = (50, 95, 99)
ROUNDED = 0.0006  # figures of ours have three decimals


def answers() -> list[Completion]:
    """Requests of a server that is sometimes slow; two have a single token, and so no TPOT."""
    draw = random.Random(7)
    tokens = [1, 1, *(draw.randrange(2, 60) for _ in range(46))]
    return [
        Completion(
            text="",
            ttft_s=(first := draw.expovariate(4)),
            seconds=first + (count - 1) * draw.uniform(0.01, 0.08),
            prompt_tokens=draw.randrange(1, 4000),
            cached_tokens=None,
            answer_tokens=count,
        )
        for count in tokens
    ]


def by_vllm(found: list[Completion]) -> dict[str, Any]:
    """What vLLM's benchmark makes of the same requests."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput

    outputs = [
        RequestFuncOutput(
            success=True,
            ttft=each.ttft_s,
            latency=each.seconds,
            output_tokens=each.answer_tokens,
            prompt_len=each.prompt_tokens,
        )
        for each in found
    ]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        metrics, _ = serve.calculate_metrics([], outputs, SECONDS, None, PERCENTILES, {})
    return dict(vars(metrics))


def test_figures_of_the_same_requests_are_those_of_vllms_own_benchmark() -> None:
    found = answers()
    finished = tuple(FinishedRequest(str(number), 0, each) for number, each in enumerate(found))
    ours = step_of(4, [ClientsResult(finished, SECONDS)])
    theirs = forked.call(by_vllm, found)
    assert (ours.requests, ours.prompt_tokens, ours.output_tokens) == (
        theirs["completed"],
        theirs["total_input"],
        theirs["total_output"],
    )
    assert ours.req_s == pytest.approx(theirs["request_throughput"], abs=ROUNDED)
    assert ours.output_tok_s == pytest.approx(theirs["output_throughput"], abs=ROUNDED)
    for name, times in {"ttft": ours.ttft_ms, "tpot": ours.tpot_ms, "e2el": ours.e2e_ms}.items():
        assert isinstance(times, TimeStats)
        percentiles = [value for _, value in theirs[f"percentiles_{name}_ms"]]
        assert [times.mean, times.p50, times.p95, times.p99] == pytest.approx(
            [theirs[f"mean_{name}_ms"], *percentiles], abs=ROUNDED
        )
