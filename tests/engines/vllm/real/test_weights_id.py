"""Weights that are no files: the engine says that it shares nothing, or shares by their name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.vllm.real.engine import Engine, cached_of, tokens_of
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import dialogs
from tests.pool_process import PoolProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
PROMPTS = dialogs(2, 500, seed=7)


@pytest.fixture
def no_weights(model: Path, tmp_path: Path) -> Path:
    """A model's directory as a remote loader leaves it: its configuration, and no weights."""
    shutil.copy(model / "config.json", tmp_path / "config.json")
    return tmp_path


def lines_of_forebay(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "Forebay" in line]


def sharing(engine: Engine) -> dict[str, float]:
    """The gauge of what keeps the engine from sharing, as its /metrics page has it."""
    lines = [line for line in engine.do("metrics") if line.startswith("forebay:sharing{")]
    return {line.split('state="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def test_without_a_name_nothing_is_shared_and_everybody_hears_of_it(
    no_weights: Path, place: Path, tmp_path: Path, start_engine: StartEngine
) -> None:
    settings, log = {"socket": str(place / "pool.sock")}, tmp_path / "log"
    engine = start_engine(no_weights, settings=settings, log=log, load_format="dummy")
    answers = engine.generate(PROMPTS, answer=12)
    assert [len(answer.tokens) for answer in answers] == [12, 12]
    (line,) = lines_of_forebay(log)
    assert "load_format=dummy" in line
    assert "weights_id" in line
    states = sharing(engine)
    assert states.pop("weights_unknown") == 1
    assert set(states) == {"sharing", "hashing_weights", "no_pool", "declined"}
    assert not any(states.values())
    assert not list(place.iterdir()), "no pool is started for nothing"


def test_a_strict_engine_refuses_to_start_without_a_name(
    no_weights: Path, place: Path, tmp_path: Path, start_engine: StartEngine
) -> None:
    settings, log = {"socket": str(place / "pool.sock"), "strict": True}, tmp_path / "log"
    with pytest.raises(AssertionError, match="the engine ended with 1"):
        start_engine(no_weights, settings=settings, log=log, load_format="dummy")
    told = "Forebay is strict and cannot share"
    assert any(told in line for line in lines_of_forebay(log))
    assert not list(place.iterdir()), "no pool is started for nothing"


def test_engines_that_name_their_weights_alike_share(
    no_weights: Path,
    tmp_path: Path,
    start_pool: Callable[..., PoolProcess],
    start_engine: StartEngine,
) -> None:
    pool, log = start_pool(), tmp_path / "log"
    settings = {"weights_id": "made-up-1", "strict": True}
    answers = []
    for _ in range(2):
        engine = start_engine(no_weights, pool, settings=settings, log=log, load_format="dummy")
        # Weights as vLLM makes them up are so small that answers hardly depend on the prompt.
        assert engine.do("scale_weights", factor=80)
        answers.append(engine.generate(PROMPTS, answer=12))
        assert engine.do("settle")
        assert sharing(engine)["sharing"] == 1
        engine.kill()
    assert lines_of_forebay(log) == []
    computed, loaded = answers
    assert tokens_of(loaded) == tokens_of(computed)
    assert (cached_of(computed), cached_of(loaded)) == (0, 2 * 256)
    has_run("named weights")
