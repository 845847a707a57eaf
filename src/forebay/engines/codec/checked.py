"""A driver that checks every page the GPU's codec handles against the reference, to find faults.

After every batch that a kernel encodes or decodes, copy engines copy the same pages out of the KV
cache. When they have landed, and before anyone hears that the batch is done, the reference decodes
what lies in the slots; unless both digests are equal, the engine ends.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from forebay.engines.boundary import BrokenError
from forebay.engines.codec.exponents import are_fit, decode
from forebay.engines.codec.slots import encoded_at
from forebay.engines.copies.driver import Driver, Event, Stream
from forebay.engines.copies.pointers import Batch
from forebay.record.header import payload_hash
from forebay.sys.memory import allocate

_HEX: Final = 16  # digits of a digest that are shown


class _Copied(NamedTuple):
    """Pages of a batch that are being copied out for comparison."""

    event: Event
    slots: Any  # addresses of the same pages, encoded
    pages: Any  # one row per page
    inward: bool


class CheckedDriver:
    """See Driver. Makes one more copy of each encoded batch, and is far slower."""

    def __init__(self, driver: Driver) -> None:
        self.compared_pages = 0
        self._driver = driver
        self._copied: deque[_Copied] = deque()
        self.enter_thread: Callable[[], None] = driver.enter_thread
        self.compute: Callable[[], Stream] = driver.compute
        self.stream = driver.stream
        self.record: Callable[[Stream], Event] = driver.record
        self.wait: Callable[[Stream, Event], None] = driver.wait
        self.seconds: Callable[[Event, Event], float] = driver.seconds
        self.pages_a_call = driver.pages_a_call
        self.register: Callable[[int, int], str] = driver.register
        self.unregister: Callable[[int], None] = driver.unregister

    def copy(self, stream: Stream, batch: Batch, *, inward: bool, by_engine: bool = False) -> None:
        """See Driver."""
        self._driver.copy(stream, batch, inward=inward, by_engine=by_engine)
        if not batch.is_encoded:
            return
        count, page_bytes = len(batch.pages), batch.page_bytes
        room = np.frombuffer(allocate(count * page_bytes), dtype=np.uint8)
        why = self._driver.register(room.ctypes.data, room.nbytes)
        if why:
            raise RuntimeError(why)
        pages = room[: count * page_bytes].reshape(count, page_bytes)
        places = room.ctypes.data + np.arange(count, dtype=np.int64) * page_bytes
        plain = Batch(batch.pages, places, page_bytes)
        self._driver.copy(stream, plain, inward=False, by_engine=True)
        event = self._driver.record(stream)
        self._copied.append(_Copied(event, batch.slots, pages, inward))

    def is_done(self, event: Event) -> bool:
        """See Driver. Compares what has landed before it says so."""
        if not self._driver.is_done(event):
            return False
        for copied in list(self._copied):
            if self._driver.is_done(copied.event):
                self._copied.remove(copied)
                self._compare(copied)
        return True

    def _compare(self, copied: _Copied) -> None:
        self._driver.unregister(copied.pages.ctypes.data)
        page_bytes = copied.pages.shape[1]
        # A page with too many escapes cannot be decoded; it will be stored raw.
        encoded = encoded_at(copied.slots, page_bytes)
        is_fit = are_fit(encoded, page_bytes)
        wanted = copied.pages[is_fit]
        self.compared_pages += len(wanted)
        if not len(wanted):
            return
        pages = decode(encoded[is_fit], page_bytes)
        found = b"" if pages is None else payload_hash(pages.data)
        if found != payload_hash(wanted.data):  # verify: decoded bytes
            done = "decoded" if copied.inward else "encoded"
            raise BrokenError(
                f"verify_compress: a GPU has {done} pages wrongly"
                f" (digest {found.hex()[:_HEX] or 'none: they cannot be decoded'})"
            )
