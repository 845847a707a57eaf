"""What the demo's dialogs were measured to take; docs/serve.md defines every figure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

from forebay.bench.load.client import Completion, Failed
from forebay.bench.load.clients import ClientsResult
from forebay.errors import StartupError


class AnsweredTurn(NamedTuple):
    """One turn of one dialog that was answered."""

    dialog: str
    number: int  # from 0
    answer: Completion


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """One run of dialogs against one server."""

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


def turns_of(measured: ClientsResult) -> list[AnsweredTurn]:
    """All turns; a StartupError where a request failed: a demo that fails shows nothing."""
    turns = []
    for each in measured.finished:
        if isinstance(each.outcome, Failed):
            raise StartupError(f"a request failed: {each.outcome.why}.")
        turns.append(AnsweredTurn(each.session, each.turn, each.outcome))
    return turns


def figures_of(measured: ClientsResult) -> DemoFigures:
    """Of at least one turn."""
    turns = turns_of(measured)
    answers = [turn.answer for turn in turns]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens or 0 for answer in answers)
    return DemoFigures(
        requests=len(answers),
        first_ttft_s=_ttft(turn for turn in turns if turn.number == 0),
        later_ttft_s=_ttft(turn for turn in turns if turn.number > 0),
        tpot_s=median(answer.tpot_s or 0.0 for answer in answers),
        requests_per_s=len(answers) / measured.seconds,
        prompt_tokens=prompt_tokens,
        recomputed_tokens=prompt_tokens - cached,
    )


def share_equal(one: Sequence[AnsweredTurn], other: Sequence[AnsweredTurn]) -> float:
    """How many of one run's answers the other run gave word for word."""
    texts = {(turn.dialog, turn.number): turn.answer.text for turn in other}
    same = [texts.get((turn.dialog, turn.number)) == turn.answer.text for turn in one]
    return fmean(same) if same else 1.0


def _ttft(turns: Iterable[AnsweredTurn]) -> float:
    return median([turn.answer.ttft_s for turn in turns] or [0.0])
