"""What the demo's dialogs were measured to take; docs/serve.md defines every figure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, NamedTuple, Self

from forebay.bench.load.client import Completion
from forebay.bench.load.clients import ClientsResult, FinishedRequest


class ComparedTurn(NamedTuple):
    """One turn of one dialog, asked of both engines, one after the other."""

    dialog: str
    number: int  # from 0
    alone: Completion
    with_pool: Completion

    @property
    def speedup(self) -> float:
        """How many times sooner the pool's engine began to answer."""
        return self.alone.ttft_s / self.with_pool.ttft_s

    @property
    def is_equal(self) -> bool:
        """Whether both gave the same answer, word for word."""
        return self.alone.text == self.with_pool.text


class Spread(NamedTuple):
    """A median, and how far the values lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """Some turns on one engine."""

    requests: int
    first_ttft_s: float  # median, of turns that nobody has seen
    later_ttft_s: float  # median, of turns that come back
    tpot_s: float  # median
    requests_per_s: float
    prompt_tokens: int
    recomputed_tokens: int  # of these, not taken from any cache

    def as_json(self) -> dict[str, Any]:
        """Flat names for programs."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def returning(turns: Sequence[ComparedTurn]) -> list[ComparedTurn]:
    """Those that continue a dialog."""
    return [turn for turn in turns if turn.number > 0]


def alone_of(turns: Sequence[ComparedTurn]) -> ClientsResult:
    """The requests of the engine without a pool, as a step of one client has them."""
    return _result([FinishedRequest(turn.dialog, turn.number, turn.alone) for turn in turns])


def pool_of(turns: Sequence[ComparedTurn]) -> ClientsResult:
    """The same of the engine with a pool."""
    return _result([FinishedRequest(turn.dialog, turn.number, turn.with_pool) for turn in turns])


def figures_of(measured: ClientsResult) -> DemoFigures:
    """Of at least one answer."""
    pairs = [
        (each.turn, each.outcome)
        for each in measured.finished
        if isinstance(each.outcome, Completion)
    ]
    answers = [answer for _, answer in pairs]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens or 0 for answer in answers)
    return DemoFigures(
        requests=len(answers),
        first_ttft_s=_median([answer.ttft_s for turn, answer in pairs if turn == 0]),
        later_ttft_s=_median([answer.ttft_s for turn, answer in pairs if turn > 0]),
        tpot_s=median(answer.tpot_s or 0.0 for answer in answers),
        requests_per_s=len(answers) / measured.seconds,
        prompt_tokens=prompt_tokens,
        recomputed_tokens=prompt_tokens - cached,
    )


def share_equal(turns: Sequence[ComparedTurn]) -> float:
    """How many answers are the same on both engines."""
    return fmean(turn.is_equal for turn in turns) if turns else 1.0


def in_words(speedup: float) -> str:
    """Such as 6.5 times sooner."""
    return f"{speedup:.1f} times sooner" if speedup >= 1 else f"{1 / speedup:.1f} times later"


def _median(values: list[float]) -> float:
    return median(values or [0.0])


def _result(finished: list[FinishedRequest]) -> ClientsResult:
    """One request after the other: together they took the sum of their times."""
    answers = [each.outcome for each in finished if isinstance(each.outcome, Completion)]
    return ClientsResult(tuple(finished), sum(answer.seconds for answer in answers))
