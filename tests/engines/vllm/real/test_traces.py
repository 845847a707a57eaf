"""Each request's tokens by source: in spans, in metrics, and in what the API tells its client.

Real vLLM's API server, a real OTLP receiver, a real pool.
"""

import base64
import json
import re
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real.api_server import ApiServer, cached_of
from tests.engines.vllm.real.engine import HANG_S, stored_chunks
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.engines.vllm.real.receiver import ReceivedSpan, TraceReceiver
from tests.pool_process import (
    PatientClient,
    PoolProcess,
    is_written,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.identity.endings import EndingClass, marker_class

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
DRAM_BYTES = 64 << 20
NONE_BYTES = 0
CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
SOURCES = ("engine", "dram", "disk")
BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"  # from 0.32 on
OURS, VLLMS = "forebay.request", "llm_request"
NAMED = frozenset(EndingClass)
BEFORE_A_MARKER_IS_KNOWN = 3  # answers that end with it
TRACE = "trace.jsonl"  # in the pool's directory
SESSION = "a-name-that-nobody-writes-down"
STORED_TOKENS = 48  # of an answer: by its end the pool has said where to store its prompt
RUN = 4  # tokens that tell what a text was
TOOL, TURN = 1_001, 1_002  # last tokens of answers that wait for a tool, and for a person


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place:
        flags = ["--dram", str(DRAM_BYTES), "--trace", str(place / TRACE)]
        with running_pool(place, *flags) as pool:
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
    name = f"{answer['id']}-0"  # the first prompt of the request, as vLLM names it
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
    first = server.ask(prompt, STORED_TOKENS)
    theirs, ours = spans_of(receiver, first)
    assert theirs.parent == "", "the client does not trace"
    assert ours.attributes["forebay.prompt_tokens"] == 600
    assert ours.attributes["forebay.cached_tokens"] == cached_of(first) == 0
    wait_until_stored(server, pool, before + 2, lambda: server.ask(prompt, STORED_TOKENS))

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


def test_samples_of_one_prompt_have_a_span_each(server: ApiServer, receiver: TraceReceiver) -> None:
    answer = server.ask(dialogs(1, 300, 7)[0], n=2, temperature=0.5)
    name = f"{answer['id']}-0"
    wait_until(lambda: len(receiver.of(name, VLLMS)) == 2, "vLLM's spans", HANG_S)
    parents = {span.id for span in receiver.of(name, VLLMS)}

    def ours() -> list[ReceivedSpan]:
        samples = [receiver.of(each, OURS) for each in (name, f"0_{name}", f"1_{name}")]
        return [span for spans in samples for span in spans]

    wait_until(lambda: len(ours()) == 2, "our spans", HANG_S)
    assert {span.parent for span in ours()} == parents


@dataclass(frozen=True)
class CachedTokens:
    """Tokens of prompts that were not computed, from the first time that each was scheduled."""

    engine: int  # vLLM's own prefix cache, by the pool's metrics
    dram: int
    disk: int
    by_vllm: tuple[int, ...]  # the same by vLLM's metrics; the last two together where it is older

    @classmethod
    def counted(cls, server: ApiServer, pool: PoolProcess) -> "CachedTokens":
        engine, dram, disk = (pool.number("request_tokens", source=each) for each in SOURCES)
        own = server.total("vllm:prefix_cache_hits_total")
        external = server.total("vllm:external_prefix_cache_hits_total")
        each = [server.total(BY_SOURCE, source=name) for name in ("host", "disk")]
        by_vllm = (own, *each) if BY_SOURCE in server.metrics() else (own, external)
        assert sum(by_vllm) == own + external
        return cls(engine, dram, disk, by_vllm)

    def since(self, before: "CachedTokens") -> "CachedTokens":
        return CachedTokens(
            self.engine - before.engine,
            self.dram - before.dram,
            self.disk - before.disk,
            tuple(now - then for now, then in zip(self.by_vllm, before.by_vllm, strict=True)),
        )


def settle(server: ApiServer, pool: PoolProcess) -> None:
    """Until the pool has heard of every request; it counts each of them once."""
    wait_until(lambda: pool.number("requests") == server.asked, "the last outcome", HANG_S)


def wait_until_stored(
    server: ApiServer, pool: PoolProcess, chunks: int, ask: Callable[[], object]
) -> None:
    """Ask again what is not stored: an answer may end before a busy pool has said where to."""

    def is_stored() -> bool:
        if stored_chunks(pool) < chunks:
            server.empty_cache()
            ask()
        return stored_chunks(pool) >= chunks

    wait_until(is_stored, "the commit of all chunks", HANG_S)


def empty_dram(pool: PoolProcess) -> None:
    """From now on the pool has everything on its disk, and nowhere else."""
    with PatientClient(pool.socket) as operator:
        for size_bytes in (NONE_BYTES, DRAM_BYTES):
            outcome = operator.resize(size_bytes, timeout_s=HANG_S)
            assert getattr(outcome, "ok", False), outcome
            if size_bytes == NONE_BYTES:
                wait_until(lambda: not pool.number("chunks", tier="dram"), "DRAM", HANG_S)


def test_a_trace_tells_tool_calls_from_user_turns(server: ApiServer, pool: PoolProcess) -> None:
    """A dialog whose every fourth answer is for a person, as the model's last token says."""
    text, markers, answers = dialogs(1, 300, 79)[0], [], 16
    named: dict[str, Any] = {"kv_transfer_params": {"forebay": {"session": SESSION}}}
    for turn in range(answers):
        markers.append(TURN if turn % 4 == 3 else TOOL)
        ends: dict[str, Any] = {
            "stop_token_ids": [markers[-1]],
            "logit_bias": {str(markers[-1]): 100},
        }
        (choice,) = server.ask(text, **ends, **named)["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["token_ids"][-1] == markers[-1]
        text = [*text, *choice["token_ids"], *dialogs(1, 64, 80 + turn)[0]]
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        lines = [json.loads(line) for line in (pool.place / TRACE).read_text().splitlines()]
        dialog = [line for line in lines if line.get("ended", 0) not in NAMED]
        told[:] = dialog
        return len(dialog) >= answers - 2 * BEFORE_A_MARKER_IS_KNOWN

    server.ask(dialogs(1, 300, 78)[0])  # the engine tells of an answer with a later step
    wait_until(is_told, "all answers", HANG_S)
    classes = {line["ended"] for line in told}
    assert classes == {marker_class((TOOL,)), marker_class((TURN,))}
    assert [line["ended"] for line in told[-4:]] == [marker_class((each,)) for each in markers[-4:]]
    assert {line["output_length"] for line in told} == {1}
    assert {line["session"] for line in told} == {0}
    for path in (pool.place / TRACE, pool.log, server.log):
        assert_tells_nothing_of(text, path.read_bytes())


def assert_tells_nothing_of(text: Tokens, content: bytes) -> None:
    """No run of a text's tokens, in digits or in bytes, and no name of a session."""
    assert content
    runs = {tuple(text[at : at + RUN]) for at in range(len(text) - RUN + 1)}
    numbers = [int(each) for each in re.findall(rb"\d{1,9}", content)]
    assert not runs & {tuple(numbers[at : at + RUN]) for at in range(len(numbers))}
    for run in runs:
        for letter in "HIQ":
            assert struct.pack(f"<{RUN}{letter}", *run) not in content
    name = SESSION.encode()
    for form in (name, name.hex().encode(), base64.b64encode(name)):
        assert form not in content


def test_metrics_add_up_to_what_clients_are_told(server: ApiServer, pool: PoolProcess) -> None:
    """Whatever the source: the engine's own cache, DRAM, disk; whole prompts, parts, none."""
    told = 0

    def ask_all(prompts: list[Tokens], answer: int = 8, **more: Any) -> None:
        nonlocal told
        with ThreadPoolExecutor(len(prompts)) as clients:
            answers = clients.map(lambda prompt: server.ask(prompt, answer, **more), prompts)
            told += sum(map(cached_of, answers))

    settle(server, pool)
    before, stored = CachedTokens.counted(server, pool), stored_chunks(pool)
    prompts = dialogs(6, 600, 77)
    ask_all(prompts, STORED_TOKENS)
    wait_until_stored(server, pool, stored + 12, lambda: ask_all(prompts, STORED_TOKENS))
    server.empty_cache()
    ask_all([prompt + prompt[:300] for prompt in prompts])  # more than the engine has room for
    ask_all([prompts[0][:200], prompts[1][:512], prompts[2]], cache_salt="tenant")
    ask_all([prompts[0][:200], prompts[1][:512], prompts[2]], cache_salt="tenant")
    server.empty_cache()
    ask_all([prompts[3][:256]])
    ask_all([prompts[3][:512]])  # a whole prompt: some of it is in the engine, the rest is not
    ask_all([prompts[4][:512]])  # a whole prompt, all of it from the pool
    wait_until(lambda: is_written(pool), "the disk", HANG_S)
    empty_dram(pool)
    server.empty_cache()
    ask_all(prompts)
    seed = 100

    def is_preempted() -> bool:
        nonlocal seed
        seed += 1
        ask_all(dialogs(4, 1000, seed), answer=500)  # they do not all fit
        return server.total("vllm:num_preemptions_total") > 0

    wait_until(is_preempted, "a preemption", HANG_S)
    settle(server, pool)
    found = CachedTokens.counted(server, pool).since(before)
    assert found.dram >= 6 * 512
    assert found.disk >= 6 * 512
    assert found.engine > 0
    pooled = (found.dram, found.disk) if len(found.by_vllm) > 2 else (found.dram + found.disk,)
    assert found.by_vllm == (found.engine, *pooled)
    assert found.engine + found.dram + found.disk == told
