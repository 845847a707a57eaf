"""Speculative decoding: tokens and pages as without the pool, the drafter's pages included."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import Engine, RecordedPages
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import made_drafter, made_model, made_model_with_mtp
from tests.engines.vllm.real.test_parallel import check_equality
from tests.pool_process import PoolProcess

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]


@pytest.fixture
def pages(tmp_path: Path) -> RecordedPages:
    return RecordedPages(tmp_path / "pages")


def check_drafts(start_engine: StartEngine, check: Callable[[StartEngine], None]) -> None:
    """Check with engines that draft; the last one is asked whether it has."""
    started: list[Engine] = []

    def start(*arguments: Any, **more: Any) -> Engine:
        started.append(start_engine(*arguments, **more))
        return started[-1]

    check(start)
    assert started[-1].do("drafted") > 0


def test_t50_ngram(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    more = {"speculative_config": {**ngram, "prompt_lookup_min": 1}}
    check_drafts(
        start_engine, lambda start: check_equality(model, start_pool, start, pages, **more)
    )
    has_run("ngram")


def test_t50_eagle(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    pages: RecordedPages,
    tmp_path: Path,
) -> None:
    drafter = tmp_path / "drafter"
    forked.call(made_drafter, drafter, 7)
    eagle = {"method": "eagle", "model": str(drafter), "num_speculative_tokens": 2}
    more = {"speculative_config": eagle, "kv_cache_memory_bytes": 8 << 20}  # a layer more
    check_drafts(
        start_engine, lambda start: check_equality(model, start_pool, start, pages, **more)
    )
    has_run("eagle")


def test_t50_draft_model(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    pages: RecordedPages,
    tmp_path: Path,
) -> None:
    drafter = tmp_path / "drafter"
    forked.call(made_model, drafter, 9, heads=4, kv_heads=2, layers=1)
    drafts = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 2}
    more = {"speculative_config": drafts, "kv_cache_memory_bytes": 8 << 20}  # a layer more
    check_drafts(
        start_engine, lambda start: check_equality(model, start_pool, start, pages, **more)
    )
    has_run("draft model")


@pytest.mark.parametrize("ranks", [1, 2])
def test_t50_a_drafter_whose_layers_have_another_size(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages, ranks: int
) -> None:
    """It has twice the KV heads: in vLLM's one group layers have pages of two sizes."""
    drafter = pages.file.with_name("drafter")
    forked.call(made_model, drafter, 9, heads=4, kv_heads=4, layers=1)
    drafts = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 2}
    more = {"speculative_config": drafts, "kv_cache_memory_bytes": 10 << 20}
    more["tensor_parallel_size"] = ranks
    check_drafts(
        start_engine, lambda start: check_equality(model, start_pool, start, pages, **more)
    )
    has_run("unequal layers")


def test_t50_mtp(
    start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    forked.call(made_model_with_mtp, model)
    mtp = {"method": "mtp", "num_speculative_tokens": 1}
    more = {"speculative_config": mtp, "kv_cache_memory_bytes": 8 << 20}
    check_drafts(
        start_engine, lambda start: check_equality(model, start_pool, start, pages, **more)
    )
    has_run("mtp")
