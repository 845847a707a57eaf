"""A comparison as one HTML file. What was measured or named elsewhere is escaped."""

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from forebay.bench.report.counted import over_time
from forebay.bench.report.formatting import Figure, clients_of
from forebay.bench.report.latency import Colours, goodput_of, throughput_charts
from forebay.bench.report.sections import compared, details, findings, headline
from forebay.bench.report.sheet import as_csv
from forebay.bench.result import files
from forebay.bench.result.compare import Comparison, compare, judged_result
from forebay.bench.result.format import AbResult, LoadStep
from forebay.plan.measured import Sla, TimeStats
from forebay.report.charts import Chart, ChartLine
from forebay.report.page import document, figure, legend, paragraph, table
from forebay.report.text import Section

_SPANS = "bar: least and most of the runs"
_KEY = (
    "Bold: operating point, the last step before the first violation. Red: beyond the SLA. Gain:"
    " requests per second over those of the first column."
)


def page(ab: AbResult) -> str:
    found = compare(ab.off, ab.on, ab.sla)
    title = f"{found.on.name} against {found.off.name}"
    sides = _sides(ab)
    remark = "ring: operating point" + (f"; {_SPANS}" if len(ab.repeats) > 1 else "")
    drawn = [*_charts(ab, sides, found), *throughput_charts(sides)]
    parts = [
        cards(headline(found)),
        legend([(side.colour, side.result.name) for side in sides], remark),
        '<div class="charts">' + "".join(map(figure, drawn)) + "</div>",
        *shown(Section("Step by step", _KEY, compared(found, [found.off.name, found.on.name]))),
        *_over_time(ab),
    ]
    return document(title, _subtitle(ab), [*parts, *sections(ab)])


def sections(ab: AbResult) -> list[str]:
    """All that stands below the steps, as HTML."""
    return [part for each in (*findings(ab), *details(ab)) for part in shown(each)]


def write(directory: Path, ab: AbResult) -> Path:
    """Write the page, the result and its steps as CSV; the page's path, or a StartupError."""
    files.write(directory / "ab.json", files.as_text(ab))
    files.write(directory / "steps.csv", as_csv(ab))
    path = directory / "report.html"
    files.write(path, page(ab))
    return path


def _subtitle(ab: AbResult) -> str:
    workload = ab.on.workload.get("name")
    said = [ab.on.model or ab.off.model, f"workload {workload}" if workload else ""]
    said += [ab.on.begun[:10], f"SLA: {ab.sla}"]
    return " · ".join(part for part in said if part)


def cards(figures: Iterable[Figure]) -> str:
    """What counts; only what is better or worse has a colour."""
    inner = "".join(
        f'<div class="card"><b class="{each.kind}">{html.escape(each.value)}</b>'
        f'{html.escape(each.name)}<div class="soft">{html.escape(each.more)}</div></div>'
        for each in figures
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


def _sides(ab: AbResult) -> list[Colours]:
    others = [Colours(each.name, "other", each) for each in ab.others]
    return [Colours("off", "off", ab.off), Colours("on", "on", ab.on), *others]


def _over_time(ab: AbResult) -> list[str]:
    """What moved between tiers, second by second."""
    charts = list(over_time(ab.on))
    if not charts:
        return []
    names = [(line.colour, line.name) for line in charts[0].lines]
    drawn = "".join(map(figure, charts))
    return ["<h2>Tiers over time</h2>", legend(names), f'<div class="charts">{drawn}</div>']


def _charts(ab: AbResult, sides: Sequence[Colours], found: Comparison) -> Iterator[Chart]:
    def over(value_of: Callable[[LoadStep], float | None]) -> list[ChartLine]:
        return [_line(side, ab, found, value_of) for side in sides]

    yield Chart("Requests a second", "requests/s", "clients", over(lambda step: step.req_s))
    sla = found.sla
    for title, times_of, bound in (
        ("Time per output token (TPOT)", _tpot, sla.tpot_ms),
        ("Time to the first token (TTFT)", _ttft, sla.ttft_ms),
    ):
        name = "" if bound is None else f"SLA {bound:g} ms"
        lines = over(lambda step, times_of=times_of: sla.of(times_of(step)))  # type: ignore[misc]
        yield Chart(f"{title}, {sla.at}", "ms", "clients", lines, bound, name)
    if sla.e2e_ms is not None:
        lines = over(lambda step: sla.of(step.e2e_ms))
        bound_name = f"SLA {sla.e2e_ms:g} ms"
        yield Chart(f"End to end, {sla.at}", "ms", "clients", lines, sla.e2e_ms, bound_name)
    lines = [_line(side, ab, found, _goodput(side, sla)) for side in sides]
    if any(line.points for line in lines):
        yield Chart("Goodput", "requests/s within every bound", "clients", lines)
    yield from _per_turn(sides, found)


def _goodput(side: Colours, sla: Sla) -> Callable[[LoadStep], float | None]:
    return lambda step: goodput_of(side.result, step, sla)


def _line(
    side: Colours,
    ab: AbResult,
    found: Comparison,
    value_of: Callable[[LoadStep], float | None],
) -> ChartLine:
    points = [
        (float(step.clients), value)
        for step in side.result.steps
        if (value := value_of(step)) is not None
    ]
    point = judged_result(side.result, found.sla).point
    mark = None if point is None else float(point.clients)
    return ChartLine(side.result.name, side.colour, points, mark, _spans(side, ab, value_of))


def _spans(
    side: Colours, ab: AbResult, value_of: Callable[[LoadStep], float | None]
) -> list[tuple[float, float, float]]:
    """How far apart the runs of each step were, where there were several."""
    runs: dict[int, list[float]] = {}
    for repeat in ab.repeats:
        result = repeat.results.get(side.name)
        for step in () if result is None else result.steps:
            if (value := value_of(step)) is not None:
                runs.setdefault(step.clients, []).append(value)
    return [
        (float(clients), min(values), max(values))
        for clients, values in sorted(runs.items())
        if min(values) < max(values)
    ]


def _per_turn(sides: Iterable[Colours], found: Comparison) -> Iterator[Chart]:
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
            side.result.name,
            side.colour,
            [
                (float(turn.turn), turn.ttft_ms.mean)
                for step in side.result.steps
                if step.clients == clients
                for turn in step.turns
                if turn.ttft_ms is not None
            ],
        )
        for side in sides
    ]
    yield Chart(f"TTFT turn by turn, at {clients_of(clients)}", "ms, mean", "turn", curves)


def _tpot(step: LoadStep) -> TimeStats | None:
    return step.tpot_ms


def _ttft(step: LoadStep) -> TimeStats | None:
    return step.ttft_ms
