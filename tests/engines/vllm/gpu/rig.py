"""Engines for the tests on a GPU; rehearsed with vLLM's CPU build where GPU_REHEARSAL=1."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.vllm.real.engine import stored_chunks
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess

from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.load.client import Completion
from forebay.engines.start.vllm import transfer_config
from forebay.settings import Settings

REHEARSAL = os.environ.get("GPU_REHEARSAL") == "1"
ANSWER = 24
CHUNK = 256  # tokens
# A mark, not a call: what `-m 'not gpu'` leaves out is not counted as skipped.
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() and not REHEARSAL, reason="there is no GPU"),
]
ROOT = Path(__file__).parents[4]
TOKEN_BYTES = 2 * 2 * 64 * 4  # K and V, heads, their size, layers: times the bytes of an element
VARIABLES = {
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "PYTHONHASHSEED": "0",
    "VLLM_CPU_CI_ENV": "1",
}
if REHEARSAL:
    # On CPUs vLLM takes another number of threads beside a connector, and so sums otherwise.
    VARIABLES |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def arguments(model: Path, dtype: str, kv_tokens: int = 2600, **more: Any) -> dict[str, Any]:
    element = 4 if dtype == "float32" else 1 if "kv_cache_dtype" in more else 2
    return {
        "model": str(model),
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "worker_extension_cls": "tests.engines.vllm.gpu.witness.WitnessExtension",
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": kv_tokens * TOKEN_BYTES * element,
        **({"enforce_eager": True} if REHEARSAL else {"gpu_memory_utilization": 0.1}),
        **more,
    }


def on(pool: PoolProcess, wanted: dict[str, Any], **extra: bool) -> dict[str, Any]:
    """With the pool; `extra` is for the connector beside its settings."""
    limits: dict[str, Any] = {"min_tokens": 64, "lookup_deadline_ms": 2000.0}
    settings = Settings(no_pool="fail", chunk_tokens=CHUNK, **limits)
    transfer = transfer_config(settings, pool.socket)
    settled = transfer["kv_connector_extra_config"]
    assert isinstance(settled, dict)
    settled.update({"always_load": True, **extra})
    return {**wanted, "kv_transfer_config": transfer}


@asynccontextmanager
async def running(
    wanted: dict[str, Any], log: Path, **variables: str
) -> AsyncIterator[TokenEngine]:
    """An engine, gone afterwards."""
    engine = await TokenEngine.start(wanted, log, {**VARIABLES, **variables})
    try:
        if REHEARSAL and "kv_transfer_config" in wanted:
            assert await engine.call("late")
        yield engine
    finally:
        await engine.stop()


async def share(engine: TokenEngine, pool: PoolProcess) -> None:
    """Until the engine knows its weights, and the whole slab is in reach."""
    before = stored_chunks(pool)
    for attempt in range(200):
        await ask_all(engine, dialogs(1, 300, 1000 + attempt), 2)
        counts = await engine.counts()
        reach = counts["reach_bytes"] < 0 or counts["reach_bytes"] > 200 << 20
        if stored_chunks(pool) > before and reach:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the engine shares nothing")


async def settled(pool: PoolProcess) -> None:
    """Until no store comes any more."""
    before = -1
    while (now := stored_chunks(pool)) != before:
        before = now
        await asyncio.sleep(0.5)


async def ask_all(
    engine: TokenEngine, asked: list[Tokens], answer: int = ANSWER
) -> list[Completion]:
    """All at once."""
    return list(await asyncio.gather(*(engine.ask(prompt, answer) for prompt in asked)))


async def ask_each(
    engine: TokenEngine, asked: list[Tokens], answer: int = ANSWER
) -> list[Completion]:
    """One by one: what is computed together is the same every time."""
    return [await engine.ask(prompt, answer) for prompt in asked]


def tokens_of(replies: list[Completion]) -> list[Tokens]:
    return [list(reply.tokens) for reply in replies]


def cached_of(replies: list[Completion]) -> int:
    return sum(reply.cached_tokens or 0 for reply in replies)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)
