"""Dialogs as vLLM alone answers them, and the same through a pool.

Every turn makes a history of whole chunks and a few tokens more, so that both caches have the same
number of its tokens: what is computed has the same shape, by the same kernels.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.vllm.gpu import rig
from tests.engines.vllm.gpu.rig import ANSWER, CHUNK, ask_each, cached_of, tokens_of
from tests.engines.vllm.gpu.witness import WITNESSED
from tests.engines.vllm.gpu.yardstick import Yardstick
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess

from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.load.client import Completion
from forebay.metrics.reading import counters

Say = Callable[[str], None]
BEYOND = 8  # tokens of a history behind its last whole chunk; less than a block
FIRST = 2 * CHUNK + BEYOND - ANSWER  # tokens of a first prompt
MORE = CHUNK - ANSWER  # tokens that a turn adds


@dataclass
class Alone:
    """What vLLM alone says."""

    prompts: list[list[Tokens]]  # by turn
    turns: list[Yardstick]
    cached: list[list[int]]  # tokens of each prompt that its own cache had, by turn

    @property
    def has_cache(self) -> bool:
        """Whether it has a cache of its own for this model; on some processors it has none."""
        return any(any(each) for each in self.cached)


async def told_by(engine: TokenEngine, count: int, turns: int) -> Alone:
    """So many dialogs from its own cache, twice, then every turn of them recomputed."""
    prompts, own = await _from_own_cache(engine, count, turns)
    again = [tokens_of(replies) for replies in await _asked_again(engine, prompts)]
    known = []
    for asked, replies, second in zip(prompts, own, again, strict=True):
        await engine.clear_cache()
        recomputed = await ask_each(engine, asked)
        assert cached_of(recomputed) == 0
        ways = {"from its own cache": tokens_of(replies), "the same again": second}
        known.append(Yardstick(tokens_of(recomputed), ways))
    cached = [[reply.cached_tokens or 0 for reply in replies] for replies in own]
    return Alone(prompts, known, cached)


async def _from_own_cache(
    engine: TokenEngine, count: int, turns: int
) -> tuple[list[list[Tokens]], list[list[Completion]]]:
    """What is said in every turn, and its answers."""
    await engine.clear_cache()
    prompts, own = [dialogs(count, FIRST, 3)], []
    for turn in range(turns):
        own.append(await ask_each(engine, prompts[-1]))
        more = dialogs(count, MORE, 100 + turn)
        said = zip(prompts[-1], tokens_of(own[-1]), more, strict=True)
        prompts.append([prompt + answer + rest for prompt, answer, rest in said])
    return prompts[:turns], own


async def _asked_again(engine: TokenEngine, prompts: list[list[Tokens]]) -> list[list[Completion]]:
    await engine.clear_cache()
    return [await ask_each(engine, asked) for asked in prompts]


class Bench:
    """Engines on one pool, and what is said through it; all is told before anything is demanded."""

    def __init__(
        self,
        kind: str,
        pool: PoolProcess,
        place: Path,
        say: Say,
        extra: Mapping[str, bool] | None = None,  # settings of its engines
    ) -> None:
        self.pool = pool
        self._extra = extra or {}
        self._kind = kind
        self._place = place
        self._say = say
        self._refused: list[str] = []

    @asynccontextmanager
    async def engine(
        self, name: str, wanted: dict[str, Any], **variables: str
    ) -> AsyncIterator[TokenEngine]:
        """One that shares; all of them compare pages with those that any of them has stored."""
        log = self._place / f"{name}.log"
        with_pool = rig.on(self.pool, wanted, always_load=True, **self._extra)
        witnessed = {WITNESSED: str(self._place / "pages")}
        async with rig.running(with_pool, log, **variables, **witnessed) as engine:
            assert await engine.call("watch")
            await rig.share(engine, self.pool)
            yield engine

    def say(self, what: str) -> None:
        self._say(f"[{self._kind}] {what}")

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

        Where vLLM is sure of all its answers, the pool may have had more: of windows vLLM itself
        keeps less. Where the pool had less, vLLM's own answer is no measure; that must be rare.
        """
        if not alone.has_cache:
            self.say(f"{alone.turns[turn].says(way, tokens_of(replies))}; vLLM itself caches none")
            return
        most = len(replies) * 3 // 4  # must be found whole: a store may be lost, and is a miss
        is_sure = not alone.turns[turn].unsure
        pairs = enumerate(
            (reply.cached_tokens or 0, cached)
            for reply, cached in zip(replies, alone.cached[turn], strict=True)
        )
        same = [at for at, (had, own) in pairs if had == own or (is_sure and had > own)]
        if len(same) < len(replies):
            self.say(
                f"{way}: tokens cached {[reply.cached_tokens for reply in replies]}, by vLLM itself"
            )
            self.say(f"{alone.cached[turn]}; {await engine.counts()}")
            self.say(f"{counters(self.pool.stats())}")
        self.demand(len(same) >= most, f"{way}: {len(same)} answers with as long a hit as vLLM's")
        answers = tokens_of([replies[at] for at in same])
        self.judge(way, alone.turns[turn].only(same), answers)

    async def demand_pages(self, engine: TokenEngine) -> None:
        verdict = await engine.call("verdict")
        is_so = verdict["equal"] > 0 and verdict["wrong"] == 0
        self.demand(is_so, f"every page loaded is one that was stored: {verdict}")

    def close(self) -> None:
        assert not self._refused
