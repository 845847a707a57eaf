"""Tokens through the pool on a GPU, by vLLM's own measure.

The same dialogs are answered by vLLM alone, recomputed and from its own prefix cache, and through
the pool (`talks`). Each way's counts go to the run's log; `yardstick` says what is demanded.
Rehearsed by GPU_REHEARSAL=1.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.gpu import rig
from tests.engines.vllm.gpu.rig import CHUNK, REHEARSAL, ask_all, ask_each, cached_of, tokens_of
from tests.engines.vllm.gpu.talks import Alone, Bench, Say, told_by
from tests.engines.vllm.gpu.yardstick import Yardstick
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess

from forebay.bench.gpu.engine import TokenEngine

pytestmark = [*rig.NEEDS_GPU, pytest.mark.timeout(560)]
Sharing = Callable[[str, int], AbstractAsyncContextManager[TokenEngine]]
# KV that was computed token by token equals KV that was computed at once: in bfloat16 only so, in
# float32 nearly, which tokens hardly show.
EXACT = {"bfloat16": {} if REHEARSAL else {"VLLM_BATCH_INVARIANT": "1"}, "float32": {}}
KINDS = sorted(EXACT)
DIALOGS, TURNS = 8, 4
ROOMY, TIGHT = 16_000, 2400  # tokens that the KV cache holds
LONG = 400  # tokens of an answer; eight of them do not fit a tight one


def wanted(model: Path, kind: str, kv_tokens: int) -> dict[str, Any]:
    eager = {"enforce_eager": True} if kind == "float32" else {}  # starts sooner
    # Stores by copy engines in one kind, by the kernel in the other; loads by the kernel in both.
    size = {"block_size": 64} if kind == "bfloat16" else {}
    return rig.arguments(model, kind, kv_tokens, **eager, **size)


@dataclass
class Story(Alone):
    """What vLLM alone says, and its long answers."""

    long_prompts: list[Tokens]
    long: Yardstick


async def story_of(engine: TokenEngine) -> Story:
    """Dialogs, then long answers."""
    told = await told_by(engine, DIALOGS, TURNS)
    long_prompts = dialogs(DIALOGS, 200, 9)
    long = await _long(engine, long_prompts)
    return Story(told.prompts, told.turns, told.cached, long_prompts, long)


async def _long(engine: TokenEngine, asked: list[Tokens]) -> Yardstick:
    """Long answers: one by one, at once, with prompts from its cache, and taken up midway."""
    await engine.clear_cache()
    alone = tokens_of(await ask_each(engine, asked, LONG))
    await engine.clear_cache()
    at_once = tokens_of(await ask_all(engine, asked, LONG))
    cached = tokens_of(await ask_all(engine, asked, LONG))
    await engine.clear_cache()
    half = LONG // 2
    begun = [prompt + answer[:half] for prompt, answer in zip(asked, alone, strict=True)]
    rest = tokens_of(await ask_all(engine, begun, LONG - half))
    resumed = [answer[:half] + more for answer, more in zip(alone, rest, strict=True)]
    ways = {"at once": at_once, "from its own cache": cached, "as if preempted": resumed}
    return Yardstick(alone, ways)


async def _preempted(engine: TokenEngine, story: Story) -> None:
    """Long answers once more, by vLLM alone where they do not fit: it preempts and recomputes."""
    answers = tokens_of(await ask_all(engine, story.long_prompts, LONG))
    ways = {**story.long.otherwise, "preempted": answers}
    story.long = Yardstick(story.long.recomputed, ways)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Story]:
    """What vLLM alone says in a kind of numbers; asked once."""
    known: dict[str, Story] = {}

    def of(kind: str) -> Story:
        async def work() -> None:
            log = tmp_path_factory.mktemp("alone") / "engine.log"
            async with rig.running(wanted(model, kind, ROOMY), log, **EXACT[kind]) as engine:
                known[kind] = await story_of(engine)
            async with rig.running(wanted(model, kind, TIGHT), log, **EXACT[kind]) as engine:
                await _preempted(engine, known[kind])

        if kind not in known:
            rig.run(work())
        return known[kind]

    return of


@pytest.fixture
def bench(kind: str, pool: PoolProcess, tmp_path: Path, say: Say) -> Bench:
    return Bench(kind, pool, tmp_path, say)


@pytest.fixture
def sharing(bench: Bench, model: Path, kind: str) -> Sharing:
    """Starts an engine that shares, with a KV cache for so many tokens."""
    return lambda name, kv_tokens: bench.engine(name, wanted(model, kind, kv_tokens), **EXACT[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_t50_every_token_is_equal_through_dram_restart_and_nvme(
    bench: Bench, sharing: Sharing, kind: str, alone: Callable[[str], Story]
) -> None:
    story = alone(kind)
    last = story.turns[-1]

    async def ask_last(engine: TokenEngine, way: str) -> None:
        replies = await ask_each(engine, story.prompts[-1])
        await bench.judge_turn(way, engine, replies, story, TURNS - 1)

    async def work() -> None:
        for turn, yardstick in enumerate(story.turns):
            bench.say(f"turn {turn + 1}: {yardstick.says_of_itself()}")
        async with sharing("first", ROOMY) as engine:
            for turn in range(TURNS - 1):
                await rig.settled(bench.pool)
                await engine.clear_cache()
                replies = await ask_each(engine, story.prompts[turn])
                way = f"turn {turn + 1} through DRAM"
                await bench.judge_turn(way, engine, replies, story, turn)
            await bench.demand_pages(engine)
            await rig.settled(bench.pool)
            engine.kill()
        async with sharing("second", ROOMY) as engine:
            await ask_last(engine, f"turn {TURNS} by the next engine")
        bench.pool.stop()
        bench.pool.start()
        async with sharing("third", ROOMY) as engine:
            await ask_last(engine, f"turn {TURNS} by the next pool, from NVMe")
            read = bench.pool.number("operations", tier="disk", direction="load", outcome="ok")
            bench.demand(read >= DIALOGS, f"chunks came from NVMe: {read}")
            assert await engine.call("spoil")
            await engine.clear_cache()
            wrong = tokens_of(await ask_each(engine, story.prompts[-1]))
            bench.say(last.says("the control, with wrong bytes", wrong))
            bench.demand(not last.accepts(wrong), "wrong bytes change tokens")

    rig.run(work())
    bench.close()


@pytest.mark.parametrize("kind", KINDS)
def test_preemption_and_abort_leave_every_token_as_it_was(
    bench: Bench, sharing: Sharing, kind: str, alone: Callable[[str], Story]
) -> None:
    story = alone(kind)
    asked, long = story.long_prompts, story.long
    odd = long.only(list(range(1, DIALOGS, 2)))

    async def work() -> None:
        bench.say(f"long answers: {long.says_of_itself()}")
        async with sharing("tight", TIGHT) as engine:
            for number in (1, 2):
                answers = await ask_all(engine, asked, LONG)
                bench.judge(f"long answers, time {number}", long, tokens_of(answers))
                await engine.clear_cache()
            for delay_s in (0.0, 0.001, 0.003, 0.01, 0.05):
                requests = [asyncio.create_task(engine.ask(prompt, LONG)) for prompt in asked]
                await asyncio.sleep(delay_s)
                for request in requests[::2]:
                    request.cancel()
                left = await asyncio.gather(*requests[1::2])
                way = f"beside aborts after {delay_s * 1000:.0f} ms"
                bench.judge(way, odd, tokens_of(left))
                await engine.clear_cache()
            await bench.demand_pages(engine)

    rig.run(work())
    bench.close()


@pytest.mark.parametrize("kind", KINDS[:1])
def test_a_dead_pool_is_a_miss_on_a_gpu_too(
    bench: Bench, sharing: Sharing, kind: str, alone: Callable[[str], Story]
) -> None:
    story = alone(kind)
    asked, last = story.prompts[-1], story.turns[-1]

    async def work() -> None:
        bench.say(f"the last turn: {last.says_of_itself()}")
        async with sharing("engine", ROOMY) as engine:
            await ask_each(engine, asked)
            bench.pool.kill()
            await engine.clear_cache()
            bench.judge("without a pool", last, tokens_of(await ask_each(engine, asked)))
            bench.pool.start()
            await asyncio.sleep(3)
            await rig.share(engine, bench.pool)
            await engine.clear_cache()
            await ask_each(engine, asked)
            await rig.settled(bench.pool)
            await engine.clear_cache()
            again = await ask_each(engine, asked)
            bench.judge("from the new pool", last, tokens_of(again))
            found = cached_of(again)
            bench.demand(found >= DIALOGS * 2 * CHUNK, f"the new slab is used: {found} tokens")

    rig.run(work())
    bench.close()
