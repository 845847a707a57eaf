"""Answers of the planner as curves: one HTML file that needs nothing else, with the table below."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from forebay.bench.report.page import shown
from forebay.bench.result import files
from forebay.plan.breakeven import Breakeven
from forebay.plan.fleet import Cost
from forebay.plan.hits import TraceHits
from forebay.report.charts import COLOURS, Chart, ChartLine
from forebay.report.page import document, figure, legend
from forebay.report.text import Section

POINTS: Final = 9  # of a curve
_GIB: Final = 1 << 30
_CLIENTS_FACTORS: Final = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the clients that were asked for
_TOKENS_LEAST: Final = 64


def lengths(tokens: int) -> list[int]:
    """Lengths of prefixes to plot: up to four times the one that was asked for."""
    longest = 4 * tokens
    least = min(_TOKENS_LEAST, longest)
    steps = [least * (longest / least) ** (step / (POINTS - 1)) for step in range(POINTS)]
    return sorted({round(step) for step in steps})


def breakeven_charts(at: Sequence[Breakeven]) -> list[Chart]:
    """Speedup and time of loading, by the length of the prefix."""
    sources = at[0].contests

    def over(value_of: Callable[[Breakeven, int], float]) -> list[ChartLine]:
        return [
            ChartLine(
                contest.source,
                colour(place),
                [(float(found.tokens), value_of(found, place)) for found in at],
            )
            for place, contest in enumerate(sources)
        ]

    recompute = ChartLine(
        "recomputing",
        colour(len(sources)),
        [(float(found.tokens), found.recompute_ms) for found in at],
    )
    return [
        Chart(
            "Loading against recomputing",
            "times faster",
            "tokens",
            over(lambda found, place: found.contests[place].speedup),
            1.0,
            "as fast as recomputing",
            is_log_y=True,
        ),
        Chart(
            "Time to have the prefix",
            "ms",
            "tokens",
            [*over(lambda found, place: found.contests[place].load_ms), recompute],
            is_log_y=True,
        ),
    ]


def hits_charts(found: TraceHits) -> list[Chart]:
    """Hit rate by the size of the pool."""
    lru = [(rate.size_bytes / _GIB, 100 * rate.lru) for rate in found.rates]
    optimum = [(rate.size_bytes / _GIB, 100 * rate.optimum) for rate in found.rates]
    lines = [ChartLine("LRU", "on", lru), ChartLine("optimum", "off", optimum)]
    return [Chart("Hit rate", "% of all prompt tokens", "GiB of pool", lines)]


def client_counts(clients: int) -> list[int]:
    """Numbers of clients to plot: up to four times the one that was asked for."""
    return sorted({max(1, round(factor * clients)) for factor in _CLIENTS_FACTORS})


def cost_charts(at: Sequence[Cost]) -> list[Chart]:
    """Price and GPUs by clients."""
    return [
        Chart(title, unit, "clients", [_fleet_line(at, name, value) for name in ("off", "on")])
        for title, unit, value in (
            ("Price, pools included", "million dollars", _millions),
            ("GPUs", "GPUs", _gpus),
        )
    ]


def write(path: Path, title: str, charts: Sequence[Chart], sections: Iterable[Section]) -> None:
    """Write the page; StartupError if that fails."""
    names: dict[str, str] = {}
    for chart in charts:
        names |= {line.name: line.colour for line in chart.lines}
    body = [
        legend((kind, name) for name, kind in names.items()),
        '<div class="charts">' + "".join(map(figure, charts)) + "</div>",
        *(part for section in sections for part in shown(section)),
    ]
    files.write(path, document(title, "forebay plan", body))


def colour(place: int) -> str:
    """The colour of the n-th curve; dashed once all colours are used."""
    kind = COLOURS[place % len(COLOURS)]
    return kind if place < len(COLOURS) else f"{kind} dashed"


def _fleet_line(at: Sequence[Cost], side: str, value_of: Callable[[Cost, str], float]) -> ChartLine:
    name = "with a pool" if side == "on" else "GPU only"
    return ChartLine(name, side, [(float(each.clients), value_of(each, side)) for each in at])


def _millions(found: Cost, side: str) -> float:
    return (found.pooled if side == "on" else found.without).price / 1e6


def _gpus(found: Cost, side: str) -> float:
    return (found.pooled if side == "on" else found.without).gpus
