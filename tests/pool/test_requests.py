"""What engines tell of their requests, what the pool adds, and what `forebay why` says of it."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pool_process import (
    HANG_S,
    SMALL,
    PatientClient,
    environment,
    made,
    serving,
    short_directory,
    wait_until,
)

from forebay.cli.main import main
from forebay.decisions import WORDS, Decision
from forebay.pool.client import Chain
from forebay.pool.client.session import PoolSession
from forebay.pool.core.recent.lost_keys import KEYS_MAX, LostKeys
from forebay.pool.core.recent.prompt_tags import TAGS_MAX, PromptTags
from forebay.pool.messages import (
    REQUESTS_KEPT,
    Describe,
    Found,
    Lookup,
    Outcome,
    RequestOutcomes,
    RequestsQuery,
)
from forebay.pool.server.admission import Roles
from forebay.pool.server.connection import Connection
from forebay.pool.service import Service
from forebay.sys.clock import Clock
from forebay.sys.sockets import Peer
from forebay.tiers.contract import EvictionCause

CHUNK = 64
TOLD = Outcome("r1", "unknown", "", 0, 700, 64, 0, [0, 0], 636, 0.1, 2.0, 0.0, 0.0, False)
TOLD_ALL = RequestOutcomes([TOLD])


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@contextmanager
def engine_of(service: Service) -> Iterator[PoolSession]:
    """A session that says what an engine's scheduler says."""
    session = PoolSession(service.address.path, Clock(), maps_slab=False)
    assert session.wait_until_joined(time.monotonic() + HANG_S)
    yield session
    session.close()


def describe(session: PoolSession, chain: Chain, sharing: str = "sharing") -> None:
    session.post(Describe("a model", "vLLM 0.32.0", sharing, "", chain.namespace, CHUNK))


def look_up(session: PoolSession, number: int, chain: Chain, tag: bytes = b"") -> Found:
    session.post(Lookup(number, chain.namespace, 0, chain.shorts(), b"", tag))
    found = session.take(time.monotonic() + HANG_S)
    assert isinstance(found, Found)
    return found


def tell(session: PoolSession, **fields: Any) -> None:
    session.post(RequestOutcomes([msgspec.structs.replace(TOLD, **fields)]))


def why(service: Service, *, after: int) -> dict[str, Any]:
    """The request with the next number."""
    found: dict[str, Any] = {}

    def is_told() -> bool:
        with PatientClient(service.address.path) as client:
            reply = client.requests("", REQUESTS_KEPT, after, HANG_S)
        assert isinstance(reply, dict)
        found.update(reply)
        return bool(reply["requests"])

    wait_until(is_told, "a request")
    request: dict[str, Any] = found["requests"][0]
    return request


def test_the_pool_says_why_what_it_had_is_gone(place: Path) -> None:
    chunks, chain = made("gone", 4, 4000)
    other = Chain(bytes(32), chain.keys)
    with serving(place) as service, engine_of(service) as engine:
        describe(engine, chain)
        with PatientClient(service.address.path) as client:
            client.store(chain, [chunk.payload for chunk in chunks])
            assert look_up(engine, 1, chain, b"t" * 8).known == 4
            tell(engine, lookup=1, decision="loaded", loaded=[192, 0], engine_tokens=64)
            said = why(service, after=0)
            assert (said["decision"], said["beyond"]) == ("loaded", None)
            assert said["found_tokens"] == {"dram": 4 * CHUNK}
            assert said["loaded_tokens"] == {"dram": 192}
            assert (said["model"], said["namespace"]) == ("a model", chain.namespace.hex()[:16])
            assert client.clear(None, HANG_S)
        look_up(engine, 2, chain, b"t" * 8)
        tell(engine, lookup=2)
        assert why(service, after=1)["decision"] == "cleared"
        look_up(engine, 3, other, b"t" * 8)
        tell(engine, lookup=3)
        said = why(service, after=2)
        assert said["decision"] == "cleared", "a key is a key"
        look_up(engine, 4, Chain(bytes(32), [bytes(32)]), b"t" * 8)
        tell(engine, lookup=4)
        assert why(service, after=3)["decision"] == "other_model"
        tell(engine, lookup=5)
        assert why(service, after=4)["decision"] == "unknown", "of which the pool knows nothing"
        figures = service.stats(HANG_S)
        assert figures is not None
        counted = dict(_values(figures, "requests", "outcome"))
        assert counted == {"loaded": 1, "cleared": 2, "other_model": 1, "unknown": 1}
        tokens = dict(_values(figures, "request_tokens", "source"))
        assert (tokens["engine"], tokens["dram"]) == (5 * 64, 192)


def _values(figures: dict[str, Any], metric: str, label: str) -> list[tuple[str, int]]:
    return [(labels[label], n) for labels, n in figures["metrics"][metric]["values"]]


def test_what_means_nothing_is_not_kept_and_the_ring_is_bounded(place: Path) -> None:
    nonsense: list[dict[str, Any]] = [
        {"decision": "made up"},
        {"request": "a\nb"},
        {"detail": "\x1b[31m"},
        {"prompt_tokens": -1},
        {"loaded": [-5]},
        {"wait_ms": float("nan")},
        {"saved_gpu_ms": float("inf")},
        {"age_ms": 1 << 60},
    ]
    with serving(place) as service, engine_of(service) as engine:
        for fields in nonsense:
            tell(engine, **fields)
        for first in range(0, REQUESTS_KEPT + 100, 20):
            names = [f"r{number}" for number in range(first, first + 20)]
            engine.post(
                RequestOutcomes([msgspec.structs.replace(TOLD, request=name) for name in names])
            )
        with PatientClient(service.address.path) as client:

            def newest() -> object:
                reply = client.requests("", 1, 0, HANG_S)
                return reply["newest"] if isinstance(reply, dict) else reply

            wait_until(lambda: newest() == REQUESTS_KEPT + 100, "all of them, and no nonsense")
            found = client.requests("", REQUESTS_KEPT, 0, HANG_S)
            assert isinstance(found, dict)
            told = [each["number"] for each in found["requests"]]  # type: ignore[attr-defined]
            assert told == list(range(101, REQUESTS_KEPT + 101)), "the last ones, the newest last"
            named = client.requests("r109", 5, 0, HANG_S)
            assert isinstance(named, dict)
            said = [each["request"] for each in named["requests"]]  # type: ignore[attr-defined]
            assert said == [f"r109{digit}" for digit in range(5, 10)]
            assert found["kept"] == REQUESTS_KEPT
        assert len(service.requests(0, 7, HANG_S) or []) == 7, "as the HTTP port has them"


def test_memories_are_bounded_and_the_better_reason_counts() -> None:
    lost, tags = LostKeys(), PromptTags()
    lost.note(b"damaged", Decision.CORRUPT)
    lost.left(b"damaged", EvictionCause.SPACE)
    assert lost.reason(b"damaged") is Decision.CORRUPT
    lost.forget(b"damaged")
    assert lost.reason(b"damaged") is None, "it is here again"
    for number in range(KEYS_MAX + 1):
        lost.left(number.to_bytes(4), EvictionCause.SPACE)
    assert len(lost) == KEYS_MAX
    assert lost.reason(bytes(4)) is None
    assert lost.reason((1).to_bytes(4)) is Decision.EVICTED
    assert not tags.seen(b"first", b"one")
    for number in range(TAGS_MAX - 1):
        tags.seen(number.to_bytes(4), b"one")
    assert tags.seen(b"first", b"two")
    tags.seen(b"one more", b"one")
    assert not tags.seen(bytes(4), b"two"), "forgotten"


def test_every_decision_has_words() -> None:
    assert set(WORDS) == set(Decision)
    assert all(words.what.endswith(".") for words in WORDS.values())


def test_an_engine_that_shares_nothing_is_listed_and_keeps_no_pool_alive(place: Path) -> None:
    _, chain = made("nothing", 1)
    service = Service.open(replace(SMALL, socket=str(place / "pool.sock")))
    session = PoolSession(service.address.path, Clock(), maps_slab=False)
    session.poll()
    describe(session, chain, "declined")
    thread = threading.Thread(target=service.run, args=(0.1,))
    thread.start()
    thread.join(HANG_S)
    has_ended = not thread.is_alive()
    listed = service._server.stats()["engines"]
    service.stop()
    thread.join(HANG_S)
    service.close(HANG_S)
    session.close()
    assert has_ended, "though the engine is connected"
    assert [engine["sharing"] for engine in listed] == ["declined"]


def test_who_only_looks_keeps_no_pool_alive(place: Path) -> None:
    """An operator's command, such as `top`, stays connected for as long as it runs."""
    service = Service.open(replace(SMALL, socket=str(place / "pool.sock")))
    thread = threading.Thread(target=service.run, args=(0.1,))
    operator = PoolSession(service.address.path, Clock())
    operator.is_operator = True
    operator.poll()
    thread.start()
    thread.join(HANG_S)
    has_ended = not thread.is_alive()
    service.stop()
    thread.join(HANG_S)
    service.close(HANG_S)
    operator.close()
    assert has_ended


def printed(capsys: pytest.CaptureFixture[str], service: Service, *words: str) -> tuple[int, str]:
    """What `forebay why` answers; a busy machine may let it give up before."""
    answers: list[tuple[int, str]] = []

    def is_answered() -> bool:
        capsys.readouterr()
        status = main(["why", *words, "--socket", service.address.path])
        answers.append((status, capsys.readouterr().out))
        return status != 2

    wait_until(is_answered, "an answer")
    return answers[-1]


def test_why_prints_a_table_a_block_and_json(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, chain = made("printed", 1)
    with serving(place) as service, engine_of(service) as engine:
        assert printed(capsys, service)[1].startswith("no request yet\nno engine has joined")
        describe(engine, chain, "hashing_weights")
        wait_until(
            lambda: "vLLM 0.32.0 with a model: hashing_weights" in printed(capsys, service)[1],
            "the engine",
        )
        tell(engine, request="one", decision="loaded", loaded=[256, 128], computed_tokens=252)
        why(service, after=0)
        status, text = printed(capsys, service, "one")
        assert status == 0
        assert "loaded      256 tokens from dram" in text, "the pool has no second tier"
        tell(engine, request="two", decision="not_shared", detail="it skips vLLM's own cache")
        why(service, after=1)
        assert "It skips vLLM's own cache." in " ".join(printed(capsys, service, "tw")[1].split())
        lines = printed(capsys, service)[1].splitlines()
        assert [line.split()[1] for line in lines[:3]] == ["request", "one", "two"]
        assert json.loads(printed(capsys, service, "--json", "--last", "1")[1])["newest"] == 2
        status, text = printed(capsys, service, "three")
        assert (status, text) == (1, "none of the last 2 requests is called three\n")


def test_why_follows(place: Path) -> None:
    with serving(place) as service, engine_of(service) as engine:
        command = [sys.executable, "-m", "forebay.cli", "why", "--follow", "--json"]
        with subprocess.Popen(
            [*command, "--socket", service.address.path],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as follower:
            assert follower.stdout is not None
            for name in ("before", "after"):
                tell(engine, request=name)
                assert json.loads(follower.stdout.readline())["request"] == name
            follower.kill()


def test_only_operators_see_requests() -> None:
    """An engine of another user may load and store, and not see whose requests there are."""
    roles, query = Roles(frozenset({1}), frozenset({2})), RequestsQuery("", 1, 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine, operator = (Connection(ours, Peer(7, uid), 0.0, 1) for uid in (1, 2))
        assert "may not" in (roles.refusal(engine, query) or "")
        assert roles.refusal(engine, TOLD_ALL) is None
        assert roles.refusal(operator, query) is None
