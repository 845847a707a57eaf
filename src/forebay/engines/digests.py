"""Digests of what was stored, computed from the slab once the copies into it have landed.

They go with the commit, so what anyone writes into a slot afterwards does not have them. It happens
on a thread of its own, without the interpreter's lock: 4 MiB take 0.3 ms of one core, and neither
the thread that drives the model nor the one that submits copies may wait for that. The engine hears
of a store with its digest: in the step after the one in which it was seen to have landed.
"""

import threading
from collections import deque
from collections.abc import Sequence

from forebay.engines.copies.contract import Store, WorkerSlab
from forebay.record.header import payload_hash


class StoreDigests:
    """What waits for its digest, and what has it. `_changed` guards all of it."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
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
            done = [(store, digest_of(store, slab, self._block_bytes)) for store in stores]
            del job, stores, slab  # the slab may be unmapped once we are idle
            with self._changed:
                self._done += done
                self._is_hashing = False

    def _next(self) -> tuple[Sequence[Store], WorkerSlab] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._is_hashing = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None


def digest_of(store: Store, slab: WorkerSlab, block_bytes: int) -> bytes:
    """The digest of what lies in a store's slot: all blocks of its chunk, of this worker's shard.

    Where the shard is padded, zeros are written there: the slot may have been another chunk's.
    """
    memory, start = slab.shards, store.piece.offset
    size = len(store.piece.blocks) * block_bytes
    if slab.shard_bytes > size:
        memory[start + size : start + slab.shard_bytes] = 0
        size = slab.shard_bytes
    return payload_hash(memory[start : start + size].data)
