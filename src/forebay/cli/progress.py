"""Progress of long work: a bar on a terminal, a line now and then where there is none."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from forebay.sys.clock import Clock

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
_LOOK_S: Final = 1.0  # before the first line; shorter work prints none
_NEW_S: Final = 5.0  # between two lines
_REPEAT_S: Final = 10.0  # before the same line is printed again, so that it does not look hung


@contextlib.contextmanager
def shown() -> Iterator[Show]:
    """Show progress within the block, which gets a function to report it with."""
    with _bar() if sys.stderr.isatty() else _printed() as show:
        yield show


@contextlib.contextmanager
def _bar() -> Iterator[Show]:
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


@contextlib.contextmanager
def _printed() -> Iterator[Show]:
    """Print lines on stderr from a thread, so that silent work is seen, too."""
    lines, clock, over = ProgressLines(), Clock(), threading.Event()
    begun = clock.monotonic()

    def print_now_and_then() -> None:
        while not over.wait(_LOOK_S):
            line = lines.due(clock.monotonic() - begun)
            if line:
                print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=print_now_and_then, name="forebay-progress", daemon=True)
    thread.start()
    try:
        yield lines.show
    finally:
        over.set()
        thread.join()


class ProgressLines:
    """Decides when the progress of some work is worth a line."""

    def __init__(self) -> None:
        self._said = ("", 0.0)  # replaced whole: written on one thread, read on another
        self._printed = ""
        self._printed_s = 0.0

    def show(self, what: str, done: float) -> None:
        """Note what is being done, and how much of it is done."""
        self._said = (what, done)

    def due(self, seconds: float) -> str:
        """The line to print at this time since the start; empty if none is due."""
        what, done = self._said
        pause_s = _REPEAT_S if what == self._printed else _NEW_S if self._printed else 0.0
        if not what or seconds < self._printed_s + pause_s:
            return ""
        self._printed, self._printed_s = what, seconds
        return f"forebay: {what} ({done:.0%} done after {seconds:.0f} s)"
