"""The pool's barrier: an unforeseen exception ends one piece of work, not the pool.

Every message, job and timer of a pool runs behind it. What it catches is a bug, so it is counted
(`faults.caught` in the statistics) and logged with its stack; the exception's message is left out,
since it may quote what a user sent. The tests treat every such log line as a failure, so no bug
stays hidden.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

FAULT: Final = "a bug was caught while the pool was busy with"  # begins every line logged here
_INTERVAL_S: Final = 60.0  # between two lines of one kind
_KINDS_MAX: Final = 256  # kinds remembered; then all are forgotten, and logged again
_FAILED: Final = object()
_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Barrier:
    """Counts what it catches; any thread may call it."""

    def __init__(self) -> None:
        self.caught = 0
        self._logged: dict[str, float] = {}  # kind → when
        self._lock = threading.Lock()  # guards both

    def call(self, what: str, work: Callable[..., object], *arguments: Any) -> bool:  # noqa: ANN401
        """Do the work; False if an exception ended it."""
        return self.result(what, _FAILED, work, *arguments) is not _FAILED

    def result(
        self,
        what: str,
        otherwise: _Result,
        work: Callable[..., _Result],
        *arguments: Any,  # noqa: ANN401
    ) -> _Result:
        """What the work returns, or `otherwise` if an exception ended it."""
        try:
            return work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this work alone
            self._count(what, error)
            return otherwise

    def _count(self, what: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        kind = f"{what}: {type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
        now = time.monotonic()
        with self._lock:
            self.caught += 1
            is_new = now - self._logged.get(kind, -_INTERVAL_S) >= _INTERVAL_S
            if is_new and len(self._logged) >= _KINDS_MAX:
                self._logged.clear()
            if is_new:
                self._logged[kind] = now
        if is_new:
            way = "".join(traceback.format_list(frames)).rstrip()
            _log.error("%s %s (%s)\n%s", FAULT, what, type(error).__name__, way)
