"""Progress of long work: one line on a terminal, nothing where nobody watches."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)


@contextlib.contextmanager
def shown() -> Iterator[Show]:
    """A function to tell progress to, until the end."""
    if not sys.stderr.isatty():
        yield lambda _what, _done: None
        return
    columns = (
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0)

        def show(what: str, done: float) -> None:
            progress.update(task, description=what, completed=done)

        yield show
