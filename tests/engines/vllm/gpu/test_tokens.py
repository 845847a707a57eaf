"""Tokens through the pool on a GPU, by vLLM's own measure.

The same dialogs are answered by vLLM alone, recomputed and from its own prefix cache, and through
the pool. Every turn makes a history of whole chunks and a few tokens more, so that both caches have
the same number of its tokens: what is computed has the same shape, by the same kernels. Each way's
counts go to the run's log; `yardstick` says what is demanded. Rehearsed by GPU_REHEARSAL=1.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.gpu import rig
from tests.engines.vllm.gpu.rig import (
    ANSWER,
    CHUNK,
    REHEARSAL,
    ask_all,
    ask_each,
    cached_of,
    tokens_of,
)
from tests.engines.vllm.gpu.yardstick import Yardstick
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess

from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.load.client import Completion
from forebay.metrics.reading import counters

pytestmark = [*rig.NEEDS_GPU, pytest.mark.timeout(560)]
Say = Callable[[str], None]
# KV that was computed token by token equals KV that was computed at once: in bfloat16 only so, in
# float32 nearly, which tokens hardly show.
EXACT = {"bfloat16": {} if REHEARSAL else {"VLLM_BATCH_INVARIANT": "1"}, "float32": {}}
KINDS = sorted(EXACT)
DIALOGS, TURNS = 8, 4
MOST = 6  # of the dialogs must be found whole: a store may be lost, and is a miss
BEYOND = 8  # tokens of a history behind its last whole chunk; less than a block
FIRST = 2 * CHUNK + BEYOND - ANSWER  # tokens of a first prompt
MORE = CHUNK - ANSWER  # tokens that a turn adds
ROOMY, TIGHT = 16_000, 2400  # tokens that the KV cache holds
LONG = 400  # tokens of an answer; eight of them do not fit a tight one


def wanted(model: Path, kind: str, kv_tokens: int) -> dict[str, Any]:
    eager = {"enforce_eager": True} if kind == "float32" else {}  # starts sooner
    # Stores by copy engines in one kind, by the kernel in the other; loads by the kernel in both.
    size = {"block_size": 64} if kind == "bfloat16" else {}
    return rig.arguments(model, kind, kv_tokens, **eager, **size)


@dataclass
class Alone:
    """What vLLM alone says."""

    prompts: list[list[Tokens]]  # by turn
    turns: list[Yardstick]
    cached: list[list[int]]  # tokens of each prompt that its own cache had, by turn
    long_prompts: list[Tokens]
    long: Yardstick


async def told_by(engine: TokenEngine) -> Alone:
    """Dialogs from its own cache, twice, then every turn of them recomputed."""
    prompts, own = await _from_own_cache(engine)
    again = [tokens_of(replies) for replies in await _asked_again(engine, prompts)]
    turns = []
    for asked, replies, second in zip(prompts, own, again, strict=True):
        await engine.clear_cache()
        recomputed = await ask_each(engine, asked)
        assert cached_of(recomputed) == 0
        ways = {"from its own cache": tokens_of(replies), "the same again": second}
        turns.append(Yardstick(tokens_of(recomputed), ways))
    cached = [[reply.cached_tokens or 0 for reply in replies] for replies in own]
    long_prompts = dialogs(DIALOGS, 200, 9)
    return Alone(prompts, turns, cached, long_prompts, await _long(engine, long_prompts))


async def _from_own_cache(engine: TokenEngine) -> tuple[list[list[Tokens]], list[list[Completion]]]:
    """What is said in every turn, and its answers."""
    await engine.clear_cache()
    prompts, own = [dialogs(DIALOGS, FIRST, 3)], []
    for turn in range(TURNS):
        own.append(await ask_each(engine, prompts[-1]))
        more = dialogs(DIALOGS, MORE, 100 + turn)
        said = zip(prompts[-1], tokens_of(own[-1]), more, strict=True)
        prompts.append([prompt + answer + rest for prompt, answer, rest in said])
    return prompts[:TURNS], own


async def _asked_again(engine: TokenEngine, prompts: list[list[Tokens]]) -> list[list[Completion]]:
    await engine.clear_cache()
    return [await ask_each(engine, asked) for asked in prompts]


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


async def _preempted(engine: TokenEngine, story: Alone) -> None:
    """Long answers once more, by vLLM alone where they do not fit: it preempts and recomputes."""
    answers = tokens_of(await ask_all(engine, story.long_prompts, LONG))
    ways = {**story.long.otherwise, "preempted": answers}
    story.long = Yardstick(story.long.recomputed, ways)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Alone]:
    """What vLLM alone says in a kind of numbers; asked once."""
    known: dict[str, Alone] = {}

    def of(kind: str) -> Alone:
        async def work() -> None:
            log = tmp_path_factory.mktemp("alone") / "engine.log"
            async with rig.running(wanted(model, kind, ROOMY), log, **EXACT[kind]) as engine:
                known[kind] = await told_by(engine)
            async with rig.running(wanted(model, kind, TIGHT), log, **EXACT[kind]) as engine:
                await _preempted(engine, known[kind])

        if kind not in known:
            rig.run(work())
        return known[kind]

    return of


class Bench:
    """Engines on one pool, and what is said through it; all is told before anything is demanded."""

    def __init__(self, model: Path, pool: PoolProcess, place: Path, say: Say) -> None:
        self.pool = pool
        self.kind = ""
        self._model = model
        self._place = place
        self._say = say
        self._refused: list[str] = []

    @asynccontextmanager
    async def engine(self, name: str, kv_tokens: int) -> AsyncIterator[TokenEngine]:
        """One that shares."""
        plain = wanted(self._model, self.kind, kv_tokens)
        log = self._place / f"{name}.log"
        with_pool = rig.on(self.pool, plain, always_load=True)
        async with rig.running(with_pool, log, **EXACT[self.kind]) as engine:
            assert await engine.call("watch")
            await rig.share(engine, self.pool)
            yield engine

    def say(self, what: str) -> None:
        self._say(f"[{self.kind}] {what}")

    def judge(self, way: str, yardstick: Yardstick, answers: list[Tokens]) -> None:
        self.say(yardstick.says(way, answers))
        if not yardstick.accepts(answers):
            self._refused.append(way)

    def demand(self, is_so: bool, what: str) -> None:
        if not is_so:
            self.say(f"not so: {what}")
            self._refused.append(what)

    async def judge_turn(
        self, way: str, engine: TokenEngine, replies: list[Completion], alone: Alone, turn: int
    ) -> None:
        """Answers of which both caches had as many tokens: what was computed had the same shape.

        Where the pool had less, vLLM's own answer is no measure; that must be rare.
        """
        pairs = enumerate(zip(replies, alone.cached[turn], strict=True))
        same = [at for at, (reply, cached) in pairs if reply.cached_tokens == cached]
        if len(same) < len(replies):
            self.say(
                f"{way}: tokens cached {[reply.cached_tokens for reply in replies]}, by vLLM itself"
            )
            self.say(f"{alone.cached[turn]}; {await engine.counts()}")
            self.say(f"{counters(self.pool.stats())}")
        self.demand(len(same) >= MOST, f"{way}: {len(same)} answers with as long a hit as vLLM's")
        answers = tokens_of([replies[at] for at in same])
        self.judge(way, alone.turns[turn].only(same), answers)

    async def demand_pages(self, engine: TokenEngine) -> None:
        verdict = await engine.call("verdict")
        is_so = verdict["equal"] > 0 and verdict["wrong"] == 0
        self.demand(is_so, f"every page loaded is one that was stored: {verdict}")

    def close(self) -> None:
        assert not self._refused


@pytest.fixture
def bench(model: Path, pool: PoolProcess, tmp_path: Path, say: Say) -> Bench:
    return Bench(model, pool, tmp_path, say)


@pytest.mark.parametrize("kind", KINDS)
def test_t50_every_token_is_equal_through_dram_restart_and_nvme(
    bench: Bench, kind: str, alone: Callable[[str], Alone]
) -> None:
    story, bench.kind = alone(kind), kind
    last = story.turns[-1]

    async def ask_last(engine: TokenEngine, way: str) -> None:
        replies = await ask_each(engine, story.prompts[-1])
        await bench.judge_turn(way, engine, replies, story, TURNS - 1)

    async def work() -> None:
        for turn, yardstick in enumerate(story.turns):
            bench.say(f"turn {turn + 1}: {yardstick.says_of_itself()}")
        async with bench.engine("first", ROOMY) as engine:
            for turn in range(TURNS - 1):
                await rig.settled(bench.pool)
                await engine.clear_cache()
                replies = await ask_each(engine, story.prompts[turn])
                way = f"turn {turn + 1} through DRAM"
                await bench.judge_turn(way, engine, replies, story, turn)
            await bench.demand_pages(engine)
            await rig.settled(bench.pool)
            engine.kill()
        async with bench.engine("second", ROOMY) as engine:
            await ask_last(engine, f"turn {TURNS} by the next engine")
        bench.pool.stop()
        bench.pool.start()
        async with bench.engine("third", ROOMY) as engine:
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
    bench: Bench, kind: str, alone: Callable[[str], Alone]
) -> None:
    story, bench.kind = alone(kind), kind
    asked, long = story.long_prompts, story.long
    odd = long.only(list(range(1, DIALOGS, 2)))

    async def work() -> None:
        bench.say(f"long answers: {long.says_of_itself()}")
        async with bench.engine("tight", TIGHT) as engine:
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


def test_a_dead_pool_is_a_miss_on_a_gpu_too(bench: Bench, alone: Callable[[str], Alone]) -> None:
    bench.kind = KINDS[0]
    story = alone(bench.kind)
    asked, last = story.prompts[-1], story.turns[-1]

    async def work() -> None:
        bench.say(f"the last turn: {last.says_of_itself()}")
        async with bench.engine("engine", ROOMY) as engine:
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
