"""The rows: what each one measures, in the words of docs/benchmarks.md."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from forebay.bench.gpu import disk_rows, model, requests
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY, VLLM_CPU
from forebay.errors import StartupError

REPEATS: Final = 3
_CLIENTS_STATELESS: Final = 2  # times the clients of dialogs
_CEILING_BYTES: Final = 40 << 30
_COPIES_MODULE: Final = "forebay.engines.vllm.bench.copies"


async def nothing_to_reuse(run: RowRun) -> None:
    """Stateless prompts: what it costs to store all of them and use none."""
    clients = _CLIENTS_STATELESS * run.scale.clients

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        before = await run.settled() if variant == FOREBAY else {}
        found = await requests.stateless(engine, run.scale, clients, number)
        if variant == FOREBAY:
            after = await run.settled()
            chunks = after.get("stored.chunks", 0) - before.get("stored.chunks", 0)
            found["stored_chunks"] = chunks
            found["stored_bytes"] = after.get("stored.bytes", 0) - before.get("stored.bytes", 0)
            # Of each request all but its last token is computed; what is no whole chunk stays.
            each = run.scale.prompt_tokens + run.scale.answer_tokens - 1
            size = found["stored_bytes"] // max(1, chunks) // run.scale.token_bytes
            found["full_chunks"] = run.scale.requests * (each // max(1, size))
            found["stored_share"] = round(chunks / max(1, found["full_chunks"]), 4)
        return found

    for name in (FOREBAY, VLLM_CPU):
        run.results.ratio(f"{name}_requests_per_s", "requests_per_s", name, GPU_ONLY)
        run.results.ratio(f"{name}_ttft_mean", "ttft_mean_ms", name, GPU_ONLY)
    engines = await run.stage(run.scale.variants, run.scale.dram_bytes)
    await run.repeat(engines, measure, REPEATS)


async def dialogs(run: RowRun) -> None:
    """Dialogs that do not fit the GPU and fit DRAM; beside them a GPU that holds them all."""

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        del variant
        return await requests.dialogs(engine, run.scale, run.scale.clients, number)

    for figure in ("requests_per_s", "ttft_mean_ms", "tpot_mean_ms"):
        run.results.ratio(f"forebay_to_gpu_{figure}", figure, FOREBAY, GPU_ONLY)
        run.results.ratio(f"forebay_to_vllm_{figure}", figure, FOREBAY, VLLM_CPU)
    engines = await run.stage(run.scale.variants, run.scale.dram_bytes)
    await run.repeat(engines, measure, REPEATS)
    if run.has_time(120) and len(run.results.repeats) >= REPEATS:
        await _ceiling(run)


async def _ceiling(run: RowRun) -> None:
    """The same dialogs on a GPU whose own cache holds them: nothing can be better."""
    await run.clear_stage()
    bytes_wanted = _CEILING_BYTES if run.scale.name == "full" else 64 << 20
    async with run.engines((GPU_ONLY,), "", {"kv_cache_memory_bytes": bytes_wanted}) as engines:
        found = await requests.dialogs(engines[GPU_ONLY], run.scale, run.scale.clients, 77)
    run.results.beside("gpu_only_that_holds_all", found)
    run.say(f"a GPU that holds all: {found}")


async def dram_32k(run: RowRun) -> None:
    """One long prompt, computed, stored, and loaded from DRAM."""
    await _one_prompt(run)


async def small_pages(run: RowRun) -> None:
    """The same with pages so small that copy engines do not pay."""
    if run.scale.name == "full":
        config = model.SMALL_PAGES
        arguments = {**run.scale.arguments, "block_size": 16}
        run.scale = replace(
            run.scale,
            config=config,
            arguments=arguments,
            token_bytes=model.token_bytes(config, 2),
        )
    await _one_prompt(run)


async def _one_prompt(run: RowRun) -> None:
    scale = run.scale

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        prompt = requests.prompt(scale, scale.long_tokens, 5000 + number)
        computed = await engine.ask(prompt, 1)
        await asyncio.sleep(1.0)  # what is stored behind the answer is stored by then
        before = await engine.counts()
        await engine.clear_cache()
        loaded = await engine.ask(prompt, 1)
        after = await engine.counts()
        own = await engine.ask(prompt, 1)
        found = {
            "computed_ttft_ms": round(computed.ttft_s * 1000, 2),
            "loaded_ttft_ms": round(loaded.ttft_s * 1000, 2),
            "own_cache_ttft_ms": round(own.ttft_s * 1000, 2),
            "loaded_cached": loaded.cached_tokens,
            "tokens_equal": computed.tokens == loaded.tokens == own.tokens,
        }
        if variant == FOREBAY:
            found["load_gb_s"] = _rate(before, after, "load")
            found["store_gb_s"] = _rate({}, before, "store")
        return found

    run.results.ratio("loaded_ttft_forebay_to_vllm", "loaded_ttft_ms", FOREBAY, VLLM_CPU)
    run.results.ratio("loaded_ttft_forebay_to_gpu_only", "loaded_ttft_ms", FOREBAY, GPU_ONLY)
    engines = await run.stage(run.scale.variants, run.scale.dram_bytes)
    await run.repeat(engines, measure, 2 * REPEATS)


async def copies(run: RowRun) -> None:
    """The connector's copies between slab and GPU pages, without an engine; a process of its own.

    It writes the row's file itself, after each part.
    """
    await run.clear_stage()
    run.results.path.parent.mkdir(parents=True, exist_ok=True)
    is_tiny = ("--tiny",) if run.scale.name == "tiny" else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", _COPIES_MODULE, str(run.results.path), *is_tiny
    )
    try:
        if await process.wait():
            raise StartupError("a copy failed, or gave other bytes; see above.")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _rate(before: dict[str, int], after: dict[str, int], way: str) -> float:
    """Gigabytes a second of device time, of a worker's copies."""
    done = {"load": "loaded.bytes", "store": "stored.bytes"}[way]
    moved = after.get(done, 0) - before.get(done, 0)
    took_us = after.get(f"{way}_us", 0) - before.get(f"{way}_us", 0)
    return round(moved / took_us / 1000, 2) if took_us else 0.0


ROWS: Final[dict[str, Callable[[RowRun], Coroutine[None, None, None]]]] = {
    "nothing-to-reuse": nothing_to_reuse,
    "dialogs": dialogs,
    "dram-32k": dram_32k,
    "small-pages": small_pages,
    "nvme-32k": disk_rows.nvme_32k,
    "disk-carries": disk_rows.disk_carries,
    "restart": disk_rows.restart,
    "start-up": disk_rows.start_up,
    "copies": copies,
}
