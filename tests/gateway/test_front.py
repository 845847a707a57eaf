"""The front: bytes pass unchanged, and whatever clients and engines do is bounded and answered."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.gateway_harness import (
    ANSWER,
    EVENT,
    LAST,
    MODEL,
    GatewayProcess,
    SmallEngine,
    answers,
    babbles,
    breaks,
    chat,
    gateway,
    goes_on,
    says,
    streams,
)
from tests.pool_process import HANG_S, wait_until

Shared = tuple[SmallEngine, GatewayProcess]
SECRET = "do not log these words"
DEV_PATHS = (
    "/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/reset_prefix_cache",
    "/update_weights", "/v1/load_lora_adapter", "/v1/Load_Lora_Adapter", "/v1/%6coad_lora",
    "/v1/../sleep", "/v1//sleep", "//sleep", "/v1/x/../../sleep", "/v1/unload_lora_adapter/",
    "/pause", "/start_profile", "/server_info", "/invocations", "/inference/v1/generate",
)  # fmt: skip


def test_bytes_pass_unchanged_both_ways() -> None:
    body = b'{ "messages" : [{"content":"\\u00e4\\n"}],"x":1e3, "model":"small","max_tokens": 3 }'
    with SmallEngine(answers) as engine, gateway(engine) as front:
        status, headers, found = front.fetch(
            "/v1/chat/completions?x=1", body, X_Request_Id="7", Authorization="Bearer secret"
        )
        assert (status, found) == (200, ANSWER)
        assert headers["x-forebay-engine"] == "a"
        assert headers["x-forebay-reason"] == "only"
        (asked,) = engine.asked
        assert asked.body == body
        assert asked.path == "/v1/chat/completions?x=1"
        assert asked.headers["x-request-id"] == "7"
        assert "authorization" not in asked.headers
        for path in ("completions", "responses", "messages", "embeddings", "rerank", "score"):
            assert front.fetch(f"/v1/{path}", body)[0] == 200
        assert front.fetch("/tokenize", body)[0] == 200
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n--b--\r\n'
        kind = {"Content_Type": "multipart/form-data; boundary=b"}
        assert front.fetch("/v1/audio/transcriptions", form, **kind)[0] == 200
        assert engine.asked[-1].body == form
        models = json.loads(front.fetch("/v1/models")[2])
        assert models["data"] == [{"id": MODEL, "max_model_len": 7}]
        assert json.loads(front.fetch(f"/v1/models/{MODEL}")[2])["id"] == MODEL
        assert front.fetch("/health")[0] == 200


def test_a_stream_passes_event_by_event() -> None:
    with SmallEngine(streams) as engine, gateway(engine) as front:
        status, headers, found = front.chat(stream=True)
        assert status == 200
        assert headers["content-type"] == "text/event-stream"
        assert found == EVENT + EVENT + LAST


def test_t64_a_stream_that_breaks_ends_with_an_error_event() -> None:
    with SmallEngine(breaks) as engine, gateway(engine) as front:
        status, _, found = front.chat(stream=True)
        assert status == 200
        assert found.startswith(EVENT)
        said = found.removeprefix(EVENT)
        assert said.startswith(b"data: ")
        assert said.endswith(b"\n\n")
        assert json.loads(said[6:])["error"]["code"] == "engine_failed"
        found = front.fetch("/v1/messages", chat(stream=True))[2].removeprefix(EVENT)
        assert found.startswith(b"event: error\ndata: ")
        assert json.loads(found.partition(b"data: ")[2])["type"] == "error"


def test_t64_a_client_that_goes_closes_the_engine_s_connection() -> None:
    with SmallEngine(goes_on) as engine, gateway(engine) as front:
        body = json.dumps(chat(stream=True)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        )
        with front.connect() as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            wait_until(lambda: EVENT in client.recv(4096), "the first event", HANG_S)
            assert not engine.gone.is_set()
        assert engine.gone.wait(HANG_S)
        wait_until(lambda: front.status()["engines"][0]["running"] == 0, "the end", HANG_S)


@pytest.mark.parametrize("path", DEV_PATHS)
def test_engines_dev_endpoints_are_not_reachable(path: str, shared: Shared) -> None:
    engine, front = shared
    before = len(engine.asked)
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        assert front.fetch(path, json.dumps(chat()).encode(), method)[0] in {404, 405}
    assert len(engine.asked) == before


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with ExitStack() as stack:
        engine = stack.enter_context(SmallEngine(answers))
        limits = 'body_limit = "1MiB"\nbodies_limit = "4MiB"\n'
        yield engine, stack.enter_context(gateway(engine, config=limits))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "JSON object"),
        (b"[1]", 400, "JSON object"),
        (b'{"model": 3}', 400, "'model'"),
        (b'{"model": "other"}', 404, "no engine serves"),
        (b"{" * 100_000, 400, "JSON object"),
        (b'{"model": "small", "messages": ' + b"[" * 100_000, 400, "JSON object"),
        (b"\xff\xfe" + SECRET.encode(), 400, "JSON object"),
        (b'{"model": "\xff"}', 400, "'model'"),
        (b" " * (1 << 20) + b"{}", 413, "larger"),
    ],
)
def test_t64_bodies_that_are_none_are_answered(
    body: bytes, status: int, words: str, shared: Shared
) -> None:
    _, front = shared
    found, _, said = front.fetch("/v1/chat/completions", body)
    assert found == status
    assert words in json.loads(said)["error"]["message"]
    assert SECRET not in front.text()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x16\x03\x01" + SECRET.encode() + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
        ),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
        ),
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    ],
)
def test_what_is_not_http_is_answered_and_not_logged(data: bytes, shared: Shared) -> None:
    engine, front = shared
    before = len(engine.asked)
    with front.connect() as client:
        client.sendall(data)
        said = b""
        while piece := client.recv(65536):
            said += piece
            if b"\r\n\r\n" in said:
                break
        assert re.match(rb"HTTP/1.[01] 400 ", said), said[:100]
    assert len(engine.asked) == before
    assert SECRET not in front.text()
    assert front.chat()[0] == 200


def test_half_closed_and_unfinished_requests_leave_nothing_behind(shared: Shared) -> None:
    engine, front = shared
    before = len(engine.asked)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    )
    with ExitStack() as stack:
        clients = [stack.enter_context(front.connect()) for _ in range(50)]
        for client in clients:
            client.sendall(head + b"{" * 50_000)
        assert front.chat()[0] == 200
        for client in clients[:25]:
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass  # it counts as gone
    assert front.chat()[0] == 200
    assert len(engine.asked) == before + 2


def test_a_body_that_was_announced_is_asked_for(shared: Shared) -> None:
    _, front = shared
    body = json.dumps(chat()).encode()
    with front.connect() as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_an_engine_that_babbles_is_a_bad_gateway() -> None:
    with SmallEngine(babbles) as engine, gateway(engine) as front:
        status, _, said = front.chat()
        assert status == 502
        assert b"secret words" not in said
        assert "secret words" not in front.text()


def test_errors_of_engines_pass_unchanged() -> None:
    with SmallEngine(says(400)) as engine, gateway(engine) as front:
        for _ in range(8):
            assert front.chat()[::2] == (400, b'{"said": 400}')
        assert front.condition("a") == "up"


def test_another_name_of_this_host_is_refused(shared: Shared) -> None:
    _, front = shared
    assert front.fetch("/v1/models", Host="evil.example")[0] == 421
    assert front.fetch("/v1/models", Host=f"localhost:{front.port}")[0] == 200
