"""Short requests beside long prompts, with and without a gateway that shapes batches by length.

Both are before the same engine, whose KV cache holds several of the long prompts. The work is the
same: so many long prompts, with short ones all the while.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from forebay.bench.gpu import model, variants
from forebay.bench.gpu.engine import flags
from forebay.bench.gpu.gateway import GatewayClient, running_gateway, variables
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import GPU_ONLY
from forebay.bench.processes import HOST, ServerProcess, free_port
from forebay.engines.start import vllm

SHAPED: Final = "shaped"
UNSHAPED: Final = "unshaped"
NAME: Final = "long-and-short"
_CLIENTS: Final = 4  # of each kind
_LONG_REQUESTS: Final = {"full": 32, "tiny": 6}
_LONG_TOKENS: Final = {"full": 30_000, "tiny": 1500}
_SHORT_TOKENS: Final = {"full": 200, "tiny": 32}
_KV_BYTES: Final = {"full": 32 << 30, "tiny": 64 << 20}
_UTILIZATION: Final = 0.5  # of the GPU's memory, checked at start: weights and this KV cache
_NEVER_LONG: Final = 10**9
_SEEDS: Final = 10_000  # of one variant's prompts in one repeat
_P95: Final = 0.95


async def shaping(run: RowRun) -> None:
    """TTFT p95 of the short requests, and the throughput of both kinds."""
    run.results.ratio("short_ttft_p95", "short_ttft_p95_ms", SHAPED, UNSHAPED)
    run.results.ratio("throughput", "tokens_per_s", SHAPED, UNSHAPED)
    names = (SHAPED, UNSHAPED)
    async with _engine(run) as url:

        async def measure(variant: str, _engine: None, number: int) -> dict[str, Any]:
            port = free_port()
            seed = (len(names) * number + names.index(variant)) * _SEEDS
            async with running_gateway(run, variant, config(run, variant, url, port), port):
                return await _both_kinds(run, GatewayClient(run, port, seed))

        await run.repeat(dict.fromkeys(names), measure, run.scale.repeats)


def config(run: RowRun, variant: str, url: str, port: int) -> str:
    """A gateway's file; without shaping, no prompt counts as long."""
    scale = run.scale
    long_tokens = _LONG_TOKENS[scale.name] // 2 if variant == SHAPED else _NEVER_LONG
    lines = [f'listen = "{HOST}:{port}"', f"long_prompt_tokens = {long_tokens}"]
    lines += ["[[engine]]", f'name = "{NAME}"', f'model = "{NAME}"', f'url = "{url}"']
    lines += [f"max_num_seqs = {scale.arguments['max_num_seqs']}"]
    return "\n".join(lines) + "\n"


@contextlib.asynccontextmanager
async def _engine(run: RowRun) -> AsyncIterator[str]:
    """An engine without a pool, at this address."""
    port, directory = free_port(), model.write(run.place.parent, run.scale.config)
    wanted = variants.arguments(GPU_ONLY, run.scale, directory, "")
    wanted |= {"served_model_name": NAME, "host": HOST, "port": port}
    wanted |= {"kv_cache_memory_bytes": _KV_BYTES[run.scale.name]}
    wanted |= {"enable_prompt_tokens_details": True}
    if run.scale.name == "full":
        wanted["gpu_memory_utilization"] = _UTILIZATION
    command = vllm.command(flags(wanted), None)
    server = ServerProcess.start(command, variables(run), port, run.place / f"{NAME}.log")
    try:
        await asyncio.to_thread(server.wait)
        yield f"http://{HOST}:{port}"
    finally:
        await asyncio.to_thread(server.end)


async def _both_kinds(run: RowRun, asking: GatewayClient) -> dict[str, Any]:
    name = run.scale.name
    left, tokens, ttft_s = _LONG_REQUESTS[name], 0, list[float]()

    async def ask(size: int) -> float:
        nonlocal tokens
        answer = await asking.ask(NAME, asking.prompt(size), run.scale.answer_tokens)
        tokens += answer.prompt_tokens + answer.answer_tokens
        return answer.ttft_s

    async def ask_long() -> None:
        nonlocal left
        while left:
            left -= 1
            await ask(_LONG_TOKENS[name])

    async def ask_short(long: "asyncio.Future[list[None]]") -> None:
        while not long.done():
            ttft_s.append(await ask(_SHORT_TOKENS[name]))

    await ask(_SHORT_TOKENS[name])  # the engine has computed something
    tokens, begun = 0, time.monotonic()
    long = asyncio.gather(*(ask_long() for _ in range(_CLIENTS)))
    await asyncio.gather(long, *(ask_short(long) for _ in range(_CLIENTS)))
    seconds = time.monotonic() - begun
    p95_s = sorted(ttft_s)[math.ceil(_P95 * len(ttft_s)) - 1]
    return {
        "short_ttft_p95_ms": round(p95_s * 1000, 2),
        "tokens_per_s": round(tokens / seconds, 1),
        "requests": len(ttft_s) + _LONG_REQUESTS[name],
        "seconds": round(seconds, 2),
    }
