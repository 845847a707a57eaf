"""The headline: how many clients one GPU carries within a bound, without and with Forebay.

Each variant's engine takes most of the GPU, so they come one after the other, and each load is a
part of its own: what is measured is kept, and the next run goes on behind it. The report is that of
`forebay bench ab`.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from forebay.bench.gpu import model, requests
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY
from forebay.bench.report import page
from forebay.bench.result.format import AbResult, LoadResult, LoadStep
from forebay.bench.result.machine import these_versions, this_machine
from forebay.plan.measured import Sla

_CLIENTS: Final = (1, 8, 16, 32, 64)
_TINY_CLIENTS: Final = (1, 2)
_BOUND: Final = Sla(tpot_ms=50.0)
_DRAM_BYTES: Final = 80 << 30
_DISK_BYTES: Final = 30 << 30
_KV_BYTES: Final = 24 << 30
_START_S: Final = 120.0  # an engine of this size
_SLOWER: Final = (
    3.0  # a load of so many more clients takes at most so much longer than in proportion
)
_NAMES: Final = {GPU_ONLY: "vLLM alone", FOREBAY: "vLLM with Forebay"}


async def headline(run: RowRun) -> None:
    """One dialog a client, with ever more clients, on a model of 32 billion parameters."""
    await run.clear_stage()
    is_full = run.scale.name == "full"
    if is_full:
        more = {"kv_cache_memory_bytes": _KV_BYTES, "gpu_memory_utilization": 0.9}
        arguments = {**run.scale.arguments, **more}
        run.scale = replace(run.scale, config=model.QWEN2_5_32B, arguments=arguments)
    clients = _CLIENTS if is_full else _TINY_CLIENTS
    for variant in (FOREBAY, GPU_ONLY):
        missing = [count for count in clients if str(count) not in _steps(run, variant)]
        if missing and not run.has_time(_START_S if is_full else 0.0):
            run.say(f"no time for {variant}; run the row again")
        elif missing:
            await _measure(run, variant, missing)
    _report(run, clients)


def _steps(run: RowRun, variant: str) -> dict[str, Any]:
    """What is measured of a variant, by the number of clients."""
    found: dict[str, Any] = run.results.found.setdefault("steps", {}).setdefault(variant, {})
    return found


async def _measure(run: RowRun, variant: str, clients: Sequence[int]) -> None:
    is_full = run.scale.name == "full"
    async with contextlib.AsyncExitStack() as stack:
        socket = ""
        if variant == FOREBAY:
            dram_bytes = _DRAM_BYTES if is_full else run.scale.dram_bytes
            disk_bytes = _DISK_BYTES if is_full else run.scale.disk_bytes
            stack.callback(run.clear_drive)
            pool = await stack.enter_async_context(run.pool(dram_bytes, disk_bytes))
            socket = pool.socket
        engine = await run.start(variant, socket)
        stack.push_async_callback(engine.stop)
        await run.warm(variant, engine)
        for number in clients:
            if not run.has_time(_expected_s(run, variant, number)):
                run.say(f"no time for {number} clients; run the row again")
                return
            await _ask(run, variant, engine, number)


def _expected_s(run: RowRun, variant: str, clients: int) -> float:
    """What a load takes at most, by the last one that is known."""
    known = [(int(count), step["seconds"]) for count, step in _steps(run, variant).items()]
    last = max((each for each in known if each[0] < clients), default=None)
    return 0.0 if last is None else _SLOWER * last[1] * clients / max(last[0], 8)


async def _ask(run: RowRun, variant: str, engine: TokenEngine, clients: int) -> None:
    # Each load has dialogs of its own, the same for both variants.
    step, joules = await run.joules(requests.one_dialog_each(engine, run.scale, clients))
    kept = msgspec.to_builtins(step)
    if joules is not None:
        kept["joules_a_request"] = round(joules / max(1, step.requests or 0), 1)
    _steps(run, variant)[str(clients)] = kept
    run.results.beside("bound", str(_BOUND))
    run.say(f"{variant}, {clients} clients: {step.req_s} requests/s, TPOT {step.tpot_ms}")


def _report(run: RowRun, clients: Sequence[int]) -> None:
    """The page and the figures, once both variants have the same loads."""
    results = {}
    for variant, name in _NAMES.items():
        steps = _steps(run, variant)
        common = [
            str(count) for count in clients if all(str(count) in _steps(run, v) for v in _NAMES)
        ]
        if not common:
            return
        results[variant] = LoadResult(
            tuple(msgspec.convert(steps[count], LoadStep) for count in common),
            name=name,
            model=f"{run.scale.config['num_hidden_layers']} layers, made-up weights",
            workload={"name": "dialogs", "turns": requests.TURNS},
            machine=this_machine(),
            versions=these_versions(),
        )
    ab = AbResult(off=results[GPU_ONLY], on=results[FOREBAY], sla=_BOUND)
    written = page.write(run.results.path.with_suffix(""), ab)
    run.say(f"the report: {written}")
