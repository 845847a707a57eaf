"""How answers end reaches the pool and its trace, and nothing that anybody wrote or said does."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.test_scheduler_side import LIMITS, ROOT, SHAPE, Output
from tests.pool_process import running_pool, short_directory, wait_until

from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.identity.endings import MARKER_FIRST, EndingClass
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
FIRST_ID = 123_456_000  # of all tokens, so that each would be seen in a file
TOOL, TURN, END = FIRST_ID + 901, FIRST_ID + 902, FIRST_ID + 903
SESSION = "a session of great secrecy"
TURNS = 12  # of a dialog: tool calls, and every fourth answer is for a person


def ended_request(name: str, prompt: list[int], answer: list[int], hints: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request, RequestStatus

    extra = {"kv_transfer_params": {"forebay": hints}}
    params = SamplingParams(max_tokens=64, extra_args=extra)
    request = Request(name, prompt, params, None)
    request.append_output_token_ids(answer)
    request.status = RequestStatus.FINISHED_STOPPED
    return request


def serve_dialog(side: SchedulerConnector, dialog: int, hints: Any) -> None:
    """A dialog whose every prompt goes on behind the answer before it."""
    text = [FIRST_ID + dialog + n for n in range(SHAPE.chunk_tokens)]
    for turn in range(TURNS):
        marker = TURN if turn % 4 == 3 else TOOL
        text = [*text, *(FIRST_ID + 100 + turn for _ in range(SHAPE.chunk_tokens))]
        answer = [FIRST_ID + 300 + turn, marker, END]
        request = ended_request(f"request {turn}", text, answer, hints)
        side.arrived(request)
        side.finished(request.request_id)
        side.begin_step(Output)
        text = [*text, *answer]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_trace_has_the_classes_of_tool_calls_and_user_turns_and_no_content() -> None:
    with short_directory() as place:
        path = place / "trace.jsonl"
        with running_pool(place, "--trace", str(path), disk=False) as pool:
            side = SchedulerConnector(
                PoolSession(pool.socket, Clock(), maps_slab=False), SHAPE, LIMITS
            )
            side.join()
            side.root = ROOT
            for dialog in range(2):
                serve_dialog(side, dialog, {"session": SESSION, "returns_in_s": 5, "priority": 9})
            side.begin_step(Output)
            side.look_after_pool()
            wait_until(lambda: len(lines(path)) == 2 * TURNS, "the trace")
            side.close()
        found = [line for line in lines(path) if line["hash_ids"][0]]  # of the second dialog
        found.sort(key=lambda line: len(line["hash_ids"]))
        log = pool.log.read_text()
        classes = [line["ended"] for line in found]
        tool, turn = classes[-2], classes[-1]
        assert min(tool, turn) >= MARKER_FIRST
        assert tool != turn
        assert classes == [turn if number % 4 == 3 else tool for number in range(TURNS)]
        assert [line["after"] for line in found[1:]] == classes[:-1]
        assert {line["output_length"] for line in found} == {3}
        assert {line["session"] for line in found} == {0}
        assert {line["returns_in_s"] for line in found} == {5.0}
        assert {line["priority"] for line in found} == {2}
        assert all("store" not in line for line in found)
        for content in (path.read_text(), log):
            assert "123456" not in content
            assert "secrecy" not in content


def test_a_gateway_says_how_the_answer_before_ended_and_that_nothing_is_stored() -> None:
    with short_directory() as place:
        path = place / "trace.jsonl"
        with running_pool(place, "--trace", str(path), disk=False) as pool:
            side = SchedulerConnector(
                PoolSession(pool.socket, Clock(), maps_slab=False), SHAPE, LIMITS
            )
            side.join()
            side.root = ROOT
            prompt = [FIRST_ID + n for n in range(SHAPE.chunk_tokens + 1)]
            hints = {"ended": "tool_call", "store": False}
            request = ended_request("request", prompt, [END], hints)
            side.arrived(request)
            assert not side._requests["request"].store.is_wanted
            assert side._requests["request"].load.is_wanted
            side.finished("request")
            side.begin_step(Output)
            side.look_after_pool()
            wait_until(lambda: len(lines(path)) == 1, "the trace")
            assert lines(path)[0]["after"] == EndingClass.TOOL_CALL
            assert lines(path)[0]["ended"] == EndingClass.STOP
            assert lines(path)[0]["store"] is False
            side.close()
