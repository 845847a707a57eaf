"""Rows whose chunks stay in DRAM; several of them share their engines."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from forebay.bench.gpu import model, requests
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.requests import DIALOG_FIGURES, milliseconds
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY, VLLM_CPU
from forebay.engines.geometry import chunk_blocks

_CLIENTS_STATELESS: Final = 2  # times the clients of dialogs
_BLOCK_TOKENS: Final = 16  # of vLLM, on a GPU
_CEILING_BYTES: Final = 40 << 30
_STORED: Final = {
    "stored_chunks": "operations.dram.store.ok",
    "stored_bytes": "moved_bytes.dram.store",
}


async def nothing_to_reuse(run: RowRun) -> None:
    """Stateless prompts: what it costs to store all of them and use none."""
    clients = _CLIENTS_STATELESS * run.scale.clients

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        if variant != FOREBAY:
            return await requests.stateless(engine, run.scale, clients, number)
        before = run.settled()
        found = await requests.stateless(engine, run.scale, clients, number)
        after = run.settled()
        # Of each request all but its last token is computed; what is no whole chunk stays.
        each = run.scale.prompt_tokens + run.scale.answer_tokens - 1
        blocks = chunk_blocks(_BLOCK_TOKENS * run.scale.token_bytes, _BLOCK_TOKENS)
        chunk_tokens = blocks * _BLOCK_TOKENS
        full = run.scale.requests * (each // chunk_tokens)
        found |= {**stored_between(before, after), "full_chunks": full}
        return {**found, "stored_share": round(found["stored_chunks"] / full, 4)}

    for name in (FOREBAY, VLLM_CPU):
        run.results.ratio(f"{name}_requests_per_s", "requests_per_s", name, GPU_ONLY)
        run.results.ratio(f"{name}_ttft_mean", "ttft_mean_ms", name, GPU_ONLY)
    engines = await run.stage(run.scale.variants, run.scale.dram_bytes)
    await run.repeat(engines, measure, run.scale.repeats)


def stored_between(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """What was stored in DRAM between two readings of a pool's counters."""
    return {
        field: int(after.get(series, 0) - before.get(series, 0))
        for field, series in _STORED.items()
    }


async def dialogs(run: RowRun) -> None:
    """Dialogs that do not fit the GPU and fit DRAM."""
    for figure in DIALOG_FIGURES:
        run.results.ratio(f"forebay_to_gpu_{figure}", figure, FOREBAY, GPU_ONLY)
        run.results.ratio(f"forebay_to_vllm_{figure}", figure, FOREBAY, VLLM_CPU)
    engines = await run.stage(run.scale.variants, run.scale.dram_bytes)
    await run.repeat(
        engines,
        lambda _, engine, number: requests.dialogs(engine, run.scale, number),
        run.scale.repeats,
    )


async def dialogs_and_ceiling(run: RowRun) -> None:
    """The same, and beside it a GPU that holds all of them."""
    await dialogs(run)
    if run.has_time(120) and len(run.results.repeats) >= run.scale.repeats:
        await _ceiling(run)


async def _ceiling(run: RowRun) -> None:
    """The same dialogs on a GPU whose own cache holds them: nothing can be better."""
    await run.clear_stage()
    bytes_wanted = _CEILING_BYTES if run.scale.name == "full" else 64 << 20
    async with run.engines((GPU_ONLY,), "", {"kv_cache_memory_bytes": bytes_wanted}) as engines:
        found = await requests.dialogs(engines[GPU_ONLY], run.scale, 77)
    run.results.beside("gpu_only_that_holds_all", found)
    run.say(f"a GPU that holds all: {found}")


async def small_pages(run: RowRun) -> None:
    """The same as `dram-32k` with pages so small that copy engines do not pay."""
    if run.scale.name == "full":
        run.scale = replace(
            run.scale,
            config=model.SMALL_PAGES,
            arguments={**run.scale.arguments, "block_size": 16},
        )
    await dram_32k(run)


async def dram_32k(run: RowRun) -> None:
    """One long prompt, computed, stored, and loaded from DRAM."""

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        return await long_prompt(run, variant, engine, number)

    run.results.ratio("loaded_ttft_forebay_to_vllm", "loaded_ttft_ms", FOREBAY, VLLM_CPU)
    run.results.ratio("loaded_ttft_forebay_to_gpu_only", "loaded_ttft_ms", FOREBAY, GPU_ONLY)
    engines = await run.stage(run.scale.variants, run.scale.dram_bytes)
    await run.repeat(engines, measure, 2 * run.scale.repeats)


async def long_prompt(
    run: RowRun, variant: str, engine: TokenEngine, number: int
) -> dict[str, Any]:
    """A prompt that nobody has asked: computed, then from the tier beneath, then from the GPU."""
    prompt = requests.prompt(run.scale, run.scale.long_tokens, 5000 + number)
    computed = await engine.ask(prompt, 1)
    await asyncio.sleep(1.0)  # what is stored behind the answer is stored by then
    before = await engine.counts()
    await engine.clear_cache()
    loaded = await engine.ask(prompt, 1)
    after = await engine.counts()
    own = await engine.ask(prompt, 1)
    found = {
        "computed_ttft_ms": milliseconds(computed),
        "loaded_ttft_ms": milliseconds(loaded),
        "own_cache_ttft_ms": milliseconds(own),
        "loaded_cached": loaded.cached_tokens,
        "tokens_equal": computed.tokens == loaded.tokens == own.tokens,
    }
    if variant == FOREBAY:
        found["load_gb_s"] = _rate(before, after, "loaded.bytes", "load_us")
        found["store_gb_s"] = _rate({}, before, "stored.bytes", "store_us")
    return found


def _rate(before: dict[str, int], after: dict[str, int], moved: str, took: str) -> float:
    """Gigabytes a second of device time, of a worker's copies."""
    size, took_us = (after.get(name, 0) - before.get(name, 0) for name in (moved, took))
    return round(size / took_us / 1000, 2) if took_us else 0.0
