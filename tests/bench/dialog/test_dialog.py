"""Dialogs: the same for the same seed, growing turn by turn, measured where a user would."""

import asyncio
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.talker import FIRST_S, Handler

from forebay.bench.dialog import client, engine, script
from forebay.bench.dialog.client import Answer, Endpoint, Failed
from forebay.bench.dialog.figures import figures_of, share_equal
from forebay.bench.dialog.holding import Held, Load, Turn, hold
from forebay.bench.dialog.script import Shape
from forebay.errors import StartupError

SHAPE = Shape(dialogs=3, turns=3, first_words=100, turn_words=10, answer_tokens=4, seed=7)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Endpoint("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join(10)


def ask(endpoint: Endpoint, model: str) -> Answer | Failed:
    return asyncio.run(client.ask(endpoint, model, [{"role": "user", "content": "a b c d"}], 5))


def test_the_same_seed_says_the_same_and_another_does_not() -> None:
    one, same = script.make(SHAPE), script.make(SHAPE)
    assert [dialog.messages() for dialog in one] == [dialog.messages() for dialog in same]
    openings = {dialog.messages()[0]["content"][:20] for dialog in one}
    other = Shape(3, 3, 100, 10, 4, seed=8)
    openings |= {dialog.messages()[0]["content"][:20] for dialog in script.make(other)}
    assert len(openings) == 6


def test_a_history_grows_by_what_was_said() -> None:
    dialog = script.make(SHAPE)[0]
    first = dialog.messages()
    assert len(re.findall(r"\w+", first[0]["content"])) == 100
    dialog.answered("Indeed.")
    second = dialog.messages()
    assert second[:1] == first
    assert second[1] == {"role": "assistant", "content": "Indeed."}
    assert len(second[2]["content"].split()) == 10
    assert dialog.turn == 1


def test_an_answer_is_measured_from_the_first_word_that_is_one(endpoint: Endpoint) -> None:
    answer = ask(endpoint, "m")
    assert isinstance(answer, Answer)
    assert answer.text == "w0 w1 w2 w3 w4 "
    assert (answer.prompt_tokens, answer.cached_tokens, answer.answer_tokens) == (4, 2, 5)
    assert FIRST_S <= answer.ttft_s <= answer.seconds
    assert answer.tpot_s >= 0


def test_a_request_that_fails_says_why(endpoint: Endpoint) -> None:
    refused, ended = ask(endpoint, "refuse"), ask(endpoint, "end")
    assert isinstance(refused, Failed)
    assert "404" in refused.why
    assert ended == Failed("the server broke off (IncompleteReadError)")
    assert isinstance(ask(Endpoint("127.0.0.1", engine.free_port()), "m"), Failed)
    with pytest.raises(StartupError, match="a request failed: the server answered 404"):
        hold(Load(endpoint, "refuse", 4), script.make(SHAPE), 1, lambda _turn: None)


@pytest.mark.parametrize("users", [1, 2])
def test_everyone_has_a_turn_before_anyone_has_the_next(endpoint: Endpoint, users: int) -> None:
    heard: list[Turn] = []
    held = hold(Load(endpoint, "m", 4, users), script.make(SHAPE), 3, heard.append)
    assert list(held.turns) == heard
    assert [turn.number for turn in heard] == [0] * 3 + [1] * 3 + [2] * 3
    if users == 1:
        assert [turn.dialog for turn in heard] == ["dialog 1", "dialog 2", "dialog 3"] * 3
    figures = figures_of(held)
    assert figures.requests == 9
    assert figures.prompt_tokens > figures.recomputed_tokens >= figures.prompt_tokens // 2
    assert figures.requests_per_s == pytest.approx(9 / held.seconds)
    assert min(figures.first_ttft_s, figures.later_ttft_s) >= FIRST_S


def test_equal_answers_are_counted() -> None:
    def turn(number: int, text: str) -> Turn:
        return Turn("d", number, Answer(text, 1.0, 2.0, 3, 0, 4))

    one = Held((turn(0, "a"), turn(1, "b")), 1.0)
    assert share_equal(one, one) == 1.0
    assert share_equal(one, Held((turn(0, "a"), turn(1, "c")), 1.0)) == 0.5


def test_an_engine_that_cannot_begin_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room'); raise SystemExit(3)"]
    begun = engine.running(command, {}, engine.free_port(), tmp_path / "log")
    with pytest.raises(StartupError, match="it said last:\nno room"), begun:
        pass


def test_an_engine_is_gone_afterwards_with_its_children(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    text = (
        "import http.server, subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n"
        "class Up(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Up).serve_forever()\n"
    )
    port, log = engine.free_port(), tmp_path / "log"
    with engine.running([sys.executable, "-c", text, str(port)], {}, port, log):
        pid = int(log.read_text().split()[0])
        assert Path(f"/proc/{pid}").exists()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
