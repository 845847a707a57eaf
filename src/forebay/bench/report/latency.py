"""Times and rates beyond the mean: percentiles, goodput, latency by throughput, GPU hours."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from forebay.bench.report.formatting import (
    change_of,
    count_of,
    ms_of,
    rate_of,
    verdict,
)
from forebay.bench.result.compare import ComparedStep, Comparison
from forebay.bench.result.format import AbResult, LoadResult, LoadStep
from forebay.plan.measured import Sla, TimeStats
from forebay.report.charts import Chart, ChartLine, number
from forebay.report.page import Cell, Table
from forebay.report.text import Section

PERCENTILES: Final = ("p50", "p95", "p99")
_TIMES: Final = (
    ("Time to the first token (TTFT), ms", "ttft_ms"),
    ("Time per output token (TPOT), ms", "tpot_ms"),
    ("End to end, ms", "e2e_ms"),
)
_JUDGED: Final = "p95"  # what a change is of
_HOUR_S: Final = 3600
_GOODPUT: Final = (
    "Answered requests a second that met every bound by themselves, whatever the others of their"
    " step did"
)


class Colours(NamedTuple):
    """Who has which colour in every chart."""

    name: str  # of the variant, in a comparison's repeats
    colour: str
    result: LoadResult


def percentiles(found: Comparison) -> Iterator[Section]:
    """A table for each time, where both sides or one of them have percentiles of it."""
    names = (found.off.name, found.on.name)
    for title, field in _TIMES:
        rows = [
            _percentile_row(row, field)
            for row in found.rows
            if any(getattr(_times(step, field), _JUDGED, None) for step in (row.off, row.on))
        ]
        if rows:
            groups = [("", 1), *((name, len(PERCENTILES)) for name in names), ("", 1)]
            head = ["clients", *PERCENTILES * 2, f"change of {_JUDGED}"]
            yield Section(title, "", Table(head, rows, (), groups))


def _percentile_row(row: ComparedStep, field: str) -> list[Cell]:
    both = [_times(step, field) for step in (row.off, row.on)]
    cells = [ms_of(times, name) for times in both for name in PERCENTILES]
    off, on = (getattr(times, _JUDGED, None) for times in both)
    change = None if not off or on is None else on / off - 1
    return [str(row.clients), *cells, (change_of(change), verdict(change, is_lower_better=True))]


def _times(step: LoadStep | None, field: str) -> TimeStats | None:
    found = None if step is None else getattr(step, field)
    assert found is None or isinstance(found, TimeStats)
    return found


def goodput_of(result: LoadResult, step: LoadStep | None, sla: Sla) -> float | None:
    """Requests a second within these bounds; None where it was counted by others, or not."""
    if step is None or result.sla is None or replace(result.sla, at=sla.at) != sla:
        return None
    return step.good_s


def goodput(ab: AbResult, found: Comparison) -> Iterator[Section]:
    """The part of the throughput that was within the bounds."""
    rows: list[list[Cell]] = []
    for row in found.rows:
        off, on = (goodput_of(*pair, ab.sla) for pair in ((ab.off, row.off), (ab.on, row.on)))
        if off is None and on is None:
            continue
        gain = on / off - 1 if off and on is not None else None
        rows.append([str(row.clients), rate_of(off), rate_of(on), (change_of(gain), verdict(gain))])
    if rows:
        head = ["clients", found.off.name, found.on.name, "gain"]
        text = f"{_GOODPUT}: {' and '.join(ab.sla.bounds())}."
        yield Section("Goodput, requests a second", text, Table(head, rows))


def throughput_charts(sides: Sequence[Colours]) -> Iterator[Chart]:
    """Each latency by the rate at which it was had; a curve goes on with more clients."""
    for title, field in _TIMES[:2]:
        steps = [step for side in sides for step in side.result.steps if _times(step, field)]
        known = all(getattr(_times(step, field), _JUDGED) is not None for step in steps)
        statistic = _JUDGED if known and steps else "mean"
        lines = [
            ChartLine(side.result.name, side.colour, points)
            for side in sides
            if (points := _by_rate(side.result, field, statistic))
        ]
        if lines:
            short = title.partition("(")[2].partition(")")[0]
            name = f"{short} by throughput, {statistic}"
            yield Chart(name, "ms", "requests/s", lines, is_even=True)


def _by_rate(result: LoadResult, field: str, statistic: str) -> list[tuple[float, float]]:
    return [
        (step.req_s, value)
        for step in result.steps
        if (times := _times(step, field)) is not None
        and (value := getattr(times, statistic)) is not None
        and step.req_s
    ]


def gpu_hours(ab: AbResult, found: Comparison) -> Iterator[Section]:
    """The GPU hours of a load at each side's operating point, and their price."""
    if not ab.gpus:
        return
    rows: list[list[Cell]] = []
    hours: list[float | None] = []
    for judged in (found.off, found.on):
        step = judged.point
        rate = None if step is None else step.req_s
        tokens = None if step is None else step.output_tok_s
        hours.append(ab.gpus / rate / _HOUR_S * 1000 if rate else None)
        of_tokens = ab.gpus / tokens / _HOUR_S * 1e6 if tokens else None
        cells = [count_of(None if step is None else step.clients)]
        cells += [number(hours[-1]), number(of_tokens)]
        if ab.gpu_hour_price is not None:
            price = ab.gpu_hour_price
            cells += [
                "-" if each is None else f"${each * price:,.2f}" for each in (hours[-1], of_tokens)
            ]
        rows.append([judged.name, *cells])
    off, on = hours
    change = None if not off or on is None else on / off - 1
    rows[0].append("")
    rows[1].append((change_of(change), verdict(change, is_lower_better=True)))
    head = ["", "clients", "GPU hours, 1,000 requests", "GPU hours, 1M output tokens"]
    if ab.gpu_hour_price is not None:
        head += ["1,000 requests", "1M output tokens"]
    text = f"{ab.gpus} GPU(s) on each side, at its operating point"
    if ab.gpu_hour_price is not None:
        text += f", at ${ab.gpu_hour_price:g} a GPU and hour"
    yield Section("What it takes", f"{text}.", Table([*head, "change"], rows, [0]))
