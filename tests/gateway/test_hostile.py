"""Clients and engines that lie (headers, lengths, usage, lists), and one key against others."""

import asyncio
import json
from collections.abc import Iterator
from typing import BinaryIO

from tests.gateway.test_placement import asked, config, done, placed, refused
from tests.gateway_harness import (
    ANSWER,
    EVENT,
    MODEL,
    Asked,
    GatewayProcess,
    SmallEngine,
    answers,
    chat,
    engine_table,
    gateway,
    whole,
)
from tests.listening import HangUp
from tests.pool_process import HANG_S, wait_until

from forebay.gateway.front.observing import WHOLE_BYTES_MAX, AnswerObserver
from forebay.gateway.front.reading import read_body
from forebay.gateway.placement.dispatcher import MODELS_MAX, Dispatcher
from forebay.gateway.placement.request import ServedTokens
from forebay.testing.clock import ManualClock

LIES = {
    "stream": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n"
    + EVENT,
    "switch": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw bytes",
    "usage": whole(
        200, b'{"usage": {"prompt_tokens": -5, "completion_tokens": %b}}' % (b"9" * 330)
    ),
}


def lies(_: SmallEngine, asked: Asked) -> Iterator[bytes]:
    """Answers with the lie that the prompt names."""
    word = json.loads(asked.body)["messages"][0]["content"]
    yield LIES.get(word) or whole(200, ANSWER)
    if word in LIES:
        raise HangUp


class DeepEngine(SmallEngine):
    """Lists a model with more brackets than a parser can follow."""

    def replies(self, incoming: BinaryIO) -> Iterator[bytes]:
        while True:
            deep = b"[" * 5000 + b"]" * 5000
            is_list = Asked.read(incoming).path == "/v1/models"
            yield whole(200, b'{"data": [{"id": "small", "x": %b}]}' % deep if is_list else b"")


def send(front: GatewayProcess, more: bytes) -> bytes:
    """The head of the answer to a request with these headers more."""
    body = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    with front.connect() as client:
        client.sendall(head % len(body) + more + b"\r\n" + body)
        return client.recv(4096)


def test_headers_and_answers_that_lie() -> None:
    with (
        SmallEngine(lies) as engine,
        DeepEngine(answers) as deep,
        gateway(engine, config=engine_table("deep", deep.url), pool=True) as front,
    ):
        wait_until(lambda: front.condition("deep") == "other model", "the list", HANG_S)
        hop = b"Connection: X-Hop\r\nX-Hop: 1\r\nX-Stays: 1\r\nAccept-Encoding: gzip\r\n"
        assert send(front, b"X-Session-ID: a\xff\r\n" + hop).startswith(b"HTTP/1.1 200 ")
        (request,) = engine.asked
        assert json.loads(request.body)["kv_transfer_params"]["forebay"] == {"session": "a?"}
        assert request.headers["x-stays"] == "1"
        assert not {"x-hop", "accept-encoding"} & set(request.headers)
        status, headers, found = front.chat("stream", stream=True)
        assert (status, found[: len(EVENT)]) == (200, EVENT)
        assert json.loads(found[len(EVENT) + 6 :])["error"]["code"] == "engine_failed"
        assert "content-length" not in headers
        assert front.chat("usage")[0] == 200
        assert front.chat("switch")[0] == 502
        assert front.chat()[0] == 200
        wait_until(lambda: front.status()["engines"][1]["running"] == 0, "the end", HANG_S)
        assert front.fetch("/v1/secret-words/cancel", chat())[0] == 404
        assert front.fetch("/v1/secret-words", b"{")[0] == 400
        assert "secret" not in front.text()


def test_a_prompt_that_the_gateway_does_not_read_is_not_free() -> None:
    """An engine reads the one, the gateway another: what both take is at most off by a bound."""
    body = json.dumps({"model": MODEL, "messages": ["x"], "prompt": "y" * 100_000}).encode()
    read = read_body(body, "application/json")
    assert not isinstance(read, str)
    assert read.prompt_bytes == len(body)
    dispatcher = Dispatcher(config(), ManualClock())
    for told in (10**9, 1):
        for _ in range(100):
            request = asked(("x", 4000))
            placed(dispatcher, request)
            dispatcher.end(request, ServedTokens(told))
        assert 1 <= dispatcher.models["m"].bytes_per_token <= 16
    done(dispatcher, request)


def test_what_a_very_large_answer_took_is_still_read() -> None:
    text = b'"\\"usage\\": {}' + b"x" * (WHOLE_BYTES_MAX + 10) + b'"'
    usage = b'"usage": {"prompt_tokens": 7, "d": {"x": 1}, "completion_tokens": 9}'
    behind = b', "more": %b}' % text
    for answer in (b'{"text": %b, %b%b' % (text, usage, behind), b"{%b%b" % (usage, behind)):
        for size in (len(answer), 65_536):
            observer = AnswerObserver(is_stream=False)
            pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
            assert b"".join(map(observer.passing, pieces)) == answer
            assert observer.rest() == b""
            assert observer.served() == ServedTokens(7, None, 9)


def test_one_key_cannot_fill_the_queue() -> None:
    async def play() -> None:
        given = config(1, 2, max_num_seqs=1, file={"queue_requests": 10})
        dispatcher = Dispatcher(given, ManualClock())
        placed(dispatcher, asked(("x", 40), key="k0"))
        waiting = []
        for key, places in (("k0", 5), ("k1", 3)):
            for _ in range(places):
                work = dispatcher.place(asked(("x", 40), key=key))
                waiting.append(asyncio.ensure_future(work))
            await asyncio.sleep(0)
            assert refused(dispatcher, asked(("x", 40), key=key)).status == 503
        assert dispatcher.waiting == len(waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert dispatcher.waiting == 0
        assert dispatcher.keys.states["k1"].requests == 0

    asyncio.run(play())


def test_models_that_engines_list_have_a_limit() -> None:
    dispatcher = Dispatcher(config(), ManualClock())
    for number in range(2 * MODELS_MAX):
        dispatcher.engines["e0"].models = {f"adapter {number}": {}}
        dispatcher.add_models(dispatcher.engines["e0"])
    assert len(dispatcher.models) == MODELS_MAX
    assert "m" in dispatcher.models
