"""What dialogs were measured to take; docs/serve.md defines every figure of the demo."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from forebay.bench.dialog.holding import Held, Turn


@dataclass(frozen=True, slots=True)
class Figures:
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


def figures_of(held: Held) -> Figures:
    """Of at least one turn."""
    answers = [turn.answer for turn in held.turns]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    return Figures(
        requests=len(answers),
        first_ttft_s=_ttft(turn for turn in held.turns if turn.number == 0),
        later_ttft_s=_ttft(turn for turn in held.turns if turn.number > 0),
        tpot_s=median(answer.tpot_s for answer in answers),
        requests_per_s=len(answers) / held.seconds,
        prompt_tokens=prompt_tokens,
        recomputed_tokens=prompt_tokens - sum(answer.cached_tokens for answer in answers),
    )


def share_equal(one: Held, other: Held) -> float:
    """How many of one run's answers the other run gave word for word."""
    texts = {(turn.dialog, turn.number): turn.answer.text for turn in other.turns}
    same = [texts.get((turn.dialog, turn.number)) == turn.answer.text for turn in one.turns]
    return fmean(same) if same else 1.0


def _ttft(turns: Iterable[Turn]) -> float:
    return median([turn.answer.ttft_s for turn in turns] or [0.0])
