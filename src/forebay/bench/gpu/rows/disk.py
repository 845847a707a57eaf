"""Rows that read from NVMe, or restart engines and pools."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from forebay.bench.disk.raw import prepared_files
from forebay.bench.gpu import requests
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.requests import DIALOG_FIGURES, FinalTurn, milliseconds
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import ALWAYS_LOADS, FOREBAY, GPU_ONLY, VLLM_CPU
from forebay.bench.load.client import Completion
from forebay.metrics.reading import tier_of

_START_UP_REPEATS: Final = 5
_WORKING_SET_CLIENTS: Final = 3  # times the clients of dialogs
_READ_BYTES: Final = "moved_bytes.disk.load"
_RAW_BYTES: Final = 4 << 30
_RAW_IO_BYTES: Final = 2 << 20
_RAW_DEPTH: Final = 8  # as the tier reads
_PIECES: Final = 8  # a long prompt is stored piece by piece, as fast as a drive takes it
_WRITE_S: Final = 30.0
_WATCH_S: Final = 0.5
_RETURNING: Final = 6  # dialogs of each way to come back
_FROM_DRAM: Final = "from_dram"
_FROM_NVME: Final = "from_nvme"  # or computed, where that is faster
_ALL_FROM_NVME: Final = "all_from_nvme"
_WHOLE_SHARE: Final = 0.9  # of what was said before; what is no whole chunk is computed
_DAMAGE: Final = ("corrupt", "wrong_record", "dram_corrupt", "io_error")


async def nvme_32k(run: RowRun) -> None:
    """One long prompt from NVMe through a DRAM that holds less than half of it."""
    await run.clear_stage()
    scale, is_full = run.scale, run.scale.name == "full"
    bytes_wanted = scale.long_tokens * scale.token_bytes
    dram_bytes = 2 << 30 if is_full else 4 << 20
    disk_bytes = min(scale.disk_bytes, 7 * bytes_wanted)  # two prompts a repeat, three repeats
    raw_slots = (_RAW_BYTES if is_full else 64 << 20) // _RAW_IO_BYTES

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        prompt = requests.prompt(scale, scale.long_tokens, 6000 + number)
        if variant == GPU_ONLY:
            computed = await engine.ask(prompt, 1)
            await engine.clear_cache()
            return {"ttft_ms": milliseconds(computed), "cached": computed.cached_tokens}
        await _store_slowly(run, engine, prompt)
        other = requests.prompt(scale, scale.long_tokens, 7000 + number)
        await _store_slowly(run, engine, other)
        await engine.clear_cache()
        before = run.settled()
        # At this moment, for drives that others use vary; as much, through as much memory.
        raw_gb_s = raw.read_through(_RAW_DEPTH, bytes_wanted)
        begun = time.perf_counter()
        reply = await engine.ask(prompt, 1)
        took_s = time.perf_counter() - begun
        read = int(run.counters().get(_READ_BYTES, 0) - before.get(_READ_BYTES, 0))
        return {
            "ttft_ms": milliseconds(reply),
            "seconds": round(took_s, 4),
            "cached": reply.cached_tokens,
            "read_bytes": read,
            "read_gb_s": round(read / reply.ttft_s / 1e9, 3) if reply.ttft_s else 0.0,
            "raw_gb_s": round(raw_gb_s, 3),
        }

    try:
        async with (
            run.pool(dram_bytes, disk_bytes) as pool,
            run.engines((GPU_ONLY, ALWAYS_LOADS, FOREBAY), pool.socket) as engines,
        ):
            with prepared_files(
                [run.directory("raw")], _RAW_IO_BYTES, raw_slots, dram_bytes
            ) as raw:
                await run.repeat(engines, measure, run.scale.repeats)
    finally:
        for repeat in run.results.repeats:
            times = [repeat[name]["ttft_ms"] for name in (GPU_ONLY, ALWAYS_LOADS)]
            repeat["better"] = {"ttft_ms": min(times)}
            repeat["raw"] = {"read_gb_s": repeat[ALWAYS_LOADS]["raw_gb_s"]}
        run.results.ratio("split_ttft_to_the_better", "ttft_ms", FOREBAY, "better")
        run.results.ratio("forced_read_to_raw", "read_gb_s", ALWAYS_LOADS, "raw")


async def disk_carries(run: RowRun) -> None:
    """The dialogs with hardly any DRAM: the drive has to carry them."""
    await _beyond_dram(run, run.scale.small_dram_bytes)


async def working_set(run: RowRun) -> None:
    """Three times the clients: three times as much as DRAM holds comes back."""
    run.scale = replace(run.scale, clients=_WORKING_SET_CLIENTS * run.scale.clients)
    peers = (VLLM_CPU,) if VLLM_CPU in run.scale.variants else ()
    await _beyond_dram(run, run.scale.dram_bytes, peers)


async def _beyond_dram(run: RowRun, dram_bytes: int, peers: Sequence[str] = ()) -> None:
    """Dialogs that DRAM does not hold, with a drive beneath it and on the GPU alone."""
    await run.clear_stage()
    scale = run.scale
    most = {"disk_bytes": 0, "files_bytes": 0, "cap_bytes": scale.disk_bytes}

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        watching = asyncio.create_task(_watch(run, most)) if variant == FOREBAY else None
        try:
            return await requests.dialogs(engine, scale, number)
        finally:
            if watching is not None:
                watching.cancel()
                run.results.beside("most", most)

    for figure in DIALOG_FIGURES:
        run.results.ratio(f"forebay_to_gpu_{figure}", figure, FOREBAY, GPU_ONLY)
        for peer in peers:
            run.results.ratio(f"{peer}_to_gpu_{figure}", figure, peer, GPU_ONLY)
    async with (
        run.pool(dram_bytes, scale.disk_bytes) as pool,
        run.engines((GPU_ONLY, FOREBAY, *peers), pool.socket) as engines,
    ):
        await run.repeat(engines, measure, scale.repeats)


async def restart(run: RowRun) -> None:
    """The last turn of dialogs after the engine, then after engine and pool were started again.

    Each way has dialogs of its own, so that none finds what another has asked.
    """
    await run.clear_stage()
    scale = run.scale
    disk_bytes = min(scale.disk_bytes, 20 << 30)
    turns: dict[str, list[FinalTurn]] = {}
    recomputed: dict[str, list[Completion]] = {}

    async def ask(way: str, variant: str, engine: TokenEngine) -> dict[str, Any]:
        before = await run.counted(variant, engine)
        found = _returned(turns[way], await _each(engine, turns[way]), recomputed[way])
        run.say(f"{way}: {found}")
        run.results.spread(f"{way}_to_recomputed", found.pop("ratios"))
        found |= await run.since(before, variant, engine)
        counted = found["counters"]["pool"]
        reasons = (f"operations.disk.load.{reason}" for reason in _DAMAGE)
        found["damaged"] = sum(counted.get(reason, 0) for reason in reasons)
        # What no cache beneath vLLM's own can be faster than, on this machine at this hour.
        own = await _each(engine, turns[way])
        found["own_cache_ttft_ms"] = [milliseconds(reply) for reply in own]
        run.results.beside(way, found)
        return found

    async with run.pool(scale.dram_bytes, disk_bytes) as pool:
        async with run.engines((GPU_ONLY, FOREBAY), pool.socket) as engines:
            for number, way in enumerate((_FROM_DRAM, _FROM_NVME, _ALL_FROM_NVME)):
                turns[way] = await requests.up_to_final_turn(
                    engines[FOREBAY], scale, _RETURNING, 8000 + number
                )
                recomputed[way] = await _each(engines[GPU_ONLY], turns[way])
            run.settled()
            engines[FOREBAY].kill()
        async with run.engines((FOREBAY,), pool.socket) as engines:
            await ask(_FROM_DRAM, FOREBAY, engines[FOREBAY])
            run.settled()
        pool.stop(_WRITE_S)
    async with (
        run.pool(scale.dram_bytes, disk_bytes) as pool,
        run.engines((FOREBAY, ALWAYS_LOADS), pool.socket) as engines,
    ):
        await ask(_FROM_NVME, FOREBAY, engines[FOREBAY])
        whole = await ask(_ALL_FROM_NVME, ALWAYS_LOADS, engines[ALWAYS_LOADS])
    is_whole = whole["cached_share"] >= _WHOLE_SHARE and not whole["damaged"]
    run.results.beside("all_came_back_undamaged", is_whole)


async def _each(engine: TokenEngine, turns: Sequence[FinalTurn]) -> list[Completion]:
    return [await engine.ask(turn.prompt, 4) for turn in turns]


def _returned(
    turns: Sequence[FinalTurn], replies: Sequence[Completion], recomputed: Sequence[Completion]
) -> dict[str, Any]:
    """Times of these turns, and of computing the same ones."""
    known = sum(turn.known_tokens for turn in turns)
    cached = sum(
        min(reply.cached_tokens or 0, turn.known_tokens)
        for turn, reply in zip(turns, replies, strict=True)
    )
    pairs = zip(replies, recomputed, strict=True)
    return {
        "ttft_ms": [milliseconds(reply) for reply in replies],
        "recomputed_ttft_ms": [milliseconds(reply) for reply in recomputed],
        "prompt_tokens": [len(turn.prompt) for turn in turns],
        "cached_share": round(cached / known, 3),
        "ratios": [reply.ttft_s / plain.ttft_s for reply, plain in pairs],
    }


async def start_up(run: RowRun) -> None:
    """From nothing to the first token with a large slab, and the steps while it is registered."""
    await run.clear_stage()
    scale = run.scale = replace(run.scale, dram_bytes=run.scale.slab_bytes)
    prompt = requests.prompt(scale, 200, 9000)
    tokens = 1500 if scale.name == "full" else 60

    async def measure(variant: str, _engine: None, _number: int) -> dict[str, Any]:
        begun = time.perf_counter()
        engine = await run.start(variant, pool.socket)
        try:
            reach_bytes = (await engine.counts()).get("reach_bytes", -1)
            await engine.ask(prompt, 1)
            first_s = time.perf_counter() - begun
            reply = await engine.ask(prompt, tokens)
            counts = await engine.counts()
        finally:
            await engine.stop()
        gaps = [b - a for a, b in pairwise(reply.token_times_s)]
        usual = median(gaps)
        return {
            "first_token_s": round(first_s, 3),
            "reach_bytes_at_first": reach_bytes,
            "step_ms": round(usual * 1000, 3),
            "longest_step_ms": round(max(gaps) * 1000, 3),
            "steps_over_twice": sum(gap > 2 * usual for gap in gaps),
            "steps": len(gaps),
            "counters": {"connector": counts},
        }

    async with run.pool(scale.dram_bytes) as pool:
        await (await run.start(GPU_ONLY, pool.socket)).stop()  # fills the compile cache
        try:
            await run.repeat(dict.fromkeys((GPU_ONLY, FOREBAY)), measure, _START_UP_REPEATS)
        finally:
            later = [
                round(repeat[FOREBAY]["first_token_s"] - repeat[GPU_ONLY]["first_token_s"], 2)
                for repeat in run.results.repeats
            ]
            run.results.beside("later_s", sorted(later))


async def _store_slowly(run: RowRun, engine: TokenEngine, prompt: list[int]) -> None:
    """Compute a prompt piece by piece, each written to the drive before the next comes."""
    step = -(-len(prompt) // _PIECES)
    for stop in range(step, len(prompt) + step, step):
        await engine.ask(prompt[:stop], 1)
        run.settled()


async def _watch(run: RowRun, most: dict[str, int]) -> None:
    """Track the most bytes that the drive ever held."""
    while True:
        files = sum(path.stat().st_blocks * 512 for path in run.directory("nvme").glob("*"))
        most["disk_bytes"] = max(most["disk_bytes"], tier_of(run.stats(), "disk")["used_bytes"])
        most["files_bytes"] = max(most["files_bytes"], files)
        await asyncio.sleep(_WATCH_S)
