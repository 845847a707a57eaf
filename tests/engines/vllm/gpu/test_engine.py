"""vLLM on a GPU with graphs, async scheduling and its second runner: equal bytes, equal tokens.

Without a GPU it can be rehearsed with vLLM's CPU build: GPU_REHEARSAL=1.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.conftest import Tokens, made_model, stored
from tests.poolside import PoolProcess, pool_process, short_directory

from forebay.bench.gpu.engine import Engine, Reply
from forebay.engines.start.vllm import transfer_config
from forebay.settings import Settings

torch = pytest.importorskip("torch")
REHEARSAL = os.environ.get("GPU_REHEARSAL") == "1"
if not torch.cuda.is_available() and not REHEARSAL:
    pytest.skip("there is no GPU", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(420)]
WITNESS = "tests.engines.vllm.gpu.witness"
ANSWER, TURNS, DIALOGS = 24, 3, 8
ROOT = Path(__file__).parents[4]
TOKEN_BYTES = 2 * 2 * 64 * 4  # K and V, heads, their size, layers: times the bytes of an element
VARIABLES = {
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "PYTHONHASHSEED": "0",
    "VLLM_CPU_CI_ENV": "1",
}
# KV that was computed token by token equals KV that was computed at once: on a GPU only so.
EXACT = {} if REHEARSAL else {"VLLM_BATCH_INVARIANT": "1"}
EXACT_DTYPE = "float32" if REHEARSAL else "bfloat16"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers depend on the KV: seeded weights of ordinary spread."""
    place = tmp_path_factory.mktemp("model")
    return made_model(place, 1, heads=4, kv_heads=2, layers=4, head_dim=64)


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    flags = ("--dram", "256MiB")
    with short_directory() as place, pool_process(place, *flags, disk_bytes=512 << 20) as pool:
        yield pool


def arguments(model: Path, kv_tokens: int = 2600, **more: Any) -> dict[str, Any]:
    dtype = more.setdefault("dtype", EXACT_DTYPE)
    element = 4 if dtype == "float32" else 1 if "kv_cache_dtype" in more else 2
    return {
        "model": str(model),
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": kv_tokens * TOKEN_BYTES * element,
        **({"enforce_eager": True} if REHEARSAL else {"gpu_memory_utilization": 0.1}),
        **more,
    }


def on(pool: PoolProcess, wanted: dict[str, Any]) -> dict[str, Any]:
    settings = Settings(no_pool="fail", min_tokens=64, lookup_deadline_ms=2000.0)
    return {**wanted, "kv_transfer_config": transfer_config(settings, pool.socket)}


def prompts(count: int, length: int, seed: int) -> list[Tokens]:
    from tests.engines.vllm.conftest import dialogs

    return dialogs(count, length, seed)


async def ask_all(engine: Engine, asked: list[Tokens], answer: int = ANSWER) -> list[Reply]:
    return list(await asyncio.gather(*(engine.ask(prompt, answer) for prompt in asked)))


async def talk(engine: Engine, turns: int = TURNS) -> tuple[list[list[Reply]], list[Tokens]]:
    """Turn by turn, everyone's at once; and what each says next."""
    asked, said = prompts(DIALOGS, 600, 3), []
    for turn in range(turns):
        said.append(await ask_all(engine, asked))
        more = prompts(DIALOGS, 70, 100 + turn)
        asked = [p + r.tokens + m for p, r, m in zip(asked, said[-1], more, strict=True)]
    return said, asked


async def share(engine: Engine, pool: PoolProcess) -> None:
    """Until the engine knows its weights, and the whole slab is in reach."""
    before = stored(pool)
    for attempt in range(200):
        await ask_all(engine, prompts(1, 300, 1000 + attempt), 2)
        counts = await engine.counts()
        reach = counts["reach_bytes"] < 0 or counts["reach_bytes"] > 200 << 20
        if stored(pool) > before and reach:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the engine shares nothing")


def tokens(said: list[list[Reply]]) -> list[list[Tokens]]:
    return [[reply.tokens for reply in turn] for turn in said]


def cached(turn: list[Reply]) -> int:
    return sum(reply.cached for reply in turn)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def begin(wanted: dict[str, Any], log: Path, **variables: str) -> Engine:
    engine = await Engine.start(wanted, log, {**VARIABLES, **variables})
    if REHEARSAL and "kv_transfer_config" in wanted:
        assert await engine.call(f"{WITNESS}:late")
    return engine


def test_t50_every_token_is_equal_through_dram_restart_and_nvme(
    model: Path, pool: PoolProcess, tmp_path: Path
) -> None:
    wanted = arguments(model, block_size=64)  # pages for copy engines; else for the kernel

    async def work() -> None:
        plain = await begin(wanted, tmp_path / "plain.log", **EXACT)
        expected, asked = await talk(plain)
        last = await ask_all(plain, asked)
        await plain.forget()
        again, _ = await talk(plain)
        assert tokens(again) == tokens(expected), "vLLM alone differs from itself: no yardstick"
        assert cached(expected[1]) < DIALOGS * 300, "the KV cache must be too small"
        await plain.stop()

        engine = await begin(on(pool, wanted), tmp_path / "first.log", **EXACT)
        assert await engine.call(f"{WITNESS}:watch")
        await share(engine, pool)
        said, _ = await talk(engine)
        assert tokens(said) == tokens(expected)
        assert cached(said[1]) >= DIALOGS * 400, "later turns come from the pool"
        verdict = await engine.call(f"{WITNESS}:verdict")
        assert verdict["equal"] > 0
        assert verdict["wrong"] == 0
        engine.kill()
        await engine.stop()

        second = await begin(on(pool, wanted), tmp_path / "second.log", **EXACT)
        await share(second, pool)
        answers = await ask_all(second, asked)
        assert [r.tokens for r in answers] == [r.tokens for r in last]
        assert cached(answers) >= DIALOGS * 500, "the next engine finds it"
        await second.stop()

        pool.stop()
        pool.start()
        third = await begin(on(pool, wanted), tmp_path / "third.log", **EXACT)
        await share(third, pool)
        answers = await ask_all(third, asked)
        assert [r.tokens for r in answers] == [r.tokens for r in last]
        assert pool.stats()["counters"]["disk.loaded"] > 0, "and so does the next pool"
        await third.stop()

    run(work())


@pytest.mark.parametrize("kind", ["bfloat16", "fp8"])
def test_t50_every_loaded_page_is_the_stored_one(
    model: Path, pool: PoolProcess, tmp_path: Path, kind: str
) -> None:
    more: dict[str, Any] = {"dtype": "bfloat16"}
    if kind == "fp8":
        more["kv_cache_dtype"] = "fp8"

    async def work() -> None:
        engine = await begin(on(pool, arguments(model, **more)), tmp_path / "engine.log")
        assert await engine.call(f"{WITNESS}:watch")
        await share(engine, pool)
        said, _ = await talk(engine)
        assert cached(said[-1]) >= DIALOGS * 300
        verdict = await engine.call(f"{WITNESS}:verdict")
        print(verdict)
        assert verdict["equal"] >= (40 if REHEARSAL else 200)
        assert verdict["wrong"] == 0
        await engine.stop()

    run(work())


def test_preemption_and_abort_leave_every_token_as_it_was(
    model: Path, pool: PoolProcess, tmp_path: Path
) -> None:
    wanted = arguments(model, kv_tokens=2400)  # eight answers of 500 tokens do not fit at once
    asked = prompts(8, 200, 9)

    async def work() -> None:
        plain = await begin(wanted, tmp_path / "plain.log", **EXACT)
        expected = await ask_all(plain, asked, 400)
        await plain.stop()
        engine = await begin(on(pool, wanted), tmp_path / "engine.log", **EXACT)
        assert await engine.call(f"{WITNESS}:watch")
        await share(engine, pool)
        for _ in range(2):
            answers = await ask_all(engine, asked, 400)
            assert [r.tokens for r in answers] == [r.tokens for r in expected]
            await engine.forget()
        for delay_s in (0.0, 0.001, 0.003, 0.01, 0.05):
            numbers = [engine.begin(prompt, 400) for prompt in asked]
            await asyncio.sleep(delay_s)
            for number in numbers[::2]:
                engine.abort(number)
            left = [await engine.answered(number) for number in numbers]
            kept = [reply for at, reply in enumerate(left) if at % 2]
            assert [r.tokens for r in kept] == [r.tokens for r in expected[1::2]]
            await engine.forget()
        verdict = await engine.call(f"{WITNESS}:verdict")
        assert verdict["wrong"] == 0
        assert verdict["equal"] > 0
        await engine.stop()

    run(work())


def test_t49_without_registered_memory_the_engine_serves_as_without_us(
    model: Path, pool: PoolProcess, tmp_path: Path
) -> None:
    if REHEARSAL:
        pytest.skip("host memory needs no registration")

    async def work() -> None:
        wanted = arguments(model)
        engine = await begin(on(pool, wanted), tmp_path / "engine.log")
        assert await engine.call(f"{WITNESS}:refuse")
        said, _ = await talk(engine, 2)
        assert all(len(reply.tokens) == ANSWER for turn in said for reply in turn)
        assert stored(pool) == 0
        await engine.stop()
        log = (tmp_path / "engine.log").read_text()
        assert log.count("none is left") == 1

    run(work())


def test_a_dead_pool_is_a_miss_on_a_gpu_too(model: Path, pool: PoolProcess, tmp_path: Path) -> None:
    wanted = arguments(model)

    async def work() -> None:
        engine = await begin(on(pool, wanted), tmp_path / "engine.log", **EXACT)
        await share(engine, pool)
        before, asked = await talk(engine, 2)
        pool.kill()
        once = await ask_all(engine, asked)
        pool.start()
        await asyncio.sleep(3)
        await share(engine, pool)
        await ask_all(engine, prompts(DIALOGS, 600, 77))
        await ask_all(engine, asked)
        await engine.forget()
        again = await ask_all(engine, asked)
        assert [r.tokens for r in once] == [r.tokens for r in again]
        assert cached(again) >= DIALOGS * 300, "the new slab is mapped and used"
        del before
        await engine.stop()

    run(work())
