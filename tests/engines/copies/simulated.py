"""A GPU that is slow on purpose: streams are threads, events come when they come.

It stands at the seam (`Driver`). Copies are real, between real addresses, and refuse host memory
that is not registered, or that lies in two registrations.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from tests.pool_process import HANG_S

from forebay.engines.codec.exponents import encode
from forebay.engines.codec.slots import decode_at
from forebay.engines.copies.pointers import Batch
from forebay.record.exponents import encoded_bytes

LATE_S = 0.5


class SimulatedStream:
    """Work in order, on a thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def end(self) -> None:
        self._work.put(None)
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class SimulatedDriver:
    """See Driver; `waits=False` is the negative control: nothing waits for anything."""

    def __init__(
        self,
        *,
        waits: bool = True,
        copy_s: float = 0.0,
        register_s: float = 0.0,
        before_register: Callable[[], object] = lambda: None,
        pages: int = 1024,
    ) -> None:
        self.waits = waits
        self.before_copy: Callable[[], object] = lambda: time.sleep(copy_s)  # before each batch
        self.overtaken = threading.Event()  # what a control comes too late for has happened
        self.register_s, self.before_register = register_s, before_register
        self.pages = pages
        self.refuses = ""  # why registering fails
        self.has_kernels = True  # else copies fail that are not asked of copy engines
        self.registered: dict[int, int] = {}
        self.submitted: list[str] = []  # the stream of each batch
        self.on_submitted: Callable[[], object] = lambda: None  # on the thread that submits
        self.problems: list[str] = []
        self._streams = [SimulatedStream("compute")]

    def enter_thread(self) -> None:
        pass

    def compute(self) -> SimulatedStream:
        return self._streams[0]

    def stream(self, *, is_urgent: bool) -> SimulatedStream:
        self._streams.append(SimulatedStream("loads" if is_urgent else "stores"))
        return self._streams[-1]

    def record(self, stream: SimulatedStream) -> threading.Event:
        event = threading.Event()
        stream.put(event.set)
        return event

    def wait(self, stream: SimulatedStream, event: threading.Event) -> None:
        if self.waits:
            stream.put(lambda: self._check(event.wait(HANG_S)))

    def is_done(self, event: threading.Event) -> bool:
        return event.is_set()

    def seconds(self, begin: threading.Event, end: threading.Event) -> float:
        assert begin.is_set()
        assert end.is_set()
        return 0.0

    def copy(
        self, stream: SimulatedStream, batch: Batch, *, inward: bool, by_engine: bool = False
    ) -> None:
        if not (self.has_kernels or by_engine):
            raise RuntimeError("a kernel could not be launched")
        pages, slots = batch.pages.tolist(), batch.slots.tolist()
        self.submitted.append(stream.name)

        def work() -> None:
            self.before_copy()
            for page, slot in zip(pages, slots, strict=True):
                if batch.is_encoded:
                    self._copy_encoded(page, slot, batch.page_bytes, inward=inward)
                    continue
                self._check(self._reaches(slot, batch.page_bytes))
                source, target = (slot, page) if inward else (page, slot)
                ctypes.memmove(target, source, batch.page_bytes)

        stream.put(work)
        self.on_submitted()

    def _copy_encoded(self, page: int, slot: int, page_bytes: int, *, inward: bool) -> None:
        size = encoded_bytes(page_bytes)
        self._check(self._reaches(slot, size))
        if inward:
            pages = decode_at(np.array([slot]), page_bytes)
            ctypes.memmove(page, pages.ctypes.data, page_bytes)
        else:
            held = (ctypes.c_uint8 * page_bytes).from_address(page)
            encoded = encode(np.frombuffer(held, dtype=np.uint8)[None])
            ctypes.memmove(slot, encoded.ctypes.data, size)

    def pages_a_call(self, page_bytes: int, *, inward: bool, is_encoded: bool) -> int:
        return self.pages

    def register(self, address: int, length: int) -> str:
        self.before_register()
        time.sleep(self.register_s)
        if not self.refuses:
            self.registered[address] = length
        return self.refuses

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def late(self) -> None:
        """Take long. A control takes as long as it must to lose its race, on any machine."""
        if self.waits:
            time.sleep(LATE_S)
        else:
            self._check(self.overtaken.wait(HANG_S))

    def forward(
        self, work: Callable[[], object], seconds: float = 0.0, *, is_late: bool = False
    ) -> None:
        """What the engine computes in a step: it takes its time, then does this."""

        def run() -> None:
            time.sleep(seconds)
            if is_late:
                self.late()
            work()

        self.compute().put(run)

    def settle(self) -> None:
        """Until all that was put on the streams is done."""
        for stream in self._streams:
            assert self.record(stream).wait(HANG_S)

    def end(self) -> None:
        self.overtaken.set()
        for stream in self._streams:
            stream.end()
        assert not self.problems

    def _reaches(self, slot: int, length: int) -> bool:
        return any(
            start <= slot and slot + length <= start + size
            for start, size in self.registered.items()
        )

    def _check(self, is_right: Any) -> None:
        if not is_right:
            self.problems.append("memory that is not registered, or an event that never came")


class InHost(SimulatedDriver):
    """The forward runs on the thread that calls, so what its stream waits for, that thread does."""

    def record(self, stream: SimulatedStream) -> threading.Event:
        event = super().record(stream)
        if stream is self.compute():
            event.set()
        return event

    def wait(self, stream: SimulatedStream, event: threading.Event) -> None:
        if stream is self.compute():
            self._check(event.wait(HANG_S))
        else:
            super().wait(stream, event)
