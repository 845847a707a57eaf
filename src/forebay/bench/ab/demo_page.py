"""The demo's report, for the terminal and as one HTML file: both have the same figures."""

from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import wrap
from typing import Final

from forebay.bench.ab.demo_report import (
    ALONE,
    MODEL,
    WITH,
    ComparedTurn,
    DemoPhase,
    DemoReport,
    Spread,
    in_words,
)
from forebay.bench.load.client import Completion
from forebay.bench.report.formatting import Figure, moved, ratio, verdict
from forebay.bench.report.page import cards, shown
from forebay.bench.report.sections import conditions
from forebay.bench.result import files
from forebay.bench.result.format import LoadStep
from forebay.quantity import format_size
from forebay.report.charts import Chart, ChartLine
from forebay.report.page import Table, document, figure, legend, paragraph
from forebay.report.text import LINE_LETTERS, Section, sections_text

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
    where = f"{ab.on.machine.cpu}, {ab.on.machine.cores} cores" if ab.on.machine else ""
    names = [("off", ALONE), ("on", WITH)]
    parts = [
        cards(_headline(report)),
        paragraph(_course(report)),
        legend(names, "each point is one request, in the order of asking"),
        _charts(report),
    ]
    sections = [Section("Every turn", "", _turns(report)), *_sections(report), *conditions(ab)]
    parts += [part for section in sections for part in shown(section)]
    title = "The same model, without and with Forebay"
    return document(title, " · ".join(part for part in (MODEL, where) if part), parts)


def text(report: DemoReport) -> str:
    """The report for a terminal, without its long parts."""
    lines = [*wrap(_course(report), LINE_LETTERS), ""]
    for value, name, more, _ in _headline(report):
        lines += [f"  {value} {name}", f"      {more}"]
    return "\n".join([*lines, *sections_text(_sections(report))])


def write(directory: Path, report: DemoReport) -> Path:
    """Write the page and the result beside it; the page's path, or a StartupError."""
    files.write(directory / "ab.json", files.as_text(report.ab()))
    path = directory / "report.html"
    files.write(path, page(report))
    return path


def _headline(report: DemoReport) -> list[Figure]:
    def faster(phase: DemoPhase, what: str) -> Figure:
        back, times = phase.returning, phase.speedups
        alone, pool = (Spread.of(column).median for column in zip(*_ttft(back), strict=True))
        more = f"{alone:.2f} s without, {pool:.2f} s with; medians of {len(back)} turns,"
        more = f"{more} {times.low:.1f} to {times.high:.1f} times"
        return Figure(ratio(times.median), what, more, verdict(times.median - 1))

    turns = [*report.before.turns, *report.restarted.turns]
    equal = sum(turn.is_equal for turn in turns)
    return [
        faster(report.before, "faster to the first token when a dialog comes back"),
        faster(report.restarted, "faster after engine and pool were restarted, from NVMe"),
        Figure(
            f"{equal} of {len(turns)}",
            "answers are the same, word for word",
            "the pool gives back what vLLM computed, or nothing",
        ),
    ]


def _course(report: DemoReport) -> str:
    dialogs = report.dialogs
    return (
        f"{dialogs.hold} dialogs of {dialogs.turns} turns, each with a history of about"
        f" {dialogs.first_tokens:,} tokens, in {report.seconds / 60:.1f} minutes. Two vLLM engines"
        " with the same options ran at the same time; one of them had Forebay's pool. Every turn"
        " was asked of both, one after the other, who was first changing each time, and never"
        " while another process of this measurement was computing."
        f" Each engine's own KV cache has {format_size(report.cache_bytes)}, too little for all"
        " dialogs: vLLM alone has lost a dialog when it comes back and computes it from its first"
        f" token. Before turn {dialogs.turns} the engine with Forebay and its pool were ended and"
        " started again: what it loads then comes from NVMe. Answers are greedy, in float32."
    )


def _sections(report: DemoReport) -> Iterable[Section]:
    yield Section("What was measured", "", _figures(report))
    yield Section("Evidence: what the pool itself counted", "", _evidence(report))
    if report.notes:
        yield Section("Remarks", lines=report.notes)
    yield Section("What this does not show", _LIMITS)


def _figures(report: DemoReport) -> Table:
    before, after, again = report.before, report.restarted, report.again
    off, on = before.off, before.on
    first = [turn for turn in before.turns if turn.number == 0]
    rows = []
    for name, turns, remark in (
        ("first turn", first, "new to both"),
        ("later turns", before.returning, in_words(before.speedups.median)),
        ("after restart", after.turns, in_words(after.speedups.median)),
    ):
        alone, pool = (str(Spread.of(column)) for column in zip(*_ttft(turns), strict=True))
        rows.append((f"to the first token, {name}, s", alone, pool, remark))
    own = (f"{again.own_ttft_s:.2f}", f"{again.pool_ttft_s:.2f}", "last turns once more")
    rows += [
        ("own prefix cache, or the pool, s", *own),
        ("per token after the first, ms", _tpot(off), _tpot(on), "median"),
        ("requests per second", f"{off.req_s:.2f}", f"{on.req_s:.2f}", "before the restart"),
        ("prompt tokens recomputed", _recomputed(off), _recomputed(on), "before the restart"),
        ("", _recomputed(after.off), _recomputed(after.on), "after it"),
    ]
    return Table(["", ALONE, WITH, ""], rows, [0, 3])


def _ttft(turns: Iterable[ComparedTurn]) -> list[tuple[float, float]]:
    """The seconds to the first token of each turn, without and with the pool."""
    return [(turn.alone.ttft_s, turn.with_pool.ttft_s) for turn in turns]


def _tpot(step: LoadStep) -> str:
    return f"{step.tpot_ms.p50:.0f}" if step.tpot_ms and step.tpot_ms.p50 else "-"


def _recomputed(step: LoadStep) -> str:
    prompts = step.prompt_tokens or 0
    return f"{prompts - (step.cached_tokens or 0):,} of {prompts:,}"


def _charts(report: DemoReport) -> str:
    turns = [*report.before.turns, *report.restarted.turns]

    def chart(title: str, unit: str, value_of: Callable[[Completion], float]) -> Chart:
        pairs = [(value_of(turn.alone), value_of(turn.with_pool)) for turn in turns]
        alone, pool = ([*enumerate(column, 1)] for column in zip(*pairs, strict=True))
        lines = [ChartLine(ALONE, "off", alone), ChartLine(WITH, "on", pool)]
        return Chart(title, unit, "request", lines, is_even=True)

    charts = [
        chart("Time to the first token", "seconds", lambda answer: answer.ttft_s),
        chart("Prompt tokens that had to be computed", "tokens", _computed),
    ]
    return '<div class="charts">' + "".join(figure(each) for each in charts) + "</div>"


def _computed(answer: Completion) -> int:
    """Prompt tokens that were computed."""
    return answer.prompt_tokens - (answer.cached_tokens or 0)


def _turns(report: DemoReport) -> Table:
    phases = [("returns", report.before.turns), ("after the restart", report.restarted.turns)]
    rows = [
        [
            f"{turn.dialog}, turn {turn.number + 1}".replace(" ", _NO_BREAK),
            what if turn.number else "new",
            f"{turn.alone.prompt_tokens:,}",
            f"{_computed(turn.alone):,}",
            f"{_computed(turn.with_pool):,}",
            f"{turn.alone.ttft_s:.2f}",
            f"{turn.with_pool.ttft_s:.2f}",
            ratio(turn.speedup),
            "yes" if turn.is_equal else "no",
        ]
        for what, turns in phases
        for turn in turns
    ]
    groups = [("", 2), ("prompt tokens", 3), ("first token, s", 2), ("", 2)]
    head = ["", "", "in all", *["computed alone", "with Forebay"], "alone", "with Forebay"]
    return Table([*head, "faster", "same answer"], rows, [0, 1], groups)


def _evidence(report: DemoReport) -> Table:
    rows = [
        (name, f"{chunks:,}", format_size(size), f"{later:,}", format_size(later_size))
        for (name, chunks, size), (_, later, later_size) in zip(
            moved(report.before.moved), moved(report.restarted.moved), strict=True
        )
    ]
    groups = [("", 1), ("before the restart", 2), ("after it", 2)]
    return Table(["", "chunks", "bytes", "chunks", "bytes"], rows, [0], groups)
