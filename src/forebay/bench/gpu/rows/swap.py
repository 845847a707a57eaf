"""Rows of two models on one GPU, behind a gateway: sleep and wake against stop and start."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Any, Final

from forebay.bench.gpu import model, variants
from forebay.bench.gpu.engine import flags
from forebay.bench.gpu.gateway import GatewayClient, running_gateway
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY
from forebay.bench.processes import HOST, free_port
from forebay.engines.start import vllm

SLEEP: Final = "sleep"
STOP: Final = "stop"
_NAMES: Final = ("one", "two")
_SEED: Final = 500_000  # of the first prompt
_SHORT_TOKENS: Final = 16
_CYCLES: Final = {SLEEP: 20, STOP: 2}
_PHASE_S: Final = {"full": 90.0, "tiny": 10.0}
_TURN_TOKENS: Final = {"full": 5500, "tiny": 1000}
_MEMORY: Final = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")


class SwappedModels(GatewayClient):
    """Asks both engines, that a gateway has started."""

    async def wake(self, name: str) -> float:
        """Seconds to the first token of a request that wakes a model."""
        return (await self.ask(name, self.prompt(_SHORT_TOKENS))).ttft_s


async def swap(run: RowRun) -> None:
    """Wake to the first token; a dialog that comes back after a swap; memory of the GPU."""
    run.results.ratio("wake_of_sleep_to_stop", "wake_ms", SLEEP, STOP)

    async def measure(variant: str, _engine: None, _number: int) -> dict[str, Any]:
        async with (
            run.pool(run.scale.dram_bytes) as pool,
            _models(run, variant, pool.socket) as both,
        ):
            woken: list[float] = []
            memory_mib = []
            for _ in range(_CYCLES[variant]):
                woken += [await both.wake(name) for name in _NAMES]
                memory_mib.append(await asyncio.to_thread(_memory_mib))
            found: dict[str, Any] = {"wake_ms": _ms(median(woken)), "memory_mib": memory_mib}
            if memory_mib[0]:
                found["memory_growth"] = round(memory_mib[-1] / memory_mib[0], 4)
            return found | (await _returning(run, both) if variant == SLEEP else {})

    await run.repeat(dict.fromkeys((SLEEP, STOP)), measure, 1)
    for figure in ("return_to_compute", "memory_growth"):
        found = [repeat[SLEEP].get(figure) for repeat in run.results.repeats]
        if known := [value for value in found if value is not None]:
            run.results.spread(figure, known)


async def swap_alternating(run: RowRun) -> None:
    """Requests answered where load moves from one model to the other every 90 seconds."""
    run.results.ratio("requests_of_sleep_to_stop", "requests", SLEEP, STOP)

    async def measure(variant: str, _engine: None, _number: int) -> dict[str, Any]:
        async with (
            run.pool(run.scale.dram_bytes) as pool,
            _models(run, variant, pool.socket) as both,
        ):
            return await run.measured(_alternating(run, both))

    await run.repeat(dict.fromkeys((SLEEP, STOP)), measure, 1)


async def _returning(run: RowRun, both: SwappedModels) -> dict[str, Any]:
    """A turn whose dialog the pool has, after a swap, and one of as many tokens that nobody has."""
    tokens = _TURN_TOKENS[run.scale.name]
    turn = both.prompt(tokens)
    await both.wake("one")
    await both.ask("one", turn, run.scale.answer_tokens)
    run.settled()
    await both.wake("two")
    await both.wake("one")
    back = await both.ask("one", [*turn, *both.prompt(_SHORT_TOKENS)])
    fresh = await both.ask("one", both.prompt(tokens + _SHORT_TOKENS))
    return {
        "return_ms": _ms(back.ttft_s),
        "return_cached_tokens": back.cached_tokens,
        "compute_ms": _ms(fresh.ttft_s),
        "return_to_compute": round(back.ttft_s / fresh.ttft_s, 4),
    }


async def _alternating(run: RowRun, both: SwappedModels) -> dict[str, Any]:
    counts = [await _phase(run, both, name) for name in _NAMES]
    return {"requests": sum(counts), "requests_of_each": counts}


async def _phase(run: RowRun, both: SwappedModels, name: str) -> int:
    """How many requests are answered in the time; the model sleeps when it begins."""
    until, count = time.monotonic() + _PHASE_S[run.scale.name], 0

    async def ask() -> None:
        nonlocal count
        while time.monotonic() < until:
            await both.ask(name, both.prompt(run.scale.prompt_tokens), run.scale.answer_tokens)
            count += time.monotonic() < until

    await asyncio.gather(*(ask() for _ in range(run.scale.clients)))
    return count


@contextlib.asynccontextmanager
async def _models(run: RowRun, variant: str, socket: str) -> AsyncIterator[SwappedModels]:
    """Two engines of one shape under two names, that have answered; the second is awake."""
    port = free_port()
    text = _config(run, variant, socket, port)
    async with running_gateway(run, f"gateway-{variant}", text, port):
        both = SwappedModels(run, port, _SEED)
        for name in _NAMES:
            run.say(f"{variant}: {name} answers after {await both.wake(name):.1f} s")
        yield both


def _config(run: RowRun, variant: str, socket: str, port: int) -> str:
    directory = model.write(run.place.parent, run.scale.config)
    lines = [f'listen = "{HOST}:{port}"', f'state_dir = "{run.place}/gateway-{variant}/state"']
    lines += ["[[gpu]]", 'name = "0"', "idle_s = 0", "awake_s = 0", "drain_s = 60"]
    for name in _NAMES:
        wanted = variants.arguments(FOREBAY, run.scale, directory, socket)
        wanted |= {"served_model_name": name, "enable_prompt_tokens_details": True}
        if variant == SLEEP and run.scale.name == "full":  # a build for CPUs refuses the flag
            wanted["enable_sleep_mode"] = True
        lines += ["[[engine]]", f'name = "{name}"', f'model = "{name}"', 'gpu = "0"']
        lines += [f'url = "http://{HOST}:{free_port()}"', f'swap = "{variant}"', "pool = true"]
        lines += [f"command = {json.dumps(vllm.command(flags(wanted), None))}"]
    return "\n".join(lines) + "\n"


def _memory_mib() -> int:
    """What is taken of the first GPU; 0 where there is none."""
    try:
        found = subprocess.run(_MEMORY, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(found.stdout.split()[0])


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
