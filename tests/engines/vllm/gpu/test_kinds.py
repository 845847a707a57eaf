"""MLA, windows and encoded KV on a GPU: pages and tokens through DRAM, a restart, and NVMe.

Windows in float32. For MLA vLLM has kernels of 16 bits only, and others for a prompt than for an
answer: what it says from its own cache is the measure. Rehearsed by GPU_REHEARSAL=1.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engines.vllm.gpu import rig
from tests.engines.vllm.gpu.rig import REHEARSAL, ask_each, tokens_of
from tests.engines.vllm.gpu.talks import Alone, Bench, Say, told_by
from tests.engines.vllm.real.models import (
    made_latent_model,
    made_model,
    made_windowed_model,
)
from tests.pool_process import PoolProcess

from forebay.bench.gpu.engine import TokenEngine

pytestmark = [*rig.NEEDS_GPU, pytest.mark.timeout(3000 if REHEARSAL else 420)]
DIALOGS, TURNS = 4, 3
ROOMY, TIGHT = 64 << 20, 10 << 20  # bytes of KV; in a tight cache freed blocks are others' at once
# Heads that FlashAttention 3 has kernels for; on a CPU smaller ones will do.
LATENT = {} if REHEARSAL else {"heads": 16, "head_dim": 128}


class Kind(NamedTuple):
    """A kind of model."""

    make: Callable[[Path], Path]
    dtype: str
    extra: dict[str, bool] = {}  # noqa: RUF012 - settings beside the defaults, never changed

    def arguments(self, model: Path) -> dict[str, Any]:
        return rig.arguments(model, self.dtype, enforce_eager=True, kv_cache_memory_bytes=ROOMY)


KINDS = {
    "mla": Kind(
        lambda place: made_latent_model(place, **LATENT),
        "float32" if REHEARSAL else "bfloat16",
    ),
    "compress": Kind(
        lambda place: made_model(place, 1, heads=4, kv_heads=2, layers=4, head_dim=64),
        "bfloat16",
        {"compress": True},
    ),
    "windows": Kind(lambda place: made_windowed_model(place, "gemma3"), "float32"),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_t50_pages_and_tokens_are_equal_through_dram_restart_and_nvme(
    kind: str, pool: PoolProcess, tmp_path: Path, say: Say
) -> None:
    chosen = KINDS[kind]
    wanted = chosen.arguments(chosen.make(tmp_path / "model"))
    bench = Bench(kind, pool, tmp_path, say, chosen.extra)

    async def ask_last(engine: TokenEngine, alone: Alone, way: str) -> None:
        replies = await ask_each(engine, alone.prompts[-1])
        await bench.judge_turn(way, engine, replies, alone, TURNS - 1)
        await bench.demand_pages(engine)

    async def work() -> None:
        async with rig.running(wanted, tmp_path / "alone.log") as engine:
            alone = await told_by(engine, DIALOGS, TURNS)
        for turn, yardstick in enumerate(alone.turns):
            bench.say(f"turn {turn + 1}: {yardstick.says_of_itself()}")
        tight = {**wanted, "kv_cache_memory_bytes": TIGHT}
        async with bench.engine("first", tight) as engine:
            for turn in range(TURNS - 1):
                await rig.settled(pool)
                await engine.clear_cache()
                replies = await ask_each(engine, alone.prompts[turn])
                await bench.judge_turn(
                    f"turn {turn + 1} through DRAM", engine, replies, alone, turn
                )
            await bench.demand_pages(engine)
            await rig.settled(pool)
            engine.kill()
        async with bench.engine("second", wanted) as engine:
            await ask_last(engine, alone, f"turn {TURNS} by the next engine")
        pool.stop()
        pool.start()
        async with bench.engine("third", wanted) as engine:
            await ask_last(engine, alone, f"turn {TURNS} by the next pool, from NVMe")
            read = pool.number("operations", tier="disk", direction="load", outcome="ok")
            bench.demand(read >= DIALOGS, f"chunks came from NVMe: {read}")
            await _control(bench, engine, alone)

    rig.run(work())
    bench.close()


async def _control(bench: Bench, engine: TokenEngine, alone: Alone) -> None:
    """With wrong bytes in every page that is loaded, pages and answers differ."""
    assert await engine.call("spoil")
    await engine.clear_cache()
    last = alone.turns[-1]
    wrong = tokens_of(await ask_each(engine, alone.prompts[-1]))
    bench.say(last.says("the control, with wrong bytes", wrong))
    bench.demand(not last.accepts(wrong), "wrong bytes change tokens")
    verdict = await engine.call("verdict")
    bench.demand(verdict["wrong"] > 0, f"wrong bytes are seen in pages: {verdict}")
