"""Digests of what was stored, computed from the slab once the copies into it have landed.

They go with the commit, so what anyone writes into a slot afterwards does not have them. It happens
on a thread of its own, without the interpreter's lock: 4 MiB take 0.3 ms of one core, and neither
the thread that drives the model nor the one that submits copies may wait for that. The engine hears
of a store with its digest: in the step after the one in which it was seen to have landed.
"""

import threading
from collections import deque
from collections.abc import Sequence

from forebay.engines.codec.exponents import fit
from forebay.engines.copies.contract import DOES_NOT_FIT, Store, WorkerSlab
from forebay.engines.geometry import Geometry, ShardPlaces
from forebay.record.exponents import encoded_bytes
from forebay.record.header import payload_hash


class StoreDigests:
    """What waits for its digest, and what has it. `_changed` guards all of it."""

    def __init__(self, shape: Geometry) -> None:
        self._shape = shape
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Sequence[Store], WorkerSlab]] = deque()
        self._done: list[tuple[Store, bytes]] = []
        self._is_hashing = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="forebay-digests", daemon=True)
        self._thread.start()

    def submit(self, stores: Sequence[Store], slab: WorkerSlab) -> None:
        """These stores have landed in this slab."""
        with self._changed:
            self._waiting.append((stores, slab))
            self._changed.notify_all()

    def take_done(self) -> list[tuple[Store, bytes]]:
        """Stores that have their digests since the last call."""
        with self._changed:
            done, self._done = self._done, []
        return done

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads the slab here."""
        with self._changed:
            return not self._waiting and not self._is_hashing

    def close(self, timeout_s: float) -> None:
        """End the thread, behind what waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            stores, slab = job
            done = [(store, digest_of(store, slab, self._shape)) for store in stores]
            del job, stores, slab  # the slab may be unmapped once we are idle
            with self._changed:
                self._done += done
                self._is_hashing = False

    def _next(self) -> tuple[Sequence[Store], WorkerSlab] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._is_hashing = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None


def digest_of(store: Store, slab: WorkerSlab, shape: Geometry) -> bytes:
    """The digest of what lies in a store's slot: all blocks of its record, of this worker's shard.

    Where the shard is padded, zeros are written there: the slot may have been another chunk's.
    DOES_NOT_FIT where a page was to be encoded that has too many escapes.
    """
    places = ShardPlaces(shape, slab.shard, slab.widest)
    start, size, padded = places.shard_of(store.piece)
    if store.piece.is_encoded:
        page_bytes = shape.groups[store.piece.group].page_bytes
        pages = slab.memory[start : start + size].reshape(-1, encoded_bytes(page_bytes))
        if not fit(pages, page_bytes):  # verify: escapes of what was stored
            return DOES_NOT_FIT
    slab.memory[start + size : start + padded] = 0
    return payload_hash(slab.memory[start : start + padded].data)
