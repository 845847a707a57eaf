"""Digests of what was stored, computed from the slab once the copies into it have landed.

A digest goes with the commit, so bytes written into the slot afterwards do not match it. The thread
that drives the model does not wait for digests: the engine hears of a store with its digest, one
step after the copy was seen to have landed. A process computes them (`process` says why), or a
thread where there is no process.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from forebay.engines.boundary import Boundary
from forebay.engines.copies.contract import Store, WorkerSlab
from forebay.engines.digests.process import HashingProcess, SlabRange, digest_at
from forebay.engines.geometry import Geometry, ShardPlaces
from forebay.sys.shared import Segment

Segments = tuple[Segment, ...]
_log: Final = logging.getLogger("forebay")


class StoreDigests:
    """Stores that wait for their digest, or have it. `_changed` guards all but the process."""

    def __init__(self, shape: Geometry) -> None:
        self._shape = shape
        self._boundary = Boundary()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Sequence[Store], WorkerSlab]] = deque()
        self._done: list[tuple[Store, bytes]] = []
        self._segments: Segments = ()  # segments of the attached slab
        self._is_reading = False  # the thread is reading the slab, or using its descriptors
        self._is_closing = False
        # Used by the thread alone.
        self._process: HashingProcess | None = None
        self._process_segments: Segments = ()  # segments for which a process was started
        self._thread = threading.Thread(target=self._run, name="forebay-digests", daemon=True)
        self._thread.start()

    def attach(self, slab: WorkerSlab | None) -> None:
        """Use this slab for the stores to come; None: no more stores will come."""
        with self._changed:
            self._segments = () if slab is None else slab.segments
            self._changed.notify_all()

    def submit(self, stores: Sequence[Store], slab: WorkerSlab) -> None:
        """Compute the digests of these stores, whose copies have landed in this slab."""
        with self._changed:
            self._waiting.append((stores, slab))
            self._changed.notify_all()

    def take_done(self) -> list[tuple[Store, bytes]]:
        """The stores whose digests were computed since the last call, each with its digest."""
        with self._changed:
            done, self._done = self._done, []
        return done

    @property
    def is_idle(self) -> bool:
        """Whether nothing here reads the slab."""
        with self._changed:
            is_behind = self._segments is not self._process_segments
            return not (self._waiting or self._is_reading or is_behind)

    def close(self, timeout_s: float) -> None:
        """End the thread once it is done with what waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            stores, slab = job
            missed = partial(list[bytes], [b""] * len(stores))
            found = self._boundary.call(missed, partial(self._digests_of, stores, slab))
            done = list(zip(stores, found, strict=True))
            del job, stores, slab  # the slab may be unmapped once we are idle
            with self._changed:
                self._done += done
                self._is_reading = False
        self._follow(())

    def _next(self) -> tuple[Sequence[Store], WorkerSlab] | None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                self._is_reading = bool(self._waiting) or not self._is_closing
                if self._waiting:
                    return self._waiting.popleft()
                if self._is_closing:
                    return None
                segments = self._segments
            self._boundary.call(lambda: None, partial(self._follow, segments))
            with self._changed:
                self._is_reading = False

    def _has_work(self) -> bool:
        is_behind = self._segments is not self._process_segments
        return bool(self._waiting) or self._is_closing or is_behind

    def _follow(self, segments: Segments) -> None:
        """Run a process for this slab alone: descriptors of an earlier one may have been reused."""
        if segments is self._process_segments:
            return
        self._process_segments = segments  # whatever happens, this is not tried again
        self._end_process()
        if not segments:
            return
        try:
            self._process = HashingProcess(segments)
        except OSError as error:
            _log.warning("no process for digests (%s): a thread computes them", error.strerror)

    def _digests_of(self, stores: Sequence[Store], slab: WorkerSlab) -> list[bytes]:
        self._follow(slab.segments)
        places = places_of(stores, slab, self._shape)
        if self._process is not None:
            try:
                if self._process.is_ready():
                    return self._process.digests_of(places)
            except OSError:
                _log.warning("the process for digests does not answer: a thread computes them")
                self._end_process()
        return [digest_at(slab.memory, place) for place in places]

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def places_of(stores: Sequence[Store], slab: WorkerSlab, shape: Geometry) -> list[SlabRange]:
    """Where each store's record lies in the slab: all its blocks in this worker's shard."""
    places = ShardPlaces(shape, slab.shard, slab.widest)
    sizes = [group.page_bytes for group in shape.groups]
    pieces = (store.piece for store in stores)
    return [
        SlabRange(*places.shard_of(piece), sizes[piece.group] if piece.is_encoded else 0)
        for piece in pieces
    ]


def digest_of(store: Store, slab: WorkerSlab, shape: Geometry) -> bytes:
    """The digest of a store's record in its slot."""
    return digest_at(slab.memory, *places_of([store], slab, shape))
