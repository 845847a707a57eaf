"""vLLM on a GPU with graphs, async scheduling and its second runner: equal bytes.

Without a GPU it can be rehearsed with vLLM's CPU build: GPU_REHEARSAL=1.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.gpu import rig
from tests.engines.vllm.gpu.rig import ANSWER, cached_of
from tests.engines.vllm.real.engine import stored_chunks
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess

from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.load.client import Completion

pytestmark = [*rig.NEEDS_GPU, pytest.mark.timeout(420)]
TURNS, DIALOGS = 3, 8


async def talk(engine: TokenEngine, turns: int = TURNS) -> list[list[Completion]]:
    """Turn by turn, everyone's at once; more than its KV cache holds."""
    asked: list[Tokens] = dialogs(DIALOGS, 600, 3)
    said = []
    for turn in range(turns):
        said.append(await rig.ask_all(engine, asked))
        more = dialogs(DIALOGS, 70, 100 + turn)
        asked = [[*p, *r.tokens, *m] for p, r, m in zip(asked, said[-1], more, strict=True)]
    return said


@pytest.mark.parametrize("kind", ["bfloat16", "fp8"])
def test_t50_every_loaded_page_is_the_stored_one(
    model: Path, pool: PoolProcess, tmp_path: Path, kind: str
) -> None:
    more: dict[str, Any] = {"kv_cache_dtype": "fp8"} if kind == "fp8" else {}

    async def work() -> None:
        wanted = rig.on(pool, rig.arguments(model, "bfloat16", **more))
        async with rig.running(wanted, tmp_path / "engine.log") as engine:
            assert await engine.call("watch")
            await rig.share(engine, pool)
            said = await talk(engine)
            assert cached_of(said[-1]) >= DIALOGS * 300
            verdict = await engine.call("verdict")
            print(verdict)
            assert verdict["equal"] >= (40 if rig.REHEARSAL else 200)
            assert verdict["wrong"] == 0

    rig.run(work())


def test_t49_without_registered_memory_the_engine_serves_as_without_us(
    model: Path, pool: PoolProcess, tmp_path: Path
) -> None:
    if rig.REHEARSAL:
        pytest.skip("host memory needs no registration")

    async def work() -> None:
        wanted = rig.on(pool, rig.arguments(model, "bfloat16"))
        async with rig.running(wanted, tmp_path / "engine.log") as engine:
            assert await engine.call("refuse")
            said = await talk(engine, 2)
            assert all(len(reply.tokens) == ANSWER for turn in said for reply in turn)
            assert stored_chunks(pool) == 0
        log = (tmp_path / "engine.log").read_text()
        assert log.count("none is left") == 1

    rig.run(work())
