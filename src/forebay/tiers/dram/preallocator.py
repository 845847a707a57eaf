"""Allocates the next arena's memory before it is needed, on a thread of its own.

The kernel zeroes every page of an arena when it is allocated: 40 ms for 256 MiB, in which the
pool's thread would answer nobody. One spare arena is kept while the slab may grow; if it is not
ready when it is needed, the slab allocates in place.
"""

import threading
from collections.abc import Callable
from functools import partial

from forebay.tiers.dram.slab import Slab


class Preallocator:
    """Called by the pool's thread; `complete` hands it an action from another thread."""

    def __init__(self, slab: Slab, complete: Callable[[Callable[[], None]], None]) -> None:
        self._slab = slab
        self._complete = complete
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Begin to allocate, if the slab may grow and has no spare arena."""
        number = self._slab.announce()
        if number is not None:
            self._thread = threading.Thread(
                target=self._allocate, args=(number,), name="forebay-arena", daemon=True
            )
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Wait until nothing is being allocated."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _allocate(self, number: int) -> None:
        self._complete(partial(self._slab.arrived, number, self._slab.allocate(number)))
