"""Another release of vLLM than the installed one, unpacked before it: `make test-versions`.

One dense model, and one case each of what releases do differently: ranks, latent attention, groups.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import (
    Engine,
    RecordedPages,
    cached_of,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import (
    dialogs,
    made_latent_model,
    made_windowed_model,
    next_turn,
)
from tests.engines.vllm.real.test_parallel import TP2, check_equality
from tests.pool_process import PoolProcess

WANTED = os.environ.get("OTHER_VLLM", "")
pytestmark = [pytest.mark.versions, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]


def test_t50_answers_and_pages_are_equal_through_dram_kill_and_nvme(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    without_pool: Engine,
    tmp_path: Path,
) -> None:
    assert without_pool.do("version") == WANTED
    pages = RecordedPages(tmp_path / "pages")
    pool = start_pool()
    engine = start_engine(model, pool, recorded=pages.file)
    engine.share(pool)
    prompts = dialogs(10, 600)
    answers = engine.generate(prompts)
    assert tokens_of(answers) == tokens_of(without_pool.generate(prompts))
    prompts = next_turn(prompts, tokens_of(answers), 0)
    again = engine.generate(prompts)
    assert tokens_of(again) == tokens_of(without_pool.generate(prompts))
    assert cached_of(again) >= 9 * 512, "from DRAM"
    engine.kill()
    pool.kill()
    pool.start()
    second = start_engine(model, pool, recorded=pages.file)
    second.share(pool)
    third = second.generate(prompts)
    assert tokens_of(third) == tokens_of(again)
    assert cached_of(third) >= 9 * 512, "from NVMe"
    assert stored_chunks(pool) >= 1
    pages.check()
    assert pages.loaded >= 40, "the rest was still in the engine"
    assert pages.wrong == 0
    has_run("FullAttentionSpec")


def test_t50_two_tensor_parallel_ranks(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    check_equality(model, start_pool, start_engine, pages, **TP2)
    has_run("tensor parallelism")


if WANTED >= "0.29":  # before, vLLM had no latent attention on a CPU

    def test_t50_latent_attention(
        tmp_path: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
    ) -> None:
        latent = forked.call(made_latent_model, tmp_path / "latent")
        compared = {"are_tokens_equal": False, "block": 16}
        how = {"kv_cache_memory_bytes": 32 << 20, **compared}
        check_equality(latent, start_pool, start_engine, pages, **how)
        has_run("MLAAttentionSpec")


def test_t50_full_and_window_attention(
    tmp_path: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    windowed = forked.call(made_windowed_model, tmp_path / "windowed", "gemma3")
    how = {"block_size": 32, "kv_cache_memory_bytes": 32 << 20, "block": 32, "spoiled": ("1", "")}
    check_equality(windowed, start_pool, start_engine, pages, **how)
    has_run("SlidingWindowSpec")
