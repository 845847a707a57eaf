"""Rows measured from an engine's first request: engine and pool are new in every measurement."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from forebay.bench.gpu import requests, variants
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.requests import DIALOG_FIGURES
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY, VLLM_CPU, VLLM_FILES, RowScale
from forebay.errors import StartupError

_WITH_DRIVE: Final = "forebay_with_drive"
_COMPRESSED: Final = "forebay_compressed"
_FIGURES: Final = (*DIALOG_FIGURES, "tpot_p95_ms")
_LOOK_S: Final = 0.1
_NEEDS_GPU: Final = "vLLM's own tiers are left out: they need a GPU"


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side of a comparison is started with."""

    variant: str
    scale: RowScale
    disk_bytes: int = 0
    is_peer: bool = False  # if it does not start, the others are compared without it


async def dialogs_cold(run: RowRun) -> None:
    """The dialogs from the first request on, beside vLLM's CPU tier."""
    other = VLLM_CPU if VLLM_CPU in run.scale.variants else GPU_ONLY  # in a rehearsal
    sides = {name: _Side(name, run.scale) for name in (other, FOREBAY)}
    await _from_the_first_request(run, sides, [(FOREBAY, other)])


async def dialogs_drive(run: RowRun) -> None:
    """The same with all in DRAM: the cost of a drive that nobody reads."""
    sides = {
        FOREBAY: _Side(FOREBAY, run.scale),
        _WITH_DRIVE: _Side(FOREBAY, run.scale, run.scale.disk_bytes),
    }
    await _from_the_first_request(run, sides, [(_WITH_DRIVE, FOREBAY)])


async def disk_carries_cold(run: RowRun) -> None:
    """The dialogs with hardly any DRAM, so that the drive carries them; with KV encoded, too."""
    # Only bfloat16 can be encoded, and all sides must have the same.
    scale = replace(run.scale.in_bfloat16(), dram_bytes=run.scale.small_dram_bytes)
    encoded = replace(scale, settings={**scale.settings, "compress": True})
    sides = {
        GPU_ONLY: _Side(GPU_ONLY, scale),
        FOREBAY: _Side(FOREBAY, scale, scale.disk_bytes),
        _COMPRESSED: _Side(FOREBAY, encoded, scale.disk_bytes),
    }
    ratios = [(FOREBAY, GPU_ONLY), (_COMPRESSED, FOREBAY)]
    if VLLM_CPU in scale.variants:
        sides[VLLM_CPU] = _Side(VLLM_CPU, scale, is_peer=True)
        sides[VLLM_FILES] = _Side(VLLM_FILES, scale, scale.disk_bytes, is_peer=True)
        ratios += [(VLLM_CPU, GPU_ONLY), (VLLM_FILES, GPU_ONLY)]
    else:
        run.say(_NEEDS_GPU)
    await _from_the_first_request(run, sides, ratios)


async def _from_the_first_request(
    run: RowRun, sides: Mapping[str, _Side], ratios: list[tuple[str, str]]
) -> None:
    await run.clear_stage()

    async def measure(name: str, _engine: None, number: int) -> dict[str, Any]:
        side = sides[name]
        try:
            return await _one_side(run, side, number)
        except StartupError as error:
            if not side.is_peer:
                raise
            return {"failed": str(error)}

    for ours, other in ratios:
        for figure in _FIGURES:
            run.results.ratio(f"{ours}_to_{other}_{figure}", figure, ours, other)
    await run.repeat(dict.fromkeys(sides), measure, run.scale.repeats)


async def _one_side(run: RowRun, side: _Side, number: int) -> dict[str, Any]:
    """Measure one side with a new pool and a new engine."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(run.clear_drive)
        socket, more = "", None
        if side.variant == FOREBAY:
            pool = await stack.enter_async_context(run.pool(side.scale.dram_bytes, side.disk_bytes))
            socket = pool.socket
        elif side.variant == VLLM_FILES:
            run.require_room(side.disk_bytes)
            directory = str(run.directory("files"))
            more = variants.vllm_tiers(side.scale.dram_bytes, directory)
        begun = time.perf_counter()
        engine = await run.start(side.variant, socket, more, side.scale)
        stack.push_async_callback(engine.stop)
        start_s = round(time.perf_counter() - begun, 2)
        work = run.measured(requests.dialogs(engine, side.scale, number))
        if side.variant == VLLM_FILES:
            found = await _until_full(work, lambda: _used(run), side.disk_bytes)
        else:
            found = await _counted(run, engine, work, bool(socket))
        return {"start_s": start_s, **found}


async def _counted(
    run: RowRun, engine: TokenEngine, work: Awaitable[dict[str, Any]], has_pool: bool
) -> dict[str, Any]:
    """The figures, with what pool and connector counted meanwhile."""
    if not has_pool:
        return await work
    before = await run.counted(FOREBAY, engine)
    found = await work
    found["reach_bytes_at_first"] = before["connector"].get("reach_bytes", -1)
    return found | await run.since(before, FOREBAY, engine)


def _used(run: RowRun) -> int:
    """Bytes in use on the drive, as the file system counts them; there are too many files."""
    return shutil.disk_usage(run.place).used


async def _until_full(
    work: Awaitable[dict[str, Any]], used: Callable[[], int], most_bytes: int
) -> dict[str, Any]:
    """The figures of a tier without a cap; it is stopped once it has written `most_bytes`."""
    first, begun = used(), time.perf_counter()
    asking = asyncio.ensure_future(work)
    most = 0
    try:
        while not asking.done():
            most = max(most, used() - first)
            if most > most_bytes:
                took_s = round(time.perf_counter() - begun, 1)
                return {"failed": f"it was stopped: {most} bytes on the drive after {took_s} s"}
            await asyncio.wait({asking}, timeout=_LOOK_S)
        return {**asking.result(), "disk_bytes": max(most, used() - first)}
    finally:
        asking.cancel()
        await asyncio.wait({asking})
