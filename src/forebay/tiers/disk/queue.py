"""The queues of one drive: loads before stores, each with its own depth and limit.

Loads of several tenants take turns by weight. Stores keep the order in which they are queued: the
pool hands out few at a time, and has already let the tenants take turns.
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
    deadline: float  # monotonic; a miss if not begun by then
    started: float = 0.0


@dataclass(slots=True, eq=False)
class StoreJob:
    """One store; the source is the drive's until `done` is called."""

    name: RecordName
    source: memoryview
    length: int
    done: Callable[[StoreOutcome], None]
    digest: Digest | None = None  # of the payload, if it is known
    region: Region | None = None  # write at this region's first byte; None: wherever there is room
    is_wiping: bool = False  # write zeros there instead of a record
    started: float = 0.0


class JobQueue:
    """Two queues, and what is in flight from each.

    One lock guards everything here; each condition is for the threads that wait for one kind of
    work. `done` is never called under the lock.
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
        """Set tenants' weights, by id."""
        with self._lock:
            self._loads.weigh(weights)

    def put_load(self, job: LoadJob) -> MissReason | None:
        """Queue a load, or return why not."""
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
        """Queue a store, or return why not."""
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
        """Wait for a load; None once the queue is closed."""
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
        """Wait for a store; None once the queue is closed and empty.

        While loads wait or are in flight, only one store at a time runs: somebody waits for a load,
        and nobody for a store, but without a turn writers would have to drop everything.
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
        """A load that was taken has ended."""
        with self._lock:
            self._loading.remove(job)
            if not (self._loads or self._loading):
                self._wake_writers(len(self._stores))  # writers may use their full depth again
            self._idle.notify_all()

    def end_store(self, job: StoreJob) -> None:
        """A store that was taken has ended."""
        with self._lock:
            self._storing.remove(job)
            self._stores_bytes -= job.length
            self._wake_writers(min(1, len(self._stores)))
            self._idle.notify_all()

    def oldest(self) -> float | None:
        """When the longest-running call in flight began; None if there is none."""
        with self._lock:
            started = [job.started for job in self._loading]
            started += [job.started for job in self._storing]
            return min(started, default=None)

    def read_descriptors(self) -> set[int]:
        """Descriptors that loads are reading, or wait to read."""
        with self._lock:
            return {job.region.descriptor for job in (*self._loads, *self._loading)}

    def expire(self, now: float) -> None:
        """Answer the loads whose deadline has passed while they waited."""
        with self._lock:
            late = self._loads.remove(lambda job: job.deadline <= now)
            if late:
                self._store_ready.notify_all()
        for job in late:
            job.done(Miss(MissReason.DEADLINE))

    def flush(self) -> list[StoreJob]:
        """Answer every waiting load with a miss; the caller has to answer the waiting stores."""
        with self._lock:
            loads = self._loads.remove(lambda _: True)
            stores, self._stores = self._stores, deque()
            self._stores_bytes -= sum(job.length for job in stores)
            self._store_ready.notify_all()  # when closed, idle writers may end
            self._idle.notify_all()
        for job in loads:
            job.done(Miss(MissReason.TIER_OFF))
        return list(stores)

    def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, and wait until everything accepted has ended; whether it has."""
        with self._lock:
            self._closed = True
            self._load_ready.notify_all()
            self._store_ready.notify_all()
            return self._idle.wait_for(self._is_idle, timeout_s)

    def _wake_writers(self, count: int) -> None:
        """Wake as many writers as have something to do; others would only cost time."""
        if self._closed:
            self._store_ready.notify_all()  # writers with nothing left to do end
        elif count:
            self._store_ready.notify(count)

    def _is_idle(self) -> bool:
        return not (self._loads or self._stores or self._loading or self._storing)


def drop(job: StoreJob, reason: DropReason) -> None:
    """Answer a store that was not carried out."""
    job.done(Dropped(reason))
