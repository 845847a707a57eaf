"""The log of a command: to standard error, one line a thing, safe to print, as text or as JSON.

For one reason (a text in the code, before its values are filled in) at most `LINES_MAX` lines are
written in `INTERVAL_S`; the next line tells how many were left out. A signal handler may log while
its thread is logging, so every lock here is reentrant.
Lines never contain prompts, tokens, salts or keys, only the code's own text, sizes, paths and the
hex digits of namespaces.
"""

import argparse
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from forebay.report.escaping import escaped

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
LINES_MAX: Final = 20  # of one reason in one interval
INTERVAL_S: Final = 60.0
REASONS_MAX: Final = 500  # that are remembered; the code has fewer
_LEFT_OUT: Final = "left_out"  # attribute of a record: how many like it were left out before it


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--log-format` and `--log-level`."""
    parser.add_argument(
        "--log-format", choices=FORMATS, default="text", help="of the log (default: text)"
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, default="info", help="least that is logged (default: info)"
    )


def start(
    line: str,
    handler: logging.Handler | None = None,
    *,
    form: str = "text",
    level: str = "info",
) -> None:
    """Start to log, with this handler if given; `line` is the format of a message as text."""
    handler = handler or logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter(line))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler])


class LineFormatter(logging.Formatter):
    """Formats a record as one line of text, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, even if its message or traceback has several."""
        left_out = getattr(record, _LEFT_OUT, 0)
        more = f" ({left_out} more like this were left out)" if left_out else ""
        return escaped(super().format(record)) + more


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and how many lines were left out."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, in ASCII so that it contains no line ends or terminal codes."""
        time = datetime.fromtimestamp(record.created, UTC)
        facts: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if left_out := getattr(record, _LEFT_OUT, 0):
            facts[_LEFT_OUT] = left_out
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts)


@dataclass(slots=True)
class _ReasonWindow:
    """The lines of one reason in an interval."""

    begun: float
    written: int = 0
    left_out: int = 0


class RateLimit(logging.Filter):
    """Limits the lines of one reason in an interval."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.RLock()  # guards the windows; a signal's handler may take it again
        self._windows: dict[tuple[str, int, str], _ReasonWindow] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record; if so, it is given the number left out before it."""
        reason = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        with self._lock:
            window = self._windows.get(reason)
            if window is None or now - window.begun >= INTERVAL_S:
                setattr(record, _LEFT_OUT, window.left_out if window else 0)
                window = _ReasonWindow(now)
                self._windows.pop(reason, None)
                self._windows[reason] = window
                while len(self._windows) > REASONS_MAX:
                    del self._windows[next(iter(self._windows))]
            if window.written >= LINES_MAX:
                window.left_out += 1
                return False
            window.written += 1
            return True
