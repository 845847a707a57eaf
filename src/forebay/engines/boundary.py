"""The one place where every exception is caught: between the engine and Forebay.

Whatever goes wrong inside is a miss for the engine: it is counted, logged once a minute for each
reason, and answered with a value that lets vLLM go on as without Forebay. Only where going on would
mean computing from bytes that are missing does the engine end (`BrokenError`).
"""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

_INTERVAL_S: Final = 60.0
_CALLS_MAX: Final = 1000  # durations kept of one hook between two steps
_log: Final = logging.getLogger("forebay")
_Result = TypeVar("_Result")


class BrokenError(Exception):
    """The engine must end: a forward pass relies on bytes that cannot be loaded any more."""


class Boundary:
    """Calls into Forebay, with their failures counted."""

    def __init__(self, when_failed: Callable[[], None] = lambda: None) -> None:
        self.failures = 0
        self.turn = threading.RLock()  # held by every hook, and by `IdleThread` between hooks
        self.called_at = 0.0  # when a hook was last called, by `perf_counter`
        self._when_failed = when_failed
        self._seconds: dict[str, list[float]] = {}  # durations of its calls, by hook
        self._logged: dict[str, float] = {}

    def call(self, fallback: Callable[[], _Result], work: Callable[[], _Result]) -> _Result:
        """The work's result, or the fallback's if the work raised anything but `BrokenError`."""
        try:
            return work()
        except BrokenError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing else may reach the engine
            self._count(error)
            return fallback()

    def took(self, hook: str, seconds: float) -> None:
        """Note how long a hook took."""
        calls = self._seconds.setdefault(hook, [])
        if len(calls) < _CALLS_MAX:
            calls.append(seconds)

    def take_seconds(self) -> dict[str, list[float]]:
        """The durations noted since the last call, by hook."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _count(self, error: Exception) -> None:
        self.failures += 1
        self._when_failed()
        # The type and the place say what a developer needs; a message might hold user data.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        at = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else ""
        reason = f"{type(error).__name__} in {at}"
        now = time.monotonic()
        if now - self._logged.get(reason, -_INTERVAL_S) >= _INTERVAL_S:
            self._logged[reason] = now
            _log.error("internal error in Forebay, treated as a miss: %s", reason)


def bounded(fallback: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a connector's hook inside its boundary."""

    def decorate(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            boundary = self.boundary
            begun = boundary.called_at = time.perf_counter()
            with boundary.turn:
                answer = boundary.call(fallback, lambda: hook(self, *arguments, **named))
            boundary.took(hook.__name__, time.perf_counter() - begun)
            return answer

        return wrapped

    return decorate
