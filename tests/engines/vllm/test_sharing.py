"""Who shares with whom: the same bytes for the same model, nothing for any other.

Every pair is tried in both directions and has its positive control: that each finds its own.
"""

import itertools
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.conftest import Engine, Tokens, cached_of, dialogs, tokens_of
from tests.engines.vllm.engine import HAS_BFLOAT16
from tests.pool_process import PoolProcess, short_directory

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
LENGTH = 600
KNOWN = 512  # tokens of it that are stored
SEEDS = itertools.count(300)  # each has prompts of its own
SALTS = ("one", "two", "@", "/", "..", "\0", "søstre", "one ", "x" * 1_000_000)


class Party:
    """An engine and the prompts that it has stored."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.prompts = dialogs(2, LENGTH, seed)
        self._seed = seed

    def stores(self) -> None:
        self.engine.generate(self.prompts)
        self.flood()

    def flood(self) -> None:
        """Push everything out of its own KV cache."""
        self._seed += 1000
        self.engine.generate(dialogs(8, 700, self._seed), answer=2)

    def finds(self, prompts: list[Tokens]) -> int:
        """Tokens of these prompts that it did not have to compute."""
        found = cached_of(self.engine.generate(prompts, answer=2))
        self.flood()
        return found


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place:
        pool = PoolProcess(place, "--dram", "256MiB", disk_bytes=256 << 20).start()
        yield pool
        pool.kill()


@pytest.fixture(scope="module")
def first(model: Path, pool: PoolProcess) -> Iterator[Party]:
    """The engine that all others are compared with."""
    party = Party(Engine(model, pool), seed=1)
    party.engine.share(pool)
    party.stores()
    assert party.finds(party.prompts) == 2 * KNOWN
    yield party
    party.engine.kill()


def other_config(model: Path, place: Path) -> Path:
    """The same weights, read with another configuration."""
    shutil.copytree(model, place / "other")
    path = place / "other" / "config.json"
    config = json.loads(path.read_text())
    rope = config.setdefault("rope_parameters", {"rope_type": "default"})
    rope["rope_theta"] = 20_000.0
    path.write_text(json.dumps(config))
    return place / "other"


VARIANTS: dict[str, Callable[[Path, Path, Path], tuple[Path, dict[str, Any]]]] = {
    "t10 other weights": lambda _model, twin, _place: (twin, {}),
    "t10 other rope": lambda model, _twin, place: (other_config(model, place), {}),
    "t11 other block size": lambda model, _twin, _place: (model, {"block_size": 64}),
    "t10 other context": lambda model, _twin, _place: (model, {"max_model_len": 1024}),
}
if HAS_BFLOAT16:  # else test_config.py alone says so
    VARIANTS["t10 other dtype"] = lambda model, _twin, _place: (model, {"dtype": "bfloat16"})


def test_a_second_engine_of_the_same_model_shares(
    first: Party, model: Path, pool: PoolProcess, start: Callable[..., Engine]
) -> None:
    second = Party(start(model, pool), seed=2)
    second.engine.share(pool)
    assert second.finds(first.prompts) == 2 * KNOWN
    second.stores()
    assert first.finds(second.prompts) == 2 * KNOWN


@pytest.fixture(params=VARIANTS)
def variant(
    request: pytest.FixtureRequest, model: Path, twin: Path, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """A model and how it is served, like the first one but for one thing."""
    return VARIANTS[request.param](model, twin, tmp_path)


def test_t10_t11_another_engine_shares_nothing(
    variant: tuple[Path, dict[str, Any]],
    first: Party,
    pool: PoolProcess,
    start: Callable[..., Engine],
) -> None:
    path, how = variant
    other = Party(start(path, pool, **how), seed=next(SEEDS))
    other.engine.share(pool)
    assert other.finds(first.prompts) == 0
    other.stores()
    assert other.finds(other.prompts) >= KNOWN, "the control: it finds its own"
    assert first.finds(other.prompts) == 0
    assert first.finds(first.prompts) == 2 * KNOWN, "the control: the first finds its own"


def test_t35_t36_salts_share_nothing(first: Party) -> None:
    engine = first.engine
    prompt = dialogs(1, LENGTH, seed=77)
    plain = tokens_of(engine.generate(prompt))
    first.flood()
    for salt in SALTS:
        answers = engine.generate(prompt, salt=salt)
        assert cached_of(answers) == 0, "nobody else's"
        assert tokens_of(answers) == plain
        first.flood()
    for salt in SALTS:
        assert cached_of(engine.generate(prompt, salt=salt)) == KNOWN, "the control: its own"
        first.flood()
    assert first.finds(prompt) == KNOWN, "and without a salt"


def test_a_reset_leaves_everything_behind(
    model: Path, pool: PoolProcess, start: Callable[..., Engine], first: Party
) -> None:
    """New weights were pushed into the model: nothing that was stored before may be used."""
    engine = start(model, pool, inside=True)
    engine.share(pool)
    party = Party(engine, seed=21)
    assert party.finds(first.prompts) == 2 * KNOWN
    before = tokens_of(engine.generate(first.prompts))
    assert engine.do("push", times=1.05)
    assert engine.do("reset")
    after = engine.generate(first.prompts)
    assert cached_of(after) == 0
    assert tokens_of(after) != before, "the control: the weights are new"
    party.flood()
    again = engine.generate(first.prompts)
    assert cached_of(again) == 2 * KNOWN, "it shares with itself from here on"
    assert tokens_of(again) == tokens_of(after)
    assert first.finds(first.prompts) == 2 * KNOWN, "and others keep what they had"


def test_keep_on_reset_keeps(
    model: Path, pool: PoolProcess, start: Callable[..., Engine], first: Party
) -> None:
    engine = start(model, pool, inside=True, settings={"keep_on_reset": True})
    engine.share(pool)
    assert engine.do("reset")
    assert cached_of(engine.generate(first.prompts)) == 2 * KNOWN


def test_t29_a_pool_that_hangs_is_left_alone(
    model: Path, start: Callable[..., Engine], pools: Callable[..., PoolProcess], bare: Engine
) -> None:
    pool = pools()
    quick = {"lookup_deadline_ms": 20, "load_deadline_ms": 100}
    engine = start(model, pool, inside=True, settings=quick)
    engine.share(pool)
    prompts = dialogs(12, 300, seed=31)
    pool.signal(signal.SIGSTOP)
    for prompt in prompts:
        answers = engine.generate([prompt], answer=4)
        assert tokens_of(answers) == tokens_of(bare.generate([prompt], answer=4))
    counts = engine.do("look")["counts"]
    assert counts["pool.paused"] >= 1
    assert counts["misses.paused"] >= 1, "later requests are not even looked up"
    pool.signal(signal.SIGCONT)
    until = time.monotonic() + 60
    seed = 500
    before = engine.do("look")["counts"].get("stored.chunks", 0)
    while engine.do("look")["counts"].get("stored.chunks", 0) == before:
        assert time.monotonic() < until, "it is never tried again"
        seed += 1
        engine.generate(dialogs(1, 300, seed), answer=4)
        time.sleep(0.5)
