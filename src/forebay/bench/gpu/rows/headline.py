"""The headline: how many clients one GPU carries within a bound, without and with Forebay.

Each variant's engine takes most of the GPU, so they come one after the other; `ramp.py` keeps what
was measured. On Forebay's engine a long prompt is loaded from DRAM, too.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from forebay.bench.gpu import model
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.rows.memory import long_prompt
from forebay.bench.gpu.rows.ramp import Ramp
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY, RowScale

_CLIENTS: Final = (1, 8, 16, 32, 64, 128)
_TINY_CLIENTS: Final = (1, 2)
_DRAM_BYTES: Final = 80 << 30
_DISK_BYTES: Final = 30 << 30
_KV_BYTES: Final = 24 << 30
_START_S: Final = 120.0  # an engine of this size
_LONG_PROMPTS: Final = 3
_LONG_S: Final = 30.0  # all of them
_LONG_PROMPT: Final = "dram_32k"


async def headline(run: RowRun) -> None:
    """One dialog a client, with ever more clients, on a model of 32 billion parameters."""
    await run.clear_stage()
    run.scale, is_full = _scale(run.scale), run.scale.name == "full"
    clients = _CLIENTS if is_full else _TINY_CLIENTS
    held_bytes = run.scale.dram_bytes + run.scale.disk_bytes
    ramp = Ramp(run, clients, held_bytes, (FOREBAY, GPU_ONLY))
    is_first = True
    for variant in ramp.order:
        missing = ramp.missing(variant)
        lacks_prompt = variant == FOREBAY and _LONG_PROMPT not in run.results.found["beside"]
        if not missing and not lacks_prompt:
            continue
        if not is_first and not run.has_time(_START_S if is_full else 0.0):
            run.say(f"no time for {variant}; run the row again")
            continue
        async with contextlib.AsyncExitStack() as stack:
            engine = await _start(run, variant, stack)
            await _loads(ramp, variant, engine, missing, is_first=is_first)
            if lacks_prompt and run.has_time(_LONG_S if is_full else 0.0):
                await _long_prompts(run, engine)
        is_first = False
    ramp.report()


async def dram_32k_32b(run: RowRun) -> None:
    """The long prompt alone; `headline` measures it, too."""
    await run.clear_stage()
    run.scale = _scale(run.scale)
    async with contextlib.AsyncExitStack() as stack:
        await _long_prompts(run, await _start(run, FOREBAY, stack))


def _scale(scale: RowScale) -> RowScale:
    if scale.name != "full":
        return scale
    more = {"kv_cache_memory_bytes": _KV_BYTES, "gpu_memory_utilization": 0.9}
    return replace(
        scale,
        config=model.QWEN2_5_32B,
        arguments={**scale.arguments, **more},
        dram_bytes=_DRAM_BYTES,
        disk_bytes=_DISK_BYTES,
    )


async def _start(run: RowRun, variant: str, stack: contextlib.AsyncExitStack) -> TokenEngine:
    """An engine that is warm, over a pool where the variant has one."""
    socket = ""
    if variant == FOREBAY:
        stack.callback(run.clear_drive)
        pool = await stack.enter_async_context(run.pool(run.scale.dram_bytes, run.scale.disk_bytes))
        socket = pool.socket
    engine = await run.start(variant, socket)
    stack.push_async_callback(engine.stop)
    await run.warm(variant, engine)
    return engine


async def _loads(
    ramp: Ramp,
    variant: str,
    engine: TokenEngine,
    missing: Sequence[tuple[int, int]],
    *,
    is_first: bool,
) -> None:
    """Measure the missing loads, as far as there is time."""
    for repeat, clients in missing:
        if not ramp.may_begin(variant, clients, is_first=is_first):
            continue
        await ramp.ask(variant, engine, clients, repeat)
        is_first = False


async def _long_prompts(run: RowRun, engine: TokenEngine) -> None:
    """A prompt of 32,000 tokens from DRAM, against computing it."""
    found = [await long_prompt(run, FOREBAY, engine, number) for number in range(_LONG_PROMPTS)]
    run.say(f"a long prompt: {found}")
    ratios = [each["loaded_ttft_ms"] / each["computed_ttft_ms"] for each in found]
    run.results.spread("dram_32k_loaded_to_computed", ratios)
    run.results.beside(_LONG_PROMPT, found)
