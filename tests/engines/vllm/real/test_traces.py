"""Each request's tokens by source: in spans, in metrics, and in what the API tells its client.

Real vLLM's API server, a real OTLP receiver, a real pool.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real.api_server import ApiServer, cached_of
from tests.engines.vllm.real.engine import HANG_S, stored_chunks
from tests.engines.vllm.real.models import dialogs
from tests.engines.vllm.real.receiver import ReceivedSpan, TraceReceiver
from tests.pool_process import PoolProcess, running_pool, short_directory, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
OURS, VLLMS = "forebay.request", "llm_request"


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place, "--dram", "64MiB") as pool:
        yield pool


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    made = TraceReceiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(
    model: Path,
    pool: PoolProcess,
    receiver: TraceReceiver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApiServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    made = ApiServer(model, pool, log, "--otlp-traces-endpoint", receiver.endpoint)
    seed = 30_000
    try:

        def is_shared() -> bool:
            nonlocal seed
            seed += 1
            made.ask(dialogs(1, 300, seed)[0])
            return stored_chunks(pool) > 0

        wait_until(is_shared, "the engine to share", HANG_S)
        yield made
    finally:
        made.kill()


def spans_of(receiver: TraceReceiver, answer: dict[str, Any]) -> tuple[ReceivedSpan, ReceivedSpan]:
    """vLLM's span of a request, and ours beneath it."""
    name = f"{answer['id']}-0"  # a prompt of a list of prompts, as vLLM counts them
    wait_until(lambda: receiver.of(name, VLLMS), "vLLM's span", HANG_S)
    wait_until(lambda: receiver.of(name, OURS), "our span", HANG_S)
    (theirs,), (ours,) = receiver.of(name, VLLMS), receiver.of(name, OURS)
    assert (ours.trace, ours.parent) == (theirs.trace, theirs.id)
    assert theirs.began_ns <= ours.began_ns <= ours.ended_ns <= theirs.ended_ns
    return theirs, ours


def test_a_span_beneath_vllms_says_where_the_tokens_came_from(
    server: ApiServer, pool: PoolProcess, receiver: TraceReceiver
) -> None:
    prompt = dialogs(1, 600)[0]
    before = stored_chunks(pool)
    first = server.ask(prompt)
    theirs, ours = spans_of(receiver, first)
    assert theirs.parent == "", "the client does not trace"
    assert ours.attributes["forebay.prompt_tokens"] == 600
    assert ours.attributes["forebay.cached_tokens"] == cached_of(first) == 0
    wait_until(lambda: stored_chunks(pool) >= before + 2, "the commit of both chunks", HANG_S)

    again = server.ask(prompt, 1)
    _, ours = spans_of(receiver, again)
    assert ours.attributes["forebay.cached_tokens.engine"] == cached_of(again) == 512

    server.empty_cache()
    loaded = server.ask(prompt, 1, headers=CLIENT)  # it ends with the step that begins it
    theirs, ours = spans_of(receiver, loaded)
    assert (theirs.trace, theirs.parent) == (CLIENT_TRACE, CLIENT_SPAN)
    assert ours.attributes["forebay.decision"] == "loaded"
    assert ours.attributes["forebay.cached_tokens.dram"] == cached_of(loaded) == 512
    assert ours.attributes["forebay.cached_tokens.engine"] == 0
    assert ours.attributes["forebay.computed_tokens"] == 88
    assert ours.attributes["forebay.load_ms"] > 0
