"""A trace has who asked for which chunks and when, and nothing that could be read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced
from tests import pool_process
from tests.pool_process import PatientClient, made

from forebay.errors import StartupError
from forebay.pool.messages import AnswerEnd
from forebay.pool.trace import Recorder
from forebay.record.region import short
from forebay.sim.replay import NAMES, Sizes, simulate
from forebay.sim.trace import CHUNK_TOKENS, read_trace, schedule


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests_are_recorded_by_number(place: Path) -> None:
    path = place / "trace.jsonl"
    recorder = Recorder(str(path), 1 << 20)
    for keys, now in ((b"ab", 100.0), (b"abc", 100.5), (b"xa", 101.0), (b"", 102.0)):
        recorder.request(b"".join(bytes([key]) * 16 for key in keys), now)
    recorder.close(300)
    found = lines(path)
    assert [line["hash_ids"] for line in found] == [[0, 1], [0, 1, 2], [3, 0], []]
    assert [line["timestamp"] for line in found] == [0, 500, 1000, 2000]
    assert [line["input_length"] for line in found] == [1024, 1536, 1024, 0]
    assert path.stat().st_mode & 0o777 == 0o600


def test_how_answers_ended_is_recorded_with_their_requests(place: Path) -> None:
    path = place / "trace.jsonl"
    recorder = Recorder(str(path), 1 << 20)
    for key in b"abc":
        recorder.request(bytes([key]) * 16, 100.0)
    end = AnswerEnd(b"b" * 16, 17, 2, 300, 9000, session=b"secret", keep_s=float("nan"))
    recorder.ended(end.bounded(), 109.0)
    recorder.ended(replaced(end, key=b"z" * 16), 110.0)  # nobody asked
    recorder.request(b"d" * 16, 1000.0)  # long after the others
    recorder.close(300)
    found = lines(path)
    assert [line["hash_ids"] for line in found] == [[1], [0], [2], [3]]
    known = {"output_length": 300, "duration_ms": 9000, "ended": 17, "after": 2, "session": 0}
    assert found[0] == {"timestamp": 0, "input_length": 512, "hash_ids": [1]} | known
    assert "ended" not in found[1]
    again = list(schedule(read_trace(path)))
    assert [request.ending.kind for request in again if request.ending] == [17]


def test_two_requests_with_one_last_chunk_have_each_its_own_end(place: Path) -> None:
    """The later one is answered first."""
    path = place / "trace.jsonl"
    recorder = Recorder(str(path), 1 << 20)
    for arrived in (100.0, 103.0, 104.0):
        recorder.request(b"a" * 16, arrived)
    recorder.ended(AnswerEnd(b"a" * 16, 2, 0, 1, 1000), 104.0)
    recorder.ended(AnswerEnd(b"a" * 16, 1, 0, 2, 9000, 500), 109.5)
    recorder.close(300)
    found = [(line["timestamp"], line["output_length"], line.get("ended")) for line in lines(path)]
    assert found == [(3000, 1, 2), (0, 2, 1), (4000, 0, None)]


def test_a_request_of_which_nothing_is_stored_is_replayed_as_such(place: Path) -> None:
    path = place / "trace.jsonl"
    recorder = Recorder(str(path), 1 << 20)
    for turn, stores in enumerate((False, True, True, False)):
        recorder.request(bytes(16), 10.0 * turn)
        recorder.ended(AnswerEnd(bytes(16), 2, 0, 1, 1000, stores=stores), 10.0 * turn + 1)
    recorder.close(300)
    assert [line.get("store") for line in lines(path)] == [False, None, None, False]
    requests = list(schedule(read_trace(path)))
    for policy in NAMES:
        found = simulate(policy, requests, Sizes(4, (16,)))
        assert found.tokens - found.recomputed_tokens == 2 * CHUNK_TOKENS, policy


def test_the_file_is_capped(place: Path) -> None:
    path = place / "trace.jsonl"
    recorder = Recorder(str(path), 500)
    for number in range(100):
        recorder.request(bytes([number]) * 16, number)
    recorder.close(300)
    assert 300 < path.stat().st_size <= 500
    assert lines(path)


def test_a_file_of_the_user_is_not_overwritten(place: Path) -> None:
    path = place / "trace.jsonl"
    path.write_text("mine")
    with pytest.raises(StartupError, match="exists"):
        Recorder(str(path), 500)
    assert path.read_text() == "mine"


def test_an_empty_file_of_the_user_is_used(place: Path) -> None:
    path = place / "trace.jsonl"
    path.touch()
    recorder = Recorder(str(path), 500)
    recorder.request(bytes(16), 0)
    recorder.close(300)
    assert lines(path)
    (place / "link").symlink_to(path)
    (place / "directory").mkdir()
    for other in ("link", "directory"):
        with pytest.raises(StartupError):
            Recorder(str(place / other), 500)


def test_a_pool_records_its_lookups_and_no_key(place: Path) -> None:
    path = place / "trace.jsonl"
    chunks, chain = made("traced")
    with (
        pool_process.serving(place, replace(pool_process.SMALL, trace=str(path))) as service,
        PatientClient(service.address.path) as client,
    ):
        client.lookup(chain)
        client.store(chain, [chunk.payload for chunk in chunks])
        client.lookup(chain)
    assert [line["hash_ids"] for line in lines(path)] == [[0, 1, 2, 3]] * 2
    content = path.read_bytes()
    for key in chain.keys:
        assert short(key) not in content
        assert key.hex()[:8].encode() not in content
