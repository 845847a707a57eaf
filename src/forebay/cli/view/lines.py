"""Lines of a terminal as pieces of text with a style each; who prints them picks the colours.

Widths are counted in letters. Foreign text goes through `TextPiece.of`, which escapes control
characters.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from forebay.report.escaping import escaped

TITLE: Final = "title"
SOFT: Final = "soft"
BAR: Final = "bar"
GOOD: Final = "good"
BAD: Final = "bad"


class Glyphs(NamedTuple):
    """The characters of bars and sparklines."""

    full: str
    empty: str
    levels: str  # from empty to full
    more: str  # marks text that was cut off


UNICODE: Final = Glyphs("█", "░", "▁▂▃▄▅▆▇█", "…")
ASCII: Final = Glyphs("#", ".", "_.-:=+*#", "~")


class TextPiece(NamedTuple):
    """Text in one style."""

    text: str
    style: str = ""

    @classmethod
    def of(cls, words: str, style: str = "") -> "TextPiece":
        """A piece of foreign text, escaped."""
        return cls(escaped(words), style)


Line = tuple[TextPiece, ...]
Cell = str | TextPiece


def line(*cells: Cell) -> Line:
    """A line of these cells, beside each other."""
    return tuple(_piece(cell) for cell in cells)


def plain(row: Line) -> str:
    """A line without its styles."""
    return "".join(piece.text for piece in row).rstrip()


def cut(row: Line, width: int, glyphs: Glyphs) -> Line:
    """A line cut to at most `width` letters."""
    if sum(len(piece.text) for piece in row) <= width:
        return row
    kept, left = [], max(0, width - 1)
    for piece in row:
        kept.append(TextPiece(piece.text[:left], piece.style))
        left -= len(kept[-1].text)
    return (*kept, TextPiece(glyphs.more[:width]))


def grid(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], width: int, glyphs: Glyphs
) -> list[Line]:
    """Columns below a head; a name that ends with `>` marks a column of numbers.

    If the grid is too wide, the first column is cut, down to eight letters.
    """
    pieces = [[_piece(cell) for cell in row] for row in rows]
    names = [name.removesuffix(">") for name in head]
    widths = [
        max([len(name), *(len(row[at].text) for row in pieces)]) for at, name in enumerate(names)
    ]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    if over > 0:
        widths[0] = max(min(8, widths[0]), widths[0] - over)
    found = []
    for row in [[TextPiece(name, SOFT) for name in names], *pieces]:
        cells: list[TextPiece] = []
        for at, piece in enumerate(row):
            text = plain(cut((piece,), widths[at], glyphs))
            text = text.rjust(widths[at]) if head[at].endswith(">") else text.ljust(widths[at])
            cells += [TextPiece(text, piece.style), TextPiece("  ")]
        found.append(cut(tuple(cells[:-1]), width, glyphs))
    return found


def beside(left: Sequence[Line], right: Sequence[Line], left_width: int) -> list[Line]:
    """Two columns of lines; those on the left must be no wider than `left_width`."""
    found = []
    for at in range(max(len(left), len(right))):
        first = left[at] if at < len(left) else ()
        second = right[at] if at < len(right) else ()
        gap = left_width - sum(len(piece.text) for piece in first)
        found.append((*first, TextPiece(" " * gap), *second) if second else first)
    return found


def bar(part: float, width: int, glyphs: Glyphs) -> Line:
    """A bar that is filled up to this part."""
    filled = min(width, max(0, round(part * width)))
    if part > 0 and width:
        filled = max(1, filled)
    return line(
        TextPiece(glyphs.full * filled, BAR), TextPiece(glyphs.empty * (width - filled), SOFT)
    )


def spark(
    values: Sequence[float | None], width: int, glyphs: Glyphs, most: float | None = None
) -> TextPiece:
    """The last values as a line of bars, up to `most` or to the largest; blank where unknown."""
    shown = values[-width:] if width > 0 else []
    top = most if most is not None else max((value or 0.0 for value in shown), default=0.0)
    steps = len(glyphs.levels) - 1
    letters = [
        " " if value is None else glyphs.levels[round(steps * min(1.0, value / top)) if top else 0]
        for value in shown
    ]
    return TextPiece("".join(letters).rjust(max(0, width)), BAR)


def _piece(cell: Cell) -> TextPiece:
    return cell if isinstance(cell, TextPiece) else TextPiece(cell)
