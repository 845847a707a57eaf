"""Both trace formats, the schedule of users, and the baselines on cases that are known by hand."""

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingsError
from forebay.sim.classic import Arc, Cache, Fifo, Lru, Optimum, S3Fifo
from forebay.sim.trace import Request, Trace, read_trace, schedule


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"\n".join(json.dumps(row).encode() for row in rows))
    return path


def agent(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "block_size": 64, "requests": list(requests)}


def turn(at_s: float, tokens: int, *ranges: list[int]) -> dict[str, Any]:
    return {"t": at_s, "type": "n", "in": tokens, "out": 1, "hash_ranges": list(ranges)}


def test_conversation_keeps_whole_chunks_only(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 2000, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [0, 3]},
    ]
    path = tmp_path / "t.jsonl.xz"
    path.write_bytes(lzma.compress(b"\n".join(json.dumps(row).encode() for row in rows)))
    trace = read_trace(path)
    first, second = schedule(trace)
    assert (first.at_s, second.at_s, second.tokens) == (0.0, 2.0, 1100)
    assert len(first.keys) == len(second.keys) == 2
    assert first.keys[0] is second.keys[0]
    assert first.keys[1] != second.keys[1]


def test_agent_chunks_are_equal_where_all_blocks_up_to_them_are(tmp_path: Path) -> None:
    rows = [
        agent("a", turn(0, 1600, [1, 25]), turn(5, 1600, [1, 15], [90, 99])),
        agent("b", turn(0, 512, [1, 8])),
    ]
    a, b = read_trace(write(tmp_path / "t", rows)).sessions
    assert [len(request.keys) for request in a] == [3, 3]
    assert a[0].keys[0] == a[1].keys[0]
    assert a[0].keys[1] != a[1].keys[1]
    assert b[0].keys[0] not in a[0].keys, "ids are local to their session"


def test_sub_agents_run_beside_their_session_and_long_prompts_are_left_out(tmp_path: Path) -> None:
    nested = {"type": "subagent", "t": 10.0, "requests": [turn(2, 512, [50, 57])]}
    rows = [agent("a", turn(0, 512, [1, 8]), nested, turn(11, 512, [1, 8]))]
    rows.append(agent("b", turn(0, 9999, [1, 100])))
    trace = read_trace(write(tmp_path / "t", rows), prompt_tokens_max=9000)
    assert [[r.at_s for r in session] for session in trace.sessions] == [[0, 11, 12]]


def test_users_follow_one_another() -> None:
    sessions = [[Request(0, keys(i), 512), Request(5 + i, keys(i), 512)] for i in range(3)]
    trace = Trace(sessions, open_loop=False)
    assert [r.at_s for r in schedule(trace, users=1)] == [0, 5, 5, 11, 11, 18]
    assert [r.at_s for r in schedule(trace, users=2)] == [0, 0, 5, 5, 6, 12]
    assert len(list(schedule(trace))) == 6
    assert trace.half(0).sessions == [sessions[0], sessions[2]]


@pytest.mark.parametrize("text", ["", "not json", '{"hash_ids": [1]}', '{"x": 1}', "[]"])
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(SettingsError, match="trace"):
        read_trace(tmp_path / "t")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_trace(tmp_path / "none")


def hits(cache: Cache, requests: list[Request]) -> int:
    return sum(cache.serve(request.keys) for request in requests)


LOOP = [Request(float(i), keys(i % 15), 512) for i in range(1500)]


@pytest.mark.parametrize(("make", "most"), [(Lru, 0), (Fifo, 0), (S3Fifo, 600), (Arc, 0)])
def test_textbook_policies_fail_on_a_loop(make: Callable[[int], Cache], most: int) -> None:
    assert hits(make(10), LOOP) <= most
    assert hits(make(15), LOOP) == 1485


def test_optimum_holds_two_thirds_of_a_loop() -> None:
    assert 950 <= hits(Optimum(10, LOOP), LOOP) <= 1000


def test_lru_lets_the_tail_go_first_and_fifo_ignores_hits() -> None:
    lru, fifo = Lru(3), Fifo(3)
    for cache in (lru, fifo):
        assert cache.serve(keys(1, 2, 3)) == 0
        assert cache.serve(keys(1, 2, 3)) == 3
        assert cache.serve(keys(9)) == 0
        assert cache.serve(keys(1, 2, 3)) == 2
    assert lru.inserted == 5


@pytest.mark.parametrize("make", [Lru, Fifo, S3Fifo, Arc])
def test_capacity_is_never_exceeded(make: Callable[[int], Any]) -> None:
    cache = make(7)
    for i in range(400):
        cache.serve(keys(*range(i * 7 % 30, i * 7 % 30 + i % 5 + 1)))
        inside = sum(key in cache.held for key in keys(*range(40)))
        assert inside <= 7


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"timestamp": 0, "input_length": 1e999, "output_length": 1, "hash_ids": [1]}',
        b'{"id": "a", "block_size": 0, "requests": [{"t": 0, "in": 5, "hash_ranges": [[0, 1]]}]}',
        b'{"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 5, "hash_ranges": [[0]]}]}',
        b"\xff\xfe",
        b"null",
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(SettingsError, match=f"^line 2 of '{path}' is not as docs/bench.md says: "):
        read_trace(path)


def test_what_cannot_be_opened_or_holds_nothing_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"/none' cannot be read: No such file or directory.$"):
        read_trace(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(SettingsError, match="/empty' is empty"):
        read_trace(tmp_path / "empty")


def test_a_trace_that_was_cut_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(
        lzma.compress(b'{"timestamp": 0, "input_length": 9, "hash_ids": []}\n' * 1000)[:-20]
    )
    with pytest.raises(SettingsError, match=r"it is no complete \.xz file"):
        read_trace(path)
