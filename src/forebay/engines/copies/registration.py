"""A slab made known to the GPU, span by span, on a thread of its own.

Registering takes half a second a GiB, so nobody waits for it but a load that needs its span: what a
load needs comes first, what a store wanted next, then the slab from its start, without the arenas
that the pool has given back: registering one would take its memory again.
CUDA registers under a lock that launches need too, so this last part rests while something loads.

    arena    [slot][slot][slot][slot][slot] rest     as the pool cuts it, for slots of one size
    spans    [         ][         ][    ]            whole slots: no copy crosses two spans

A span that cannot be registered ends it with one line: what is registered by then stays in use.
"""

import logging
import threading
import time
from collections import deque
from typing import Any, Final

import numpy as np

from forebay.engines.copies.contract import WorkerSlab
from forebay.engines.copies.driver import Driver

SPAN_BYTES: Final = 64 << 20  # small, so that other threads' calls never wait long for one
_REST_S: Final = 0.1  # for a load, or for the launches of the forward that is built on it
_AT_LEAST_S: Final = 0.5  # however many loads come, a span that nothing wants so often
_log: Final = logging.getLogger("forebay")


class Registration:
    """One slab's spans. `changed` guards everything here, and is told of every change."""

    def __init__(
        self,
        driver: Driver,
        slab: WorkerSlab,
        slot_bytes: int,
        changed: threading.Condition,
        span_bytes: int = SPAN_BYTES,
    ) -> None:
        self.why = ""  # it ended early, in a few words
        self._driver = driver
        self._slab = slab
        self._changed = changed
        self._is_leaving = False
        arena = slab.arena_bytes
        self._slots_bytes = arena // slot_bytes * slot_bytes  # of an arena, without its rest
        self._span_bytes = max(1, min(span_bytes, arena) // slot_bytes) * slot_bytes
        self._per_arena = -(-self._slots_bytes // self._span_bytes)
        spans = slab.memory.nbytes // arena * self._per_arena
        self._ready = np.zeros(spans, dtype=bool)
        self._ready_bytes = 0
        self._wanted: deque[int] = deque()
        ahead = range(min(spans, slab.cap_bytes // arena * self._per_arena))
        self._ahead = (n for n in ahead if n // self._per_arena not in slab.given_back)
        self._rests_until = 0.0  # monotonic
        self._last_ahead = time.monotonic()  # when a span was begun that nothing wanted
        self._thread = threading.Thread(target=self._run, name="forebay-register", daemon=True)
        self._thread.start()

    @property
    def ready_bytes(self) -> int:
        """What is registered, with the rests of arenas, which hold no slot."""
        return self._ready_bytes

    def are_ready(self, offsets: Any) -> Any:
        """Which of these slots the device can reach."""
        spans = self._spans(offsets)
        inside = spans < len(self._ready)
        return inside & self._ready[np.where(inside, spans, 0)]

    def want(self, offsets: Any, *, is_first: bool) -> None:
        """These slots are needed, by a load before all others; with `changed` held."""
        missing = np.unique(self._spans(offsets)[~self.are_ready(offsets)]).tolist()
        if is_first:
            self._wanted.extendleft(reversed(missing))
        else:
            self._wanted.extend(span for span in missing if span not in self._wanted)
        if missing:
            self._changed.notify_all()

    def rest(self) -> None:
        """Something is loaded, or was submitted: leave launches alone; with `changed` held."""
        self._rests_until = time.monotonic() + _REST_S

    def leave(self) -> None:
        """Register nothing more and take back what is; with `changed` held. Returns at once."""
        self._is_leaving = True
        self._changed.notify_all()

    def has_left(self) -> bool:
        """Whether nothing is registered any more, and the slab not referred to."""
        return not self._thread.is_alive()

    def _spans(self, offsets: Any) -> Any:
        arenas, inside = np.divmod(np.asarray(offsets, dtype=np.int64), self._slab.arena_bytes)
        return arenas * self._per_arena + inside // self._span_bytes

    def _range(self, span: int) -> tuple[int, int]:
        """A span's address and length."""
        arena, number = divmod(span, self._per_arena)
        start = number * self._span_bytes
        length = min(self._span_bytes, self._slots_bytes - start)
        return self._slab.memory.ctypes.data + arena * self._slab.arena_bytes + start, length

    def _worth(self, span: int) -> int:
        """What is in reach with a span: with an arena's last, the rest of it."""
        number = span % self._per_arena
        is_last = number == self._per_arena - 1
        return self._slab.arena_bytes - number * self._span_bytes if is_last else self._span_bytes

    def _run(self) -> None:
        self._driver.enter_thread()
        while (span := self._next()) is not None:
            why = self._driver.register(*self._range(span))
            with self._changed:
                self.why = why
                self._ready[span] = not why
                self._ready_bytes += 0 if why else self._worth(span)
                self._changed.notify_all()
            if why:
                _log.warning(
                    "the GPU cannot reach more than %d MiB of the pool's memory (%s):"
                    " the rest is recomputed",
                    self.ready_bytes >> 20,
                    why,
                )
        for span in np.flatnonzero(self._ready):
            self._driver.unregister(self._range(int(span))[0])
        with self._changed:
            self._ready[:] = False
            self._ready_bytes = 0
            self._changed.notify_all()

    def _next(self) -> int | None:
        """The span that is due; None when it is time to leave."""
        with self._changed:
            while not self._is_leaving:
                now = time.monotonic()
                rest_s = min(self._rests_until, self._last_ahead + _AT_LEAST_S) - now
                span = None if self.why else self._due(now, is_resting=rest_s > 0)
                if span is not None:
                    return span
                self._changed.wait(rest_s if rest_s > 0 else None)
        return None

    def _due(self, now: float, *, is_resting: bool) -> int | None:
        while self._wanted:
            span = self._wanted.popleft()
            if span < len(self._ready) and not self._ready[span]:
                return span
        if is_resting:
            return None
        self._last_ahead = now
        return next((span for span in self._ahead if not self._ready[span]), None)
