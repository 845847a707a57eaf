"""The demo's report as one HTML file: what was compared, turn by turn, and how."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from forebay.bench.ab.demo_report import ALONE, MODEL, WITH, DemoReport
from forebay.bench.ab.figures import ComparedTurn, Spread, returning
from forebay.bench.load.client import Completion
from forebay.bench.report.formatting import moved as moves
from forebay.bench.report.page import cards, shown
from forebay.bench.report.sections import Section, conditions
from forebay.bench.result import files
from forebay.quantity import format_size
from forebay.report.charts import Chart, ChartLine
from forebay.report.page import Table, document, figure, legend, paragraph

_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_LIMITS: Final = (
    "A model of 135 million parameters on this machine's processors, one request at a time: the"
    " factor depends on how long a history takes to compute and to read, and grows with its"
    " length. What a GPU gains, and what many users at once gain, are other measurements: see"
    " docs/benchmarks.md, and `forebay bench ab` for your own model and load. Where nothing comes"
    " back there is nothing to gain; turn 1 shows what storing costs."
)


def page(report: DemoReport) -> str:
    """The whole file."""
    ab = report.ab()
    names = [("off", ALONE), ("on", WITH)]
    facts = ab.on.machine
    where = f"{facts.cpu}, {facts.cores} cores" if facts else ""
    parts = [
        cards(_headline(report)),
        paragraph(_course(report)),
        legend(names, "each point is one request, in the order of asking"),
        _charts(report),
    ]
    for section in (
        Section("Every turn", "", _turns(report)),
        Section("What else was measured", "", _others(report)),
        Section("Evidence: what the pool itself counted", "", _evidence(report)),
        Section("Remarks", lines=report.notes),
        *conditions(ab),
        Section("What this does not show", _LIMITS),
    ):
        parts += shown(section)
    title = "The same model, without and with Forebay"
    return document(title, " · ".join(part for part in (MODEL, where) if part), parts)


def write(directory: Path, report: DemoReport) -> Path:
    """Write the page and the result beside it; the page's path, or a StartupError."""
    files.write(directory / "ab.json", files.as_text(report.ab()))
    path = directory / "report.html"
    files.write(path, page(report))
    return path


def _headline(report: DemoReport) -> list[tuple[str, str, str]]:
    back, after = returning(report.turns), report.restarted
    everything = [*report.turns, *after]
    equal = sum(turn.is_equal for turn in everything)
    return [
        (
            f"{report.speedups.median:.1f} {_TIMES}",
            "sooner to the first token when a dialog comes back",
            _pair(back, report.speedups),
        ),
        (
            f"{report.restarted_speedups.median:.1f} {_TIMES}",
            "sooner after engine and pool were restarted, from NVMe",
            _pair(after, report.restarted_speedups),
        ),
        (
            f"{equal} of {len(everything)}",
            "answers are the same, word for word",
            "the pool gives back what vLLM computed, or nothing",
        ),
    ]


def _pair(turns: Sequence[ComparedTurn], speedups: Spread) -> str:
    alone = Spread.of([turn.alone.ttft_s for turn in turns]).median
    pool = Spread.of([turn.with_pool.ttft_s for turn in turns]).median
    return (
        f"{alone:.2f} s without, {pool:.2f} s with; medians of {len(turns)} turns,"
        f" {speedups.low:.1f} to {speedups.high:.1f} times"
    )


def _course(report: DemoReport) -> str:
    dialogs = report.dialogs
    return (
        f"{dialogs.hold} dialogs of {dialogs.turns} turns, each with a history of about"
        f" {dialogs.first_tokens:,} tokens. Two vLLM engines with the same options ran at the same"
        " time; one of them had Forebay's pool. Every turn was asked of both, one after the other,"
        " who was first changing each time, and never while another process of this measurement"
        " was computing."
        f" Each engine's own KV cache has {format_size(report.cache_bytes)}, too little for all"
        f" dialogs: vLLM alone has lost a dialog when it comes back and computes it from its first"
        f" token. Before turn {dialogs.turns} the engine with Forebay and its pool were ended and"
        f" started again: what it loads then comes from NVMe. Answers are greedy, in float32."
    )


def _charts(report: DemoReport) -> str:
    turns = [*report.turns, *report.restarted]

    def chart(title: str, unit: str, value_of: Callable[[Completion], float]) -> Chart:
        lines = [
            ChartLine(ALONE, "off", _numbered(value_of(turn.alone) for turn in turns)),
            ChartLine(WITH, "on", _numbered(value_of(turn.with_pool) for turn in turns)),
        ]
        return Chart(title, unit, "request", lines, is_even=True)

    charts = [
        chart("Time to the first token", "seconds", lambda answer: answer.ttft_s),
        chart(
            "Prompt tokens that had to be computed", "tokens", lambda each: float(computed(each))
        ),
    ]
    return '<div class="charts">' + "".join(figure(each) for each in charts) + "</div>"


def _numbered(values: Iterable[float]) -> list[tuple[float, float]]:
    return [(float(at), value) for at, value in enumerate(values, 1)]


def computed(answer: Completion) -> int:
    """Prompt tokens that came from no cache."""
    return answer.prompt_tokens - (answer.cached_tokens or 0)


def _turns(report: DemoReport) -> Table:
    rows = []
    for at, turn in enumerate([*report.turns, *report.restarted], 1):
        after = "after the restart" if at > len(report.turns) else "returns"
        rows.append(
            [
                str(at),
                f"{turn.dialog}, turn {turn.number + 1}".replace(" ", _NO_BREAK),
                after if turn.number else "new",
                f"{turn.alone.prompt_tokens:,}",
                f"{computed(turn.alone):,}",
                f"{computed(turn.with_pool):,}",
                f"{turn.alone.ttft_s:.2f}",
                f"{turn.with_pool.ttft_s:.2f}",
                f"{turn.speedup:.1f} {_TIMES}",
                "yes" if turn.is_equal else "no",
            ]
        )
    head = ["request", "", "", "prompt tokens", "computed alone", "computed with Forebay"]
    head += ["first token alone, s", "first token with Forebay, s", "sooner", "same answer"]
    return Table(head, rows, [1, 2])


def _evidence(report: DemoReport) -> Table:
    rows = [
        (name, f"{chunks:,}", format_size(size), f"{later:,}", format_size(later_size))
        for (name, chunks, size), (_, later, later_size) in zip(
            moves(report.moved), moves(report.restarted_moved), strict=True
        )
    ]
    head = ["", "before the restart: chunks", "bytes", "after it: chunks", "bytes"]
    return Table(head, rows, [0])


def _others(report: DemoReport) -> Table:
    before, after, hit = report.without, report.with_pool, report.again
    once_more = "the last request of each dialog once more"
    before_restart = "all turns before the restart"
    rows = [
        (
            "first turns, to the first token, s",
            before.first_ttft_s,
            after.first_ttft_s,
            "new to both",
        ),
        ("a token after the first, ms", 1e3 * before.tpot_s, 1e3 * after.tpot_s, ""),
        ("vLLM's own cache, or the pool, s", hit.own_ttft_s, hit.pool_ttft_s, once_more),
        ("requests a second", before.requests_per_s, after.requests_per_s, before_restart),
    ]
    cells = [(name, f"{one:.2f}", f"{two:.2f}", remark) for name, one, two, remark in rows]
    return Table(["", ALONE, WITH, ""], cells, [0, 3])
