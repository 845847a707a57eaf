"""Rows counted from an engine's first request: engine and pool are new in every measurement."""

import contextlib
import time
from typing import Any, Final

from forebay.bench.gpu import requests
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.requests import DIALOG_FIGURES
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY, VLLM_CPU

_WITH_DRIVE: Final = "forebay_with_drive"
_FIGURES: Final = (*DIALOG_FIGURES, "tpot_p95_ms")


async def dialogs_cold(run: RowRun) -> None:
    """The dialogs from the first request on, beside vLLM's CPU tier."""
    other = VLLM_CPU if VLLM_CPU in run.scale.variants else GPU_ONLY  # in a rehearsal
    await _from_the_first_request(run, other, FOREBAY)


async def dialogs_drive(run: RowRun) -> None:
    """The same where DRAM holds everything: what a drive costs that nobody reads."""
    await _from_the_first_request(run, FOREBAY, _WITH_DRIVE)


async def _from_the_first_request(run: RowRun, other: str, ours: str) -> None:
    await run.clear_stage()

    async def measure(variant: str, _engine: None, number: int) -> dict[str, Any]:
        disk_bytes = run.scale.disk_bytes if variant == _WITH_DRIVE else 0
        async with contextlib.AsyncExitStack() as stack:
            socket = ""
            if variant in {FOREBAY, _WITH_DRIVE}:
                stack.callback(run.clear_drive)
                pool = await stack.enter_async_context(run.pool(run.scale.dram_bytes, disk_bytes))
                socket = pool.socket
            begun = time.perf_counter()
            engine = await run.start(FOREBAY if socket else variant, socket)
            stack.push_async_callback(engine.stop)
            start_s = round(time.perf_counter() - begun, 2)
            return {"start_s": start_s, **await _measured(run, engine, number, bool(socket))}

    for figure in _FIGURES:
        run.results.ratio(f"{ours}_to_{other}_{figure}", figure, ours, other)
    await run.repeat(dict.fromkeys((other, ours)), measure, run.scale.repeats)


async def _measured(
    run: RowRun, engine: TokenEngine, number: int, has_pool: bool
) -> dict[str, Any]:
    if not has_pool:
        return await requests.dialogs(engine, run.scale, number)
    before = await run.counted(FOREBAY, engine)
    found = await requests.dialogs(engine, run.scale, number)
    found["reach_bytes_at_first"] = before["connector"].get("reach_bytes", -1)
    return found | await run.since(before, FOREBAY, engine)
