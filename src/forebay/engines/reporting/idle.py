"""Keeps an idle engine in touch with its pool.

An engine talks to its pool in the hooks of its scheduler, and an idle engine calls none: it would
notice a restarted pool only with its next request, which would find nothing. So a thread calls
`look` once a second if no hook was called for that long. It takes turns with the hooks (`turn`),
and delays them by no more than a check of a socket.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from forebay.engines.boundary import Boundary

IDLE_S: Final = 1.0
_CLOSE_S: Final = 1.0  # how long `close` waits for a call of `look`


class IdleThread:
    """Calls `look` on a thread of its own while the engine is idle. Owned by the scheduler's."""

    def __init__(
        self, boundary: Boundary, look: Callable[[], None], idle_s: float = IDLE_S
    ) -> None:
        self._boundary, self._look, self._idle_s = boundary, look, idle_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-idle", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._ended.wait(self._idle_s):
            boundary = self._boundary
            if time.perf_counter() - boundary.called_at < self._idle_s:
                continue
            with boundary.turn:
                if not self._ended.is_set():
                    boundary.call(lambda: None, self._look)
