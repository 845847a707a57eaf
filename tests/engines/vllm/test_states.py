"""Whatever state a request is in when something happens, answers and books stay right.

Engine core, scheduler and worker run in one process here, so that single steps can be counted and
the pool killed between two of them. The disk of the pool is slow, so that loads stay in flight.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.conftest import (
    Answer,
    Engine,
    Pages,
    Tokens,
    cached_of,
    dialogs,
    next_turn,
    tokens_of,
)
from tests.pool_process import PoolProcess, short_directory, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
CHUNK = 256  # two blocks of this model
POINTS = (
    "asked",
    "promised",
    "allocated",
    "load told",
    "before load",
    "after load",
    "load reported",
    "offered",
    "store told",
    "before store",
    "store reported",
)


class Bench:
    """One engine on one pool, and what vLLM alone answers."""

    def __init__(self, engine: Engine, pool: PoolProcess, bare: Engine, pages: Pages) -> None:
        self.engine, self.pool, self.bare, self.pages = engine, pool, bare, pages
        self._seeds = 100

    def fresh(self, count: int, length: int) -> list[Tokens]:
        """Prompts that nobody has seen."""
        self._seeds += 1
        return dialogs(count, length, seed=self._seeds)

    def flood(self) -> None:
        """Push everything out of the engine's own KV cache."""
        self.engine.generate(self.fresh(8, 700), answer=2)

    def returning(self, count: int, length: int = 600) -> list[Tokens]:
        """Prompts whose first chunks are in the pool, and not in the engine."""
        first = self.fresh(count, length)
        prompts = next_turn(first, self.engine.generate(first), 0)
        self.flood()
        return prompts

    def equal(self, prompts: list[Tokens], **how: Any) -> list[Answer]:
        """Answer as vLLM alone does."""
        answers = self.engine.generate(prompts, **how)
        assert tokens_of(answers) == tokens_of(self.bare.generate(prompts, **how))
        return answers

    def restart(self) -> None:
        """End the pool in order, and start it again."""
        self.pool.stop()
        self.pool.start()
        self.join()

    def join(self) -> None:
        """Let the engine find the pool."""
        until = time.monotonic() + 20
        self.engine.generate(self.fresh(1, 20), answer=2)  # it notices the end of the old one
        while not self.engine.do("look")["is_member"]:
            self.engine.generate(self.fresh(1, 20), answer=2)
            assert time.monotonic() < until

    def is_clean(self) -> None:
        """Nothing is in flight, on either side; nothing was caught."""
        assert self.engine.do("settle")
        held = self.engine.do("look")
        assert (held["tracked"], held["asking"], held["copying"]) == (0, 0, 0), held
        assert held["failures"] == 0, held
        wait_until(self._free, "the pool's books to be clean")

    def _free(self) -> bool:
        held = self.pool.held()
        return not (held["pinned_chunks"] or held["filling"] or held["requests"])

    def count(self, name: str) -> int:
        return int(self.engine.do("look")["counts"].get(name, 0))


@pytest.fixture(scope="module")
def bench(model: Path, bare: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pages = Pages(tmp_path_factory.mktemp("witness") / "pages")
    with short_directory() as place:
        # A disk that is never full: one that is lets in only what is likely to return.
        slow = ("--fault", "read:latency=100ms")
        pool = PoolProcess(place, "--dram", "8MiB", *slow, faulty=True, disk_bytes=1 << 30).start()
        engine = Engine(model, pool, inside=True, witness=pages.file, max_num_batched_tokens=CHUNK)
        engine.share(pool)
        yield Bench(engine, pool, bare, pages)
        engine.kill()
        pool.kill()


@pytest.fixture(autouse=True)
def clean(bench: Bench) -> Iterator[None]:
    yield
    bench.is_clean()
    bench.pages.check()
    assert bench.pages.wrong == 0


def test_a_prompt_is_computed_in_parts_and_comes_back_whole(bench: Bench) -> None:
    prompts = bench.returning(3, 900)
    assert cached_of(bench.equal(prompts)) >= 3 * 3 * CHUNK


def test_a_hit_in_the_middle_of_a_chunk(bench: Bench) -> None:
    prompt = bench.returning(1, 700)[0]
    half = prompt[: CHUNK + CHUNK // 2]
    bench.equal([half + bench.fresh(1, 20)[0]])  # the engine has one and a half chunks now
    loads = bench.count("loaded.tokens")
    assert bench.equal([prompt])[0].cached >= 2 * CHUNK
    assert bench.count("loaded.tokens") - loads == CHUNK // 2


def test_requests_that_share_a_prefix_in_flight(bench: Bench) -> None:
    shared = bench.returning(1, 600)[0][: 2 * CHUNK]
    loads = bench.count("loads")
    answers = bench.equal([shared + tail for tail in bench.fresh(4, 40)])
    assert cached_of(answers) >= 4 * 2 * CHUNK
    assert bench.count("loads") - loads == 1, "one loads, the others find it in the engine"


def test_generated_tokens_are_stored_too(bench: Bench) -> None:
    first = bench.fresh(1, 100)
    prompts = next_turn(first, bench.equal(first, answer=600), 0)
    bench.flood()
    assert bench.equal(prompts)[0].cached >= 2 * CHUNK


def test_preemption(bench: Bench) -> None:
    """Four requests that together outgrow the KV cache; the last is preempted and comes back."""
    before = bench.engine.do("preempted")
    prompts = bench.returning(4, 760)
    bench.equal(prompts, answer=300)
    assert bench.engine.do("preempted") > before


def test_t30_aborts_in_every_state(bench: Bench) -> None:
    prompts = bench.returning(3, 600)
    expected = tokens_of(bench.bare.generate(prompts))
    for steps in (0, 1, 2, 3, 5, 8, 13, 30, 60):
        given_up = [{"tokens": tokens, "abort": steps} for tokens in prompts[:2]]
        answers = bench.engine.ask([*given_up, {"tokens": prompts[2]}])
        assert answers[2].tokens == expected[2]
        bench.is_clean()
        bench.flood()
    assert tokens_of(bench.engine.generate(prompts)) == expected


def test_a_pure_miss_loses_no_step(bench: Bench) -> None:
    """But for those that a busy machine cost, which are counted."""
    for prompt in bench.fresh(6, 600):
        again = bench.count("asked_again.unanswered")
        mine = bench.engine.generate([prompt])[0].first_step
        again = bench.count("asked_again.unanswered") - again
        alone = bench.bare.generate([prompt], answer=2)[0].first_step
        assert mine - again == alone


def test_a_prompt_that_skips_the_cache_skips_the_pool(bench: Bench) -> None:
    prompts = bench.returning(2)
    answers = bench.engine.generate(prompts, params={"prompt_logprobs": 1})
    assert cached_of(answers) == 0
    assert tokens_of(answers) == tokens_of(bench.bare.generate(prompts))


def test_vllms_own_metrics_say_what_happened(bench: Bench) -> None:
    bench.equal(bench.returning(2))
    bench.engine.generate(bench.fresh(1, 20), answer=2)  # what was counted goes with a step
    lines = bench.engine.do("metrics")
    counts = bench.engine.do("look")["counts"]

    def figure(name: str, label: str = "") -> float:
        found = [line for line in lines if line.startswith(name) and label in line]
        assert len(found) == 1, (name, label, lines)
        return float(found[0].rpartition(" ")[2])

    assert figure("forebay:loads_total") == counts["loads"]
    assert figure("forebay:loaded_total", 'unit="tokens"') == counts["loaded.tokens"]
    assert figure("forebay:loaded_total", 'unit="bytes"') > 0
    assert figure("forebay:misses_total", 'reason="unknown"') == counts["misses.unknown"]
    assert figure("forebay:hook_seconds_count", 'hook="build_connector_meta"') > 0


@pytest.mark.parametrize("point", POINTS)
def test_the_pool_is_killed(bench: Bench, point: str) -> None:
    prompts = bench.returning(3)
    bench.restart()  # an empty DRAM: chunks have to be read, and there is room for new ones
    fresh = bench.fresh(1, 600)
    bench.engine.do("arm", point=point, nth=1, pid=bench.pool.pid)
    bench.equal([*prompts, *fresh])
    assert bench.engine.do("fired"), "the point was never passed"
    assert bench.pool.process is not None
    bench.pool.process.wait(10)
    bench.pool.start()
    bench.join()
    assert cached_of(bench.equal(prompts)) > 0
