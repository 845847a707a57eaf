"""Several workers: tokens and pages as without the pool, of whichever rank.

Every rank has its own shard of each chunk; recorded pages are compared rank by rank.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import (
    HANG_S,
    Answer,
    Engine,
    RecordedPages,
    cached_of,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.engine_process import DISTURBED
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import Tokens, dialogs, made_latent_model, next_turn
from tests.pool_process import PoolProcess, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]
COUNT = 3  # dialogs
FIRST = 600  # tokens of their first prompt
KNOWN = 512  # of these, in whole chunks
BLOCK = 128  # tokens, on this device
TP2 = {"tensor_parallel_size": 2}
# On a CPU only where graphs are traced.
PP2 = {
    "pipeline_parallel_size": 2,
    "enforce_eager": False,
    "compilation_config": {"mode": 2, "backend": "eager"},
    "variables": {"VLLM_CPU_CI_ENV": "0"},
}
LATE_S = 2.0


def disturbed_by(pages: RecordedPages) -> Path:
    """The file that says what becomes of a rank; see recording_connector.py."""
    return pages.file.with_name(pages.file.name + DISTURBED)


def turns_with(engine: Engine) -> list[tuple[list[Tokens], list[Tokens]]]:
    """Prompts and answers of two turns, and of two more that continue the first."""
    prompts = dialogs(COUNT, FIRST)
    answers = tokens_of(engine.generate(prompts))
    held = [(prompts, answers)]
    for seed in range(3):
        following = next_turn(prompts, answers, seed)
        held.append((following, tokens_of(engine.generate(following))))
    return held


def check_equality(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages, **how: Any
) -> None:
    """Through DRAM, an engine's restart, NVMe after both restarted; wrong bytes; new weights.

    Without `are_tokens_equal` only pages are compared: kernels for a prompt and for what is loaded
    of it differ, or are not exact.
    """
    are_tokens_equal, block = how.pop("are_tokens_equal", True), how.pop("block", BLOCK)
    known = how.pop("known", KNOWN)
    spoiled = how.pop("spoiled", ("",))  # groups, one after the other; empty: all of them
    ranks = how.get("tensor_parallel_size", 1) * how.get("pipeline_parallel_size", 1)
    alone = start_engine(model, enable_prefix_caching=False, **how)
    first, *later = turns_with(alone)
    alone.kill()
    pool = start_pool("--dram", "64MiB")
    keeps = {"keep_on_reset": True}  # as where a gateway has engines sleep
    engine = start_engine(model, pool, recorded=pages.file, settings=keeps, **how)
    engine.share(pool, max(300, block + 36))
    before = stored_chunks(pool)
    told = engine.generate(first[0])
    assert tokens_of(told) == first[1] or not are_tokens_equal, "nothing is loaded yet"
    engine.empty_cache()
    wait_until(lambda: stored_chunks(pool) >= before + COUNT * 2, "all commits", HANG_S)
    turns = itertools.cycle(later)

    def take_turn(engine: Engine, where: str) -> None:
        prompts, answers = next(turns)
        until = time.monotonic() + HANG_S
        while True:
            told = engine.generate(prompts)
            assert tokens_of(told) == answers or not are_tokens_equal, where
            if cached_of(told) >= COUNT * known:
                return
            # A pool takes no deadline of more than a minute, and a busy machine may take longer.
            assert time.monotonic() < until, where
            engine.empty_cache()

    take_turn(engine, "DRAM")
    check_sleep(engine, *next(turns), known, are_tokens_equal=are_tokens_equal)
    engine.kill()
    second = start_engine(model, pool, recorded=pages.file, **how)
    second.share(pool, max(300, block + 36))
    take_turn(second, "an engine's restart")
    second.empty_cache()
    pool.stop()
    pool.start()
    second.rejoin()
    take_turn(second, "NVMe")
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= COUNT * 2
    pages.check()
    assert pages.loaded >= 4 * ranks * COUNT * known // block
    assert pages.wrong == 0
    for group in spoiled:
        second.empty_cache()
        disturbed_by(pages).write_text(f"{ranks - 1},before load,spoil {group}")
        prompts, answers = next(turns)
        told = second.generate(prompts)
        assert cached_of(told) >= COUNT * known
        assert tokens_of(told) != answers, "the control: wrong bytes would be noticed"
    pages.check()
    assert pages.wrong > 0
    check_new_weights(second, first[0], known, are_tokens_equal=are_tokens_equal)


def check_sleep(
    engine: Engine,
    prompts: list[Tokens],
    answers: list[Tokens],
    known: int,
    *,
    are_tokens_equal: bool = True,
    **each: Any,
) -> None:
    """Answers under way go on after sleep with what the pool has: memory holds other KV by then."""

    def loaded() -> int:
        return int(engine.do("state")["counts"].get("loaded.tokens", 0))

    engine.empty_cache()
    before = loaded()
    told = engine.generate(prompts, pause="sleep", **each)
    assert tokens_of(told) == answers or not are_tokens_equal
    assert loaded() - before >= 2 * len(prompts) * known, "when they were asked, and when it woke"
    told = engine.generate(prompts, pause="ruin", **each)
    assert tokens_of(told) != answers, "the control: it would be noticed"


def check_new_weights(
    engine: Engine, prompts: list[Tokens], known: int, *, are_tokens_equal: bool = True, **each: Any
) -> None:
    """After new weights nothing that was stored before is found, and what is stored since is."""
    engine.empty_cache()
    before = tokens_of(engine.generate(prompts, **each))
    assert engine.do("scale_weights", factor=1.05)
    assert engine.do("reset")
    after = engine.generate(prompts, **each)
    assert cached_of(after) == 0
    assert tokens_of(after) != before, "the control: the weights are new"
    until = time.monotonic() + HANG_S
    while True:
        engine.empty_cache()
        again = engine.generate(prompts, **each)
        assert tokens_of(again) == tokens_of(after) or not are_tokens_equal
        if cached_of(again) >= len(prompts) * known:
            return
        assert time.monotonic() < until, "it shares with itself from here on"


def test_t50_two_tensor_parallel_ranks(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    check_equality(model, start_pool, start_engine, pages, **TP2)
    has_run("tensor parallelism")


@pytest.mark.models
def test_t50_two_pipeline_stages_of_unequal_size(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    """Three layers on two ranks: the shard with fewer of them is padded."""
    check_equality(model, start_pool, start_engine, pages, **PP2)
    has_run("pipeline parallelism")


@dataclass
class DyingRanks:
    """Engines of two ranks on one pool, one after the other: one whose rank dies is over."""

    start: Callable[[], Engine]
    pool: PoolProcess
    disturbed: Path
    prompts: list[list[Tokens]] = field(repr=False)  # by rank: asked when it is disturbed
    answers: list[list[Tokens]] = field(default_factory=list)  # likewise, nothing loaded

    def dies(self, engine: Engine, rank: int, point: str) -> None:
        self.disturbed.write_text(f"{rank},{point},die")
        with pytest.raises(AssertionError, match="the engine ended"):
            engine.generate(self.prompts[rank])
        assert not self.disturbed.exists()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
        self.await_nothing_held()

    def await_nothing_held(self) -> None:
        """All that was committed is counted, and nobody has a slot or a pin."""

        def is_held() -> bool:
            held = self.pool.held()
            return bool(held["leased_slots"] or held["pinned_chunks"])

        wait_until(lambda: not is_held(), "slots and pins to be given back", HANG_S)

    def disturb(self, engine: Engine, rank: int, point: str, how: str) -> list[Answer]:
        engine.empty_cache()
        self.disturbed.write_text(f"{rank},{point},{how}")
        told = engine.generate(self.prompts[rank])
        assert not self.disturbed.exists()
        return told

    def dies_in_store(self, rank: int) -> None:
        engine = self.start()
        engine.empty_cache()
        self.await_nothing_held()
        before = stored_chunks(self.pool)
        self.dies(engine, rank, "before store")  # the other rank has filled its shard, or does
        assert stored_chunks(self.pool) == before, "half a chunk is never found"

    def is_late(self, engine: Engine, rank: int) -> None:
        computed = self.disturb(engine, rank, "before store", str(LATE_S))
        assert cached_of(computed) == 0
        self.answers.append(tokens_of(computed))
        told = self.disturb(engine, rank, "before load", str(LATE_S))
        assert (tokens_of(told), cached_of(told)) == (self.answers[rank], 2 * KNOWN)

    def dies_in_load(self, engine: Engine, rank: int) -> Engine:
        """The next engine, which has found what this one had stored."""
        engine.empty_cache()
        self.dies(engine, rank, "before load")
        following = self.start()
        told = following.generate(self.prompts[rank])
        found = (tokens_of(told), cached_of(told))
        assert found == (self.answers[rank], 2 * KNOWN), "nothing of it was lost"
        return following

    def check_control(self, engine: Engine) -> None:
        for rank, answers in enumerate(self.answers):
            told = self.disturb(engine, rank, "before load", "spoil")
            assert cached_of(told) == 2 * KNOWN
            assert tokens_of(told) != answers, "were one rank's shard wrong, it would be noticed"


def check_dying_ranks(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages, **how: Any
) -> None:
    """Each rank is late in a store and in a load; those named die in one."""
    block = how.pop("block", BLOCK)
    dying_in_stores, dying_in_loads = how.pop("in_stores"), how.pop("in_loads")
    pool = start_pool("--dram", "64MiB")

    def started() -> Engine:
        engine = start_engine(model, pool, recorded=pages.file, **TP2, **how)
        engine.share(pool)
        return engine

    prompts = [dialogs(2, FIRST, rank) for rank in range(2)]
    ranks = DyingRanks(started, pool, disturbed_by(pages), prompts)
    for rank in dying_in_stores:
        ranks.dies_in_store(rank)
    engine = started()
    for rank in range(2):
        ranks.is_late(engine, rank)
    for rank in dying_in_loads:
        engine = ranks.dies_in_load(engine, rank)
    pages.check()
    assert pages.loaded >= (2 + len(dying_in_loads)) * 2 * 2 * KNOWN // block
    assert pages.wrong == 0
    ranks.check_control(engine)
    pages.check()
    assert pages.wrong > 0


@pytest.mark.models
def test_t51_a_rank_that_is_late_or_dies_makes_no_torn_chunk(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    dying = {"in_stores": (0, 1), "in_loads": (1, 0)}
    check_dying_ranks(model, start_pool, start_engine, pages, **dying)


@pytest.fixture(scope="module")
def latent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = forked.call(made_latent_model, tmp_path_factory.mktemp("latent-model"))
    return made


@pytest.mark.models
@pytest.mark.parametrize("ranks", [1, 2])
def test_t50_latent_attention_is_stored_once_for_all_ranks(
    latent_model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    pages: RecordedPages,
    ranks: int,
) -> None:
    how = {"tensor_parallel_size": ranks, "kv_cache_memory_bytes": 32 << 20}
    compared = {"are_tokens_equal": False, "block": 16}
    check_equality(latent_model, start_pool, start_engine, pages, **how, **compared)
    has_run("MLAAttentionSpec")
