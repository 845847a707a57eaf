"""Pages of an engine in a real pool: exact, or a miss; never an exception, never late."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.clocks import waiting_in_vain
from tests.engines.sglang.conftest import StartRank
from tests.engines.sglang.host_memory import MEMORY, SHAPE, HostMemory, content, keys_of
from tests.pool_process import HANG_S, PoolProcess, flip_records, is_written, wait_until

from forebay.engines.sglang.pages import PageShape
from forebay.engines.sglang.rank import EngineRank
from forebay.engines.sharing import SharingState
from forebay.errors import StartupError
from forebay.testing.clock import ManualClock

LABELS = [f"page {number}" for number in range(8)]
KEYS = keys_of(LABELS)
HERE = range(8)  # where pages are stored from
THERE = range(20, 28)  # where they are loaded to


def save(rank: EngineRank, memory: HostMemory, first: int = 0, end: int = 8) -> list[bool]:
    """Store a part of the chain, behind what comes before it."""
    memory.fill(HERE[first:end], LABELS[first:end])
    return rank.save(KEYS[first:end], KEYS[:first], *memory.meta(HERE[first:end]))


def load(rank: EngineRank, memory: HostMemory, end: int = 8) -> int:
    """Load the chain; how many pages came, of which every one must be exact."""
    memory.fill(THERE[:end], ["nothing"] * end)
    told = rank.load(KEYS[:end], *memory.meta(THERE[:end]))
    count = told.index(False) if False in told else len(told)
    assert told == [True] * count + [False] * (end - count)
    for number in range(count):
        assert memory.read(THERE[number]) == content(LABELS[number])
    return count


def test_pages_come_back_bit_for_bit_from_dram_and_from_a_drive(
    pool: PoolProcess, start_rank: StartRank
) -> None:
    memory, rank = HostMemory(), start_rank()
    assert rank.exists(KEYS, None) == load(rank, memory) == 0
    assert all(save(rank, memory))
    assert rank.exists(KEYS, None) == load(rank, memory) == 8
    wait_until(lambda: is_written(pool), "the drive")
    pool.stop()
    pool.start()
    wait_until(lambda: rank.exists(KEYS, None) == 8, "the next pool")
    assert load(rank, memory) == 8
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") == 8
    assert load(start_rank(), memory) == 8, "another engine finds them too"


def test_a_chain_goes_on_behind_its_prefix(shared_pool: PoolProcess, start_rank: StartRank) -> None:
    memory, rank = HostMemory(), start_rank()
    assert save(rank, memory, 4, 6) == [False, False], "nobody knows what it comes behind"
    assert all(save(rank, memory, 0, 4))
    assert all(save(rank, memory, 4, 6))
    assert rank.exists(KEYS, []) == 6
    assert rank.exists(KEYS[4:], KEYS[:4]) == 2
    assert rank.exists(keys_of(["other", *LABELS]), []) == 0
    assert load(rank, memory) == 6
    assert all(save(rank, memory)), "those that are there already count"


def test_t23_three_threads_at_once(shared_pool: PoolProcess, start_rank: StartRank) -> None:
    memory, rank = HostMemory(), start_rank()
    save(rank, memory)
    done: list[int] = []

    def look() -> None:
        done.append(sum(rank.exists(KEYS, None) for _ in range(20)))

    def put() -> None:
        done.append(sum(all(rank.save(KEYS, [], *memory.meta(HERE))) for _ in range(20)))

    threads = [threading.Thread(target=each) for each in (look, look, put)]
    for thread in threads:
        thread.start()
    loaded = sum(load(rank, memory) for _ in range(20))
    for thread in threads:
        thread.join(HANG_S)
    assert (loaded, sorted(done)) == (160, [20, 160, 160])


def test_t29_a_pool_that_is_killed_is_a_miss_until_there_is_another(
    pool: PoolProcess, start_rank: StartRank
) -> None:
    memory, rank = HostMemory(), start_rank()
    assert all(save(rank, memory))
    pool.kill()
    assert load(rank, memory) == rank.exists(KEYS, None) == 0
    assert not any(save(rank, memory))
    pool.start()
    wait_until(lambda: all(save(rank, memory)), "the next pool")
    assert load(rank, memory) == 8


def test_t24_t29_a_stalled_pool_is_a_miss_by_the_deadline_and_then_left_alone(
    pool: PoolProcess, start_rank: StartRank
) -> None:
    memory = HostMemory()
    clock = ManualClock()
    rank = start_rank(clock=clock, settings={"lookup_deadline_ms": 100, "load_deadline_ms": 200})
    assert all(save(rank, memory))
    assert load(rank, memory) == 8
    pool.signal(signal.SIGSTOP)
    waited: list[float] = []
    calls: list[Callable[[], int]] = [lambda: rank.exists(KEYS, None), lambda: load(rank, memory)]
    with waiting_in_vain(clock):
        for call in calls * 25:
            begun = clock.monotonic()
            assert call() == 0
            waited.append(clock.monotonic() - begun)
    assert waited[:5] == pytest.approx([0.1, 0.2, 0.1, 0.2, 0.1]), "its deadline, and no longer"
    assert waited[5:] == [0.0] * 45, "it was not asked any more"
    assert rank.store is not None
    assert rank.store.counts["pool.paused"] == 1
    pool.signal(signal.SIGCONT)

    def is_back() -> bool:
        clock.advance(60)  # longer than any pause
        return load(rank, memory) == 8

    wait_until(is_back, "the pool that goes on")


def test_t6_flipped_bytes_on_a_drive_are_misses(pool: PoolProcess, start_rank: StartRank) -> None:
    memory, rank = HostMemory(), start_rank()
    assert all(save(rank, memory))
    wait_until(lambda: is_written(pool), "the drive")
    pool.stop()
    pool.start()
    flip_records(pool)
    wait_until(lambda: rank.exists(KEYS, None) == 8, "the next pool")
    assert load(rank, memory) < 8
    assert pool.number("operations", outcome="corrupt") > 0


def test_nothing_is_shared_before_the_weights_are_known(
    shared_pool: PoolProcess, start_rank: StartRank, model: Path
) -> None:
    """The hash of a pipe is known when something has been written there."""
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    before = shared_pool.number("operations")
    memory, rank = HostMemory(), start_rank(waits=False)
    assert not any(save(rank, memory))
    assert load(rank, memory) == rank.exists(KEYS, None) == 0
    assert shared_pool.number("operations") == before
    (model / "model.safetensors").write_bytes(os.urandom(16))
    wait_until(lambda: all(save(rank, memory)), "the hash of the weights")
    assert load(rank, memory) == 8


def test_weights_that_nobody_can_read_are_never_shared(
    shared_pool: PoolProcess, start_rank: StartRank, model: Path
) -> None:
    (model / "model.safetensors").unlink()
    memory, rank = HostMemory(), start_rank()
    assert rank.obstacle is not None
    assert rank.obstacle.state is SharingState.WEIGHTS_UNKNOWN
    assert not any(save(rank, memory))
    assert load(rank, memory) == rank.exists(KEYS, None) == 0
    with pytest.raises(StartupError, match="strict"):
        start_rank(settings={"strict": True})
    named = start_rank(settings={"weights_id": model.parent.name})
    assert all(save(named, memory))
    assert load(start_rank(settings={"weights_id": model.parent.name}), memory) == 8
    assert load(start_rank(settings={"weights_id": "another"}), memory) == 0


def test_t10_weights_that_change_in_memory_are_not_shared_any_more(
    shared_pool: PoolProcess, start_rank: StartRank
) -> None:
    changed = threading.Event()
    memory, rank = HostMemory(), start_rank(have_changed=changed.is_set)
    same = start_rank(have_changed=changed.is_set, settings={"keep_on_reset": True})
    assert all(save(rank, memory))
    changed.set()
    assert load(rank, memory) == rank.exists(KEYS, None) == 0
    assert not any(save(rank, memory))
    assert rank.obstacle is not None
    assert load(same, memory) == 8, "its operator says that they are the same"


@pytest.mark.parametrize(
    "unlike",
    [
        {"ranks": {"tp_rank": 1, "tp_size": 2}},
        {"ranks": {"pp_rank": 1, "pp_size": 2}},
        {"arguments": {"kv_cache_dtype": "fp8_e4m3"}},
        {"arguments": {"attention_backend": "other"}},
        {"memory": {**MEMORY, "layout": "page_first"}},
        {"shape": PageShape(32, SHAPE.pieces)},
        {"settings": {"realm": "other"}},
        {"settings": {"weights_id": "other"}},
    ],
    ids=lambda unlike: str(next(iter(unlike))),
)
def test_t10_t11_an_engine_that_is_unlike_finds_nothing(
    shared_pool: PoolProcess, start_rank: StartRank, unlike: dict[str, object]
) -> None:
    memory = HostMemory()
    assert all(save(start_rank(), memory))
    other = start_rank(**unlike)
    assert load(other, memory) == other.exists(KEYS, None) == 0


def test_t10_other_weights_find_nothing(
    shared_pool: PoolProcess, start_rank: StartRank, model: Path
) -> None:
    memory = HostMemory()
    assert all(save(start_rank(), memory))
    (model / "model.safetensors").write_bytes(b"others!")
    assert load(start_rank(), memory) == 0


def test_where_ranks_have_the_same_one_stores_it_for_all(
    shared_pool: PoolProcess, start_rank: StartRank
) -> None:
    memory = HostMemory()
    ranks = [
        start_rank(ranks={"tp_rank": rank, "tp_size": 2}, is_shared_by_ranks=True)
        for rank in range(2)
    ]
    assert all(save(ranks[0], memory))
    assert load(ranks[1], memory) == 8
    assert load(start_rank(ranks={"tp_size": 4}, is_shared_by_ranks=True), memory) == 0


def test_t40_pages_that_are_not_as_declared_are_not_touched(
    shared_pool: PoolProcess, start_rank: StartRank
) -> None:
    memory, rank = HostMemory(), start_rank()
    assert all(save(rank, memory))
    addresses, sizes = memory.meta(THERE)
    before = bytes(memory.view)
    shorter = [*sizes[:-1], sizes[-1] - 1]
    for wrong in ((addresses, shorter), (addresses[:-1], sizes[:-1]), ([0, *addresses[1:]], sizes)):
        assert not any(rank.load(KEYS, *wrong))
        assert not any(rank.save(KEYS, [], *wrong))
    assert bytes(memory.view) == before


@pytest.mark.parametrize("odd", ["not hex", KEYS[0][:-2], KEYS[0] + "00", ""])
def test_t39_names_that_are_no_digests_are_misses(
    shared_pool: PoolProcess, start_rank: StartRank, odd: str
) -> None:
    memory, rank = HostMemory(), start_rank()
    meta = memory.meta(range(2))
    assert rank.exists([KEYS[0], odd], None) == 0
    assert rank.exists(KEYS[:2], [odd]) == 0
    assert not any(rank.load([KEYS[0], odd], *meta))
    assert not any(rank.save([KEYS[0], odd], [], *meta))
    assert not any(rank.save(KEYS[:2], [odd], *meta))


def test_without_a_pool_an_engine_serves_or_does_not_start(start_rank: StartRank) -> None:
    memory, rank = HostMemory(), start_rank()
    assert not any(save(rank, memory))
    assert load(rank, memory) == rank.exists(KEYS, None) == 0
    with pytest.raises(StartupError, match="no pool answers"):
        start_rank(settings={"no_pool": "fail"})
