"""Several workers, one scheduler's side and a real pool, without an engine: whole chunks or none.

Each worker has its own shard of every chunk; reports of one slot come in different steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engines.vllm.test_scheduler_side import (
    LIMITS,
    SHAPE,
    Output,
    asked,
    next_stored,
    request_of,
    stored,
)
from tests.pool_process import PoolProcess, running_pool, short_directory, wait_until

from forebay.engines.geometry import Geometry, Shard
from forebay.engines.scheduling import stores
from forebay.engines.step import WorkerReport
from forebay.engines.vllm.metadata import ReportMetadata
from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.engines.worker import WorkerConnector
from forebay.identity.keys import ChainRoot
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
BLOCKS = 32
TOKEN = 9  # of which all prompts consist
STORED, LOADED = [5, 6, 7, 8], [20, 21, 22, 23]  # blocks


class Ranks:
    """Workers with caches of their own, and the scheduler's side that they report to."""

    def __init__(
        self, pool: PoolProcess, layers: tuple[int, ...], writers: int, *, is_encoded: bool = False
    ) -> None:
        self.pool = pool
        widest = max(layers) * SHAPE.page_bytes
        shape = replace(SHAPE, shards=writers, ranks=len(layers), is_encoded=is_encoded)
        shape = replace(shape, widest_bytes=widest)
        self.shape = shape
        session = PoolSession(pool.socket, Clock(), maps_slab=False)
        self.side = SchedulerConnector(session, shape, LIMITS)
        self.side.join()
        self.side.root = ChainRoot(b"s" * 32, SHAPE.chunk_tokens)
        self.caches: list[dict[str, Any]] = []
        self.workers: list[WorkerConnector] = []
        for rank, count in enumerate(layers):
            mine = Geometry(
                tuple(f"layer {n}" for n in range(count)), SHAPE.page_bytes, 16, 4, writers
            )
            mine = replace(mine, is_encoded=is_encoded)
            shard = Shard(rank, min(rank, writers - 1), is_stored=rank < writers)
            cache = {
                layer: torch.zeros(BLOCKS, SHAPE.page_bytes, dtype=torch.uint8)
                for layer in mine.layers
            }
            worker = WorkerConnector(pool.socket, mine, Clock(), shard=shard)
            worker.register(cache, BLOCKS)
            self.caches.append(cache)
            self.workers.append(worker)

    def compute(self) -> None:
        """Every page of what is stored has another value, but where ranks share a shard."""
        for worker, cache in zip(self.workers, self.caches, strict=True):
            for number, pages in enumerate(cache.values()):
                for block in STORED:
                    pages[block] = 50 * worker._shard.number + 10 * number + block

    def compute_what_does_not_fit(self, rank: int) -> None:
        """One rank's pages have more exponents than there is room for."""
        for pages in self.caches[rank].values():
            pages[STORED] = torch.arange(4 * SHAPE.page_bytes).view(4, -1).mul(7).to(torch.uint8)

    def offer_again(self) -> None:
        """As a step does in which the request goes on."""
        tracked = self.side._requests["a"]
        self.side._stores.offer(self.side._stores.completed([(tracked, SHAPE.chunk_tokens)]))
        step = next_stored(self.side)
        for worker in self.workers:
            worker.begin(step)

    def stored_bytes(self) -> int:
        return self.pool.number("moved_bytes", tier="dram", direction="store")

    def offer(self) -> None:
        """Until all workers have copied a chunk, as far as they can; nothing is reported yet."""
        step = stored(self.side, "a", STORED, TOKEN)
        for worker in self.workers:
            worker.begin(step)

    def report(self, *ranks: int) -> None:
        """Some workers' reports, as vLLM passes them on."""
        made = [self.workers[rank].take_report() for rank in ranks]
        told = [ReportMetadata.of(each) for each in made if each is not None]
        first, *others = told
        for other in others:
            first = first.aggregate(other)
        self.side.reported(first, (), set())
        self.side.begin_step(Output)

    def load(self) -> None:
        """Have every worker load the chunk into other blocks."""
        request = request_of([TOKEN] * (2 * SHAPE.chunk_tokens + 1), "b")
        self.side.arrived(request)
        assert asked(self.side, request, 0) == SHAPE.chunk_tokens
        self.side.allocated(request, [LOADED], SHAPE.chunk_tokens)
        step = self.side.begin_step(Output)
        for worker in self.workers:
            worker.begin(step)
            for load in step.loads:
                worker.load(load)
            assert worker.take_received() == ({"b"}, set())
        self.side.reported(None, {"b"}, set())

    def check(self) -> None:
        """What every worker has loaded is what it had stored."""
        for cache in self.caches:
            for pages in cache.values():
                assert torch.equal(pages[LOADED], pages[STORED])

    def number(self, name: str) -> int:
        return self.pool.number(name)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.side.close()


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place) as pool:
        yield pool


@pytest.mark.parametrize("is_encoded", [False, True], ids=["raw", "encoded"])
@pytest.mark.parametrize(
    ("layers", "writers"),
    [((1, 1), 2), ((3, 2), 2), ((2, 2), 1), ((1, 1, 1, 1), 4)],
    ids=["equal", "padded", "one shard for both", "four"],
)
def test_a_chunk_is_there_when_all_have_stored_and_free_when_all_have_loaded(
    pool: PoolProcess, layers: tuple[int, ...], writers: int, is_encoded: bool
) -> None:
    ranks = Ranks(pool, layers, writers, is_encoded=is_encoded)
    ranks.compute()
    ranks.offer()
    for rank in range(writers - 1):
        ranks.report(rank)
        assert ranks.side.has_work
        assert ranks.number("leased_slots") == 1, "a shard is missing"
    ranks.report(*range(writers - 1, len(layers)))
    wait_until(lambda: not ranks.number("leased_slots"), "the commit")
    assert ranks.pool.number("chunks", tier="dram") == 1
    assert ranks.stored_bytes() == ranks.shape.chunk_bytes
    ranks.load()
    ranks.check()
    for rank in range(len(layers) - 1):
        ranks.report(rank)
        assert ranks.side.has_work
        assert ranks.number("pinned_chunks") == 1, "somebody reads it"
    ranks.report(len(layers) - 1)
    wait_until(lambda: not ranks.number("pinned_chunks"), "the release")
    assert not ranks.side.has_work
    ranks.close()


def test_a_chunk_of_which_one_shard_does_not_fit_is_stored_raw(pool: PoolProcess) -> None:
    ranks = Ranks(pool, (3, 2), 2, is_encoded=True)
    ranks.compute()
    ranks.compute_what_does_not_fit(rank=1)
    ranks.offer()
    ranks.report(0, 1)
    wait_until(lambda: not ranks.number("leased_slots"), "the slot to come back")
    assert not ranks.pool.number("chunks", tier="dram"), "what does not fit is not there"
    assert ranks.side.counts["stores.unfit"] == 1
    ranks.offer_again()
    ranks.report(0, 1)
    wait_until(lambda: pool.number("chunks", tier="dram") == 1, "the commit")
    assert ranks.stored_bytes() == ranks.shape.record_bytes(4, is_raw=True)
    ranks.load()
    ranks.check()
    ranks.close()


@pytest.mark.parametrize("is_encoded", [False, True], ids=["raw", "encoded"])
def test_what_cannot_be_decoded_is_computed(pool: PoolProcess, is_encoded: bool) -> None:
    """A slot is not hashed again at a hit; what a decoder would trip over is seen all the same."""
    ranks = Ranks(pool, (1,), 1, is_encoded=is_encoded)
    ranks.compute()
    ranks.offer()
    ranks.report(0)
    wait_until(lambda: pool.number("chunks", tier="dram") == 1, "the commit")
    request = request_of([TOKEN] * (2 * SHAPE.chunk_tokens + 1), "b")
    ranks.side.arrived(request)
    assert asked(ranks.side, request, 0) == SHAPE.chunk_tokens
    pool.spoil_slab()  # not before: an idle pool hashes what it holds, sooner or later
    ranks.side.allocated(request, [LOADED], SHAPE.chunk_tokens)
    step = ranks.side.begin_step(Output)
    ranks.workers[0].begin(step)
    ranks.workers[0].load(step.loads[0])
    received, failed = ranks.workers[0].take_received()
    assert received == {"b"}
    assert failed == ({"b"} if is_encoded else set())
    ranks.close()


def test_shards_are_verified_when_they_come_from_a_drive(pool: PoolProcess) -> None:
    ranks = Ranks(pool, (3, 2), 2)
    ranks.compute()
    ranks.offer()
    ranks.report(0, 1)
    wait_until(lambda: pool.number("chunks", tier="disk") == 1, "the drive")
    ranks.close()
    pool.stop()
    pool.start()
    later = Ranks(pool, (3, 2), 2)
    later.compute()
    later.load()
    later.check()
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") == 1
    later.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_t51_a_chunk_that_one_rank_missed_is_given_back_when_all_are_done(
    pool: PoolProcess, order: tuple[int, int]
) -> None:
    ranks = Ranks(pool, (1, 1), 2)
    ranks.workers[1]._socket_path += " of nobody"
    ranks.offer()
    ranks.report(order[0])
    assert ranks.number("leased_slots") == 1, "the other may still write there"
    ranks.report(order[1])
    wait_until(lambda: not ranks.number("leased_slots"), "the slot to come back")
    assert not ranks.pool.number("chunks", tier="dram")
    assert not ranks.side.has_work
    ranks.close()


def test_t51_what_a_late_rank_says_is_not_taken_for_another_chunk(
    pool: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(pool, (1, 1), 2)
    with monkeypatch.context() as patched:
        patched.setattr(stores, "_COPY_S", 0.0)
        ranks.offer()
    late = ranks.workers[1].take_report()
    ranks.report(0)
    ranks.side.add_stores(ranks.side.begin_step(Output), Output)  # it is given up
    wait_until(lambda: not ranks.number("leased_slots"), "the slot to come back")
    step = stored(ranks.side, "c", [9, 10, 11, 12], TOKEN + 1)  # which it may have now
    ranks.workers[0].begin(step)
    assert late is not None
    ranks.side.reported(late, (), set())
    ranks.report(0)
    assert ranks.number("leased_slots") == 1, "the other rank has not stored this one"
    ranks.workers[1].begin(step)
    ranks.report(1)
    wait_until(lambda: not ranks.number("leased_slots"), "the commit")
    assert ranks.pool.number("chunks", tier="dram") == 1
    ranks.close()


def test_the_step_of_several_workers_is_the_one_that_all_have_begun() -> None:
    first = ReportMetadata.of(WorkerReport(5, {1: {0: b"a"}}, {7: {0}}))
    both = first.aggregate(
        ReportMetadata.of(WorkerReport(4, {1: {1: b"b"}, 2: {1: b""}}, {7: {1}}))
    )
    assert (both.step, both.stored, both.over) == (
        4,
        {1: {0: b"a", 1: b"b"}, 2: {1: b""}},
        {7: {0, 1}},
    )
