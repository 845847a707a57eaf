"""What waits for one drive: who reads comes before who writes, and nobody sleeps who could work."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.pool_process import wait_until

from forebay.record.header import RecordName
from forebay.tiers.catalog import RecordPlace
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.queue import JobQueue, LoadJob, StoreJob
from forebay.tiers.disk.regions.region import Region

NAME = RecordName(bytes(32), 0, bytes(32), bytes(32))
ASLEEP_S = 0.2


class Writers:
    """Threads that take stores; what each has taken."""

    def __init__(self, queue: JobQueue, count: int) -> None:
        self.taken: list[StoreJob | None] = []
        self._queue = queue
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def await_taken(self, count: int) -> None:
        wait_until(lambda: len(self.taken) == count, f"{count} stores to be taken")
        time.sleep(ASLEEP_S)
        assert len(self.taken) == count

    def are_gone(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        self.taken.append(self._queue.take_store(time.monotonic))


@pytest.fixture
def queue() -> JobQueue:
    return JobQueue(Options())


def store() -> StoreJob:
    return StoreJob(NAME, memoryview(bytes(1)), 1, ignore)


def load(region: Region) -> LoadJob:
    return LoadJob(NAME, region, RecordPlace(0, 0, 1), memoryview(bytearray(1)), ignore, 1e18)


def ignore(_: Any) -> None:
    pass


@pytest.fixture
def make_load() -> Callable[[], LoadJob]:
    region = Region(0, "region", 1, -1, 1 << 20)
    return lambda: load(region)


@pytest.mark.parametrize("is_in_flight", [True, False], ids=["in flight", "waiting"])
def test_one_store_at_a_time_goes_on_beside_a_load(
    queue: JobQueue, make_load: Callable[[], LoadJob], is_in_flight: bool
) -> None:
    queue.put_load(make_load())
    read = queue.take_load(time.monotonic) if is_in_flight else None
    for _ in range(3):
        queue.put_store(store())
    writers = Writers(queue, 3)
    writers.await_taken(1)
    first = writers.taken[0]
    assert first is not None
    queue.end_store(first)
    writers.await_taken(2)
    read = read or queue.take_load(time.monotonic)
    assert read is not None
    queue.end_load(read)
    writers.await_taken(3)


def test_a_queue_that_is_flushed_and_closed_leaves_no_writer_asleep(
    queue: JobQueue, make_load: Callable[[], LoadJob]
) -> None:
    queue.put_load(make_load())
    read = queue.take_load(time.monotonic)
    assert read is not None
    for _ in range(2):
        queue.put_store(store())
    written = queue.take_store(time.monotonic)
    assert written is not None
    writers = Writers(queue, 3)
    time.sleep(ASLEEP_S)
    queue.put_load(make_load())
    closing = threading.Thread(target=queue.drain, args=(60.0,), daemon=True)
    closing.start()
    time.sleep(ASLEEP_S)
    queue.end_load(read)
    queue.flush()
    queue.end_store(written)
    wait_until(writers.are_gone, "the writers to go")
    closing.join(60)


def test_a_load_that_ends_wakes_no_writer_where_no_store_waits(
    queue: JobQueue, make_load: Callable[[], LoadJob]
) -> None:
    """Each that woke would take the interpreter from those who read."""
    wait, woken = queue._store_ready.wait, threading.Semaphore(0)

    def counted(timeout: float | None = None) -> bool:
        found = wait(timeout)
        woken.release()
        return found

    queue._store_ready.wait = counted  # type: ignore[method-assign]
    writers = Writers(queue, 4)
    wait_until(lambda: len(queue._store_ready._waiters) == 4, "the writers")  # type: ignore[attr-defined]
    for _ in range(20):
        queue.put_load(make_load())
        read = queue.take_load(time.monotonic)
        assert read is not None
        queue.end_load(read)
    queue.put_store(store())
    writers.await_taken(1)
    assert [woken.acquire(blocking=False) for _ in range(2)] == [True, False]
    queue.drain(0)
    wait_until(writers.are_gone, "the writers to go")
