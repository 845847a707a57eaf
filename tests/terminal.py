"""A real terminal for tests: a program in tmux, its screen as text, its keys pressed."""

import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

HANG_S: Final = 120.0  # longer than anything takes; ends a test that would wait for ever
_LOOK_S: Final = 0.05


class Terminal:
    """One program in a terminal of its own; it ends with the block."""

    def __init__(
        self,
        *command: str,
        place: Path,
        lines: int = 40,
        columns: int = 120,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """The server's socket lies in `place`, so that tests do not share one."""
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed: apt-get install tmux")
        self._tmux = [
            "tmux",
            "-u",
            "-f",
            "/dev/null",
            "-S",
            str(place / f"t{uuid.uuid4().hex[:8]}"),
        ]
        self._command = [*command]
        self._size = (str(columns), str(lines))
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})}

    def __enter__(self) -> Self:
        columns, lines = self._size
        # What the program leaves on the screen stays to be read.
        program = f"{shlex.join(self._command)}; echo ended $?; exec cat"
        self._ask("new-session", "-d", "-x", columns, "-y", lines, program)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ask("kill-server")

    def screen(self, *, colours: bool = False) -> str:
        """What is on it now."""
        return self._ask("capture-pane", "-p", *(["-e"] if colours else []))

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names; after "-l", letters as they are."""
        self._ask("send-keys", *keys)

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        self.press("-l", line)
        self.press("Enter")

    def resize(self, lines: int, columns: int) -> None:
        """As when a user pulls at the window."""
        self._ask("resize-window", "-x", str(columns), "-y", str(lines))

    def wait_for(self, *texts: str) -> str:
        """The screen, once it has all of these."""
        return self.wait_until(lambda screen: all(text in screen for text in texts), str(texts))

    def wait_until(self, is_so: Callable[[str], object], what: str) -> str:
        """The screen, once it is so."""
        until = time.monotonic() + HANG_S
        while not is_so(screen := self.screen()):
            assert time.monotonic() < until, f"waited {HANG_S} s for {what}:\n{screen}"
            time.sleep(_LOOK_S)
        return screen

    def _ask(self, *words: str) -> str:
        command = [*self._tmux, *words]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, env=self._environment
        )
        return ended.stdout
