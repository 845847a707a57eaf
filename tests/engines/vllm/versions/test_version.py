"""Another release of vLLM than the installed one, unpacked before it: `make test-versions`."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.vllm.conftest import (
    Engine,
    Pages,
    cached_of,
    dialogs,
    next_turn,
    stored,
    tokens_of,
)
from tests.pool_process import PoolProcess

WANTED = os.environ.get("OTHER_VLLM", "")
pytestmark = [pytest.mark.versions, pytest.mark.timeout(600)]


def test_t50_answers_and_pages_are_equal_through_dram_kill_and_nvme(
    model: Path,
    pools: Callable[..., PoolProcess],
    start: Callable[..., Engine],
    bare: Engine,
    tmp_path: Path,
) -> None:
    assert bare.do("version") == WANTED
    pages = Pages(tmp_path / "pages")
    pool = pools()
    engine = start(model, pool, witness=pages.file)
    engine.share(pool)
    prompts = dialogs(10, 600)
    answers = engine.generate(prompts)
    assert tokens_of(answers) == tokens_of(bare.generate(prompts))
    prompts = next_turn(prompts, answers, 0)
    again = engine.generate(prompts)
    assert tokens_of(again) == tokens_of(bare.generate(prompts))
    assert cached_of(again) >= 9 * 512, "from DRAM"
    engine.kill()
    pool.kill()
    pool.start()
    second = start(model, pool, witness=pages.file)
    second.share(pool)
    third = second.generate(prompts)
    assert tokens_of(third) == tokens_of(again)
    assert cached_of(third) >= 9 * 512, "from NVMe"
    assert stored(pool) >= 1
    pages.check()
    assert pages.loaded >= 40, "the rest was still in the engine"
    assert pages.wrong == 0
