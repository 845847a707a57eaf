"""What is measured is what was sent, against a server that keeps its own times.

The stub is another process with the same clock. Whoever else uses the machine, its interval from a
request's arrival to a token lies within the client's, and the client's within its caller's.
"""

import asyncio
import json
import time

from tests.stub_process import stub

from forebay.bench.load import client
from forebay.bench.load.client import Completion, Target, endpoint_of
from forebay.bench.load.clients import ClientGroup, run_clients
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.load.workloads import Stateless

TOKENS = 20


def test_the_servers_times_lie_within_the_clients_and_these_within_the_callers() -> None:
    with stub("--ttft-ms", "30", "--tpot-ms", "2") as served:
        target = Target(endpoint_of(served.url), "stub")
        queue = Stateless(200, TOKENS, 3).queue(SyntheticText(), 1, "s")
        begun = time.perf_counter()
        measured = asyncio.run(run_clients(target, queue, ClientGroup(1), lambda _taken: None))
        whole = time.perf_counter() - begun
        sent = served.told()["sent"]
    answers = [each.outcome for each in measured.finished if isinstance(each.outcome, Completion)]
    assert len(answers) == len(sent) == 3
    for answer, times in zip(answers, sent, strict=True):
        assert times["ttft"] <= answer.ttft_s
        assert times["ttft"] + (TOKENS - 1) * times["tpot"] <= answer.seconds
    assert sum(answer.seconds for answer in answers) <= measured.seconds <= whole


def test_128_streams_at_once_are_all_answered_whole() -> None:
    with stub("--ttft-ms", "200", "--tpot-ms", "5") as served:
        target = Target(endpoint_of(served.url), "stub")
        queue = Stateless(50, TOKENS, 1).queue(SyntheticText(), 128, "s")
        measured = asyncio.run(run_clients(target, queue, ClientGroup(128), lambda _taken: None))
    answers = [each.outcome for each in measured.finished if isinstance(each.outcome, Completion)]
    assert [answer.answer_tokens for answer in answers] == [TOKENS] * 128
    assert all(answer.text.count("w") == TOKENS for answer in answers)


def test_times_are_those_of_the_first_and_the_last_piece() -> None:
    stream = client._Stream()

    def hear(now: float, **choice: object) -> None:
        stream.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", now)

    hear(10.5, delta={"role": "assistant", "content": ""})  # says who answers, and no word
    hear(11.0, delta={"content": "a"})
    hear(12.0, delta={"content": "b"})
    hear(13.0, delta={}, finish_reason="length")  # a last token may be no text
    stream.feed(b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n', 14.0)
    assert stream.feed(b"data: [DONE]\n\n", 15.0)
    answer = stream.answer(10.0)
    assert isinstance(answer, Completion)
    assert (answer.ttft_s, answer.seconds, answer.tpot_s) == (1.0, 3.0, 1.0)


def test_token_ids_have_a_time_each() -> None:
    stream = client._Stream()
    for now, ids in ((2.0, [5]), (3.0, [6, 7])):
        event = {"choices": [{"text": "", "token_ids": ids}]}
        stream.feed(b"data: " + json.dumps(event).encode() + b"\n\n", now)
    stream.feed(b"data: [DONE]\n\n", 4.0)
    answer = stream.answer(1.0)
    assert isinstance(answer, Completion)
    assert (answer.tokens, answer.token_times_s) == ((5, 6, 7), (1.0, 2.0, 2.0))
    assert (answer.ttft_s, answer.answer_tokens) == (1.0, 3)
