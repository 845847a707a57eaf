"""Answers to operators fit a frame, whatever engines call themselves and their requests."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests import pool_process
from tests.pool_process import HANG_S, PatientClient, short_directory, wait_until

from forebay.cli.main import main
from forebay.decisions import Decision
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import (
    ENGINES_LISTED_MAX,
    FRAME_BYTES_MAX,
    MODEL_LETTERS_MAX,
    OUTCOMES_MAX,
    REQUEST_LETTERS_MAX,
    REQUESTS_KEPT,
    SENTENCE_MAX,
    Describe,
    Outcome,
    RequestOutcomes,
)
from forebay.pool.server.engines import _Engine
from forebay.pool.service import Service
from forebay.sys.clock import Clock

WIDE = "\U0001f600"  # four bytes of UTF-8, and twelve letters where it is escaped
ENGINES = 30  # names of this process
LONGEST = Outcome(
    WIDE * REQUEST_LETTERS_MAX,
    Decision.DECLINED.value,
    WIDE * MODEL_LETTERS_MAX,
    0,
    *(1 << 27, 1 << 26, 0, [], 1 << 26),
    *(86399999.123, 86399999.123, 86399999.123, 86399999.123),
    was_preempted=True,
)
DESCRIPTION = Describe(
    WIDE * MODEL_LETTERS_MAX,
    WIDE * REQUEST_LETTERS_MAX,
    "declined",
    WIDE * SENTENCE_MAX,
    b"n" * 32,
    64,
)


@pytest.fixture
def served() -> Iterator[Service]:
    with short_directory() as place, pool_process.serving(place) as service:
        yield service


def test_the_longest_words_of_engines_cut_no_operator_off(
    served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    path = served.address.path
    with ExitStack() as stack:
        for _ in range(ENGINES):
            session = PoolSession(path, Clock(), maps_slab=False)
            stack.callback(session.close)
            assert session.wait_until_joined(time.monotonic() + HANG_S)
            session.post(DESCRIPTION)
        for _ in range(0, REQUESTS_KEPT, OUTCOMES_MAX):
            session.post(RequestOutcomes([LONGEST] * OUTCOMES_MAX))
        with PatientClient(path) as client:

            def figures() -> dict[str, Any]:
                session.take(0.0)  # which also sends
                found = client.stats(HANG_S)
                assert isinstance(found, dict), client.why
                return found

            wait_until(lambda: figures()["requests"]["kept"] == REQUESTS_KEPT, "the requests")
            wait_until(lambda: all(each["why"] for each in figures()["engines"]), "descriptions")
            reply = client.requests("", REQUESTS_KEPT, 0, HANG_S)
        assert isinstance(reply, dict), client.why
        told: Any = reply["requests"]
        assert len(told) + int(str(reply["left_out"])) == REQUESTS_KEPT
        assert told[-1]["number"] == reply["newest"], "the newest are not left out"
        assert told[-1]["request"] == WIDE * REQUEST_LETTERS_MAX
        assert len(json.dumps(reply, ensure_ascii=False).encode()) < FRAME_BYTES_MAX
    assert main(["why", "--socket", path]) == 0
    assert main(["stats", "--socket", path]) == 0
    capsys.readouterr()


def test_of_many_engines_some_are_listed_and_all_are_counted(place: Path) -> None:
    with pool_process.serving(place) as service:
        server = service._server

        def join_all() -> int:
            """As if so many processes had come: one has only so many names."""
            for number in range(ENGINES_LISTED_MAX + 7):
                engine = _Engine(0, float(number))
                server._engines._engines[f"e{number}"] = engine
            return 1

        assert service._server.call(join_all, HANG_S)
        stats = service.stats(HANG_S)
        assert stats is not None
        assert (len(stats["engines"]), stats["engines_more"]) == (ENGINES_LISTED_MAX, 7)


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path
