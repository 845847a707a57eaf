"""Copies on GPU streams, submitted by a thread of their own.

Submitting a batch costs the processor a microsecond a page, or a kernel launch; the thread that
drives the model must not spend that. It says what to copy and after what (`contract` has the
rules). This thread submits, loads first, in calls short enough for other threads to get theirs in
between.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from forebay.engines.boundary import Boundary, BrokenError
from forebay.engines.codec.slots import are_decodable
from forebay.engines.copies.contract import FinishedCopies, LoadPart, Store, WorkerSlab
from forebay.engines.copies.driver import Driver, Event, Stream
from forebay.engines.copies.pointers import JobBlocks, PageTables
from forebay.engines.copies.registration import Registration
from forebay.engines.digests.stores import StoreDigests

_SUBMIT_S: Final = 5.0  # a thread that takes longer is given up, and sharing with it
_AGAIN_S: Final = 1.0  # a second chance: if this process was stopped, every deadline has passed
_STORE_S: Final = 20.0  # a store not begun by then is missed; its slot is given back after 30 s
_REACH_S: Final = 20.0  # a load whose memory is not registered by then has failed
_CLOSE_S: Final = 5.0
# Not finished, up to which a load is coming. A forward that is built on it begins two steps later;
# what takes the wire longer than that would hold up everyone's forward.
COMING_BYTES: Final = 1 << 30
_log: Final = logging.getLogger("forebay")


@dataclass(slots=True, eq=False)
class _Job:
    """Stores of one step, or one part of a load, on their way to the device.

    Queued until `is_taken`; then submitted batch by batch; submitted once `event` is set; over when
    the device has reached that event. A job that fails in the queue is over at once. One that fails
    after it was taken is over when the device is done with it; if it `is_coming` by then, it is
    copied again.
    """

    stores: list[Store]
    load: LoadPart | None
    after: list[Event]
    queued: float  # monotonic
    deadline: float  # likewise
    offsets: Any  # int64, of its slots; for loads only
    step: int = 0  # for stores only
    is_taken: bool = False  # the thread that submits has begun with it
    blocks: JobBlocks | None = None  # once it is being submitted
    next_block: int = 0
    begun: Event | None = None  # before its first page
    event: Event | None = None  # behind it, once all of it is submitted
    submitted: float = 0.0  # monotonic
    failed: bool = False
    is_coming: bool = False  # the engine was told: from now on it may not fail
    size_bytes: int = 0  # for loads only
    is_encoded: bool = False  # at least one of its pieces is


class StreamedCopies:
    """See Copies. `_changed` guards the queues, the jobs in them and the registration."""

    def __init__(self, driver: Driver, page_tables: PageTables) -> None:
        self.boundary = Boundary()
        self._driver = driver
        self._page_tables = page_tables
        self._changed = threading.Condition()
        self._slab: WorkerSlab | None = None
        self._registration: Registration | None = None
        self._store_stream = driver.stream(is_urgent=False)
        self._load_stream = driver.stream(is_urgent=True)
        self._loads: deque[_Job] = deque()  # to be submitted
        self._stores: deque[_Job] = deque()
        self._is_waited_for = False  # the model's thread waits until queued stores are submitted
        self._storing: deque[_Job] = deque()  # stores that are submitted, in order
        self._loading: deque[_Job] = deque()  # loads that are submitted, in order
        self._broken: list[_Job] = []  # loads that failed after the engine was told of them
        self._done = FinishedCopies()
        self._digests = StoreDigests(page_tables.shape)
        self._is_off = False  # given up for good: nothing is copied any more
        self._is_closing = False
        # Used by the model's thread alone.
        self._fence: Event | None = None  # comes after the stores that a forward last waited for
        self._computed: Event | None = None  # comes after all earlier steps' forwards
        self._thread = threading.Thread(target=self._run, name="forebay-copies", daemon=True)
        self._thread.start()

    # Attaching and detaching a slab.

    def attach(self, slab: WorkerSlab) -> None:
        """See Copies."""
        with self._changed:
            if self._registration is None:
                made = Registration(self._driver, slab, slab.slot_bytes, self._changed)
                self._registration = made
            else:
                self._registration.take_over(slab)
            self._slab = slab
            self._digests.attach(slab)

    def detach(self) -> bool:
        """See Copies."""
        self._take_finished()
        with self._changed:
            if self._loads or self._stores or self._storing or self._loading or self._broken:
                return False
            self._digests.attach(None)
            if not self._digests.is_idle:
                return False
            if self._registration is not None:
                self._registration.unregister()
                if not self._registration.is_unregistered():
                    return False
            self._registration = self._slab = None
        return True

    @property
    def reach_bytes(self) -> int:
        """See Copies."""
        with self._changed:
            if self._is_off or self._registration is None:
                return 0
            return self._registration.reach_bytes

    # One step.

    def begin(self, step: int, stores: Sequence[Store], *, loads: bool, freed: int) -> None:
        """See Copies."""
        compute = self._driver.compute()
        registration = self._registration
        if registration is not None:
            registration.begin_step()
        if freed:
            self._hold_forward(compute, freed)
        if not stores and not loads:
            return
        self._computed = self._driver.record(compute)
        stores = self._within_reach(stores)
        freed_now = [store for store in stores if store.is_freed]
        if freed_now:
            self._queue_stores(step, freed_now)
            self._hold_forward(compute, step)
        if len(stores) > len(freed_now):
            self._queue_stores(step, [store for store in stores if not store.is_freed])

    def load(self, load: LoadPart) -> None:
        """See Copies."""
        after = [self._computed] if self._fence is None else [self._computed, self._fence]
        count = len(load.pieces)
        offsets = np.fromiter((piece.offset for piece in load.pieces), np.int64, count)
        now = time.monotonic()
        job = _Job([], load, after, now, now + _REACH_S, offsets)
        job.size_bytes = self._page_tables.bytes_of(load.pieces)
        job.is_encoded = any(piece.is_encoded for piece in load.pieces)
        with self._changed:
            if self._is_off or self._registration is None:
                self._done.failed.append(load)
            elif not load.pieces:
                self._done.coming.append(load)
                self._done.loaded.append(load)
            else:
                self._registration.want(offsets, is_first=True)
                self._registration.pause()
                self._loads.append(job)
                self._changed.notify_all()

    def await_loads(self, loads: Sequence[LoadPart]) -> None:
        """See Copies."""
        wanted = {id(load) for load in loads}

        def is_submitted() -> bool:
            return all(id(job.load) not in wanted for job in self._loads)

        with self._changed:
            self._wait_for_submitter(is_submitted)
            # Given up or not, what is half submitted must have ended before it is copied again.
            if not self._changed.wait_for(is_submitted, _SUBMIT_S):
                raise BrokenError("a copy into the KV cache hangs that a forward is built on")
            jobs = [job for job in (*self._loading, *self._broken) if id(job.load) in wanted]
        compute = self._driver.compute()
        for job in jobs:
            if job.event is not None:
                self._driver.wait(compute, job.event)
            if job.failed:
                self._copy_broken(job, compute)

    def take_done(self) -> FinishedCopies:
        """See Copies."""
        self._take_finished()
        with self._changed:
            self._report_coming_loads()
            done, self._done = self._done, FinishedCopies(stored=self._digests.take_done())
        return done

    def close(self) -> None:
        """See Copies."""
        until = time.monotonic() + _CLOSE_S
        while not self.detach() and time.monotonic() < until:
            time.sleep(0.01)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(max(0.1, until - time.monotonic()))
        self._digests.close(max(0.1, until - time.monotonic()))

    # Called on the model's thread.

    def _hold_forward(self, compute: Stream, step: int) -> None:
        """Make the next forward wait until the stores of steps up to this one were read."""

        def are_submitted() -> bool:
            return not self._stores or self._stores[0].step > step

        with self._changed:
            self._is_waited_for = not are_submitted()
            if self._is_waited_for:
                self._changed.notify_all()
            self._wait_for_submitter(are_submitted)
            self._is_waited_for = False
            storing = [job.event for job in self._storing if job.step <= step]
        if storing:  # on one stream: the last is behind all of them
            self._fence = storing[-1]
            self._driver.wait(compute, self._fence)

    def _within_reach(self, stores: Sequence[Store]) -> list[Store]:
        """The stores whose slots are registered; the others are missed, and their slots wanted."""
        offsets = np.fromiter((store.piece.offset for store in stores), np.int64, len(stores))
        with self._changed:
            if self._is_off or self._registration is None:
                self._done.missed += stores
                return []
            self._registration.note_stores(offsets)
            ready = self._registration.are_ready(offsets)
            if not ready.all():
                self._registration.want(offsets, is_first=False)
            near: list[Store] = []
            for store, is_ready in zip(stores, ready, strict=True):
                (near if is_ready else self._done.missed).append(store)
        return near

    def _queue_stores(self, step: int, stores: list[Store]) -> None:
        now = time.monotonic()
        job = _Job(stores, None, [self._computed], now, now + _STORE_S, [], step)
        with self._changed:
            self._stores.append(job)
            self._changed.notify_all()

    def _wait_for_submitter(self, done: Callable[[], bool]) -> None:
        """Wait for the thread that submits; if it makes no progress, give it up."""
        until = time.monotonic() + _SUBMIT_S
        while not done() and not self._is_off:
            if self._changed.wait(until - time.monotonic()) or done():
                continue
            if not self._changed.wait(_AGAIN_S) and not done():
                self._turn_off()

    def _copy_broken(self, job: _Job, compute: Stream) -> None:
        """Copy a load that the engine relies on and the other thread could not submit."""
        if not self.boundary.call(lambda: False, partial(self._copy_at_once, job, compute)):
            raise BrokenError("the KV cache lacks what a forward is built on")
        with self._changed:
            (self._broken if job in self._broken else self._loading).remove(job)
            job.failed = False
            self._loading.append(job)

    def _copy_at_once(self, job: _Job, compute: Stream) -> bool:
        assert job.load is not None
        assert self._slab is not None
        job.blocks = self._page_tables.blocks_of(job.load.pieces, self._slab)
        # A kernel may be what failed, and copy engines take no batch on the default stream.
        self._driver.wait(self._load_stream, self._driver.record(compute))
        job.begun = self._driver.record(self._load_stream)
        for table, rows in job.blocks.tables:
            batch = table.batch(rows, 0, rows.total)
            self._driver.copy(self._load_stream, batch, inward=True, by_engine=True)
        job.event = self._driver.record(self._load_stream)
        self._driver.wait(compute, job.event)
        return True

    def _turn_off(self) -> None:
        """Submit nothing more; a half submitted job fails once the device is done with it."""
        _log.error("copies disabled: Forebay is off for this worker")
        self._is_off = True
        for queue in (self._stores, self._loads):
            for job in list(queue):
                job.failed = True
                if not job.is_taken:
                    queue.remove(job)
                    self._count(job)

    def _take_finished(self) -> None:
        """Take note of all jobs that the device has finished."""
        for queue in (self._storing, self._loading):
            while queue and self._driver.is_done(queue[0].event):
                with self._changed:
                    self._count(queue.popleft())

    def _report_coming_loads(self) -> None:
        """Tell the engine of loads that will soon be done: up to COMING_BYTES, in order."""
        left_bytes = 0
        for job in (*self._loading, *self._loads):
            is_ready = job.blocks is not None or (not job.is_encoded and self._is_within_reach(job))
            if job.failed or not is_ready:
                continue
            size_bytes = job.size_bytes
            if job.event is None and job.blocks is not None:  # what was submitted counts as copied
                size_bytes -= size_bytes * job.next_block // max(1, job.blocks.total)
            left_bytes += size_bytes
            if left_bytes > COMING_BYTES:
                return
            self._report_coming(job)

    def _report_coming(self, job: _Job) -> None:
        if job.load is not None and not job.is_coming and not job.failed:
            job.is_coming = True
            self._done.coming.append(job.load)

    def _count(self, job: _Job) -> None:
        if job.failed and job.is_coming:
            self._broken.append(job)
            return
        done = self._done
        took_s = 0.0 if job.failed else self._driver.seconds(job.begun, job.event)
        if job.load is not None:
            self._report_coming(job)
            (done.failed if job.failed else done.loaded).append(job.load)
            done.load_s += took_s
            done.submit_s += max(0.0, job.submitted - job.queued)
        else:
            if job.failed:
                done.missed += job.stores
            else:
                assert self._slab is not None
                self._digests.submit(job.stores, self._slab)
            done.store_s += took_s

    # Called on the thread that submits.

    def _run(self) -> None:
        self._driver.enter_thread()
        while (job := self._next()) is not None:
            self._advance(job)

    def _next(self) -> _Job | None:
        """The job whose next batch is to be submitted; None at the end."""
        with self._changed:
            while (job := self._due()) is None:
                if self._is_closing:
                    return None
                self._changed.wait(1.0 if self._loads else None)
            job.is_taken = True
            return job

    def _due(self) -> _Job | None:
        """The queued job to submit next; None if none can be submitted now."""
        self._fail_unreachable()
        self._miss_late()
        if self._stores and self._is_waited_for:
            return self._stores[0]
        near = (job for job in self._loads if job.is_taken or self._is_within_reach(job))
        return next(near, None) or next(iter(self._stores), None)

    def _miss_late(self) -> None:
        """Miss the stores that were not begun in time: their slots may soon be lent to others."""
        now = time.monotonic()
        for job in [job for job in self._stores if not job.is_taken and now > job.deadline]:
            self._stores.remove(job)
            self._done.missed += job.stores
            self._changed.notify_all()  # a forward may wait for them

    def _is_within_reach(self, job: _Job) -> bool:
        registration = self._registration
        return registration is not None and bool(registration.are_ready(job.offsets).all())

    def _fail_unreachable(self) -> None:
        """Fail the loads whose memory cannot be registered, or was not in time."""
        registration, now = self._registration, time.monotonic()
        is_hopeless = registration is None or registration.why
        for job in list(self._loads):
            late = is_hopeless or now > job.deadline
            if not job.is_taken and late and not self._is_within_reach(job):
                assert job.load is not None
                self._loads.remove(job)
                self._done.failed.append(job.load)

    def _advance(self, job: _Job) -> None:
        """Submit the next batch of a job; after its last batch, record its event."""
        if not self.boundary.call(partial(self._mark_failed, job), partial(self._submit, job)):
            return
        is_load = job.load is not None
        event = self._driver.record(self._load_stream if is_load else self._store_stream)
        with self._changed:
            job.event, job.submitted = event, time.monotonic()
            if is_load and self._registration is not None:
                self._registration.pause()  # the forward that is built on it is launched now
            queue, then = (self._loads, self._loading) if is_load else (self._stores, self._storing)
            if job in queue:  # otherwise it was given up meanwhile
                queue.remove(job)
                then.append(job)
            self._changed.notify_all()

    def _submit(self, job: _Job) -> bool:
        """Submit a job's next batch; True if that was the last one."""
        assert self._slab is not None
        if self._was_given_up(job):
            return True
        is_load = job.load is not None
        stream = self._load_stream if is_load else self._store_stream
        if job.blocks is None:
            pieces = job.load.pieces if job.load is not None else [s.piece for s in job.stores]
            blocks = self._page_tables.blocks_of(pieces, self._slab)
            if is_load and not are_decodable(blocks, self._slab.memory):  # verify: before a promise
                job.failed = True  # the engine was not told of it
                return True
            job.blocks = blocks
            if self._was_given_up(job):  # verify: not while its blocks were looked for
                return True
            for event in job.after:
                self._driver.wait(stream, event)
            job.begun = self._driver.record(stream)
        if not job.blocks.total:
            return True  # this worker has no layer of these groups
        table, rows, before = self._page_tables.at(job.blocks, job.next_block)
        pages = self._driver.pages_a_call(
            table.page_bytes, inward=is_load, is_encoded=table.is_encoded
        )
        start = job.next_block - before
        stop = min(rows.total, start + max(1, pages // len(table.bases)))
        self._driver.copy(stream, table.batch(rows, start, stop), inward=is_load)
        job.next_block = before + stop
        return job.next_block == job.blocks.total

    def _was_given_up(self, job: _Job) -> bool:
        return job.failed

    def _mark_failed(self, job: _Job) -> bool:
        job.failed = True
        return True
