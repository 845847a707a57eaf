"""A comparison as one HTML file. What was measured or named elsewhere is escaped."""

import html
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from forebay.bench.report.formatting import clients_of
from forebay.bench.report.sections import compared, details, findings, headline
from forebay.bench.result import files
from forebay.bench.result.compare import Comparison, compare, judged_result
from forebay.bench.result.format import AbResult, LoadResult, LoadStep
from forebay.report.charts import Chart, ChartLine
from forebay.report.page import document, figure, legend, paragraph, table
from forebay.report.text import Section

_KEY = (
    "Bold: operating point, the last step before the first violation. Red: beyond the SLA. Gain:"
    " requests per second over those of the first column."
)


def page(ab: AbResult) -> str:
    found = compare(ab.off, ab.on, ab.sla)
    title = f"{found.on.name} against {found.off.name}"
    colours = [("off", ab.off), ("on", ab.on), *(("other", each) for each in ab.others)]
    parts = [
        cards(headline(found)),
        legend([(colour, result.name) for colour, result in colours], "ring: operating point"),
        '<div class="charts">' + "".join(map(figure, _charts(colours, found))) + "</div>",
        *shown(Section("Step by step", _KEY, compared(found, [found.off.name, found.on.name]))),
    ]
    return document(title, _subtitle(ab), [*parts, *sections(ab)])


def sections(ab: AbResult) -> list[str]:
    """All that stands below the steps, as HTML."""
    return [part for each in (*findings(ab), *details(ab)) for part in shown(each)]


def write(directory: Path, ab: AbResult) -> Path:
    """Write the page and the result beside it; the page's path, or a StartupError."""
    files.write(directory / "ab.json", files.as_text(ab))
    path = directory / "report.html"
    files.write(path, page(ab))
    return path


def _subtitle(ab: AbResult) -> str:
    workload = ab.on.workload.get("name")
    said = [ab.on.model or ab.off.model, f"workload {workload}" if workload else ""]
    said += [ab.on.begun[:10], f"SLA: {ab.sla}"]
    return " · ".join(part for part in said if part)


def cards(figures: Iterable[tuple[str, str, str]]) -> str:
    """What counts: a figure, what it is, and what it is made of."""
    inner = "".join(
        f'<div class="card"><b>{html.escape(value)}</b>{html.escape(name)}'
        f'<div class="soft">{html.escape(more)}</div></div>'
        for value, name, more in figures
    )
    return f'<div class="cards">{inner}</div>'


def shown(section: Section) -> Iterator[str]:
    """One part under its heading."""
    yield f"<h2>{html.escape(section.title)}</h2>"
    if section.text:
        yield paragraph(section.text)
    if section.table:
        yield table(section.table)
    if section.lines:
        yield f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in section.lines)}</ul>"
    if section.commands:
        yield f"<pre>{html.escape(section.commands)}</pre>"


_Colours = Iterable[tuple[str, LoadResult]]


def _charts(colours: _Colours, found: Comparison) -> Iterator[Chart]:
    def over(value_of: Callable[[LoadStep], float | None]) -> list[ChartLine]:
        return [_line(colour, result, found, value_of) for colour, result in colours]

    yield Chart("Requests a second", "requests/s", "clients", over(lambda step: step.req_s))
    for title, times_of, bound in (
        ("Time per output token (TPOT), mean", _tpot, found.sla.tpot_ms),
        ("Time to the first token (TTFT), mean", _ttft, found.sla.ttft_ms),
    ):
        name = "" if bound is None else f"SLA {bound:g} ms"
        yield Chart(title, "ms", "clients", over(times_of), bound, name)
    yield from _per_turn(colours, found)


def _line(
    colour: str,
    result: LoadResult,
    found: Comparison,
    value_of: Callable[[LoadStep], float | None],
) -> ChartLine:
    points = [
        (float(step.clients), value)
        for step in result.steps
        if (value := value_of(step)) is not None
    ]
    point = judged_result(result, found.sla).point
    return ChartLine(result.name, colour, points, None if point is None else float(point.clients))


def _per_turn(colours: _Colours, found: Comparison) -> Iterator[Chart]:
    """Of the last step with turns in both variants that the first carries within the SLA."""
    both = [
        row.clients
        for row in found.rows
        if row.off and row.on and len(row.off.turns) > 1 and len(row.on.turns) > 1
    ]
    if not both:
        return
    limit = found.off.point.clients if found.off.point else both[-1]
    clients = max([count for count in both if count <= limit] or both[:1])
    curves = [
        ChartLine(
            result.name,
            colour,
            [
                (float(turn.turn), turn.ttft_ms.mean)
                for step in result.steps
                if step.clients == clients
                for turn in step.turns
                if turn.ttft_ms is not None
            ],
        )
        for colour, result in colours
    ]
    yield Chart(f"TTFT turn by turn, at {clients_of(clients)}", "ms, mean", "turn", curves)


def _tpot(step: LoadStep) -> float | None:
    return None if step.tpot_ms is None else step.tpot_ms.mean


def _ttft(step: LoadStep) -> float | None:
    return None if step.ttft_ms is None else step.ttft_ms.mean
