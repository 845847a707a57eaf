"""LoRA on real vLLM: an adapter is what its files hold, whatever it is called.

Both adapters here have one name, one number and one directory's name, and other weights.
"""

from collections.abc import Callable
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
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import dialogs, made_adapter
from tests.engines.vllm.real.test_parallel import check_new_weights, check_sleep, disturbed_by
from tests.pool_process import PoolProcess, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]
HOW: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
COUNT, KNOWN = 3, 512  # dialogs, and tokens of each in whole chunks
PROMPTS = dialogs(COUNT, 600)


@pytest.fixture
def adapters(model: Path, tmp_path: Path) -> list[str]:
    places = [tmp_path / str(number) / "adapter" for number in range(2)]
    for seed, place in enumerate(places, 11):
        place.mkdir(parents=True)
        forked.call(made_adapter, place, seed, model)
    return [str(place) for place in places]


def with_adapter(engine: Engine, path: str, number: int = 1, **more: Any) -> list[Answer]:
    wanted = {"number": number, "path": path, "more": more}
    return engine.generate(PROMPTS, lora=wanted)


def know(engine: Engine, pool: PoolProcess, path: str) -> None:
    """Ask with an adapter until what it computes is stored."""
    engine.share(pool)
    before, seeds = stored_chunks(pool), iter(range(20_000, 30_000))

    def is_stored() -> bool:
        prompt = dialogs(1, 300, next(seeds))
        engine.generate(prompt, answer=2, lora={"number": 1, "path": path})
        return stored_chunks(pool) > before

    wait_until(is_stored, "the adapter to be known", HANG_S)


def test_t50_t53_two_adapters_of_one_name(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    adapters: list[str],
    tmp_path: Path,
) -> None:
    pages = RecordedPages(tmp_path / "pages")
    alone = start_engine(model, enable_prefix_caching=False, **HOW)
    plain = tokens_of(alone.generate(PROMPTS))
    first, other = (
        tokens_of(with_adapter(alone, path, number)) for number, path in enumerate(adapters, 1)
    )
    alone.kill()
    assert plain != first != other != plain, "adapters matter"
    pool = start_pool("--dram", "64MiB")

    def started(path: str, **more: Any) -> Engine:
        engine = start_engine(model, pool, recorded=pages.file, **HOW, **more)
        know(engine, pool, path)
        return engine

    engine = started(adapters[0], settings={"keep_on_reset": True})
    before = stored_chunks(pool)
    assert tokens_of(with_adapter(engine, adapters[0])) == first
    engine.empty_cache()
    wait_until(lambda: stored_chunks(pool) >= before + COUNT * 2, "all commits", HANG_S)
    told = with_adapter(engine, adapters[0])
    assert (tokens_of(told), cached_of(told)) == (first, COUNT * KNOWN), "DRAM"
    told = engine.generate(PROMPTS)
    assert (tokens_of(told), cached_of(told)) == (plain, 0), "without an adapter"
    lora = {"number": 1, "path": adapters[0]}
    check_sleep(engine, PROMPTS, first, KNOWN, lora=lora)
    engine.kill()
    second = started(adapters[1])
    told = with_adapter(second, adapters[1])
    assert (tokens_of(told), cached_of(told)) == (other, 0), "the wrong adapter by that name"
    second.empty_cache()
    told = with_adapter(second, adapters[1])
    assert (tokens_of(told), cached_of(told)) == (other, COUNT * KNOWN)
    second.kill()
    pool.stop()
    pool.start()
    third = started(adapters[0])
    told = with_adapter(third, adapters[0])
    assert (tokens_of(told), cached_of(told)) == (first, COUNT * KNOWN), "restarts and NVMe"
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= COUNT * 2
    pages.check()
    assert pages.loaded >= 3 * COUNT * KNOWN // 128
    assert pages.wrong == 0
    third.empty_cache()
    disturbed_by(pages).write_text("0,before load,spoil")
    told = with_adapter(third, adapters[0])
    assert cached_of(told) == COUNT * KNOWN
    assert tokens_of(told) != first, "the control: wrong bytes would be noticed"
    check_new_weights(third, PROMPTS, KNOWN, lora=lora)
    has_run("lora")


def test_t53_an_adapter_that_is_replaced_shares_nothing(
    model: Path, start_pool: StartPool, start_engine: StartEngine, adapters: list[str]
) -> None:
    pool = start_pool("--dram", "64MiB")
    engine = start_engine(model, pool, **HOW)
    know(engine, pool, adapters[0])
    with_adapter(engine, adapters[0])
    engine.empty_cache()
    assert cached_of(with_adapter(engine, adapters[0])) == COUNT * KNOWN, "the control"
    engine.empty_cache()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        Path(adapters[0], name).write_bytes(Path(adapters[1], name).read_bytes())

    def counted(why: str) -> int:
        return int(engine.do("state")["counts"].get(f"declined.{why}", 0))

    def is_declined() -> bool:
        engine.empty_cache()
        with_adapter(engine, adapters[0])
        return counted("adapter_unknown") > 0

    wait_until(is_declined, "the change to be noticed", HANG_S)
    engine.empty_cache()
    assert cached_of(with_adapter(engine, adapters[0])) == 0
    engine.empty_cache()  # before 0.31 it goes by the name alone
    in_place = with_adapter(engine, adapters[1], number=2, load_inplace=True)
    assert cached_of(in_place) == 0
    assert counted("adapter_in_place") == COUNT
    engine.empty_cache()
    assert cached_of(with_adapter(engine, adapters[1], number=2)) == 0, "nor by that number"
