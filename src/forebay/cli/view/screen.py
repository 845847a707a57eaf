"""The whole screen of a terminal, redrawn at every change and restored at the end.

Colours are left to rich, which knows what the terminal can do and respects NO_COLOR. Keys are read
one by one, without Enter and without echo; Ctrl-C and Ctrl-Z work as usual. At the end the terminal
is restored, whatever ended the command.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleDimensions, Group
from rich.screen import Screen as Whole
from rich.text import Text

from forebay.cli.view.lines import Line

RESIZED: Final = "resized"  # the window has another size, or the command was in the background
_KEYS_MAX: Final = 64  # read at once; more than anybody presses between two looks
_SIZE: Final = (80, 24)  # if the terminal does not tell its own


class Screen:
    """The terminal, taken over for the length of a block."""

    def __init__(self, styles: Mapping[str, str]) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._styles = styles
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._keys = self._undo.enter_context(pressed())
        self._undo.enter_context(self._console.screen(hide_cursor=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def show(self, draw: Callable[[int, int], list[Line]]) -> None:
        """Draw what fits the terminal's current size."""
        width, height = self._size()
        self._console.size = ConsoleDimensions(width, height)
        lines = [self._text(row) for row in draw(width, height)]
        self._console.print(Whole(Group(*lines)), end="")

    def keys(self, seconds: float) -> list[str]:
        """The keys pressed within this time; see `Keys.wait`."""
        return self._keys.wait(seconds)

    def _size(self) -> tuple[int, int]:
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return _SIZE
        return max(1, found.columns), max(1, found.lines)

    def _text(self, row: Line) -> Text:
        pieces = [(piece.text, self._styles.get(piece.style, "")) for piece in row]
        return Text.assemble(*pieces, no_wrap=True, overflow="crop", end="\n")


class Keys:
    """Reads keys. Owned by one thread, which also receives the signals."""

    def __init__(self, terminal: int | None) -> None:
        """`terminal` is standard input, if that is one; without it only `RESIZED` is reported."""
        self._terminal = terminal
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def wait(self, seconds: float) -> list[str]:
        """Wait for keys or `RESIZED`; empty if the time is over first."""
        watched = [self._woken] if self._terminal is None else [self._woken, self._terminal]
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        found = []
        if self._woken in ready:
            os.read(self._woken, _KEYS_MAX)
            found.append(RESIZED)
        if self._terminal in ready and self._terminal is not None:
            pressed = os.read(self._terminal, _KEYS_MAX)
            if not pressed:  # the terminal is gone
                self._terminal = None
            found += list(pressed.decode(errors="replace"))
        return found

    def resized(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal for another size, or for coming back from the background."""
        if self._terminal is not None:
            with contextlib.suppress(termios.error):
                tty.setcbreak(self._terminal, termios.TCSANOW)
        with contextlib.suppress(BlockingIOError):  # the thread has been woken already
            os.write(self._wake, b"w")

    def close(self) -> None:
        """Close the pipe; no more signals may come."""
        os.close(self._woken)
        os.close(self._wake)


@contextlib.contextmanager
def pressed() -> Iterator[Keys]:
    """Within the block, read keys from this process's terminal."""
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    keys = Keys(terminal)
    before = termios.tcgetattr(terminal) if terminal is not None else None
    numbers = (signal.SIGWINCH, signal.SIGCONT)
    handlers = {number: signal.signal(number, keys.resized) for number in numbers}
    try:
        if terminal is not None:
            tty.setcbreak(terminal, termios.TCSANOW)
        yield keys
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if terminal is not None and before is not None:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
        keys.close()
