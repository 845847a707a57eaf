"""Both sides of the connector and a real pool, without an engine: what a coming load may do.

The engine hears of a load a moment before its bytes are there. What then keeps them whole is
between the two sides; a slow device stands in for the GPU.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.engines.copies.simulated import SimulatedDriver
from tests.engines.vllm.test_scheduler_side import (
    CHUNKS,
    LIMITS,
    ROOT,
    SHAPE,
    Output,
    asked,
    request_of,
)
from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.engines.boundary import BrokenError
from forebay.engines.copies.contract import LoadPart
from forebay.engines.copies.pointers import PageTable, PageTables
from forebay.engines.copies.streamed import StreamedCopies
from forebay.engines.vllm.metadata import StepMetadata
from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.engines.worker import WorkerConnector
from forebay.identity.keys import KeyChain
from forebay.pool.client import Chain, Client
from forebay.pool.client.outcomes import AdminOutcome
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
TOKENS = CHUNKS * SHAPE.chunk_tokens
BLOCKS = CHUNKS * SHAPE.chunk_blocks
VALUE = 9


class Both(contextlib.AbstractContextManager["Both"]):
    """A scheduler's side and a worker's, with a request whose chunks lie in the pool's DRAM."""

    def __init__(
        self,
        pool: PoolProcess,
        *,
        copy_s: float = 0.0,
        is_gated: bool = False,
        driver: SimulatedDriver | None = None,
    ) -> None:
        self.pool = pool
        self.driver = driver or SimulatedDriver(copy_s=copy_s)
        self.gate = threading.Event()  # every copy waits for it
        if is_gated:
            self.driver.before_copy = lambda: self.gate.wait(HANG_S)
        self.cache = np.zeros((BLOCKS, SHAPE.page_bytes), dtype=np.uint8)
        self.scheduler = SchedulerConnector(
            PoolSession(pool.socket, Clock(), maps_slab=False), SHAPE, LIMITS
        )
        self.scheduler.join()
        self.scheduler.root = ROOT
        self.worker = WorkerConnector(pool.socket, SHAPE, Clock())
        layer = (self.cache.ctypes.data, SHAPE.page_bytes)
        page_table = PageTable.of([layer], SHAPE.page_bytes, BLOCKS)
        self.worker._copies = StreamedCopies(self.driver, PageTables([page_table], SHAPE))

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.worker.close()
        self.scheduler.close()
        self.driver.end()

    def load(self) -> Any:
        """Tell the worker to load the request, until the engine would hear that it is coming."""
        request, load = self.told()
        self.worker.load(load)
        assert not self.received()
        return request

    def told(self) -> tuple[Any, LoadPart]:
        """A request, and its load, of which the worker is to be told."""
        request = request_of(list(range(TOKENS + 1)))
        self.scheduler.arrived(request)
        assert asked(self.scheduler, request, 0) == TOKENS
        self.scheduler.allocated(request, [list(range(BLOCKS))], TOKENS)
        (load,) = self.step().loads
        return request, load

    def received(self) -> set[str]:
        """Until the engine would hear of the request; whether it failed."""
        until = time.monotonic() + HANG_S
        received: set[str] = set()
        while not received:
            assert time.monotonic() < until
            received, failed = self.worker.take_received()
        assert received == {"request"}
        return failed

    def step(self) -> StepMetadata:
        step = self.scheduler.begin_step(Output)
        self.worker.begin(step)
        return step

    def hear(self, *received: str) -> None:
        self.scheduler.reported(self.worker.take_report(), received, set())

    def lose(self) -> None:
        """The scheduler's side loses its connection, nobody else does, and the pool has seen it."""
        connection = self.scheduler._pool.connection
        assert connection is not None
        connection.close()
        wait_until(lambda: not self.pool.number("requests_active"), "the pool to see it")

    def rejoin(self) -> None:
        def is_joined() -> bool:
            self.step()
            return self.scheduler.counts["pool.joined"] > 0

        wait_until(is_joined, "the pool to be joined again")

    def has_work(self) -> bool:
        return self.scheduler.has_work

    def pinned_chunks(self) -> int:
        return self.pool.number("pinned_chunks")

    def seen_by_a_forward(self) -> set[int]:
        seen: set[int] = set()
        self.driver.forward(lambda: seen.update(np.unique(self.cache).tolist()), 0)
        self.driver.settle()
        return seen


def halves(load: LoadPart) -> tuple[LoadPart, LoadPart]:
    """The same load as a stream of two parts."""
    middle = len(load.pieces) // 2
    return (
        replace(load, pieces=load.pieces[:middle], is_last=False),
        replace(load, pieces=load.pieces[middle:], serial=load.serial + 1),
    )


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place) as pool:
        keys = KeyChain(ROOT).extend(list(range(TOKENS)))
        payloads = [bytes([VALUE]) * SHAPE.chunk_bytes] * CHUNKS
        with PatientClient(pool.socket) as client:
            assert client.store(Chain(ROOT.namespace, keys), payloads).stored == CHUNKS
        yield pool


def test_a_step_that_was_built_before_the_engine_heard_does_not_wait(pool: PoolProcess) -> None:
    with Both(pool, is_gated=True) as both:
        both.load()
        built = both.scheduler.begin_step(Output)  # as async scheduling does, a step ahead
        both.hear("request")
        both.worker.begin(built)
        seen: list[int] = []
        both.driver.forward(lambda: seen.append(int(both.cache.max())), 0)
        wait_until(lambda: seen, "a forward")
        assert seen == [0], "nothing held it up"
        both.gate.set()
        both.step()
        assert both.seen_by_a_forward() == {VALUE}


def test_a_step_of_which_nothing_is_known_waits_for_everything(pool: PoolProcess) -> None:
    with Both(pool, copy_s=0.5) as both:
        both.load()
        both.worker.begin(
            StepMetadata()
        )  # what the engine gets where the scheduler's side has failed
        assert both.seen_by_a_forward() == {VALUE}


def broken(*_: object) -> None:
    raise OSError


def test_an_engine_ends_that_cannot_wait_for_what_it_was_told_of(
    pool: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Both(pool) as both:
        both.load()
        monkeypatch.setattr(both.worker._copies, "await_loads", broken)
        with pytest.raises(BrokenError, match="nobody knows"):
            both.worker.begin(StepMetadata())


def test_a_forward_waits_for_stores_though_its_step_could_not_begin(
    pool: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Both(pool) as both:
        both.load()
        begun: list[int] = []
        copies = both.worker._copies
        assert copies is not None

        def begin(step: int, *_: object, freed: int, **__: object) -> None:
            begun.extend((step, freed))

        monkeypatch.setattr(copies, "begin", begin)
        monkeypatch.setattr(both.worker, "_map", broken)
        with pytest.raises(OSError):  # noqa: PT011 - ours
            both.worker.begin(StepMetadata(7, generation=1, freed=5))
        assert begun == [7, 5]


def test_a_forward_waits_for_every_part_of_a_load(pool: PoolProcess) -> None:
    with Both(pool, copy_s=0.3) as both:
        _, load = both.told()
        first, last = halves(load)
        both.worker.load(first)
        assert both.worker.take_received() == (set(), set()), "there is more to come"
        both.worker.load(last)
        assert not both.received()
        both.worker.begin(StepMetadata())
        assert both.seen_by_a_forward() == {VALUE}


def test_a_part_that_is_coming_is_waited_for_though_another_has_failed(pool: PoolProcess) -> None:
    with Both(pool, is_gated=True) as both:
        _, load = both.told()
        first, last = halves(load)
        both.worker.load(first)
        both.worker.load(replace(last, generation=last.generation + 1))
        assert both.received() == {"request"}
        report = both.worker.take_report()
        assert report is not None
        assert list(report.over) == [last.serial], "the other is still being read"
        both.gate.set()
        both.worker.begin(StepMetadata())
        assert both.seen_by_a_forward() == {0, VALUE}
        report = both.worker.take_report()
        assert report is not None
        assert list(report.over) == [first.serial]


def test_slots_of_a_load_that_failed_are_the_pools_again(pool: PoolProcess) -> None:
    with Both(pool) as both:
        request, load = both.told()
        both.worker.load(replace(load, generation=load.generation + 1))
        failed = both.received()
        both.scheduler.reported(both.worker.take_report(), failed, failed)
        both.scheduler.finished(request.request_id)
        assert not both.has_work()
        wait_until(lambda: both.pinned_chunks() == 0, "the pool to have its slots again")


def test_workers_that_do_not_say_in_which_step_they_are_may_have_told_of_anything(
    pool: PoolProcess,
) -> None:
    with Both(pool, copy_s=0.5) as both:
        both.load()
        both.scheduler.reported(None, {"request"}, set())
        both.step()
        assert both.seen_by_a_forward() == {VALUE}


def test_slots_are_the_pools_again_when_nobody_reads_them(pool: PoolProcess) -> None:
    with Both(pool, is_gated=True) as both:
        request = both.load()
        both.hear("request")
        assert both.has_work(), "somebody has to hear that it has landed"
        both.scheduler.finished(request.request_id)
        both.step()
        assert both.pinned_chunks() == CHUNKS, "it is still being read"
        both.gate.set()
        both.driver.settle()
        both.hear()
        assert not both.has_work()
        wait_until(lambda: both.pinned_chunks() == 0, "the pool to have its slots again")


def flood(pool: PoolProcess) -> None:
    """Store what fills the pool's DRAM more than once."""
    payloads = [bytes([VALUE + 1]) * SHAPE.chunk_bytes] * 64
    with Client(pool.socket) as client:
        for dialog in range(1, 32):
            tokens = range(dialog * 10**6, dialog * 10**6 + 64 * SHAPE.chunk_tokens)
            chain = Chain(ROOT.namespace, KeyChain(ROOT).extend(list(tokens)))
            client.store(chain, payloads, timeout_s=1)


def test_t23_a_copy_in_flight_is_whole_though_the_connection_was_lost(pool: PoolProcess) -> None:
    with Both(pool, is_gated=True) as both:
        both.load()
        both.hear("request")
        both.lose()
        both.step()
        flood(pool)
        assert both.worker._copies is not None
        assert not both.worker._copies.take_done().loaded, "it is still being read"
        both.gate.set()
        assert both.seen_by_a_forward() == {VALUE}
        assert both.pinned_chunks() == CHUNKS, "nobody has said that it is over"


def test_slots_of_a_lost_connection_are_free_when_nobody_reads_them(pool: PoolProcess) -> None:
    with Both(pool, is_gated=True) as both:
        request = both.load()
        both.hear("request")
        both.lose()
        both.scheduler.finished(request.request_id)
        both.rejoin()
        both.hear()
        assert both.pinned_chunks() == CHUNKS, "a worker was told of them before"
        assert both.has_work(), "somebody has to hear when it has landed"
        both.gate.set()
        both.driver.settle()
        both.hear()
        assert not both.has_work()
        wait_until(lambda: both.pinned_chunks() == 0, "the pool to have its slots again")


def test_slots_of_a_lost_connection_are_free_however_often_it_is_lost(pool: PoolProcess) -> None:
    with Both(pool, is_gated=True) as both:
        both.load()
        both.hear("request")
        for _ in range(2):
            both.lose()
            both.scheduler.counts["pool.joined"] = 0
            both.step()
            both.rejoin()
        assert both.pinned_chunks() == CHUNKS
        both.gate.set()
        both.driver.settle()
        both.lose()
        both.scheduler.counts["pool.joined"] = 0
        both.hear()  # there is no pool to tell
        both.step()
        both.rejoin()
        wait_until(lambda: both.pinned_chunks() == 0, "the pool to have its slots again")


def test_a_promise_of_which_no_worker_knew_fails_with_its_connection(pool: PoolProcess) -> None:
    """The pool that comes next may be another one, which knows nothing of these slots."""
    with Both(pool) as both:
        request = request_of(list(range(TOKENS + 1)))
        both.scheduler.arrived(request)
        assert asked(both.scheduler, request, 0) == TOKENS
        both.scheduler.allocated(request, [list(range(BLOCKS))], TOKENS)
        both.lose()
        assert both.pinned_chunks() == CHUNKS
        step = both.step()
        assert [load.pieces for load in step.loads] == [[]]
        assert step.loads[0].failed == list(range(BLOCKS))
        both.worker.load(step.loads[0])
        received, failed = both.worker.take_received()
        assert received == failed == {"request"}
        assert both.worker.take_failed_blocks() == set(range(BLOCKS))
        both.rejoin()
        wait_until(lambda: both.pinned_chunks() == 0, "the pool to hear that nobody reads")


def test_a_pool_too_small_for_a_chunk_is_told_with_the_size_it_needs(
    pool: PoolProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with Both(pool) as both:
        both.worker._shape = replace(SHAPE, chunk_blocks=(3 << 20) // SHAPE.block_bytes)
        both.step()
    (line,) = [line for line in caplog.messages if "too small" in line]
    assert "a chunk has 3 MiB" in line
    assert line.endswith("--dram 32MiB or more")


def test_t59_what_lies_in_memory_that_was_added_is_copied_too() -> None:
    """F8: the slab grows by segments; a worker that has joined maps what it is told to reach."""
    keys = KeyChain(ROOT).extend(list(range(TOKENS)))
    payloads = [bytes([VALUE]) * SHAPE.chunk_bytes] * CHUNKS
    with (
        short_directory() as place,
        running_pool(place, disk=False) as pool,
        Both(pool) as both,
    ):
        both.step()
        with Client(pool.socket, is_operator=True) as operator:
            wait_until(operator.join, "the pool")
            outcome = operator.resize(24 << 20, timeout_s=60)
            assert isinstance(outcome, AdminOutcome), outcome
            assert outcome.ok, outcome
        with PatientClient(pool.socket) as client:
            assert client.store(Chain(ROOT.namespace, keys), payloads).stored == CHUNKS
        request, load = both.told()
        assert min(piece.offset for piece in load.pieces) >= 16 << 20, "a new arena is used first"
        both.worker.load(load)
        assert not both.received()
        both.hear(request.request_id)
        both.step()  # whose forward waits for what the engine has heard of
        assert both.seen_by_a_forward() == {VALUE}
