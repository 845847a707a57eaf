"""A comparison, or one server's result, for the terminal."""

from collections.abc import Iterable
from textwrap import wrap
from typing import Final

from forebay.bench.report.formatting import clients_of
from forebay.bench.report.sections import Section, compared, failures, findings, headline, steps_of
from forebay.bench.result.compare import Comparison, judged_result
from forebay.bench.result.format import AbResult, LoadResult
from forebay.plan.measured import FAILED_SHARE_MAX, Sla
from forebay.report.page import Cell, Table

_MARKS: Final = {"point": " <", "beyond": " !"}
LINE_LETTERS: Final = 100


def comparison_text(found: Comparison) -> str:
    """The headline and the table."""
    lines = [f"Within {found.sla}:"]
    lines += [f"  {value} {name} ({more})" for value, name, more in headline(found)]
    lines += ["", f"A: {found.off.name}   B: {found.on.name}", ""]
    lines += [*plain(compared(found, ["A", "B"])), "  < operating point   ! beyond the SLA"]
    return "\n".join(lines)


def ab_text(ab: AbResult, found: Comparison) -> str:
    """What the report says, without its charts and its details."""
    return "\n".join([comparison_text(found), *sections_text(findings(ab))])


def sections_text(sections: Iterable[Section]) -> list[str]:
    """Lines of at most `LINE_LETTERS`, but for tables that are wider."""
    lines = []
    for section in sections:
        lines += ["", section.title]
        for text in (section.text, *section.lines):
            lines += wrap(text, LINE_LETTERS)
        lines += plain(section.table) if section.table else []
    return lines


def result_text(result: LoadResult, bounds: Sla) -> str:
    """One server under rising load."""
    judged = judged_result(result, bounds)
    lines = [*plain(steps_of(result)), ""]
    if judged.point is None:
        assert judged.violation is not None
        failed_share = judged.violation.failed_share
        why = ": too many requests failed" if failed_share > FAILED_SHARE_MAX else ""
        lines.append(f"No step is within the SLA of {bounds}{why}.")
    else:
        first = "none is beyond it"
        if judged.violation is not None:
            first = f"the first violation is at {judged.violation.clients}"
        lines.append(
            f"Within {bounds}: {clients_of(judged.point.clients)},"
            f" {judged.point.req_s:.2f} requests/s; {first}."
        )
    return "\n".join([*lines, *failures(result)])


def plain(table: Table) -> list[str]:
    """Columns with a space between them."""
    rows = [[_text(cell) for cell in row] for row in table.rows]
    rows = [list(table.head), *rows] if any(table.head) else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines, at = [""] if table.groups else [], 0
    for name, span in table.groups:
        # A name that is longer than its columns widens all of them alike.
        least = -(-(len(name) + 1) // span) - 1
        widths[at : at + span] = (max(least, width) for width in widths[at : at + span])
        lines[0] += " " + name.center(sum(widths[at : at + span]) + span - 1)
        at += span
    for row in rows:
        cells = [
            f"{cell:<{width}}" if at in table.names else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(" " + " ".join(cells))
    return [line.rstrip() for line in lines]


def _text(cell: Cell) -> str:
    """A cell with its mark; cells that may have one keep its place."""
    if isinstance(cell, str):
        return cell
    text, kind = cell
    return text if kind in {"gain", "loss"} else text + _MARKS.get(kind, "  ")
