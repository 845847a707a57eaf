"""Prefill and decode apart: who computes a prompt, who answers, and what if the first fails."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from tests.gateway.test_placement import asked, done, placed
from tests.gateway_harness import (
    ANSWER,
    EVENT,
    LAST,
    Asked,
    GatewayProcess,
    SmallEngine,
    answers,
    engine_table,
    gateway,
    goes_on,
    hangs_up,
    says,
    streams,
    waits,
    whole,
)
from tests.pool_process import HANG_S, wait_until

from forebay.errors import SettingsError
from forebay.gateway.config import parse_config
from forebay.gateway.front.apart import ApartPrefill
from forebay.gateway.front.reading import prefill_body
from forebay.gateway.http.client import EngineClient
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.seen import GatewayMetrics
from forebay.testing.clock import ManualClock

LONG = "w" * 40_000  # 10,000 tokens, as long as nothing was learnt
Behaviour = Callable[[SmallEngine, Asked], Iterator[bytes]]


@contextmanager
def apart(first: SmallEngine, second: SmallEngine, file: str = "") -> Iterator[GatewayProcess]:
    """A gateway before an engine for prompts, p, and one for answers, d."""
    tables = engine_table("p", first.url, pool=True, role="prefill")
    tables += engine_table("d", second.url, pool=True, role="decode")
    with gateway(config=f"{file}\n{tables}") as front:
        for name in "pd":
            wait_until(lambda name=name: front.is_up(name), "an engine", HANG_S)  # type: ignore[misc]
        yield front


def hints_of(asked: Asked) -> object:
    return json.loads(asked.body).get("kv_transfer_params")


def test_a_long_prompt_is_computed_by_one_and_answered_by_the_other() -> None:
    with (
        SmallEngine(answers) as first,
        SmallEngine(streams) as second,
        apart(first, second) as front,
    ):
        more = {"stream": True, "stream_options": {"include_usage": True}, "n": 1, "x": [1e3]}
        status, headers, found = front.chat(LONG, **more, max_completion_tokens=70, min_tokens=9)
        assert (status, found) == (200, EVENT + EVENT + LAST)
        assert (headers["x-forebay-engine"], headers["x-forebay-prefill"]) == ("d", "p")
        (prompt,), (answer,) = first.asked, second.asked
        assert prompt.path == answer.path == "/v1/chat/completions"
        sent = json.loads(prompt.body)
        assert sent.pop("messages") == [{"role": "user", "content": LONG}]
        assert sent == {"model": "small", "max_tokens": 1, "stream": False, "x": [1e3]}
        assert hints_of(answer) == {"forebay": {"computed_tokens": 12}}
        assert json.loads(answer.body)["max_completion_tokens"] == 70
        state = {each["name"]: each for each in front.status()["engines"]}
        assert [state[name]["running"] for name in "pd"] == [0, 0]
        assert [state[name]["role"] for name in "pd"] == ["prefill", "decode"]
        text = front.fetch("/metrics")[2]
        assert b'forebay_gateway_prefilled_total{engine="p",outcome="computed"} 1.0' in text
        assert front.status()["keys"][0]["requests"] == 0


def test_what_is_short_known_or_not_to_be_shared_goes_to_one_engine() -> None:
    with (
        SmallEngine(answers) as first,
        SmallEngine(answers) as second,
        apart(first, second) as front,
    ):
        for body in (
            {"words": "short"},
            {"words": LONG, "prompt_logprobs": 1},
            {"words": LONG, "kv_transfer_params": {"mine": 1}},
        ):
            status, headers, _ = front.chat(**body)
            assert (status, headers["x-forebay-engine"]) == (200, "d")
            assert "x-forebay-prefill" not in headers
        front.chat(LONG)  # as above: now the second has it
        front.fetch("/v1/embeddings", {"model": "small", "input": LONG * 2})
        assert first.asked == []
        assert len(second.asked) == 5
        front.chat(LONG * 2)
        assert len(first.asked) == 1


def nonsense(_: SmallEngine, __: Asked) -> Iterator[bytes]:
    yield whole(200, b'{"usage": {"prompt_tokens": "many"}}')


@pytest.mark.parametrize(
    "behave",
    [says(503), says(400), says(500), hangs_up, nonsense],
    ids=["503", "400", "500", "gone", "lie"],
)
def test_where_the_first_fails_the_second_gets_the_plain_request(behave: Behaviour) -> None:
    with (
        SmallEngine(behave) as first,
        SmallEngine(answers) as second,
        apart(first, second) as front,
    ):
        status, headers, found = front.chat(LONG)
        assert (status, found) == (200, ANSWER)
        assert "x-forebay-prefill" not in headers
        assert len(first.asked) == 1
        assert hints_of(second.asked[0]) is None
        assert front.condition("d") == "up"
        text = front.fetch("/metrics")[2]
        assert b'forebay_gateway_prefilled_total{engine="p",outcome="failed"} 1.0' in text


def test_an_engine_for_prompts_answers_where_there_is_no_other() -> None:
    with (
        SmallEngine(answers) as first,
        SmallEngine(hangs_up) as second,
        apart(first, second) as front,
    ):
        second.health = 503
        for number in range(3):  # it takes so many failures
            front.chat(f"short {number}")
        wait_until(lambda: front.condition("d") == "down", "the breaker", HANG_S)
        status, headers, _ = front.chat(LONG)
        assert (status, headers["x-forebay-engine"]) == (200, "p")
        assert "x-forebay-prefill" not in headers


def test_a_client_that_goes_meanwhile_leaves_nothing_behind() -> None:
    with (
        SmallEngine(goes_on) as first,
        SmallEngine(answers) as second,
        apart(first, second) as front,
    ):
        body = json.dumps({"model": "small", "messages": [LONG]}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        with front.connect() as client:
            client.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: bool(first.asked), "the prompt", HANG_S)
        assert first.gone.wait(HANG_S)
        wait_until(
            lambda: [each["running"] for each in front.status()["engines"]] == [0, 0],
            "the end",
            HANG_S,
        )
        assert second.asked == []
        assert front.status()["keys"][0]["requests"] == 0


def test_prompts_that_are_computed_elsewhere_do_not_count_where_they_are_answered() -> None:
    roles = [("p", "prefill"), ("d", "decode")]
    engines = [
        {"name": name, "model": "m", "url": f"http://{name}:1", "pool": True, "role": role}
        for name, role in roles
    ]
    dispatcher = Dispatcher(parse_config({"engine": engines}), ManualClock())
    request = asked(("q", 40_000))
    assert placed(dispatcher, request).engine == "d"
    first = dispatcher.begin_prefill(request)
    assert first is not None
    states = dispatcher.engines
    assert (states["p"].prefill_tokens, states["d"].prefill_tokens) == (10_000, 0)
    dispatcher.end_prefill(first, is_computed=True)
    assert (states["p"].running, states["d"].running) == (0, 1)
    done(dispatcher, request)
    again = asked(("q", 40_000), ("a", 400), ("r", 4000))
    placed(dispatcher, again)
    assert dispatcher.begin_prefill(again) is None  # little of it is new


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_what_a_prompt_s_engine_is_asked(path: str, limit: str) -> None:
    body = b'{"model":"m", "prompt": "\\u00e4", "tools":[1e3], "max_tokens": 9, "stream": true}'
    found = prefill_body(body, path)
    assert found is not None
    expected = {"model": "m", "prompt": "ä", "tools": [1e3], limit: 1, "stream": False}
    if path == "/v1/responses":
        expected["store"] = False  # nobody will fetch it
    assert json.loads(found) == expected
    assert b"\\u00e4" in found
    assert b"[1e3]" in found
    for refused in (b'{"echo": true}', b'{"previous_response_id": "x"}', b"[]", b"\xff"):
        assert prefill_body(refused, path) is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"role": "both", "pool": True}, "role is 'prefill' or 'decode'"),
        ({"role": "prefill"}, "needs the pool"),
        ({"role": "prefill", "pool": True}, "needs an engine of role 'decode'"),
        ({"role": "decode", "pool": True}, "needs an engine of role 'prefill'"),
    ],
)
def test_a_role_that_nothing_follows_from_is_a_slip(more: "dict[str, object]", words: str) -> None:
    engine = {"name": "a", "model": "m", "url": "http://127.0.0.1:1", **more}
    with pytest.raises(SettingsError, match=words):
        parse_config({"engine": [engine]})


class Incoming:
    """A client's request, as far as a prompt's engine is given it."""

    path = "/v1/chat/completions"

    def headers(self) -> list[tuple[str, str]]:
        return []


def test_an_engine_that_never_computes_a_prompt_is_out_of_use() -> None:
    """A process that is stopped takes connections and says nothing, request after request."""

    async def play(engine: SmallEngine) -> None:
        tables = [
            {"name": name, "model": "m", "url": url, "pool": True, "role": role}
            for name, url, role in (("p", engine.url, "prefill"), ("d", "http://d:1", "decode"))
        ]
        dispatcher = Dispatcher(parse_config({"engine": tables}), ManualClock())
        client, metrics = EngineClient(), GatewayMetrics()
        apart = ApartPrefill(dispatcher, client, metrics, least_s=0.05)
        request = asked(("q", 8192))
        await dispatcher.place(request)
        found = await apart.prefill(cast("Any", Incoming()), b'{"messages": ["q"]}', request)
        assert found == ("", 0)
        assert dispatcher.engines["p"].condition == "down"
        assert dispatcher.engines["p"].running == 0
        assert dispatcher.begin_prefill(request) is None
        done(dispatcher, request)
        await client.close()

    with SmallEngine(waits) as engine:
        asyncio.run(play(engine))
        engine.may_go.set()
