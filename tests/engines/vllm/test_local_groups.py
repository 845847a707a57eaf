"""Full attention and a window, both sides and a real pool, without an engine.

The window is shorter than a chunk, its blocks are twice as long, and it has two block tables.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engines.copies.simulated import SimulatedDriver
from tests.engines.vllm.test_scheduler_side import LIMITS, Output, asked, request_of
from tests.pool_process import (
    DRAM_BYTES,
    HANG_S,
    PatientClient,
    PoolProcess,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.decisions import Decision
from forebay.engines.copies.pages import rows_of_tables
from forebay.engines.copies.pointers import PageTable, PageTables
from forebay.engines.copies.streamed import StreamedCopies
from forebay.engines.geometry import Geometry, Reach, ReachKind, Shard
from forebay.engines.scheduling.lookups import LoadLimits
from forebay.engines.vllm.metadata import ReportMetadata, StepMetadata
from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.engines.worker import WorkerConnector
from forebay.identity.keys import ChainRoot
from forebay.pool.client.outcomes import AdminOutcome
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
BLOCKS, PAGE, WINDOW_PAGE = 32, 4096, 2048
CHUNK = 64  # tokens
FIRST_TABLES = ([5, 6, 7, 8, 9, 10, 11, 12, 13], [1, 2, 3, 4, 14], [15, 16, 17, 18, 19])
OTHER_TABLES = ([20, 21, 22, 23, 24, 25, 26, 27], [0, 0, 0, 28], [0, 0, 0, 29])


def shape_of(shards: int) -> Geometry:
    local = Geometry(
        ("b", "c", "d"),
        WINDOW_PAGE,
        block_tokens=32,
        chunk_blocks=2,
        shards=shards,
        ranks=shards,
        reach=Reach(ReachKind.WINDOW, 20),
        tables=(1, 2),
        table_layers=(1, 2),
    )
    return Geometry(("a",), PAGE, 16, 4, shards, shards, local=(local,))


def computed_of(name: str, tables: tuple[list[int], ...], start: int, stop: int) -> Any:
    """A step in which a new request computes these tokens."""

    class New:
        req_id, block_ids, num_computed_tokens = name, tables, start

    class Computed(Output):
        scheduled_new_reqs = (New,)  # type: ignore[assignment]
        num_scheduled_tokens = {name: stop - start}  # noqa: RUF012 - never changed
        total_num_scheduled_tokens = stop - start

    return Computed


class Both:
    """A scheduler's side, and workers with caches of their own."""

    def __init__(self, pool: PoolProcess, ranks: int, limits: LoadLimits = LIMITS) -> None:
        self.pool, shape = pool, shape_of(ranks)
        session = PoolSession(pool.socket, Clock(), maps_slab=False)
        self.side = SchedulerConnector(session, shape, limits)
        self.side.join()
        self.side.root = ChainRoot(b"g" * 32, CHUNK)
        self.caches: list[dict[str, Any]] = []
        self.workers: list[WorkerConnector] = []
        for rank in range(ranks):
            cache = {
                layer: torch.randint(0, 255, (BLOCKS, group.page_bytes), dtype=torch.uint8)
                for group in shape.groups
                for layer in group.layers
            }
            worker = WorkerConnector(pool.socket, shape, Clock(), shard=Shard(rank, rank))
            worker.register(cache, BLOCKS)
            self.caches.append(cache)
            self.workers.append(worker)

    def compute(self, request: Any, tables: tuple[list[int], ...], stop: int) -> None:
        """Compute a request's prompt in one step, and offer what it completes."""
        output = computed_of(request.request_id, tables, 0, stop)
        self.side.add_stores(self.side.begin_step(output), output)

    def store(self) -> StepMetadata:
        """Have what was offered copied and committed."""
        wait_until(lambda: self.side.begin_step(Output) and not self.side._stores._batches, "slots")
        step = self.side.begin_step(Output)
        self.side.add_stores(step, Output)
        made = []
        for worker in self.workers:
            worker.begin(step)
            report = worker.take_report()
            assert report is not None
            made.append(ReportMetadata.of(report))
        for other in made[1:]:
            made[0].aggregate(other)
        before = self.side.counts["stored.chunks"]
        self.side.reported(made[0], (), set())
        count = before + len(step.stores)
        wait_until(lambda: self.side.begin_step(Output) and self._stored() == count, "commits")
        return step

    def load(self, request: Any, tables: tuple[list[int], ...], tokens: int) -> StepMetadata:
        self.side.allocated(request, tables, tokens)
        step = self.side.begin_step(Output)
        for worker in self.workers:
            worker.begin(step)
            for load in step.loads:
                worker.load(load)
            assert worker.take_received() == ({request.request_id}, set())
        self.side.reported(None, {request.request_id}, set())
        return step

    def hear(self, worker: WorkerConnector) -> None:
        """What one worker has to tell."""
        report = worker.take_report()
        assert report is not None
        self.side.reported(ReportMetadata.of(report), (), set())

    def _stored(self) -> int:
        return self.side.counts["stored.chunks"]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.side.close()


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place, disk=False) as pool:
        yield pool


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_window_is_stored_and_loaded_with_the_chunks_that_it_goes_with(
    pool: PoolProcess, ranks: int
) -> None:
    both = Both(pool, ranks)
    first = request_of([7] * (2 * CHUNK + 1), "first")
    both.side.arrived(first)
    assert asked(both.side, first, 0) == 0
    both.compute(first, FIRST_TABLES, 2 * CHUNK + 1)
    step = both.store()
    assert [(each.piece.group, each.is_freed) for each in step.stores] == [
        (0, False),
        (0, False),
        (1, True),
    ], "of the window only what a hit of the prompt needs"
    window = step.stores[2].piece
    assert (window.blocks, window.others, window.size) == ([4], ([18],), 1)
    sent = both.pool.number("moved_bytes", tier="dram", direction="store")
    assert sent == ranks * (2 * 4 * PAGE + 3 * WINDOW_PAGE)
    second = request_of([7] * (2 * CHUNK + 30), "second")
    both.side.arrived(second)
    assert asked(both.side, second, 0) == 2 * CHUNK
    both.load(second, OTHER_TABLES, 2 * CHUNK)
    for cache in both.caches:
        assert torch.equal(cache["a"][OTHER_TABLES[0]], cache["a"][FIRST_TABLES[0][:8]])
        assert torch.equal(cache["b"][28], cache["b"][4])
        for layer in ("c", "d"):
            assert torch.equal(cache[layer][29], cache[layer][18])
    both.close()


def test_a_prompt_that_is_known_to_its_end_is_not_loaded_whole(pool: PoolProcess) -> None:
    """Its last token is computed: that one may look at what is before the window of the end."""
    both = Both(pool, 1)
    first = request_of([7] * (2 * CHUNK), "first")
    both.side.arrived(first)
    both.compute(first, FIRST_TABLES, 2 * CHUNK)
    assert [each.piece.group for each in both.store().stores] == [0, 0, 1, 1]
    again = request_of([7] * (2 * CHUNK), "again")
    both.side.arrived(again)
    assert asked(both.side, again, 0) == CHUNK
    both.close()


def test_where_a_prompt_branches_the_window_is_stored_by_the_first_that_misses_it(
    pool: PoolProcess,
) -> None:
    both = Both(pool, 1)
    first = request_of([7] * (2 * CHUNK + 1), "first")
    both.side.arrived(first)
    both.compute(first, FIRST_TABLES, 2 * CHUNK + 1)
    both.store()
    branch = request_of([7] * CHUNK + [8] * (2 * CHUNK), "branch")
    both.side.arrived(branch)
    assert asked(both.side, branch, 0) == 0, "a chunk is known, the window before its end is not"
    tables = (list(range(1, 13)), list(range(13, 19)), list(range(19, 25)))
    both.compute(branch, tables, 3 * CHUNK)
    stored = [(each.piece.group, each.piece.blocks) for each in both.store().stores]
    assert (1, [14]) in stored, "with the last block before the branch"
    other = request_of([7] * CHUNK + [9] * CHUNK, "other")
    both.side.arrived(other)
    assert asked(both.side, other, 0) == CHUNK
    both.close()


def test_t52_a_window_is_not_stored_when_its_slot_comes_a_step_late(pool: PoolProcess) -> None:
    both = Both(pool, 1)
    both.side._wait_left_s = 0.0
    first = request_of([7] * (2 * CHUNK + 1), "first")
    both.side.arrived(first)
    both.compute(first, FIRST_TABLES, 2 * CHUNK + 1)
    assert not both.side._stores.next_stores(99), "no answer was read"
    assert both.side.counts["stores.too_late"] == 1
    wait_until(lambda: both.side.begin_step(Output) and not both.side._stores._batches, "slots")
    step = both.side.begin_step(Output)
    both.side.add_stores(step, Output)
    assert [each.piece.group for each in step.stores] == [0, 0], "full blocks stay the request's"
    wait_until(lambda: both.pool.number("leased_slots") == 2, "the late slot to be given back")
    both.close()


def stored_by_another(pool: PoolProcess, ranks: int) -> None:
    """Two chunks of a prompt, and the window at their end."""
    both = Both(pool, ranks)
    first = request_of([7] * (2 * CHUNK + 1), "first")
    both.side.arrived(first)
    both.compute(first, FIRST_TABLES, 2 * CHUNK + 1)
    both.store()
    both.close()


def test_a_load_that_must_not_fail_waits_until_every_worker_has_the_slab(
    pool: PoolProcess,
) -> None:
    """Before vLLM 0.30 one that fails would end an engine of several groups."""
    stored_by_another(pool, ranks=2)
    both = Both(pool, 2, replace(LIMITS, may_fail=False))
    for mapped, found in ((0, 0), (1, 0), (2, 2 * CHUNK)):
        step = both.side.begin_step(Output)
        for worker in both.workers[:mapped]:
            worker.begin(step)
            both.hear(worker)
        request = request_of([7] * (2 * CHUNK + 30), f"{mapped} workers")
        both.side.arrived(request)
        assert asked(both.side, request, 0) == found
    assert both.side.counts[f"misses.{Decision.NO_POOL}"] == 2
    tokens = 2 * CHUNK
    both.load(request, OTHER_TABLES, tokens)
    assert not any(worker.take_failed_blocks() for worker in both.workers)
    both.close()


def test_a_load_that_must_not_fail_is_told_though_the_pool_has_just_died(
    pool: PoolProcess,
) -> None:
    """What was promised lies in the slab that the workers have mapped; nobody writes there."""
    stored_by_another(pool, ranks=1)
    both = Both(pool, 1, replace(LIMITS, may_fail=False))
    (worker,), (cache,) = both.workers, both.caches
    worker.begin(both.side.begin_step(Output))
    both.hear(worker)
    request = request_of([7] * (2 * CHUNK + 30), "request")
    both.side.arrived(request)
    assert asked(both.side, request, 0) == 2 * CHUNK
    pool.kill()
    before = cache["a"][OTHER_TABLES[0]].clone()
    both.load(request, OTHER_TABLES, 2 * CHUNK)
    assert not both.side.is_joined
    assert not worker.take_failed_blocks()
    assert not torch.equal(cache["a"][OTHER_TABLES[0]], before)
    both.close()


class Limited(SimulatedDriver):
    """Registers so many spans, and no more."""

    def __init__(self, spans: int) -> None:
        super().__init__()
        self.left, self.has_refused = spans, threading.Event()

    def register(self, address: int, length: int) -> str:
        if self.left:
            self.left -= 1
            return super().register(address, length)
        self.has_refused.set()
        return "no more"


def copies_of(worker: WorkerConnector, cache: dict[str, Any], driver: Limited) -> StreamedCopies:
    """What a worker copies with on a GPU."""
    tables: list[PageTable] = []
    numbers: list[int] = []
    for number, rows in enumerate(rows_of_tables(worker._shape, cache, BLOCKS)):
        tables += PageTable.all_of(
            [(row.data_ptr(), row.stride(0), row.shape[1]) for row in rows], BLOCKS
        )
        numbers += [number] * (len(tables) - len(numbers))
    return StreamedCopies(driver, PageTables(tables, worker._shape, numbers))


@pytest.mark.parametrize(("spans", "found"), [(0, 0), (1, 0), (2, 2 * CHUNK)])
def test_a_load_that_must_not_fail_is_of_what_every_gpu_can_reach(
    pool: PoolProcess, spans: int, found: int
) -> None:
    """Chunks lie in the first arena, windows in the second; registering may be refused."""
    stored_by_another(pool, ranks=2)
    both, driver = Both(pool, 2, replace(LIMITS, may_fail=False)), Limited(spans)
    worker = both.workers[1]
    copies = worker._copies = copies_of(worker, both.caches[1], driver)
    step = both.side.begin_step(Output)
    for each in both.workers:
        each.begin(step)
    assert driver.has_refused.wait(HANG_S)
    wait_until(lambda: copies._registration is not None and copies._registration.why, "the end")
    for each in both.workers:
        both.hear(each)
    request = request_of([7] * (2 * CHUNK + 30), "request")
    both.side.arrived(request)
    assert asked(both.side, request, 0) == found
    assert both.side.counts[f"misses.{Decision.NO_POOL}"] == (not found)
    both.close()
    driver.end()


def test_a_load_that_must_not_fail_may_lie_in_what_was_added_once_workers_have_it(
    pool: PoolProcess,
) -> None:
    both = Both(pool, 1, replace(LIMITS, may_fail=False))
    (worker,) = both.workers
    worker.begin(both.side.begin_step(Output))
    both.hear(worker)
    with PatientClient(pool.socket) as client:
        assert isinstance(client.resize(2 * DRAM_BYTES, timeout_s=HANG_S), AdminOutcome)
    stored_by_another(pool, ranks=1)
    for name, found in (("before", 0), ("after", 2 * CHUNK)):
        request = request_of([7] * (2 * CHUNK + 30), name)
        both.side.arrived(request)
        assert asked(both.side, request, 0) == found
        if not found:
            own = request_of([8] * (2 * CHUNK + 1), "own")
            both.side.arrived(own)
            assert asked(both.side, own, 0) == 0
            both.compute(own, FIRST_TABLES, 2 * CHUNK + 1)
            both.store()
            worker.begin(both.side.begin_step(Output))
            both.hear(worker)
    both.close()
