"""What an answer says of itself: its tokens in each API's words, why it ended, its name."""

import json
from contextlib import ExitStack
from typing import Any

import pytest
from tests.gateway.test_placement import asked, config, done, placed
from tests.gateway_harness import (
    MODEL,
    STREAM_HEAD,
    Asked,
    SmallEngine,
    chunk,
    gateway,
    whole,
)

from forebay.gateway.front.observing import TAIL_BYTES, AnswerObserver
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.request import ServedTokens
from forebay.testing.clock import ManualClock


def event(said: Any) -> bytes:
    return b"event: x\ndata: %b\n\n" % json.dumps(said).encode()


def observed(*said: Any, is_stream: bool, is_response: bool = False) -> AnswerObserver:
    observer = AnswerObserver(is_stream=is_stream, is_response=is_response)
    for each in said:
        observer.passing(event(each) if is_stream else json.dumps(each).encode())
    return observer


# What vLLM says, with --enable-prompt-tokens-details and without.
@pytest.mark.parametrize(
    ("usage", "served"),
    [
        (
            {
                "prompt_tokens": 100, "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 60},
            },
            ServedTokens(100, 60, 3),
        ),
        (
            {
                "prompt_tokens": 100, "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            ServedTokens(100, 0, 3),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 3}, ServedTokens(100, None, 3)),
        (
            {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": None},
            ServedTokens(100, None, 3),
        ),
        (
            {
                "input_tokens": 100, "output_tokens": 3,
                "input_tokens_details": {"cached_tokens": 60},
            },
            ServedTokens(100, 60, 3),
        ),
        # Of the Messages API, where what was cached is not among `input_tokens`.
        (
            {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 3},
            ServedTokens(100, 60, 3),
        ),
        (
            {
                "input_tokens": 30, "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 10, "output_tokens": 3,
            },
            ServedTokens(100, 60, 3),
        ),
        ({"input_tokens": 100, "output_tokens": 3}, ServedTokens(100, None, 3)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
def test_tokens_of_an_answer(usage: Any, served: ServedTokens, is_stream: bool) -> None:
    assert observed({"usage": usage}, is_stream=is_stream).served() == served


def test_what_is_not_said_of_the_cache_is_expected() -> None:
    """Without details a key does not pay again for a prompt that its engine likely has."""
    dispatcher = Dispatcher(config(1), ManualClock())
    first = asked(("a", 4000))
    placed(dispatcher, first)
    assert first.uncached(ServedTokens(900, None, 5)) == 900
    done(dispatcher, first)
    again = asked(("a", 4000), ("b", 1000))
    placed(dispatcher, again)
    assert again.uncached(ServedTokens(1200, None, 5)) == pytest.approx(240)
    assert again.uncached(ServedTokens(1200, 0, 5)) == 1200
    assert again.uncached(ServedTokens(1200, 1100, 5)) == 100


CALL = {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "c"}
TEXT = {"type": "message", "content": [{"type": "output_text", "text": "w" * TAIL_BYTES}]}


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ({"status": "completed", "output": [TEXT]}, "stop"),
        ({"status": "completed", "output": [TEXT, CALL]}, "tool_call"),
        (
            {
                "status": "incomplete", "output": [TEXT],
                "incomplete_details": {"reason": "max_output_tokens"},
            },
            "length",
        ),
        (
            {
                "status": "incomplete", "output": [],
                "incomplete_details": {"reason": "content_filter"},
            },
            "",
        ),
        ({"status": "failed", "output": []}, ""),
        ({"status": "in_progress", "output": [TEXT], "incomplete_details": None}, ""),
    ],
)  # fmt: skip
def test_why_an_answer_of_the_responses_api_ended(said: Any, ended: str) -> None:
    said = {"id": "resp_1", "object": "response", **said}
    assert observed(said, is_stream=False, is_response=True).ended() == ended
    begun = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "w"}
    last = {"type": "response.completed", "response": said}
    streamed = observed(begun, delta, last, is_stream=True, is_response=True)
    assert streamed.ended() == ended
    assert streamed.name == "resp_1"


def test_what_is_continued_goes_to_the_engine_that_holds_it() -> None:
    """Streamed or not; the engine is known as soon as the client can know the answer's name."""

    def responds(engine: SmallEngine, asked: Asked) -> Any:
        name = f"resp_{engine.address}_{len(engine.asked)}"
        said = {"id": name, "object": "response", "status": "completed", "output": []}
        if b'"stream": true' not in asked.body:
            yield whole(200, json.dumps(said).encode())
            return
        yield STREAM_HEAD + chunk(event({"type": "response.created", "response": said}))
        yield chunk(event({"type": "response.completed", "response": said})) + b"0\r\n\r\n"

    with ExitStack() as stack:
        engines = [stack.enter_context(SmallEngine(responds)) for _ in range(2)]
        front = stack.enter_context(gateway(*engines))
        for is_stream in (False, True):
            for _ in range(4):
                body = {"model": MODEL, "input": "Hi", "stream": is_stream}
                _, headers, first = front.fetch("/v1/responses", body)
                name = first.split(b'"id": "')[1].split(b'"')[0].decode()
                more = {**body, "input": "And?", "previous_response_id": name}
                found = front.fetch("/v1/responses", more)[1]
                assert found["x-forebay-engine"] == headers["x-forebay-engine"]
        unknown = {"model": MODEL, "input": "And?", "previous_response_id": ["x"]}
        assert front.fetch("/v1/responses", unknown)[0] == 200
