"""Models with windows or chunked attention beside full attention: tokens and pages as without."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import HANG_S, Engine, RecordedPages, cached_of, tokens_of
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import (
    HAS_BFLOAT16,
    dialogs,
    made_recurrent_model,
    made_windowed_model,
    next_turn,
)
from tests.engines.vllm.real.test_parallel import (
    FIRST,
    PP2,
    TP2,
    check_dying_ranks,
    check_equality,
)
from tests.engines.vllm.real.test_speculation import check_drafts
from tests.pool_process import PoolProcess, wait_until

from forebay.plan.model.config import shape_of

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]
MadeModel = Callable[[str], Path]
BLOCK = 32
HOW = {"block_size": BLOCK, "kv_cache_memory_bytes": 32 << 20}
CONTROLS = ("1", "")  # wrong bytes in the first local group alone, then in all
CHUNK = 256  # tokens, of such small models


@pytest.fixture(scope="module")
def made_model(tmp_path_factory: pytest.TempPathFactory) -> MadeModel:
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = forked.call(made_windowed_model, tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return make


@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "gemma4", "llama4"])
def test_t50_full_and_local_attention(
    made_model: MadeModel,
    start_pool: StartPool,
    start_engine: StartEngine,
    pages: RecordedPages,
    kind: str,
) -> None:
    how = {**HOW, "block": BLOCK, "spoiled": CONTROLS}
    check_equality(made_model(kind), start_pool, start_engine, pages, **how)
    has_run("several attentions")
    if kind == "llama4":
        has_run("ChunkedLocalAttentionSpec")
    else:
        has_run("SlidingWindowSpec")


def test_t50_windows_on_two_tensor_parallel_ranks(
    made_model: MadeModel, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    how = {**HOW, **TP2, "block": BLOCK, "spoiled": CONTROLS}
    check_equality(made_model("gemma3"), start_pool, start_engine, pages, **how)


def test_t51_windows_and_a_rank_that_is_late_or_dies(
    made_model: MadeModel, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    how = {**HOW, "block": BLOCK, "in_stores": (0,), "in_loads": (1,)}
    check_dying_ranks(made_model("gemma3"), start_pool, start_engine, pages, **how)


def test_t50_windows_on_two_pipeline_stages(
    made_model: MadeModel, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    """Five layers and one: the second stage has no window at all."""
    partition = {"VLLM_PP_LAYER_PARTITION": "5,1", "VLLM_CPU_CI_ENV": "0"}
    how = {**HOW, **PP2, "variables": partition, "block": BLOCK, "spoiled": ("",)}
    check_equality(made_model("gemma3"), start_pool, start_engine, pages, **how)
    has_run("stages of several attentions")


def test_t50_windows_and_speculation(
    made_model: MadeModel, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    """Blocks of windows are freed while drafts are rejected."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    drafts["prompt_lookup_min"] = 1
    how = {**HOW, "speculative_config": drafts, "block": BLOCK, "spoiled": CONTROLS}
    model = made_model("gemma3")
    check_drafts(start_engine, lambda start: check_equality(model, start_pool, start, pages, **how))
    has_run("speculation beside local attention")


@pytest.mark.skipif(not HAS_BFLOAT16, reason="its kernels end the process on this processor")
def test_t50_recurrent_states_and_full_attention(
    tmp_path: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    model = forked.call(made_recurrent_model, tmp_path / "model")
    how = {"block_size": 384, "kv_cache_memory_bytes": 64 << 20, "dtype": "bfloat16"}
    # In bfloat16 a token may depend on what else a step computes: pages are compared.
    compared = {"block": 384, "known": 384, "spoiled": CONTROLS, "are_tokens_equal": False}
    check_equality(model, start_pool, start_engine, pages, **how, **compared)
    has_run("states")


def test_bytes_stored_are_those_that_plan_kv_says(
    made_model: MadeModel, start_pool: StartPool, start_engine: StartEngine
) -> None:
    """Give or take a chunk for each dialog; a branch finds local records when it comes again."""
    model, count = made_model("gemma3"), 4
    fields = json.loads((model / "config.json").read_text())
    planned = shape_of("gemma3", "config.json", fields, bits=32)
    pool = start_pool("--dram", "64MiB")
    engine = start_engine(model, pool, **HOW)
    engine.share(pool)

    def stored_bytes() -> int:
        return pool.number("moved_bytes", tier="dram", direction="store")

    before = stored_bytes()
    prompts = dialogs(count, 6 * CHUNK + 40)
    engine.generate(prompts, answer=2)
    engine.empty_cache()
    windows = [group.token_values * 4 for group in planned.groups if group.window_tokens]
    wanted = count * planned.sequence_bytes(6 * CHUNK)
    most = wanted + count * CHUNK * sum(windows)
    wait_until(lambda: stored_bytes() - before >= wanted, "all commits", HANG_S)
    assert wanted <= stored_bytes() - before <= most
    assert most < count * 6 * CHUNK * planned.token_bytes * 0.75, "far less than without windows"

    branches = [prompt[: 3 * CHUNK + 10] + [5] * 200 for prompt in prompts]
    first = engine.generate(branches, answer=4)
    assert cached_of(first) == 0, "nobody had stored the windows before the branch"
    engine.empty_cache()
    again = engine.generate([prompt[:-100] + [6] * 100 for prompt in branches], answer=4)
    assert cached_of(again) == count * 3 * CHUNK
    engine.empty_cache()
    assert tokens_of(engine.generate(branches, answer=4)) == tokens_of(first)


def test_t52_t54_what_is_freed_or_slept_on_before_the_pool_answers_is_not_stored(
    made_model: MadeModel, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    """Blocks are given to others in the very next step: of a pool that answers late no window is
    taken, and what is stored of others is exact. Nor is anything taken that was offered before
    the engine slept, and lost what its memory held.
    """
    model = made_model("gpt_oss")
    small = {**HOW, "kv_cache_memory_bytes": 3 << 20, "max_num_batched_tokens": 96}
    alone = start_engine(model, **HOW, enable_prefix_caching=False)
    prompts = dialogs(3, FIRST)
    answers = tokens_of(alone.generate(prompts))
    following = next_turn(prompts, answers, 1)
    later = tokens_of(alone.generate(following))
    alone.kill()
    pool = start_pool("--dram", "64MiB")
    late: dict[str, Any] = {"settings": {"keep_on_reset": True}, "step_wait_s": 0.0}
    engine = start_engine(model, pool, recorded=pages.file, **late, **small)
    engine.share(pool)
    too_late = engine.do("state")["counts"].get("stores.too_late", 0)
    engine.do("kill_at", point="offered", pid=pool.pid, stops=True)
    assert tokens_of(engine.generate(prompts[:1])) == answers[:1]
    assert engine.do("has_killed"), "the pool stands still from the first offer on"
    pool.signal(signal.SIGCONT)
    engine.empty_cache()
    assert engine.do("state")["counts"]["stores.too_late"] > too_late
    engine.do("kill_at", point="offered", pid=pool.pid, stops=True)
    assert tokens_of(engine.generate(prompts[1:2], pause=f"sleep {pool.pid}")) == answers[1:2]
    assert tokens_of(engine.generate(prompts)) == answers
    until = time.monotonic() + HANG_S
    loaded = 0  # of the dialog that was slept on
    while not loaded:  # a window that is missing is stored by the next that computes it
        assert time.monotonic() < until, "nothing is ever stored"
        engine.empty_cache()
        told = engine.generate(following)
        assert tokens_of(told) == later
        assert all(answer.cached % CHUNK == 0 for answer in told)
        loaded = told[1].cached
    pages.check()
    assert pages.loaded > 0
    assert pages.wrong == 0
