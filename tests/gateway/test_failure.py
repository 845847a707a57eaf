"""Engines that fail: one retry before the first byte, a breaker with a probe."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.gateway_harness import (
    ANSWER,
    EVENT,
    MODEL,
    Asked,
    SmallEngine,
    answers,
    breaks,
    engine_table,
    gateway,
    hangs_up,
    says,
    streams,
    whole,
)
from tests.pool_process import HANG_S, wait_until

from forebay.gateway import watching
from forebay.gateway.config import parse_config
from forebay.gateway.http.client import EngineClient
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.watching import EngineWatch


def engines_asked(*engines: SmallEngine) -> list[int]:
    return [len(engine.asked) for engine in engines]


@pytest.mark.parametrize("status", [502, 503])
def test_a_busy_engine_s_request_goes_to_another_once(status: int) -> None:
    with (
        SmallEngine(says(status)) as bad,
        SmallEngine(answers) as good,
        gateway(bad, good) as front,
    ):
        for number in range(8):  # three failures take the first one out of use
            code, headers, found = front.chat(f"words {number}")
            assert (code, found) == (200, ANSWER)
            assert headers["x-forebay-engine"] == "b"
        assert 1 <= len(bad.asked) <= 4  # it may have been tried once more after its probe
        assert len(good.asked) == 8
        retried = [each for each in front.fetch("/metrics")[2].split(b"\n") if b"retried" in each]
        assert any(b'engine="a"' in line for line in retried)


def test_what_another_engine_says_after_a_retry_is_final() -> None:
    with (
        SmallEngine(says(503)) as one,
        SmallEngine(says(503)) as other,
        gateway(one, other) as front,
    ):
        assert front.chat()[::2] == (503, b'{"said": 503}')
        assert engines_asked(one, other) == [1, 1]


def test_a_busy_engine_s_event_passes_where_there_is_no_other() -> None:
    def behave(_: SmallEngine, __: Asked) -> Iterator[bytes]:
        yield whole(503, EVENT, "text/event-stream")

    with SmallEngine(behave) as engine, gateway(engine) as front:
        assert front.chat(stream=True)[::2] == (503, EVENT)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_t64_other_answers_are_not_retried_and_do_not_count(status: int) -> None:
    with (
        SmallEngine(says(status)) as one,
        SmallEngine(says(status)) as other,
        gateway(one, other) as front,
    ):
        for number in range(10):
            assert front.chat(str(number))[0] == status
        assert sum(engines_asked(one, other)) == 10
        assert [front.condition(name) for name in "ab"] == ["up", "up"]


def test_nothing_is_sent_twice_once_an_engine_has_the_request() -> None:
    with (
        SmallEngine(hangs_up) as one,
        SmallEngine(hangs_up) as other,
        gateway(one, other) as front,
    ):
        assert front.chat()[0] == 502
        assert sum(engines_asked(one, other)) == 1


def test_t64_a_broken_stream_is_not_sent_again() -> None:
    with SmallEngine(breaks) as one, SmallEngine(breaks) as other, gateway(one, other) as front:
        assert front.chat(stream=True)[2].count(EVENT) == 1
        assert sum(engines_asked(one, other)) == 1


def test_an_engine_that_is_gone_is_left_out_until_it_is_back() -> None:
    with ExitStack() as stack:
        free = socket.create_server(("127.0.0.1", 0))
        address = free.getsockname()
        free.close()
        good = stack.enter_context(SmallEngine(answers))
        gone = engine_table("gone", f"http://127.0.0.1:{address[1]}")
        front = stack.enter_context(gateway(good, config=gone))
        wait_until(lambda: front.condition("gone") == "down", "the probe", HANG_S)
        for number in range(4):
            assert front.chat(str(number))[1]["x-forebay-reason"] == "only"
        back = SmallEngine(streams)
        back._listening.close()
        back._listening = socket.create_server(address)
        stack.enter_context(back)
        wait_until(lambda: front.condition("gone") in {"trial", "up"}, "its return", HANG_S)
        wait_until(lambda: front.chat()[1]["x-forebay-engine"] == "gone", "its turn", HANG_S)
        assert front.condition("gone") == "up"


def test_without_any_engine_the_answer_says_when_to_come_back() -> None:
    with SmallEngine(hangs_up) as engine, gateway(engine) as front:
        for _ in range(3):
            assert front.chat()[0] == 502
        engine.health = 503
        wait_until(lambda: front.condition("a") == "down", "the probe", HANG_S)
        status, headers, said = front.chat()
        assert status == 503
        assert int(headers["retry-after"]) > 0
        assert "no engine of small is up" in json.loads(said)["error"]["message"]


def test_an_engine_of_another_model_is_not_used() -> None:
    with SmallEngine(answers) as engine, SmallEngine(answers) as other:
        wrong = engine_table("wrong", other.url, model="large")
        with gateway(engine, config=wrong) as front:
            wait_until(lambda: front.condition("wrong") == "other model", "the look", HANG_S)
            code, _, said = front.fetch("/v1/chat/completions", {"model": "large", "messages": []})
            assert code == 503
            assert b"no engine of large" in said


def test_a_new_gateway_learns_the_engines_states() -> None:
    with SmallEngine(answers) as engine, gateway(engine) as front:
        assert front.chat()[0] == 200
        front.kill()
        front.start()

        def is_known() -> bool:
            (state,) = front.status()["engines"]
            return front.condition("a") == "up" and state["kv_tokens"] == 16 * 99

        wait_until(is_known, "the engine and its KV cache", HANG_S)
        assert front.chat()[0] == 200


def test_an_engine_whose_answers_break_off_is_taken_out_of_use() -> None:
    """Each of them has begun well, which must not make up for those before."""
    with SmallEngine(breaks) as engine, gateway(engine) as front:
        for _ in range(3):
            assert front.chat(stream=True)[0] == 200
        assert "engine a is not used: it closed the connection" in front.text()


def test_an_engine_that_is_down_is_looked_at_without_the_pause_of_one_that_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever restarts it may give it another KV cache."""
    monkeypatch.setattr(watching, "WHILE_UP_S", 1e9)
    monkeypatch.setattr(watching, "WHILE_DOWN_S", 0.01)

    async def play(url: str, sizes: list[int]) -> None:
        table = {"engine": [{"name": "a", "model": MODEL, "url": url}]}
        dispatcher, client = Dispatcher(parse_config(table)), EngineClient()
        engine = dispatcher.engines["a"]
        task = asyncio.create_task(EngineWatch(dispatcher, client).run())
        async with asyncio.timeout(HANG_S):
            for size in sizes:
                while engine.kv_tokens != 16 * size:  # noqa: ASYNC110 - nothing else tells it
                    await asyncio.sleep(0.01)
                assert engine.is_used
                if size == sizes[0]:
                    stands.blocks = sizes[1]
                    dispatcher.failed(engine, "gone", is_gone=True)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()

    with SmallEngine(answers) as stands:
        asyncio.run(play(stands.url, [stands.blocks, 50]))
