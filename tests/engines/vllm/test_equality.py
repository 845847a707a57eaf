"""With the pool and without it, real vLLM gives the same tokens, whatever happens to the pool."""

import mmap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.vllm.conftest import Answer, Engine, PoolProcess, Tokens, dialogs, next_turn

from forebay.pool.client.link import Link, join
from forebay.sys.clock import Clock

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
Start = Callable[..., Engine]
TURNS = 3


def talk(engine: Engine, prompts: list[Tokens]) -> tuple[list[list[Answer]], list[Tokens]]:
    """Some turns of every dialog; each turn's answers, and the prompts of the next."""
    turns = []
    for turn in range(TURNS):
        answers = engine.generate(prompts)
        turns.append(answers)
        prompts = next_turn(prompts, answers, turn)
    return turns, prompts


def tokens(turns: list[list[Answer]]) -> list[list[Tokens]]:
    return [[answer.tokens for answer in answers] for answers in turns]


def cached(turns: list[list[Answer]]) -> list[int]:
    return [sum(answer.cached for answer in answers) for answers in turns]


@pytest.fixture(scope="module")
def expected(model: Path) -> tuple[list[list[Tokens]], list[Tokens], list[Tokens]]:
    """What the engine says without us, and to the turn after that."""
    engine = Engine(model, None)
    turns, prompts = talk(engine, dialogs(10, 600))
    last = [answer.tokens for answer in engine.generate(prompts)]
    engine.kill()
    assert cached(turns)[1] < 10 * 256, "the KV cache must be too small for the dialogs"
    return tokens(turns), prompts, last


def test_t50_answers_are_equal_through_dram_restarts_and_nvme(
    model: Path,
    pool: PoolProcess,
    start: Start,
    expected: tuple[list[list[Tokens]], list[Tokens], list[Tokens]],
) -> None:
    said, prompts, last = expected
    engine = start(model, pool.settings)
    engine.share(pool)
    turns, _ = talk(engine, dialogs(10, 600))
    assert tokens(turns) == said
    assert cached(turns)[1] >= 10 * 512, "later turns come from the pool"
    engine.kill()
    second = start(model, pool.settings)
    second.share(pool)
    answers = second.generate(prompts)
    assert [answer.tokens for answer in answers] == last
    assert sum(answer.cached for answer in answers) >= 10 * 640, "the next engine finds it all"
    second.kill()
    pool.stop()
    pool.start()
    third = start(model, pool.settings)
    third.share(pool)
    answers = third.generate(prompts)
    assert [answer.tokens for answer in answers] == last
    assert sum(answer.cached for answer in answers) >= 10 * 640, "and so does the next pool"
    assert pool.stats()["counters"]["disk.loaded"] > 0


def test_a_dead_pool_is_a_miss_and_a_new_one_is_used(
    model: Path,
    pool: PoolProcess,
    start: Start,
    expected: tuple[list[list[Tokens]], list[Tokens], list[Tokens]],
) -> None:
    said, _, _ = expected
    engine = start(model, pool.settings)
    engine.share(pool)
    prompts = dialogs(10, 600)
    first = engine.generate(prompts)
    pool.kill()
    second = engine.generate(next_turn(prompts, first, 0))
    assert [[a.tokens for a in first], [a.tokens for a in second]] == said[:2]
    pool.start()
    time.sleep(2)
    prompts = dialogs(4, 600, seed=7)
    once = engine.generate(prompts)
    engine.generate(dialogs(10, 600, seed=8))  # pushes them out of the KV cache
    again = engine.generate(prompts)
    assert [a.tokens for a in once] == [a.tokens for a in again]
    assert sum(a.cached for a in again) >= 4 * 512


def test_t10_t35_other_weights_and_other_salts_never_hit(
    model: Path, twin: Path, pool: PoolProcess, start: Start
) -> None:
    prompts = dialogs(4, 600)
    engine = start(model, pool.settings)
    engine.share(pool)
    engine.generate(prompts, salt="one")
    engine.generate(dialogs(10, 600, seed=3))
    for salt in ("two", ""):
        assert sum(a.cached for a in engine.generate(prompts, salt=salt)) == 0
        engine.generate(dialogs(10, 600, seed=4))
    assert sum(a.cached for a in engine.generate(prompts, salt="one")) >= 4 * 512
    engine.kill()
    other = start(twin, pool.settings)
    other.share(pool)
    assert sum(a.cached for a in other.generate(prompts, salt="one")) == 0
    assert sum(a.cached for a in other.generate(prompts)) == 0


def test_a_planted_wrong_chunk_changes_the_answers(
    model: Path, pool: PoolProcess, start: Start
) -> None:
    """The control: were bytes ever wrong, these tests would notice."""
    prompts = dialogs(4, 600)
    engine = start(model, pool.settings)
    engine.share(pool)
    before = engine.generate(prompts)
    engine.generate(dialogs(10, 600, seed=3))
    link = join(pool.settings["socket"], "planter", Clock(), time.monotonic() + 5)
    assert isinstance(link, Link)
    for at in range(0, 64 << 20, mmap.PAGESIZE):
        link.slab[at : at + 64] = bytes(64)
    after = engine.generate(prompts)
    assert sum(a.cached for a in after) >= 4 * 512
    assert [a.tokens for a in before] != [a.tokens for a in after]
    link.close()
