"""Encoded KV on real vLLM: equal pages through DRAM, restarts and NVMe; raw where it does not fit.

In bfloat16 vLLM's answers differ from recomputed ones with and without a pool, so pages are
compared, which is what an answer is made of.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import (
    HANG_S,
    Engine,
    RecordedPages,
    cached_of,
    stored_chunks,
)
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import HAS_BFLOAT16, Tokens, dialogs, made_model
from tests.pool_process import PoolProcess

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not HAS_BFLOAT16, reason="its kernels end the process on this processor"),
]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]
PROMPT = 1030  # tokens: four chunks of 256
SPREAD = 40  # exponents up and down


def chunk_bytes(pool: PoolProcess) -> float:
    """Of a chunk that was stored, on average."""
    return pool.number("moved_bytes", tier="dram", direction="store") / stored_chunks(pool)


def token_bytes(layers: int, kv_heads: int, head_dim: int) -> int:
    return 2 * 2 * layers * kv_heads * head_dim


def store(engine: Engine, prompts: list[Tokens], wanted: int) -> None:
    """Until all of it comes back from the pool.

    What does not fit is offered twice, and lost if its request has ended by then: how much that is
    depends on the machine. It is computed again, and then more of it is offered raw at once.
    """
    until = time.monotonic() + HANG_S
    engine.generate(prompts)
    engine.empty_cache()
    while cached_of(engine.generate(prompts)) != wanted:
        assert time.monotonic() < until, "not all of it is stored"
        engine.empty_cache()


def store_and_load(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> float:
    """Stores some prompts; loads them from DRAM, into another engine, and from a restarted pool.

    The bytes of a chunk that was stored.
    """
    pool = start_pool("--dram", "256MiB", disk_bytes=512 << 20)
    options = {
        "dtype": "bfloat16",
        "kv_cache_memory_bytes": 128 << 20,
        "recorded": pages.file,
        "settings": {"compress": True, "chunk_tokens": 256},
    }
    prompts, wanted = dialogs(3, PROMPT), 3 * 1024
    engine = start_engine(model, pool, **options)
    engine.share(pool)
    store(engine, prompts, wanted)
    engine.kill()
    second = start_engine(model, pool, **options)
    second.share(pool)
    assert cached_of(second.generate(prompts)) == wanted
    second.empty_cache()
    found = chunk_bytes(pool)
    pool.stop()
    pool.start()
    second.rejoin()
    assert cached_of(second.generate(prompts)) == wanted
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= 12
    pages.check()
    assert pages.loaded >= 3 * wanted // 256
    assert pages.wrong == 0
    return found


@pytest.mark.models
def test_kv_of_a_trained_model_is_stored_in_less_and_comes_back_equal(
    start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    from forebay.engines.start import demo_model

    model = Path(demo_model.prepare())
    found = store_and_load(model, start_pool, start_engine, pages)
    assert 256 * token_bytes(30, 3, 64) / found >= 1.30
    has_run("compress")


def spread_model(place: Path) -> Path:
    """A model whose values, channel by channel, have exponents far apart; answers are as before."""
    import torch
    from safetensors.torch import load_file, save_file

    made_model(place, 9, heads=4, kv_heads=2, layers=3)
    tensors = load_file(place / "model.safetensors")
    scale = 2.0 ** torch.linspace(-SPREAD, SPREAD, 32).round()
    for name in [name for name in tensors if name.endswith("v_proj.weight")]:
        tensors[name] = (tensors[name].view(2, 32, -1) * scale[None, :, None]).reshape(64, -1)
        out = name.replace("v_proj", "o_proj")
        tensors[out] = (tensors[out].view(-1, 4, 32) / scale).reshape(-1, 128)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def test_kv_that_does_not_fit_is_stored_raw_and_comes_back_equal(
    start_pool: StartPool,
    start_engine: StartEngine,
    pages: RecordedPages,
    tmp_path: Path,
) -> None:
    model = forked.call(spread_model, tmp_path / "spread")
    found = store_and_load(model, start_pool, start_engine, pages)
    assert found == 256 * token_bytes(3, 2, 32)
