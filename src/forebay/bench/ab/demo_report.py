"""Everything that the demo measured, for programs and in the form of every comparison."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from forebay.bench.ab.demo_size import EngineSpeed
from forebay.bench.ab.figures import (
    ComparedTurn,
    DemoFigures,
    Spread,
    alone_of,
    figures_of,
    pool_of,
    returning,
    share_equal,
)
from forebay.bench.load.clients import ClientsResult
from forebay.bench.load.workloads import Dialogs
from forebay.bench.result import machine
from forebay.bench.result.format import AbResult, EqualAnswers, LoadResult, PoolFigures, SlaBounds
from forebay.bench.result.summary import step_of

ALONE: Final = "vLLM alone"
WITH: Final = "vLLM with Forebay"
MODEL: Final = "SmolLM2-135M-Instruct, float32"
# Of one user there is no SLA; this one is far beyond what a token takes on any machine.
_BOUNDS: Final = SlaBounds(tpot_ms=1000.0)


class RepeatedTurn(NamedTuple):
    """The last turn of every dialog once more, medians: the pool against vLLM's own cache."""

    pool_ttft_s: float  # after all others, from the pool
    own_ttft_s: float  # and at once again


@dataclass(frozen=True)
class DemoReport:
    """Everything that was measured."""

    dialogs: Dialogs  # as they were held; the last turn came after the restart
    cache_bytes: int  # each engine's own KV cache
    speed: EngineSpeed
    turns: tuple[ComparedTurn, ...]  # before the restart
    moved: PoolFigures
    again: RepeatedTurn
    restarted: tuple[ComparedTurn, ...]
    restarted_moved: PoolFigures
    ready_s: float  # from the start of the engines until both answered
    first_s: float  # and until the first returning turn was compared
    seconds: float  # and until the end
    notes: tuple[str, ...]
    commands: tuple[tuple[str, ...], tuple[str, ...]]  # without and with the pool

    @cached_property
    def without(self) -> DemoFigures:
        """VLLM alone, before the restart."""
        return figures_of(alone_of(self.turns))

    @cached_property
    def with_pool(self) -> DemoFigures:
        """VLLM with Forebay, before the restart."""
        return figures_of(pool_of(self.turns))

    @property
    def speedups(self) -> Spread:
        """How many times sooner a returning turn began, pair by pair."""
        return Spread.of([turn.speedup for turn in returning(self.turns)])

    @property
    def restarted_speedups(self) -> Spread:
        """The same after the restart."""
        return Spread.of([turn.speedup for turn in self.restarted])

    @cached_property
    def restarted_without(self) -> DemoFigures:
        """VLLM alone, the same turns as those after the restart."""
        return figures_of(alone_of(self.restarted))

    @cached_property
    def restarted_with(self) -> DemoFigures:
        """VLLM with Forebay, after the restart."""
        return figures_of(pool_of(self.restarted))

    def as_json(self) -> dict[str, Any]:
        """Names for programs."""
        return {
            "dialogs": self.dialogs.hold,
            "turns": self.dialogs.turns,
            "history_tokens": self.dialogs.first_tokens,
            "prompt_tokens_per_s": round(self.speed.prompt_tokens_per_s, 1),
            "kv_cache_bytes": self.cache_bytes,
            "without": self.without.as_json(),
            "with": {**self.with_pool.as_json(), **msgspec.structs.asdict(self.moved)},
            "again_pool_ttft_s": round(self.again.pool_ttft_s, 4),
            "again_own_cache_ttft_s": round(self.again.own_ttft_s, 4),
            "answers_equal": share_equal(self.turns),
            "later_ttft_speedup": _rounded(self.speedups),
            "restarted": {
                **self.restarted_with.as_json(),
                **msgspec.structs.asdict(self.restarted_moved),
            },
            "restarted_answers_equal": share_equal(self.restarted),
            "restarted_without_ttft_s": round(self.restarted_without.later_ttft_s, 4),
            "restarted_ttft_speedup": _rounded(self.restarted_speedups),
            "ready_s": round(self.ready_s, 1),
            "first_comparison_s": round(self.first_s, 1),
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
        }

    def ab(self) -> AbResult:
        """The dialogs before the restart, as every comparison has them."""
        equal = sum(turn.is_equal for turn in self.turns)
        return AbResult(
            off=self._result(ALONE, alone_of(self.turns), None),
            on=self._result(WITH, pool_of(self.turns), self.moved, self.notes),
            sla=_BOUNDS,
            equal=EqualAnswers(len(self.turns), equal),
            pool=self.moved,
        )

    def _result(
        self,
        name: str,
        held: ClientsResult,
        moved: PoolFigures | None,
        notes: tuple[str, ...] = (),
    ) -> LoadResult:
        return LoadResult(
            steps=(step_of(1, [held], pool=moved),),
            name=name,
            model=MODEL,
            workload=self.dialogs.options(),
            commands=self.commands[0 if name == ALONE else 1],
            machine=machine.this_machine(),
            versions=machine.these_versions(),
            notes=notes,
        )


def _rounded(values: Spread) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values._asdict().items()}
