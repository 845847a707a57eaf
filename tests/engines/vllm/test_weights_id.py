"""Weights that are no files: the engine says that it shares nothing, or shares by their name."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engines.vllm.conftest import KV_BYTES, PATIENT, dialogs
from tests.pool_process import PoolProcess, environment

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
PROMPTS = dialogs(2, 500, seed=7)


class Ran(NamedTuple):
    status: int
    answers: list[Any]  # one for each command
    errors: list[str]  # lines of its standard error output that are Forebay's


@pytest.fixture
def no_weights(model: Path, tmp_path: Path) -> Path:
    """A model's directory as a remote loader leaves it: its configuration, and no weights."""
    shutil.copy(model / "config.json", tmp_path / "config.json")
    return tmp_path


def run(model: Path, *commands: dict[str, Any], **settings: Any) -> Ran:
    """An engine that makes its weights up, does all this and ends."""
    wanted = {
        "model": str(model),
        "pool": {**PATIENT, **settings},
        "inside": True,
        "engine": {"kv_cache_memory_bytes": KV_BYTES, "load_format": "dummy"},
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.engines.vllm.engine", json.dumps(wanted)],
        input="".join(json.dumps(command) + "\n" for command in commands),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in ended.stderr.splitlines() if "Forebay" in line]
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    return Ran(ended.returncode, answers[1:], lines)


# Weights as vLLM makes them up are so small that answers hardly depend on what was read before.
PUSH: dict[str, Any] = {"do": "push", "times": 80}
ASK: dict[str, Any] = {
    "do": "generate",
    "prompts": [{"tokens": tokens} for tokens in PROMPTS],
    "answer": 12,
}


def sharing(metrics: list[str]) -> dict[str, float]:
    lines = [line for line in metrics if line.startswith("forebay:sharing{")]
    return {line.split('state="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def test_without_a_name_nothing_is_shared_and_everybody_hears_of_it(
    no_weights: Path, place: Path
) -> None:
    socket = place / "pool.sock"
    ran = run(no_weights, ASK, {"do": "metrics"}, socket=str(socket))
    assert ran.status == 0
    assert [len(answer["tokens"]) for answer in ran.answers[0]] == [12, 12]
    (line,) = ran.errors
    assert "load_format=dummy" in line
    assert "weights_id" in line
    states = sharing(ran.answers[1])
    assert states.pop("weights_unknown") == 1
    assert set(states) == {"sharing", "hashing_weights", "no_pool", "declined"}
    assert not any(states.values())
    assert not list(place.iterdir()), "no pool is started for nothing"

    refused = run(no_weights, socket=str(socket), strict=True)
    assert refused.status != 0
    assert not refused.answers
    assert any("Forebay is strict and cannot share" in line for line in refused.errors)
    assert not list(place.iterdir())


def test_engines_that_name_their_weights_alike_share(
    no_weights: Path, pools: Callable[..., PoolProcess]
) -> None:
    pool = pools()
    named = {"socket": pool.socket, "weights_id": "made-up-1", "strict": True}
    first = run(no_weights, PUSH, ASK, {"do": "settle"}, {"do": "metrics"}, **named)
    second = run(no_weights, PUSH, ASK, **named)
    assert (first.status, second.status) == (0, 0)
    assert first.errors == second.errors == []
    assert sharing(first.answers[3])["sharing"] == 1
    computed, loaded = first.answers[1], second.answers[1]
    assert [answer["tokens"] for answer in loaded] == [answer["tokens"] for answer in computed]
    assert sum(answer["cached"] for answer in computed) == 0
    assert sum(answer["cached"] for answer in loaded) == 2 * 256
