"""Results as CSV: every step of a comparison, or every request of one server."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Final

from forebay.bench.load.client import Completion
from forebay.bench.load.clients import ClientsResult, FinishedRequest
from forebay.bench.result.format import AbResult, LoadResult, LoadStep
from forebay.plan.measured import STATISTICS

_PLAIN: Final = (
    *("clients", "requests", "errors", "skipped", "late", "within", "seconds", "req_s"),
    *("output_tok_s", "prompt_tokens", "output_tokens", "cached_tokens"),
)
_TIMES: Final = ("ttft_ms", "tpot_ms", "e2e_ms")
_POOL: Final = (
    *("stored_bytes", "written_bytes", "read_nvme_bytes", "read_dram_bytes"),
    *("dram_bytes", "nvme_bytes"),
)
HEAD: Final = (
    *("variant", "run"),
    *_PLAIN,
    "good_s",
    *(f"{name.removesuffix('_ms')}_{each}_ms" for name in _TIMES for each in STATISTICS),
    *(f"pool_{name}" for name in _POOL),
)
ALL_RUNS: Final = "all"


# As the multi-round QA benchmark of the vLLM production stack names them; times in seconds.
REQUEST_HEAD: Final = (
    *("prompt_tokens", "generation_tokens", "ttft", "generation_time", "user_id", "question_id"),
    *("launch_time", "finish_time"),
)


def requests_csv(steps: Iterable[ClientsResult]) -> str:
    """A line for each answered request; times go on from one step to the next."""
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    sheet.writerow(REQUEST_HEAD)
    begun_s, users = 0.0, 0
    for step in steps:
        numbers: dict[str, int] = {}
        for each in step.finished:
            user = numbers.setdefault(each.session, users + len(numbers) + 1)
            if isinstance(each.outcome, Completion):
                sheet.writerow(_request(each, each.outcome, user, begun_s))
        begun_s, users = begun_s + step.seconds, users + len(numbers)
    return text.getvalue()


def _request(
    finished: FinishedRequest, answer: Completion, user: int, begun_s: float
) -> list[object]:
    launched_s = begun_s + finished.at_s
    times = (answer.ttft_s, answer.seconds - answer.ttft_s)
    return [
        answer.prompt_tokens,
        answer.answer_tokens,
        *(round(each, 6) for each in times),
        user,
        finished.turn + 1,
        *(round(each, 3) for each in (launched_s, launched_s + answer.seconds)),
    ]


def as_csv(ab: AbResult) -> str:
    """All runs together, then each by itself where there were several; empty where not known."""
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    sheet.writerow(HEAD)
    for result in (ab.off, ab.on, *ab.others):
        sheet.writerows(_rows(result.name, ALL_RUNS, result))
    names = {"off": ab.off.name, "on": ab.on.name}
    for number, repeat in enumerate(ab.repeats, 1):
        for side in repeat.sides:
            sheet.writerows(_rows(names.get(side, side), str(number), repeat.results[side]))
    return text.getvalue()


def _rows(name: str, run: str, result: LoadResult) -> Iterator[list[object]]:
    for step in result.steps:
        yield [name, run, *_cells(step)]


def _cells(step: LoadStep) -> Iterator[object]:
    yield from (getattr(step, name) for name in _PLAIN)
    yield step.good_s
    for name in _TIMES:
        times = getattr(step, name)
        yield from (getattr(times, each, None) for each in STATISTICS)
    yield from (getattr(step.pool, name, None) for name in _POOL)
