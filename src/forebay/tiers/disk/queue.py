"""What waits for one drive: loads before stores, each with its own depth and its own bound.

Loads of several tenants take turns by weight. Stores come in the order in which they are put: the
pool hands out few at a time, and has let the tenants take turns.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forebay.record.header import Digest, RecordName
from forebay.tiers.catalog import RecordPlace
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    LoadOutcome,
    Miss,
    MissReason,
    StoreOutcome,
)
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.turns import FairQueue


@dataclass(slots=True, eq=False)
class LoadJob:
    """One load; the target is the drive's until `done` is called."""

    name: RecordName
    region: Region
    place: RecordPlace
    target: memoryview
    done: Callable[[LoadOutcome], None]
    deadline: float  # monotonic; not begun by then: a miss
    started: float = 0.0


@dataclass(slots=True, eq=False)
class StoreJob:
    """One store; the source is the drive's until `done` is called."""

    name: RecordName
    source: memoryview
    length: int
    done: Callable[[StoreOutcome], None]
    digest: Digest | None = None  # of the payload, where it is known
    region: Region | None = None  # that it goes to, at its first byte; None: wherever is room
    is_wiping: bool = False  # zeros are written there, and no record
    started: float = 0.0


class JobQueue:
    """Two queues and what is in flight of each.

    One lock guards everything here; the conditions say which kind of thread has something to do.
    `done` is never called under it.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._load_ready = threading.Condition(self._lock)
        self._store_ready = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._loads: FairQueue[LoadJob] = FairQueue()
        self._stores: deque[StoreJob] = deque()
        self._stores_bytes = 0  # waiting and in flight
        self._loading: set[LoadJob] = set()
        self._storing: set[StoreJob] = set()
        self._closed = False

    def weigh(self, weights: dict[bytes, int]) -> None:
        """Tenants' weights from now on, by id."""
        with self._lock:
            self._loads.weigh(weights)

    def put_load(self, job: LoadJob) -> MissReason | None:
        """Queue a load, or say why not."""
        with self._lock:
            if self._closed:
                return MissReason.TIER_OFF
            if job.region.is_gone:  # verify: its descriptor may be another file's soon
                return MissReason.ABSENT
            if len(self._loads) >= self._options.read_queue_max:
                return MissReason.BUSY
            self._loads.put(job, job.place.length, job.name.tenant)
            self._load_ready.notify()
        return None

    def put_store(self, job: StoreJob) -> DropReason | None:
        """Queue a store, or say why not."""
        with self._lock:
            if self._closed:
                return DropReason.TIER_OFF
            if self._stores_bytes + job.length > self._options.write_queue_bytes:
                return DropReason.BUSY
            self._stores.append(job)
            self._stores_bytes += job.length
            self._store_ready.notify()
        return None

    def take_load(self, now: Callable[[], float]) -> LoadJob | None:
        """Wait for a load; None once closed."""
        with self._lock:
            while not self._loads:
                if self._closed:
                    return None
                self._load_ready.wait()
            job = self._loads.take()
            job.started = now()
            self._loading.add(job)
            return job

    def take_store(self, now: Callable[[], float]) -> StoreJob | None:
        """Wait for a store; None once closed and empty.

        While loads wait or are in flight one store at a time goes on: somebody waits for a load,
        and nobody for a store, but a writer that never gets its turn would have to drop everything.
        """
        with self._lock:
            while not self._stores or ((self._loads or self._loading) and self._storing):
                if self._closed and not self._stores:
                    return None
                self._store_ready.wait()
            job = self._stores.popleft()
            job.started = now()
            self._storing.add(job)
            return job

    def end_load(self, job: LoadJob) -> None:
        """A taken load has ended."""
        with self._lock:
            self._loading.remove(job)
            if not (self._loads or self._loading):
                self._wake_writers(len(self._stores))  # they may use their full depth again
            self._idle.notify_all()

    def end_store(self, job: StoreJob) -> None:
        """A taken store has ended."""
        with self._lock:
            self._storing.remove(job)
            self._stores_bytes -= job.length
            self._wake_writers(min(1, len(self._stores)))
            self._idle.notify_all()

    def oldest(self) -> float | None:
        """When the longest-running call in flight began."""
        with self._lock:
            started = [job.started for job in self._loading]
            started += [job.started for job in self._storing]
            return min(started, default=None)

    def read_descriptors(self) -> set[int]:
        """Of what loads are reading, or wait for."""
        with self._lock:
            return {job.region.descriptor for job in (*self._loads, *self._loading)}

    def expire(self, now: float) -> None:
        """Answer loads whose deadline passed while they waited."""
        with self._lock:
            late = self._loads.remove(lambda job: job.deadline <= now)
            if late:
                self._store_ready.notify_all()
        for job in late:
            job.done(Miss(MissReason.DEADLINE))

    def flush(self) -> list[StoreJob]:
        """Answer every waiting load with a miss; waiting stores are the caller's to answer."""
        with self._lock:
            loads = self._loads.remove(lambda _: True)
            stores, self._stores = self._stores, deque()
            self._stores_bytes -= sum(job.length for job in stores)
            self._store_ready.notify_all()  # at the end, those who wait for nothing may go
            self._idle.notify_all()
        for job in loads:
            job.done(Miss(MissReason.TIER_OFF))
        return list(stores)

    def drain(self, timeout_s: float) -> bool:
        """Accept nothing more and wait until all that was accepted has ended."""
        with self._lock:
            self._closed = True
            self._load_ready.notify_all()
            self._store_ready.notify_all()
            return self._idle.wait_for(self._is_idle, timeout_s)

    def _wake_writers(self, count: int) -> None:
        """As many as have something to do: each that wakes in vain costs all other threads time."""
        if self._closed:
            self._store_ready.notify_all()  # those for whom nothing is left end
        elif count:
            self._store_ready.notify(count)

    def _is_idle(self) -> bool:
        return not (self._loads or self._stores or self._loading or self._storing)


def drop(job: StoreJob, reason: DropReason) -> None:
    """Answer a store that was not done."""
    job.done(Dropped(reason))
