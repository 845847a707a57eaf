"""The rows that read from NVMe, and those in which engines and pools are started again."""

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
from forebay.bench.gpu.requests import FinalTurn
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import ALWAYS_LOADS, FOREBAY, GPU_ONLY
from forebay.bench.load.client import Completion

_RAW_BYTES: Final = 4 << 30
_RAW_IO_BYTES: Final = 2 << 20
_RAW_DEPTH: Final = 8  # as the tier reads
_PIECES: Final = 8  # a long prompt is stored piece by piece, as fast as a drive takes it
_WRITE_S: Final = 30.0
_WATCH_S: Final = 0.5
_RETURNING: Final = 6  # dialogs of each way to come back
_FROM_DRAM: Final = "from_dram"
_FROM_NVME: Final = "from_nvme"  # or computed, where that is sooner
_ALL_FROM_NVME: Final = "all_from_nvme"
_WHOLE_SHARE: Final = 0.9  # of what was said before; what is no whole chunk is computed
_DAMAGE: Final = ("corrupt", "wrong_record", "dram_corrupt", "io_error")


async def nvme_32k(run: RowRun) -> None:
    """One long prompt from NVMe through a DRAM that holds less than half of it."""
    await run.clear_stage()
    scale = run.scale
    bytes_wanted = scale.long_tokens * scale.token_bytes
    dram_bytes = 2 << 30 if scale.name == "full" else 4 << 20
    disk_bytes = min(scale.disk_bytes, 7 * bytes_wanted)  # two prompts a repeat, three repeats

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        prompt = requests.prompt(scale, scale.long_tokens, 6000 + number)
        if variant == GPU_ONLY:
            computed = await engine.ask(prompt, 1)
            await engine.clear_cache()
            return {"ttft_ms": round(computed.ttft_s * 1000, 2), "cached": computed.cached_tokens}
        await _store_slowly(run, engine, prompt)
        other = requests.prompt(scale, scale.long_tokens, 7000 + number)
        await _store_slowly(run, engine, other)
        await engine.clear_cache()
        before = await run.settled()
        # At this moment, for drives that others use vary; as much, through as much memory.
        raw_gb_s = raw.read_through(_RAW_DEPTH, bytes_wanted)
        begun = time.perf_counter()
        reply = await engine.ask(prompt, 1)
        took_s = time.perf_counter() - begun
        after = run.counters()
        read = after.get("disk.loaded_bytes", 0) - before.get("disk.loaded_bytes", 0)
        return {
            "ttft_ms": round(reply.ttft_s * 1000, 2),
            "seconds": round(took_s, 4),
            "cached": reply.cached_tokens,
            "read_bytes": read,
            "read_gb_s": round(read / reply.ttft_s / 1e9, 3) if reply.ttft_s else 0.0,
            "raw_gb_s": round(raw_gb_s, 3),
        }

    size = _RAW_BYTES if scale.name == "full" else 64 << 20
    run.raw.mkdir(mode=0o700, exist_ok=True)
    try:
        async with (
            run.pool(dram_bytes, disk_bytes) as pool,
            run.engines((GPU_ONLY, ALWAYS_LOADS, FOREBAY), pool.socket) as engines,
        ):
            with prepared_files([run.raw], _RAW_IO_BYTES, size // _RAW_IO_BYTES, dram_bytes) as raw:
                await run.repeat(engines, measure, 3)
    finally:
        _against_raw(run)


def _against_raw(run: RowRun) -> None:
    """The ratios of the repeats so far."""
    for repeat in run.results.repeats:
        repeat["better"] = {
            "ttft_ms": min(repeat[GPU_ONLY]["ttft_ms"], repeat[ALWAYS_LOADS]["ttft_ms"])
        }
        repeat["raw"] = {"read_gb_s": repeat[ALWAYS_LOADS]["raw_gb_s"]}
    run.results.ratio("split_ttft_to_the_better", "ttft_ms", FOREBAY, "better")
    run.results.ratio("forced_read_to_raw", "read_gb_s", ALWAYS_LOADS, "raw")


async def disk_carries(run: RowRun) -> None:
    """The dialogs with hardly any DRAM: the drive has to carry them."""
    await run.clear_stage()
    scale = run.scale
    most = {"disk_bytes": 0, "files_bytes": 0}

    async def measure(variant: str, engine: TokenEngine, number: int) -> dict[str, Any]:
        if variant == GPU_ONLY:
            return await requests.dialogs(engine, scale, scale.clients, number)
        watching = asyncio.create_task(_watch(run, most))
        try:
            return await requests.dialogs(engine, scale, scale.clients, number)
        finally:
            watching.cancel()
            run.results.beside("most", {**most, "cap_bytes": scale.disk_bytes})

    for figure in ("requests_per_s", "ttft_mean_ms", "tpot_mean_ms"):
        run.results.ratio(f"forebay_to_gpu_{figure}", figure, FOREBAY, GPU_ONLY)
    async with (
        run.pool(scale.small_dram_bytes, scale.disk_bytes) as pool,
        run.engines((GPU_ONLY, FOREBAY), pool.socket) as engines,
    ):
        await run.repeat(engines, measure, 3)
        if run.has_time(60):
            last = await requests.dialogs(engines[GPU_ONLY], scale, scale.clients, 99)
            run.results.beside("gpu_only_last", last)


async def restart(run: RowRun) -> None:
    """The last turn of dialogs after the engine, then after engine and pool were started again.

    Each way has dialogs of its own, so that none finds what another has asked.
    """
    await run.clear_stage()
    scale = run.scale
    disk_bytes = min(scale.disk_bytes, 20 << 30)
    turns: dict[str, list[FinalTurn]] = {}
    recomputed: dict[str, list[Completion]] = {}

    async def ask(way: str, variant: str, engine: TokenEngine) -> None:
        before = await run.counted(variant, engine)
        replies = await _each(engine, turns[way])
        found = _returned(turns[way], replies, recomputed[way])
        run.say(f"{way}: {found}")
        run.results.spread(f"{way}_to_recomputed", found.pop("ratios"))
        found |= await run.since(before, variant, engine)
        counted = found["counters"]["pool"]
        found["damaged"] = sum(counted.get(f"misses.{reason}", 0) for reason in _DAMAGE)
        # What no cache beneath vLLM's own can be faster than, on this machine at this hour.
        found["own_cache_ttft_ms"] = _milliseconds(await _each(engine, turns[way]))
        run.say(f"{way}: from vLLM's own cache {found['own_cache_ttft_ms']} ms")
        run.results.beside(way, found)

    async with run.pool(scale.dram_bytes, disk_bytes) as pool:
        async with run.engines((GPU_ONLY, FOREBAY), pool.socket) as engines:
            for number, way in enumerate((_FROM_DRAM, _FROM_NVME, _ALL_FROM_NVME)):
                made = await requests.up_to_final_turn(
                    engines[FOREBAY], scale, _RETURNING, 8000 + number
                )
                turns[way] = made
                recomputed[way] = await _each(engines[GPU_ONLY], made)
            await run.settled()
            engines[FOREBAY].kill()
        async with run.engines((FOREBAY,), pool.socket) as engines:
            await ask(_FROM_DRAM, FOREBAY, engines[FOREBAY])
            await run.settled()
        pool.stop(_WRITE_S)
    async with (
        run.pool(scale.dram_bytes, disk_bytes) as pool,
        run.engines((FOREBAY, ALWAYS_LOADS), pool.socket) as engines,
    ):
        await ask(_FROM_NVME, FOREBAY, engines[FOREBAY])
        await ask(_ALL_FROM_NVME, ALWAYS_LOADS, engines[ALWAYS_LOADS])
    whole = run.results.found["beside"][_ALL_FROM_NVME]
    is_whole = whole["cached_share"] >= _WHOLE_SHARE and not whole["damaged"]
    run.results.beside("all_came_back_undamaged", is_whole)


async def _each(engine: TokenEngine, turns: Sequence[FinalTurn]) -> list[Completion]:
    return [await engine.ask(turn.prompt, 4) for turn in turns]


def _returned(
    turns: Sequence[FinalTurn], replies: Sequence[Completion], recomputed: Sequence[Completion]
) -> dict[str, Any]:
    """Times of these turns, and of computing the very same ones."""
    known = sum(turn.known_tokens for turn in turns)
    cached = sum(
        min(reply.cached_tokens or 0, turn.known_tokens)
        for turn, reply in zip(turns, replies, strict=True)
    )
    pairs = zip(replies, recomputed, strict=True)
    return {
        "ttft_ms": _milliseconds(replies),
        "recomputed_ttft_ms": _milliseconds(recomputed),
        "prompt_tokens": [len(turn.prompt) for turn in turns],
        "cached_share": round(cached / known, 3),
        "ratios": [reply.ttft_s / plain.ttft_s for reply, plain in pairs],
    }


def _milliseconds(replies: Sequence[Completion]) -> list[float]:
    return [round(reply.ttft_s * 1000, 2) for reply in replies]


async def start_up(run: RowRun) -> None:
    """From nothing to the first token with a large slab, and the steps while it is registered."""
    await run.clear_stage()
    run.scale = replace(run.scale, dram_bytes=run.scale.slab_bytes)
    scale = run.scale
    prompt = requests.prompt(scale, 200, 9000)
    tokens = 1500 if scale.name == "full" else 60

    async def measure(variant: str) -> dict[str, Any]:
        begun = time.perf_counter()
        engine = await run.start(variant, pool.socket)
        try:
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
            "step_ms": round(usual * 1000, 3),
            "longest_step_ms": round(max(gaps) * 1000, 3),
            "steps_over_twice": sum(gap > 2 * usual for gap in gaps),
            "steps": len(gaps),
            "counters": {"connector": counts},
        }

    async with run.pool(scale.dram_bytes) as pool:
        await (await run.start(GPU_ONLY, pool.socket)).stop()  # fills the compile cache
        while len(run.results.repeats) < 3 and run.has_time(120):
            order = (
                [GPU_ONLY, FOREBAY] if len(run.results.repeats) % 2 == 0 else [FOREBAY, GPU_ONLY]
            )
            repeat = {variant: await measure(variant) for variant in order}
            run.say(str(repeat))
            run.results.keep(repeat)
            firsts = [
                (r[FOREBAY]["first_token_s"], r[GPU_ONLY]["first_token_s"])
                for r in run.results.repeats
            ]
            run.results.beside("later_s", sorted(round(ours - plain, 2) for ours, plain in firsts))


async def _store_slowly(run: RowRun, engine: TokenEngine, prompt: list[int]) -> None:
    """Compute a prompt piece by piece, each written to the drive before the next comes."""
    step = -(-len(prompt) // _PIECES)
    for stop in range(step, len(prompt) + step, step):
        await engine.ask(prompt[:stop], 1)
        await run.settled()


async def _watch(run: RowRun, most: dict[str, int]) -> None:
    """Keep the most that the drive ever held."""
    while True:
        used = int(run.stats()["disk"]["used_bytes"])
        files = sum(path.stat().st_blocks * 512 for path in run.nvme.glob("*"))
        most["disk_bytes"] = max(most["disk_bytes"], used)
        most["files_bytes"] = max(most["files_bytes"], files)
        await asyncio.sleep(_WATCH_S)
