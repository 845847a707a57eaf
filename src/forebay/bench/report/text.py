"""A comparison, or one server's result, for the terminal."""

from collections.abc import Iterator

from forebay.bench.report.formatting import (
    clients_of,
    failures,
    gain_of,
    mean_of,
    moved_lines,
    points,
    sla_words,
    times,
)
from forebay.bench.result.compare import ComparedStep, Comparison, judged_result, load_of
from forebay.bench.result.format import AbResult, LoadResult, LoadStep, SlaBounds
from forebay.plan.measured import FAILED_SHARE_MAX
from forebay.report.charts import number


def comparison_text(found: Comparison) -> str:
    """The headline and the table."""
    return "\n".join([*points(found), "", *_table(found)])


def ab_text(ab: AbResult, found: Comparison) -> str:
    """Everything that the report says, without its charts."""
    lines = [*points(found), "", *_table(found), ""]
    if ab.equal is not None:
        lines.append(f"answers equal: {ab.equal.equal} of {ab.equal.answers}, {ab.equal.share:.1%}")
    if ab.pool is not None:
        lines += moved_lines(ab.pool)
    if ab.stateless is not None:
        lines += _stateless(ab)
    for other in ab.others:
        lines += ["", f"{other.name}:", *_steps(other)]
    for result in (ab.off, ab.on):
        lines += failures(result)
    return "\n".join(line.rstrip() for line in lines)


def result_text(result: LoadResult, bounds: SlaBounds) -> str:
    """One server under rising load."""
    judged = judged_result(result, bounds)
    lines = [*_steps(result), ""]
    if judged.point is None:
        assert judged.violation is not None
        failed_share = load_of(judged.violation).failed_share
        why = ": too many requests failed" if failed_share > FAILED_SHARE_MAX else ""
        lines.append(f"No step is within the SLA of {sla_words(bounds)}{why}.")
    else:
        first = "none is beyond it"
        if judged.violation is not None:
            first = f"the first violation is at {judged.violation.clients}"
        lines.append(
            f"Within {sla_words(bounds)}: {clients_of(judged.point.clients)},"
            f" {judged.point.req_s:.2f} requests/s; {first}."
        )
    return "\n".join([*lines, *failures(result)])


def _stateless(ab: AbResult) -> list[str]:
    assert ab.stateless is not None
    off, on = ab.stateless.off.steps[0], ab.stateless.on.steps[0]
    gain = gain_of(ComparedStep(off.clients, off, on).gain)
    rates = f"{off.req_s:.2f} and {on.req_s:.2f} requests/s ({gain})"
    ttft = f"TTFT {mean_of(off.ttft_ms)} and {mean_of(on.ttft_ms)} ms"
    tpot = f"TPOT {mean_of(off.tpot_ms)} and {mean_of(on.tpot_ms)} ms"
    return [f"nothing reusable, {clients_of(off.clients)}: {rates}, {ttft}, {tpot}"]


def _table(found: Comparison) -> list[str]:
    names = f"A: {found.off.name}   B: {found.on.name}"
    head = (
        f"{'':>9} {'requests a second':^26} {'TTFT, mean ms':^17} {'TPOT, mean ms':^19} "
        f"{'errors':^9}"
    )
    columns = (
        f"{'clients':>9} {'A':>8} {'B':>8} {'gain':>8} {'A':>8} {'B':>8} {'A':>9} {'B':>9} "
        f"{'A':>5} {'B':>5}"
    )
    legend = "  < operating point   ! beyond the SLA"
    return [names, "", head, columns, *(_row(found, row) for row in found.rows), legend]


def _row(found: Comparison, row: ComparedStep) -> str:
    off, on = row.off, row.on
    tpots = [
        mean_of(step.tpot_ms if step else None) + _mark(step, judged.point, judged.violation)
        for step, judged in ((off, found.off), (on, found.on))
    ]
    return (
        f"{row.clients:>9} {_rate(off):>8} {_rate(on):>8} {gain_of(row.gain):>8}"
        f" {mean_of(off.ttft_ms if off else None):>8} {mean_of(on.ttft_ms if on else None):>8}"
        f" {tpots[0]:>9} {tpots[1]:>9} {_errors(off):>5} {_errors(on):>5}"
    )


def _mark(step: LoadStep | None, point: LoadStep | None, violation: LoadStep | None) -> str:
    if step is not None and step is point:
        return " <"
    if step is not None and violation is not None and step.clients >= violation.clients:
        return " !"
    return "  "


def _steps(result: LoadResult) -> Iterator[str]:
    yield (
        f"{'':>9} {'':>8} {'':>9} {'TTFT, ms':^17} {'TPOT, ms':^17} {'end to end, ms':^17}"
        f" {'':>7} {'cached':>7}"
    )
    yield (
        f"{'clients':>9} {'req/s':>8} {'tokens/s':>9} {'mean':>8} {'p99':>8} {'mean':>8} {'p99':>8}"
        f" {'mean':>8} {'p99':>8} {'errors':>7} {'tokens':>7}"
    )
    for step in result.steps:
        cached = "-"
        if step.cached_tokens is not None and step.prompt_tokens:
            cached = f"{step.cached_tokens / step.prompt_tokens:.0%}"
        yield (
            f"{step.clients:>9} {step.req_s:>8.2f} {number(step.output_tok_s):>9}"
            f" {times(step.ttft_ms)} {times(step.tpot_ms)} {times(step.e2e_ms)}"
            f" {step.errors:>7} {cached:>7}"
        )


def _rate(step: LoadStep | None) -> str:
    return "-" if step is None else f"{step.req_s:.2f}"


def _errors(step: LoadStep | None) -> str:
    return "-" if step is None else str(step.errors)
