"""Tables of the page: a head, rows of cells, names to the left and figures to the right."""

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], names: Sequence[int] = ()) -> str:
    """Cells are text and are escaped; `names` are the columns that hold words."""
    top = "".join(f"<th{_kind(at, names)}>{html.escape(word)}</th>" for at, word in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_kind(at, names)}>{html.escape(cell)}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    above = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table>{above}<tbody>{body}</tbody></table></div>'


def paragraph(text: str) -> str:
    """Text, escaped."""
    return f"<p>{html.escape(text)}</p>"


def _kind(column: int, names: Sequence[int]) -> str:
    return ' class="name"' if column in names else ""
