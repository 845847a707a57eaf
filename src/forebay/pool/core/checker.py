"""A thread that hashes slots: after a commit, before a promise if so configured, and when idle."""

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from forebay.record.header import payload_hash

_WAITING_MAX: Final = 1024


class Checker:
    """Hashes what it is given, in order; answers through the pool's completions."""

    def __init__(self, complete: Callable[[Callable[[], None]], None]) -> None:
        self._complete = complete
        self._jobs: queue.Queue[tuple[list[memoryview], Callable[[list[bytes]], None]] | None]
        self._jobs = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="forebay-check", daemon=True)
        self._thread.start()

    def submit(self, payloads: list[memoryview], done: Callable[[list[bytes]], None]) -> bool:
        """Hash payloads; `done` is called on the pool's thread. False: too much is waiting."""
        try:
            self._jobs.put_nowait((payloads, done))
        except queue.Full:
            return False
        return True

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return self._jobs.empty()

    def close(self, timeout_s: float) -> None:
        """Finish what waits, as far as the time allows."""
        try:
            self._jobs.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            payloads, done = job
            self._complete(partial(done, [payload_hash(payload) for payload in payloads]))
