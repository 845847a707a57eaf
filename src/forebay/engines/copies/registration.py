"""Registers a slab with the GPU, span by span, on a thread of its own.

Registering takes up to half a second a GiB, so nothing waits for it but a load that needs its span.
First comes what a load needs, then what a store wanted, then the rest of the slab from its start.
Arenas that the pool has given back are left out: registering one would take its memory again.

CUDA registers under a lock that kernel launches need too. Before the first step this holds up
nobody, so several spans are registered by one call, at full speed. From then on a span that nothing
wants is registered only after a pause between steps, or now and then in any case; spans that stores
are about to reach wait only for loads.

    arena    [slot][slot][slot][slot][slot] rest     as the pool cuts it, for slots of one size
    spans    [         ][         ][    ]            whole slots: no copy crosses two spans

If a span cannot be registered, registering ends with one line in the log; what is registered by
then stays in use.
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
_EARLY_SPANS: Final = 4  # registered by one call before the first step
_PAUSE_S: Final = 0.1  # pause for the launches of a step, or of a forward that uses a load
_AT_LEAST_S: Final = 0.2  # one unwanted span is registered this often, however many steps come
_NEAR_SPANS: Final = 16  # a GiB; stores fill it within a second or so
_log: Final = logging.getLogger("forebay")


class Registration:
    """One slab's spans. `changed` guards all of this, and is notified of every change."""

    def __init__(
        self,
        driver: Driver,
        slab: WorkerSlab,
        slot_bytes: int,
        changed: threading.Condition,
        span_bytes: int = SPAN_BYTES,
    ) -> None:
        self.why = ""  # why registering ended early, in a few words; "": it did not
        self._driver = driver
        self._slab = slab
        self._changed = changed
        self._is_ending = False
        arena = slab.arena_bytes
        self._slots_bytes = arena // slot_bytes * slot_bytes  # bytes of an arena that hold slots
        self._span_bytes = max(1, min(span_bytes, arena) // slot_bytes) * slot_bytes
        self._per_arena = -(-self._slots_bytes // self._span_bytes)
        spans = slab.memory.nbytes // arena * self._per_arena
        self._ready = np.zeros(spans, dtype=bool)
        self._ready_bytes = 0
        self._addresses: list[int] = []  # address of each range that was registered
        self._wanted: deque[int] = deque()
        self._ahead = 0  # all spans before it are registered, or belong to arenas given back
        self._furthest_stored = 0  # the furthest span that a store went to
        self._load_pause_until = 0.0  # monotonic; 0: nothing was loaded yet
        self._step_pause_until = 0.0  # likewise; 0: no step was begun yet
        self._last_ahead = time.monotonic()  # when an unwanted span was last begun
        self._thread = threading.Thread(target=self._run, name="forebay-register", daemon=True)
        self._thread.start()

    @property
    def ready_bytes(self) -> int:
        """What is registered, counting the ends of arenas, which hold no slot."""
        return self._ready_bytes

    @property
    def reach_bytes(self) -> int:
        """All slots in use below this offset of the slab are registered."""
        arenas, spans = divmod(self._ahead, self._per_arena or 1)
        return arenas * self._slab.arena_bytes + spans * self._span_bytes

    def are_ready(self, offsets: Any) -> Any:
        """Which of these slots the device can reach."""
        spans = self._spans(offsets)
        inside = spans < len(self._ready)
        return inside & self._ready[np.where(inside, spans, 0)]

    def want(self, offsets: Any, *, is_first: bool) -> None:
        """These slots are needed; `is_first`: by a load, so before all others. Hold `changed`."""
        missing = np.unique(self._spans(offsets)[~self.are_ready(offsets)]).tolist()
        if is_first:
            self._wanted.extendleft(reversed(missing))
        else:
            self._wanted.extend(span for span in missing if span not in self._wanted)
        if missing:
            self._changed.notify_all()

    def note_stores(self, offsets: Any) -> None:
        """Stores go to these slots: register what comes after them next. Hold `changed`."""
        furthest = int(self._spans(offsets).max(initial=0))
        if furthest > self._furthest_stored:
            self._furthest_stored = furthest
            self._changed.notify_all()

    def pause(self) -> None:
        """A load was submitted: leave kernel launches alone for a while. Hold `changed`."""
        self._load_pause_until = time.monotonic() + _PAUSE_S

    def begin_step(self) -> None:
        """A step is about to launch kernels. Needs no lock: nobody has to be notified."""
        self._step_pause_until = time.monotonic() + _PAUSE_S

    def take_over(self, slab: WorkerSlab) -> None:
        """Use a newer description of the same memory and slots. Hold `changed`."""
        assert slab.memory.ctypes.data == self._slab.memory.ctypes.data
        self._slab = slab
        self._changed.notify_all()

    def unregister(self) -> None:
        """Register nothing more and unregister everything; returns at once. Hold `changed`."""
        self._is_ending = True
        self._changed.notify_all()

    def is_unregistered(self) -> bool:
        """Whether everything is unregistered, and nothing here refers to the slab any more."""
        return not self._thread.is_alive()

    def _spans(self, offsets: Any) -> Any:
        arenas, inside = np.divmod(np.asarray(offsets, dtype=np.int64), self._slab.arena_bytes)
        return arenas * self._per_arena + inside // self._span_bytes

    def _range(self, spans: range) -> tuple[int, int]:
        """The address and length of adjacent spans of one arena."""
        arena, number = divmod(spans.start, self._per_arena)
        start = number * self._span_bytes
        length = min(len(spans) * self._span_bytes, self._slots_bytes - start)
        return self._slab.memory.ctypes.data + arena * self._slab.arena_bytes + start, length

    def _ready_bytes_of(self, span: int) -> int:
        """The bytes that registering a span makes ready; an arena's last span includes its end."""
        number = span % self._per_arena
        is_last = number == self._per_arena - 1
        return self._slab.arena_bytes - number * self._span_bytes if is_last else self._span_bytes

    def _run(self) -> None:
        self._driver.enter_thread()
        while (spans := self._next()) is not None:
            address, length = self._range(spans)
            why = self._driver.register(address, length)
            with self._changed:
                self.why = why
                if not why:
                    self._addresses.append(address)
                    self._ready[spans.start : spans.stop] = True
                    self._ready_bytes += sum(map(self._ready_bytes_of, spans))
                self._changed.notify_all()
            if why:
                _log.warning(
                    "the GPU cannot reach more than %d MiB of the pool's memory (%s):"
                    " the rest is recomputed",
                    self.ready_bytes >> 20,
                    why,
                )
        for address in self._addresses:
            self._driver.unregister(address)
        with self._changed:
            self._ready[:] = False
            self._ready_bytes = self._ahead = 0
            self._changed.notify_all()

    def _next(self) -> range | None:
        """The next spans to register, all of one arena; None when it is time to end."""
        with self._changed:
            while not self._is_ending:
                wanted = None if self.why else self._next_wanted()
                if wanted is not None:
                    return wanted
                ahead = None if self.why else self._next_ahead()
                if ahead is None:
                    self._changed.wait()
                    continue
                now = time.monotonic()
                is_near = ahead.start <= self._furthest_stored + _NEAR_SPANS
                steps = 0.0 if is_near else self._step_pause_until
                paused_until = max(self._load_pause_until, steps)
                pause_s = min(paused_until, self._last_ahead + _AT_LEAST_S) - now
                if pause_s <= 0:
                    self._last_ahead = now
                    return ahead
                self._changed.wait(pause_s)
        return None

    def _next_wanted(self) -> range | None:
        while self._wanted:
            span = self._wanted.popleft()
            if span < len(self._ready) and not self._ready[span]:
                return range(span, span + 1)
        return None

    def _next_ahead(self) -> range | None:
        """The next spans below the cap that are not registered, wanted or not."""
        slab, per_arena = self._slab, self._per_arena
        end = min(len(self._ready), slab.cap_bytes // slab.arena_bytes * per_arena)
        while self._ahead < end:
            span = self._ahead
            if not self._ready[span] and span // per_arena not in slab.given_back:
                break
            self._ahead += 1
        else:
            return None
        most = 1 if self._load_pause_until or self._step_pause_until else _EARLY_SPANS
        stop = min(span + most, (span // per_arena + 1) * per_arena)
        taken = np.flatnonzero(self._ready[span:stop])
        return range(span, span + int(taken[0]) if len(taken) else stop)
