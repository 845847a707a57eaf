"""A comparison as one HTML file. What was measured or named elsewhere is escaped."""

import html
from collections.abc import Callable, Sequence
from pathlib import Path

from forebay.bench.report import details
from forebay.bench.report.formatting import (
    clients_of,
    gain_of,
    mean_of,
    ratio,
    sla_words,
    violations,
)
from forebay.bench.result import files
from forebay.bench.result.compare import (
    ComparedStep,
    Comparison,
    JudgedResult,
    compare,
    judged_result,
)
from forebay.bench.result.format import AbResult, LoadResult, LoadStep, TimeStats
from forebay.report.charts import Chart, ChartLine, number
from forebay.report.page import document, figure, legend


def page(ab: AbResult) -> str:
    """The whole file."""
    found = compare(ab.off, ab.on, ab.sla)
    model = ab.on.model or ab.off.model
    title = f"{found.on.name} against {found.off.name}"
    parts = [
        _headline(found),
        _keys(ab, found),
        _charts(ab, found),
        "<h2>Step by step</h2>",
        _table(ab, found),
        *details.sections(ab),
    ]
    return document(title, _subtitle(ab, model), parts)


def write(directory: Path, ab: AbResult) -> Path:
    """Write the page and the result beside it; the page's path, or a StartupError."""
    files.write(directory / "ab.json", files.as_text(ab))
    path = directory / "report.html"
    files.write(path, page(ab))
    return path


def _subtitle(ab: AbResult, model: str) -> str:
    workload = ab.on.workload.get("name")
    said = [model, f"workload {workload}" if workload else "", ab.on.begun[:10]]
    return " · ".join(part for part in [*said, f"SLA: {sla_words(ab.sla)}"] if part)


def _headline(found: Comparison) -> str:
    def both(figure: Callable[[LoadStep], str]) -> str:
        said = [
            "no step" if judged.point is None else figure(judged.point)
            for judged in (found.on, found.off)
        ]
        return " against ".join(said)

    point = found.on.point
    first = "-" if point is None or point.ttft_ms is None else f"{mean_of(point.ttft_ms)} ms"
    clients = f"{both(lambda step: str(step.clients))}; {violations(found)}"
    times = both(lambda step: f"{mean_of(step.ttft_ms)} ms at {clients_of(step.clients)}")
    cards = [
        (ratio(found.clients_ratio), "clients within the SLA", clients),
        (
            ratio(found.req_s_ratio),
            "requests a second at the operating points",
            both(lambda step: f"{step.req_s:.2f}"),
        ),
        (first, "to the first token at the operating point", times),
    ]
    inner = "".join(
        f'<div class="card"><b>{html.escape(value)}</b>{html.escape(name)}'
        f'<div class="soft">{html.escape(more)}</div></div>'
        for value, name, more in cards
    )
    return f'<div class="cards">{inner}</div>'


def _keys(ab: AbResult, found: Comparison) -> str:
    names = [("off", found.off.name), ("on", found.on.name)]
    names += [("other", result.name) for result in ab.others]
    return legend(names, "ring: operating point")


def _charts(ab: AbResult, found: Comparison) -> str:
    def over(value_of: Callable[[LoadStep], float | None]) -> list[ChartLine]:
        variants = [("off", ab.off), ("on", ab.on), *(("other", each) for each in ab.others)]
        return [_line(colour, result, ab, value_of) for colour, result in variants]

    ttft_bound = found.bounds.ttft_ms
    charts = [
        Chart("Requests a second", "requests/s", "clients", over(lambda step: step.req_s)),
        Chart(
            "Time per output token (TPOT), mean",
            "ms",
            "clients",
            over(lambda step: _mean(step.tpot_ms)),
            found.bounds.tpot_ms,
            f"SLA {found.bounds.tpot_ms:g} ms",
        ),
        Chart(
            "Time to the first token (TTFT), mean",
            "ms",
            "clients",
            over(lambda step: _mean(step.ttft_ms)),
            ttft_bound,
            "" if ttft_bound is None else f"SLA {ttft_bound:g} ms",
        ),
        *_per_turn(ab, found),
    ]
    return '<div class="charts">' + "".join(figure(chart) for chart in charts) + "</div>"


def _line(
    colour: str, result: LoadResult, ab: AbResult, value_of: Callable[[LoadStep], float | None]
) -> ChartLine:
    points = [
        (float(step.clients), value)
        for step in result.steps
        if (value := value_of(step)) is not None
    ]
    point = judged_result(result, ab.sla).point
    return ChartLine(result.name, colour, points, None if point is None else float(point.clients))


def _per_turn(ab: AbResult, found: Comparison) -> list[Chart]:
    """Of the last step with turns in both variants that the first carries within the SLA."""
    both = [
        row.clients
        for row in found.rows
        if row.off and row.on and len(row.off.turns) > 1 and len(row.on.turns) > 1
    ]
    if not both:
        return []
    limit = found.off.point.clients if found.off.point else both[-1]
    clients = max([count for count in both if count <= limit] or both[:1])
    curves = []
    variants = [("off", ab.off), ("on", ab.on), *(("other", each) for each in ab.others)]
    for colour, result in variants:
        steps = [step for step in result.steps if step.clients == clients]
        points = [
            (float(turn.turn), turn.ttft_ms.mean)
            for step in steps
            for turn in step.turns
            if turn.ttft_ms is not None
        ]
        curves.append(ChartLine(result.name, colour, points))
    return [Chart(f"TTFT turn by turn, at {clients_of(clients)}", "ms, mean", "turn", curves)]


def _mean(value: TimeStats | None) -> float | None:
    return None if value is None else value.mean


def _table(ab: AbResult, found: Comparison) -> str:
    names = [html.escape(found.off.name), html.escape(found.on.name)]
    groups = [
        ("requests a second", 3),
        ("TTFT, mean ms", 2),
        ("TPOT, mean ms", 2),
        ("TPOT, p99 ms", 2),
        ("errors", 2),
    ]
    head = "".join(f'<th colspan="{span}">{name}</th>' for name, span in groups)
    pair = f"<th>{names[0]}</th><th>{names[1]}</th>"
    rows = "".join(_row(found, row) for row in found.rows)
    others = "".join(details.steps_table(result) for result in ab.others)
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr>'
        f"<tr><th>clients</th>{pair}<th>gain</th>{pair * 4}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        '<p class="soft">Bold: operating point, the last step before the first violation. Red:'
        " beyond the SLA. Gain: requests a second over those of the first column.</p>" + others
    )


def _row(found: Comparison, row: ComparedStep) -> str:
    steps: Sequence[LoadStep | None] = (row.off, row.on)
    kinds = [_kind(step, judged) for step, judged in zip(steps, (found.off, found.on), strict=True)]
    cells = [f"<td>{'-' if step is None else f'{step.req_s:.2f}'}</td>" for step in steps]
    kind = "loss" if row.gain is not None and row.gain < 0 else "gain"
    cells.append(f'<td class="{kind}">{gain_of(row.gain)}</td>')
    cells += [f"<td>{mean_of(step.ttft_ms if step else None)}</td>" for step in steps]
    cells += [
        f'<td class="{kind}">{mean_of(step.tpot_ms if step else None)}</td>'
        for step, kind in zip(steps, kinds, strict=True)
    ]
    cells += [
        f"<td>{number(step.tpot_ms.p99 if step and step.tpot_ms else None)}</td>" for step in steps
    ]
    cells += [f"<td>{'-' if step is None else step.errors}</td>" for step in steps]
    return f"<tr><td>{row.clients}</td>{''.join(cells)}</tr>"


def _kind(step: LoadStep | None, judged: JudgedResult) -> str:
    if step is None:
        return ""
    if step is judged.point:
        return "point"
    is_beyond = judged.violation is not None and step.clients >= judged.violation.clients
    return "beyond" if is_beyond else ""
