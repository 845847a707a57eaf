"""What a call costs, as a number that no other process can change: lines of Forebay it runs."""

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

import forebay

_SOURCE = forebay.__path__[0]


class LineCounter:
    """Counts the lines of `forebay` that this thread runs inside of the `with` block."""

    def __init__(self) -> None:
        self.lines = 0
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        return self._ran if frame.f_code.co_filename.startswith(_SOURCE) else None

    def _ran(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        self.lines += event == "line"
        return self._ran
