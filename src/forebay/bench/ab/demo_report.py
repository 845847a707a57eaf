"""What the demo measured: every turn on both engines; docs/serve.md defines every figure."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple, Self

import msgspec

from forebay.bench.ab.demo_size import EngineSpeed
from forebay.bench.load.client import Completion
from forebay.bench.load.clients import ClientsResult, FinishedRequest
from forebay.bench.load.workloads import Dialogs
from forebay.bench.result import machine
from forebay.bench.result.format import AbResult, EqualAnswers, LoadResult, LoadStep, PoolFigures
from forebay.bench.result.summary import step_of
from forebay.plan.measured import Sla

ALONE: Final = "vLLM alone"
WITH: Final = "vLLM with Forebay"
MODEL: Final = "SmolLM2-135M-Instruct, float32"
# A single user has no SLA; this bound is far above the time of a token on any machine.
_BOUNDS: Final = Sla(tpot_ms=1000.0)


class Spread(NamedTuple):
    """A median with the least and the greatest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """The spread of at least one value."""
        known = list(values)
        return cls(median(known), min(known), max(known))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


class ComparedTurn(NamedTuple):
    """One turn of one dialog, asked of both engines, one after the other."""

    dialog: str
    number: int  # from 0
    alone: Completion
    with_pool: Completion

    @property
    def speedup(self) -> float:
        """How many times faster the pool's engine gave its first token."""
        return self.alone.ttft_s / self.with_pool.ttft_s

    @property
    def is_equal(self) -> bool:
        """Whether both gave the same answer, word for word."""
        return self.alone.text == self.with_pool.text


class RepeatedTurn(NamedTuple):
    """The last turn of every dialog once more, medians: the pool against vLLM's own cache."""

    pool_ttft_s: float  # after all others, from the pool
    own_ttft_s: float  # and at once again


@dataclass(frozen=True, slots=True)
class DemoPhase:
    """The turns before the restart, or those after it."""

    turns: tuple[ComparedTurn, ...]
    moved: PoolFigures  # what the pool counted meanwhile

    @property
    def off(self) -> LoadStep:
        """The engine without a pool, as a benchmark's step of one client."""
        return _step([FinishedRequest(each.dialog, each.number, each.alone) for each in self.turns])

    @property
    def on(self) -> LoadStep:
        """The same of the engine with a pool."""
        finished = [
            FinishedRequest(each.dialog, each.number, each.with_pool) for each in self.turns
        ]
        return _step(finished, self.moved)

    @property
    def returning(self) -> list[ComparedTurn]:
        """Turns that continue a dialog."""
        return [turn for turn in self.turns if turn.number > 0]

    @property
    def speedups(self) -> Spread:
        """How many times faster a returning turn began, pair by pair."""
        return Spread.of(turn.speedup for turn in self.returning)

    @property
    def equal(self) -> EqualAnswers:
        return EqualAnswers(len(self.turns), sum(turn.is_equal for turn in self.turns))

    def as_json(self) -> dict[str, Any]:
        """Both engines as docs/bench-format.md has a step, and how they compare."""
        return {
            "off": msgspec.to_builtins(self.off),
            "on": msgspec.to_builtins(self.on),
            "ttft_speedup": {name: round(x, 2) for name, x in self.speedups._asdict().items()},
            "answers_equal": self.equal.share,
        }


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything that was measured."""

    dialogs: Dialogs  # as they were held; the last turn came after the restart
    cache_bytes: int  # each engine's own KV cache
    speed: EngineSpeed
    before: DemoPhase
    again: RepeatedTurn
    restarted: DemoPhase
    ready_s: float  # from the start of the engines until both answered
    first_s: float  # from the start until the first returning turn was compared
    seconds: float  # from the start until the end
    notes: tuple[str, ...]
    commands: tuple[tuple[str, ...], tuple[str, ...]]  # without and with the pool

    def as_json(self) -> dict[str, Any]:
        """Names for programs."""
        return {
            "dialogs": self.dialogs.hold,
            "turns": self.dialogs.turns,
            "history_tokens": self.dialogs.first_tokens,
            "prompt_tokens_per_s": round(self.speed.prompt_tokens_per_s, 1),
            "kv_cache_bytes": self.cache_bytes,
            "before_restart": self.before.as_json(),
            "after_restart": self.restarted.as_json(),
            "again_pool_ttft_s": round(self.again.pool_ttft_s, 4),
            "again_own_cache_ttft_s": round(self.again.own_ttft_s, 4),
            "ready_s": round(self.ready_s, 1),
            "first_comparison_s": round(self.first_s, 1),
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
        }

    def ab(self) -> AbResult:
        """The dialogs before the restart, as every comparison has them."""
        return AbResult(
            off=self._result(ALONE, self.before.off, self.commands[0]),
            on=self._result(WITH, self.before.on, self.commands[1]),
            sla=_BOUNDS,
            equal=self.before.equal,
            pool=self.before.moved,
        )

    def _result(self, name: str, step: LoadStep, commands: tuple[str, ...]) -> LoadResult:
        return LoadResult(
            steps=(step,),
            name=name,
            model=MODEL,
            workload=self.dialogs.options(),
            commands=commands,
            machine=machine.this_machine(),
            versions=machine.these_versions(),
            notes=self.notes if name == WITH else (),
        )


def in_words(speedup: float) -> str:
    """Such as 6.5 times faster."""
    return f"{speedup:.1f} times faster" if speedup >= 1 else f"{1 / speedup:.1f} times slower"


def _step(finished: list[FinishedRequest], moved: PoolFigures | None = None) -> LoadStep:
    """One request after the other: together they took the sum of their times."""
    seconds = sum(each.outcome.seconds for each in finished if isinstance(each.outcome, Completion))
    return step_of(1, [ClientsResult(tuple(finished), seconds)], moved)
