"""Traces replayed: equal text exactly where the trace has equal blocks; the user's own lines."""

import json
import lzma
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from forebay.bench.load.sessions import ChatSession, PromptRequest, SyntheticText
from forebay.bench.load.traces import AgentTrace, ChatTrace, RequestFile
from forebay.errors import SettingsError

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "traces"
PROSE = SyntheticText(2.0)
SAMPLES = {"agent": "agent-sample.jsonl.xz", "chat": "chat-sample.jsonl.xz"}


def asks(session: ChatSession) -> list[PromptRequest]:
    found = []
    while session.remaining():
        found.append(session.request())
        session.add_answer("")
    return found


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shared_words(one: PromptRequest, two: PromptRequest) -> int:
    pairs = zip(*(ask.messages[0]["content"].split() for ask in (one, two)), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_small_and_licensed(name: str) -> None:
    path = TRACES / SAMPLES[name]
    assert path.stat().st_size <= 200_000
    licence = path.with_name(f"{name}-sample.LICENSE").read_text()
    assert "Apache License" in licence
    assert path.name in (TRACES / "README.md").read_text()


def test_agents_say_the_same_where_blocks_are_equal(tmp_path: Path) -> None:
    def request(t: float, tokens: int, *ranges: list[int]) -> dict[str, Any]:
        row = {"t": t, "type": "n", "in": tokens, "out": 9, "think_time": 4.0}
        return {**row, "hash_ranges": list(ranges)}

    inner = {"type": "subagent", "t": 5.0, "requests": [request(1.0, 128, [90, 91])]}
    session = {
        "id": "a",
        "block_size": 64,
        "requests": [
            request(0.0, 200, [1, 3]),
            request(9.0, 256, [1, 4]),
            inner,
            request(20.0, 256, [1, 2], [7, 8]),
        ],
    }
    path = write(tmp_path / "t.jsonl", session, {**session, "id": "b"})
    one, two = map(asks, AgentTrace(path, think=0.5).queue(PROSE, 2, "s"))
    assert [ask.turn for ask in one] == [0, 1, 2, 3]  # the sub-agent's in order of time
    assert [ask.pause_s for ask in one] == [2.0] * 4
    assert {ask.answer_tokens for ask in one} == {9}
    words = 64 // 2
    assert shared_words(one[0], one[2]) == 3 * words
    assert shared_words(one[0], one[3]) == 2 * words
    assert shared_words(one[0], one[1]) == 0
    assert shared_words(one[0], two[0]) == 0  # ids are local to their session
    assert len(one[0].messages[0]["content"].split()) == 100


def test_chat_shares_blocks_between_requests_and_keeps_time(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 2000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 0, "input_length": 1536, "output_length": 7, "hash_ids": [1, 2, 4]},
    ]
    path = write(tmp_path / "t.jsonl", *rows)
    workload = ChatTrace(path, think=0.1, block_tokens=64, answer_tokens=3)
    first, second = (asks(session)[0] for session in workload.queue(PROSE, 2, "s"))
    assert (first.at_s, second.at_s) == (0.0, 0.2)
    assert first.answer_tokens == second.answer_tokens == 3
    assert shared_words(first, second) == 2 * 32
    again = next(iter(workload.queue(PROSE, 2, "other")))
    assert shared_words(first, again.request()) == 0


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_can_be_replayed(name: str) -> None:
    path = TRACES / SAMPLES[name]
    kind: type[AgentTrace | ChatTrace] = AgentTrace if name == "agent" else ChatTrace
    workload = kind(path, prompt_tokens_max=4000, block_tokens=4, sessions=5)
    sessions = list(workload.queue(PROSE, 2, "s"))
    assert len(sessions) == 5
    found = [ask for session in sessions for ask in asks(session)]
    assert all(1 <= len(ask.messages[0]["content"].split()) <= 2100 for ask in found)
    assert workload.options()["trace"] == path.name
    with pytest.raises(SettingsError, match="nothing to ask"):
        kind(path, prompt_tokens_max=1).queue(PROSE, 1, "s")


def test_lines_of_the_users_own(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    path = write(
        tmp_path / "mine.jsonl",
        {"prompt": "Hello"},
        {"messages": messages, "answer_tokens": 7},
        {"turns": ["One", "Two"]},
    )
    one, two, three = map(asks, RequestFile(path, answer_tokens=50).queue(PROSE, 9, "s"))
    assert one == [PromptRequest([{"role": "user", "content": "Hello"}], 50)]
    assert two == [PromptRequest(messages, 7)]
    assert [ask.turn for ask in three] == [0, 1]
    assert three[1].messages[-1]["content"] == "Two"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("nonsense\n", "line 1 of"),
        ('{"prompt": "a"}\n{"prompt": 3}\n', "line 2 of"),
        ('{"prompt": "a", "turns": ["b"]}\n', "must have one of"),
        ('{"turns": []}\n', "line 1 of"),
        ('{"promt": "a"}\n', "promt"),
        ('{"prompt": "a", "answer_tokens": 0}\n', "answer_tokens"),
    ],
)
def test_lines_that_cannot_be_meant(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(SettingsError, match=said):
        list(RequestFile(path).queue(PROSE, 1, "s"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        RequestFile(tmp_path / "none.jsonl").queue(PROSE, 1, "s")
    broken = tmp_path / "broken.jsonl.xz"
    broken.write_bytes(lzma.compress(b'{"prompt": "a"}\n')[:-8])
    with pytest.raises(SettingsError, match="cannot be read"):
        RequestFile(broken).queue(PROSE, 1, "s")
    wide = {"id": "a", "block_size": 64, "requests": [{"in": 10**9, "hash_ranges": [[0, 10**9]]}]}
    with pytest.raises(SettingsError, match="line 1 of"):
        AgentTrace(write(tmp_path / "wide.jsonl", wide)).queue(PROSE, 1, "s")
