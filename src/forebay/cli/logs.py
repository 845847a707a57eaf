"""The log of a command: to standard error, each message on one line that is safe to print."""

import logging

from forebay.report.escaping import escaped


class _LineFormatter(logging.Formatter):
    """Paths and names in a message may hold control characters; they are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name
        return escaped(super().formatMessage(record))


def start(line: str, handler: logging.Handler | None = None) -> None:
    """Log from now on, with this handler if any; `line` is the format of a message."""
    handler = handler or logging.StreamHandler()
    handler.setFormatter(_LineFormatter(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
