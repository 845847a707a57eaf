"""Another release of vLLM than the installed one, unpacked before it: `make test-versions`."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.vllm.real.engine import (
    Engine,
    RecordedPages,
    cached_of,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import dialogs, next_turn
from tests.pool_process import PoolProcess

WANTED = os.environ.get("OTHER_VLLM", "")
pytestmark = [pytest.mark.versions, pytest.mark.timeout(600)]


def test_t50_answers_and_pages_are_equal_through_dram_kill_and_nvme(
    model: Path,
    start_pool: Callable[..., PoolProcess],
    start_engine: Callable[..., Engine],
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
