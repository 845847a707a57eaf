"""Turns requests into figures: a step's means, percentiles, rates and errors."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from forebay.bench.load.client import Completion, Failed
from forebay.bench.load.clients import ClientsResult, FinishedRequest
from forebay.bench.result.format import LoadStep, PoolFigures, TurnFigures
from forebay.plan.measured import Sla, TimeStats


def step_of(
    clients: int,
    measured: Sequence[ClientsResult],
    pool: PoolFigures | None = None,
    sla: Sla | None = None,
) -> LoadStep:
    """One step, over one run of it or several; with an SLA also how many requests met it.

    The figures of servers and pools cannot be summed: those of the last run are used.
    """
    finished = [each for run in measured for each in run.finished]
    answers = [each.outcome for each in finished if isinstance(each.outcome, Completion)]
    failures = [each.outcome for each in finished if isinstance(each.outcome, Failed)]
    failed = Counter(failure.kind for failure in failures)
    seconds = sum(run.seconds for run in measured)
    output_tokens = sum(answer.answer_tokens for answer in answers)
    cached = [each.cached_tokens for each in answers if each.cached_tokens is not None]
    return LoadStep(
        clients=clients,
        requests=len(answers),
        seconds=round(seconds, 3),
        req_s=_rate(len(answers), seconds),
        output_tok_s=_rate(output_tokens, seconds),
        **_times(answers),
        within=None if sla is None else sum(_is_within(sla, answer) for answer in answers),
        errors=failed.total(),
        errors_by_kind=dict(sorted(failed.items())),
        error_reasons={each.kind: each.why for each in reversed(failures)},
        skipped=sum(run.skipped for run in measured),
        late=sum(run.late for run in measured),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        output_tokens=output_tokens,
        cached_tokens=sum(cached) if cached else None,
        turns=_turns(finished),
        server=measured[-1].server,
        pool=pool or measured[-1].pool,
        pool_samples=measured[-1].pool_samples,
    )


def _is_within(sla: Sla, answer: Completion) -> bool:
    tpot_ms = None if answer.tpot_s is None else 1e3 * answer.tpot_s
    return sla.admits(1e3 * answer.ttft_s, tpot_ms, 1e3 * answer.seconds)


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values, in proportion; of at least one value, in ascending order."""
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def _turns(finished: Iterable[FinishedRequest]) -> tuple[TurnFigures, ...]:
    by_turn: defaultdict[int, list[Completion]] = defaultdict(list)
    for each in finished:
        if isinstance(each.outcome, Completion):
            by_turn[each.turn].append(each.outcome)
    if by_turn.keys() <= {0}:
        return ()  # there are no dialogs
    return tuple(
        TurnFigures(turn + 1, len(answers), **_times(answers))
        for turn, answers in sorted(by_turn.items())
    )


def _times(answers: Sequence[Completion]) -> dict[str, TimeStats | None]:
    return {
        "ttft_ms": _stats(answer.ttft_s for answer in answers),
        "tpot_ms": _stats(answer.tpot_s for answer in answers),
        "e2e_ms": _stats(answer.seconds for answer in answers),
    }


def _stats(seconds: Iterable[float | None]) -> TimeStats | None:
    values = sorted(1e3 * value for value in seconds if value is not None)
    if not values:
        return None
    shares = (percentile(values, share) for share in (0.50, 0.95, 0.99))
    return TimeStats(round(fmean(values), 3), *(round(value, 3) for value in shares))


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 4) if seconds > 0 else 0.0
