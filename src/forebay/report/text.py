"""Sections of a report for the terminal; `page` has the same as HTML."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

from forebay.report.escaping import escaped
from forebay.report.page import Cell, Table

LINE_LETTERS: Final = 100
_MARKS: Final = {"point": " <", "beyond": " !", "within": "  "}  # the last only fills the place


class Section(NamedTuple):
    """One part of a report: its text, its table, and then lines of remarks."""

    title: str
    text: str = ""
    table: Table | None = None
    lines: Sequence[str] = ()
    commands: str = ""  # to copy; only shown on a page


def sections_text(sections: Iterable[Section]) -> list[str]:
    """The sections as lines of at most `LINE_LETTERS`, except for wider tables."""
    lines = []
    for section in sections:
        lines += ["", section.title]
        lines += wrap(section.text, LINE_LETTERS)
        lines += plain(section.table) if section.table else []
        for line in section.lines:
            lines += wrap(line, LINE_LETTERS)
    return [escaped(line) for line in lines]


def plain(table: Table) -> list[str]:
    """A table as lines of text; with groups its columns are closer to each other."""
    gap = " " if table.groups else "  "
    rows = [[_text(cell) for cell in row] for row in table.rows]
    rows = [[escaped(name) for name in table.head], *rows] if any(table.head) else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines, at = [""] if table.groups else [], 0
    for name, span in table.groups:
        # A name that is longer than its columns widens all of them equally.
        least = -(-(len(name) + 1) // span) - 1
        widths[at : at + span] = (max(least, width) for width in widths[at : at + span])
        lines[0] += " " + name.center(sum(widths[at : at + span]) + span - 1)
        at += span
    for row in rows:
        cells = [
            f"{cell:<{width}}" if at in table.names else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(" " + gap.join(cells))
    return [line.rstrip() for line in lines]


def _text(cell: Cell) -> str:
    """A cell's text with its mark."""
    if isinstance(cell, str):
        return escaped(cell)
    text, kind = escaped(cell[0]), cell[1]
    return text + _MARKS.get(kind, "")
