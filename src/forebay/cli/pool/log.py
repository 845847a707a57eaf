"""The pool's log: a separate thread writes to stderr, so that no other thread waits for it.

The reader of stderr may have stopped, and a full pipe blocks its writer forever. Then up to
`LINES_MAX` lines wait; more are left out, and their number is logged once there is room again.
"""

import contextlib
import logging
import os
import threading
from queue import SimpleQueue
from typing import Final

LINES_MAX: Final = 1000  # that wait to be written
_UNREAD: Final = "%d lines were left out here: nobody read them"
_OURS: Final = {"name": __name__, "levelno": logging.WARNING}
_STDERR: Final = 2  # not sys.stderr: its lock, held by a blocked thread, would hold up our exit


class LogWriter(logging.Handler):
    """Writes log lines on its own thread. Any thread may log, and so may a signal handler."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._left_out = 0  # guarded by the handler's lock
        self._thread = threading.Thread(target=self._run, name="forebay-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line for writing, or leave it out; called with the handler's lock."""
        if self._lines.qsize() >= LINES_MAX:
            self._left_out += 1
            return
        if self._left_out:
            left_out = {"msg": _UNREAD, "args": (self._left_out,), "levelname": "WARNING"}
            self._lines.put(self.format(logging.makeLogRecord({**_OURS, **left_out})) + "\n")
            self._left_out = 0
        self._lines.put(self.format(record) + "\n")

    def drain(self, timeout_s: float) -> None:
        """Write the lines that wait, as far as time allows; nothing is written afterwards."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            left = line.encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # nobody can be told of it
                while left:
                    left = left[os.write(_STDERR, left) :]
