"""The client: measured where a user would, and whatever a server does is a value."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stub_process import StubProcess, stub
from tests.stub_server import FAULTS

from forebay.bench.load import client
from forebay.bench.load.client import Completion, Endpoint, Failed, Target, endpoint_of
from forebay.bench.load.vocabulary import Vocabulary
from forebay.bench.processes import free_port
from forebay.errors import SettingsError, StartupError

FIRST_MS = 50
KINDS = {
    "die": "broken_off",
    "hang": "timeout",
    "garbage": "garbage",
    "html": "garbage",
    "cut": "broken_off",
    "400": "http_400",
    "429": "http_429",
    "500": "http_500",
    "error": "error",
    "silent": "timeout",
    "empty": "broken_off",
}


def ask(served: StubProcess, timeout_s: float = 60.0, tokens: int = 6) -> Completion | Failed:
    target = Target(endpoint_of(served.url), "stub", timeout_s)
    return asyncio.run(client.ask(target, [{"role": "user", "content": "a b c d"}], tokens))


@pytest.fixture(scope="module")
def plain() -> Iterator[StubProcess]:
    with stub("--ttft-ms", str(FIRST_MS), "--cached", "--keep-bodies") as served:
        yield served


def test_an_answer_is_measured_from_the_first_word_that_is_one(plain: StubProcess) -> None:
    answer = ask(plain)
    assert isinstance(answer, Completion)
    assert answer.text == "w0 w1 w2 w3 w4 w5 "
    assert (answer.prompt_tokens, answer.cached_tokens, answer.answer_tokens) == (11, 0, 6)
    assert FIRST_MS / 1e3 <= answer.ttft_s <= answer.seconds
    assert replace(answer, ttft_s=1.0, seconds=2.0).tpot_s == pytest.approx(0.2)
    assert answer.has_usage


def test_one_token_has_no_time_per_token(plain: StubProcess) -> None:
    answer = ask(plain, tokens=1)
    assert isinstance(answer, Completion)
    assert answer.tpot_s is None


def test_what_is_sent_is_greedy_exact_and_plain_on_demand(plain: StubProcess) -> None:
    ask(plain)
    target = Target(endpoint_of(plain.url), "stub", is_plain=True)
    asyncio.run(client.ask(target, [{"role": "user", "content": "a"}], 2))
    full, bare = plain.told()["bodies"][-2:]
    assert (full["min_tokens"], full["max_tokens"], full["ignore_eos"]) == (6, 6, True)
    assert (bare["temperature"], bare["max_tokens"]) == (0, 2)
    assert not {"min_tokens", "ignore_eos"} & bare.keys()


def test_a_server_without_usage_is_counted_by_its_pieces() -> None:
    with stub("--no-usage") as served:
        answer = ask(served)
    assert isinstance(answer, Completion)
    assert (answer.answer_tokens, answer.cached_tokens, answer.has_usage) == (6, None, False)


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_goes_wrong_has_a_kind(fault: str) -> None:
    with stub("--fault", fault) as served:
        failed = ask(served, timeout_s=1.0 if KINDS[fault] == "timeout" else 60.0)
    assert isinstance(failed, Failed)
    assert failed.kind == KINDS[fault]
    assert failed.why
    assert not failed.why.endswith(".")


def test_a_server_that_refuses_is_quoted_in_one_harmless_line() -> None:
    with stub("--fault", "400") as served:
        failed = ask(served)
    assert failed == Failed("http_400", "the server answered 400: too many [2J tokens")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the server answered 403"),
        (b'{"error": "."}', "the server answered 403"),
        ('{"message": "Modèle inconnu"}'.encode("latin-1"), '{"message": "Mod\ufffdle inconnu"}'),
        (b"[" * 100_000, "[" * 200),
        (b'{"error":' * 100_000, '{"error":' * 22 + '{"'),
        (b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}", "[" * 200),
        (b'{"error": {"code": 7}}', '{"code":7}'),
        (b"x" * (3 << 20), "x" * 200),
        (b'{"error": "Bearer sk-secret is wrong"}', "Bearer \u2026 is wrong"),
    ],
)
def test_no_refusal_is_too_odd_to_be_quoted(body: bytes, why: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        writer.close()

    async def refused() -> Completion | Failed:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await client.ask(
                Target(Endpoint("127.0.0.1", port, key="sk-secret"), "m"), [], 1
            )

    failed = asyncio.run(refused())
    assert isinstance(failed, Failed)
    assert failed.kind == "http_403"
    assert failed.why.removeprefix("the server answered 403: ") == why


def test_nobody_there_is_refused() -> None:
    target = Target(Endpoint("127.0.0.1", free_port()), "m")
    failed = asyncio.run(client.ask(target, [], 1))
    assert isinstance(failed, Failed)
    assert failed.kind == "refused"
    assert not asyncio.run(client.is_up(target.endpoint))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://a:8000", Endpoint("a", 8000)),
        ("a:8000/v1/", Endpoint("a", 8000)),
        ("https://a", Endpoint("a", 443, "/v1", is_tls=True)),
        ("http://[::1]:8000/v1", Endpoint("::1", 8000)),
        ("http://a/x/v1/chat/completions", Endpoint("a", 80, "/x/v1")),
    ],
)
def test_urls_as_people_write_them(url: str, found: Endpoint) -> None:
    assert endpoint_of(url) == found
    assert endpoint_of(found.url) == found


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:port", "http://a:99999"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(SettingsError, match="is no URL"):
        endpoint_of(url)


def test_a_key_is_sent_and_not_shown() -> None:
    heads: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def fetched() -> bytes | Failed:
        async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint("127.0.0.1", port, key="between us")
            assert "between us" not in endpoint.url
            return await client.fetch(endpoint, "/", 10.0)

    assert asyncio.run(fetched()) == b"ok"
    assert b"Authorization: Bearer between us\r\n" in heads[0]


def test_a_server_without_a_tokenizer_is_asked_and_answers_in_token_ids() -> None:
    asked: list[bytes] = []

    async def complete(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        asked.extend([head.encode(), await reader.readexactly(length)])
        event = b'data: {"choices": [{"text": "", "token_ids": [17, 900]}]}\n\ndata: [DONE]\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(event) + event)
        await writer.drain()
        writer.close()

    async def answered() -> Completion | Failed:
        async with await asyncio.start_server(complete, "127.0.0.1", 0) as server:
            endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
            target = Target(endpoint, "m", vocabulary=Vocabulary(1000))
            return await client.ask(target, [{"role": "user", "content": "t5 t900 Word."}], 2)

    answer = asyncio.run(answered())
    assert isinstance(answer, Completion)
    assert (answer.text, answer.tokens, answer.answer_tokens) == ("t17 t900", (17, 900), 2)
    assert asked[0].startswith(b"POST /v1/completions ")
    prompt = msgspec.json.decode(asked[1])["prompt"]
    assert prompt[:2] == [5, 900]
    assert prompt == Vocabulary(1000).encode("t5 t900 word")
    assert 16 <= prompt[2] < 1000


def test_without_aiohttp_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(StartupError, match="pip install aiohttp"):
        client.require()


@given(st.lists(st.binary(max_size=60)))
def test_any_events_are_heard_or_refused(lines: list[bytes]) -> None:
    stream = client._Stream()
    with contextlib.suppress(ValueError, msgspec.DecodeError):
        for line in lines:
            stream.feed(b"data: " + line + b"\n", 1.0)
    stream.answer(0.0)
