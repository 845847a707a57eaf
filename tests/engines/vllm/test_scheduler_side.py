"""The scheduler's side against a real pool, with vLLM's own requests and no engine."""

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.engines.boundary import Boundary
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.lookups import LoadLimits
from forebay.engines.scheduling.request_load import ASKED
from forebay.engines.step import EVERYTHING
from forebay.engines.vllm.metadata import StepMetadata
from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.pool.client import Chain
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Cancel, ChunkRun, Commit, Reserve, Reserved
from forebay.record.header import payload_hash
from forebay.sys import sockets
from forebay.sys.clock import Clock
from forebay.tiers.dram.slab import slot_bytes_for

pytestmark = pytest.mark.vllm
SHAPE = Geometry(("layer",), page_bytes=4096, block_tokens=16, chunk_blocks=4)
ROOT = ChainRoot(b"n" * 32, SHAPE.chunk_tokens)
CHUNKS = 4
LIMITS = LoadLimits(16, 60_000, 60_000)  # a busy machine answers late


class Output:
    """What vLLM's scheduler says of a step in which nothing is computed."""

    scheduled_new_reqs: tuple[()] = ()
    preempted_req_ids: tuple[()] = ()
    finished_req_ids: tuple[()] = ()
    total_num_scheduled_tokens = 0
    num_scheduled_tokens: dict[str, int] = {}  # noqa: RUF012 - never changed

    class scheduled_cached_reqs:  # noqa: N801 - vLLM's name
        req_ids: tuple[()] = ()
        new_block_ids: tuple[()] = ()
        num_computed_tokens: tuple[()] = ()
        resumed_req_ids: tuple[()] = ()


def request_of(tokens: list[int], name: str = "request") -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(name, tokens, SamplingParams(max_tokens=1), None)


def fill(pool: PoolProcess) -> None:
    keys = KeyChain(ROOT).extend(list(range(CHUNKS * SHAPE.chunk_tokens)))
    payloads = [bytes([number]) * SHAPE.chunk_bytes for number in range(CHUNKS)]
    with PatientClient(pool.socket) as client:
        assert client.store(Chain(ROOT.namespace, keys), payloads).stored == CHUNKS


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    """A pool whose chunks are on a slow disk."""
    slow = ("--fault", "read:latency=300ms")
    with short_directory() as place, running_pool(place, *slow, faulty=True) as pool:
        fill(pool)
        pool.stop()
        pool.start()
        yield pool


@pytest.fixture
def hanging() -> Iterator[PoolProcess]:
    """A pool whose chunks are on a disk that answers no read while it has this fault."""
    with short_directory() as place:
        (place / "faults").write_text("")
        with running_pool(place, "--faults-file", str(place / "faults"), faulty=True) as pool:
            fill(pool)
            pool.stop()
            pool.start()
            (place / "faults").write_text("read:hang")
            pool.signal(signal.SIGHUP)
            wait_until(lambda: "1 faults are on" in pool.log.read_text(), "the fault")
            yield pool


@pytest.fixture
def near() -> Iterator[PoolProcess]:
    """A pool that has them in DRAM."""
    with short_directory() as place, running_pool(place, disk=False) as pool:
        fill(pool)
        yield pool


def side_of(pool: PoolProcess) -> SchedulerConnector:
    side = SchedulerConnector(PoolSession(pool.socket, Clock(), maps_slab=False), SHAPE, LIMITS)
    side.join()
    side.root = ROOT
    return side


def both_promised(side: SchedulerConnector, tokens: tuple[int, int]) -> list[Any]:
    """Two requests that share their first chunks, each with a promise of so many tokens."""
    shared = list(range(CHUNKS * SHAPE.chunk_tokens))
    requests = [request_of([*shared[:n], 7], f"request {n}") for n in tokens]
    if tokens[0] == tokens[1]:
        requests[1].request_id += " again"
    for request in requests:
        side.arrived(request)
    until = time.monotonic() + HANG_S
    while any(side._requests[each.request_id].load.promise is None for each in requests):
        assert time.monotonic() < until
        for each in requests:
            if side._requests[each.request_id].load.state is not ASKED:
                side.matched(each, 0)
        side.begin_step(Output)
    return requests


def asked(side: SchedulerConnector, request: Any, computed: int) -> int:
    """Ask as the scheduler does, until it is told a number."""
    until = time.monotonic() + HANG_S
    while True:
        tokens, _ = side.matched(request, computed)
        if tokens is not None:
            return tokens
        assert time.monotonic() < until
        side.begin_step(Output)


def test_a_welcome_that_comes_behind_the_look_for_it_loses_no_lookup(near: PoolProcess) -> None:
    """What is looked up in a session that is not known to be new was forgotten, and never told."""
    session = PoolSession(near.socket, Clock(), maps_slab=False)
    side = SchedulerConnector(session, SHAPE, LIMITS)
    side.root = ROOT
    look = session.poll

    def look_too_early() -> bool:
        has_changed = look()
        if session.is_joining and session.connection is not None:
            sockets.wait(session.connection._connection, write=False, timeout_s=HANG_S)
        return has_changed

    session.poll = look_too_early  # type: ignore[method-assign]
    side.begin_step(Output)
    assert side.is_joined
    request = request_of(list(range(CHUNKS * SHAPE.chunk_tokens + 1)))
    side.arrived(request)
    assert asked(side, request, 0) == CHUNKS * SHAPE.chunk_tokens
    assert side.counts["lookups"] == 1
    assert side.counts["pool.joined"] == 1
    side.finished(request.request_id)
    wait_until(lambda: not near.stats()["requests"]["active"], "the pool to forget the request")
    side.close()


def test_blocks_that_are_lost_between_ask_and_promise_are_loaded_too(
    hanging: PoolProcess,
) -> None:
    side = side_of(hanging)
    request = request_of(list(range(CHUNKS * SHAPE.chunk_tokens + 1)))
    side.arrived(request)
    while (
        side.matched(request, SHAPE.chunk_tokens)[0] is None
        and not side.counts["asked_again.reading"]
    ):
        side.begin_step(Output)
    assert side.counts["asked_again.reading"], "the promise is on its way"
    (hanging.place / "faults").write_text("")
    hanging.signal(signal.SIGHUP)  # the disk goes on
    assert asked(side, request, 0) == CHUNKS * SHAPE.chunk_tokens
    blocks = list(range(100, 100 + CHUNKS * SHAPE.chunk_blocks))
    side.allocated(request, [blocks], CHUNKS * SHAPE.chunk_tokens)
    loaded: list[int] = []
    until = time.monotonic() + HANG_S
    while len(loaded) < len(blocks):
        assert time.monotonic() < until
        for load in side.begin_step(Output).loads:
            assert not load.failed
            loaded += [block for piece in load.pieces for block in piece.blocks]
    assert loaded == blocks, "every block of the hit, and each once"
    side.close()


def test_a_promise_with_a_hole_before_it_is_a_failed_load(pool: PoolProcess) -> None:
    side = side_of(pool)
    request = request_of(list(range(CHUNKS * SHAPE.chunk_tokens + 1)))
    side.arrived(request)
    tokens = asked(side, request, SHAPE.chunk_tokens)
    side._requests["request"].load.computed = 0  # as if the scheduler had changed its mind
    side.allocated(request, [list(range(100, 116))], tokens)
    loads = side.begin_step(Output).loads
    assert loads[0].is_last
    assert loads[0].failed
    side.close()


def test_two_with_the_same_promise_load_it_once(pool: PoolProcess) -> None:
    side, whole = side_of(pool), CHUNKS * SHAPE.chunk_tokens
    first, second = both_promised(side, (whole, whole))
    assert side.matched(first, 0) == (whole, True)
    side.allocated(first, [list(range(100, 100 + CHUNKS * SHAPE.chunk_blocks))], whole)
    for _ in range(3):
        assert side.matched(second, 0) == (None, False), "what it waits for is being copied"
        assert side._requests[second.request_id].load.promise is None, (
            "and it holds nothing meanwhile"
        )
        side.begin_step(Output)
    assert side.begin_step(Output).loads == []
    side.reported(None, [first.request_id], set())
    assert asked(side, second, whole) == 0, "now the engine has it itself"
    assert side.counts["loads"] == 1
    side.close()


def test_one_with_more_to_load_does_not_wait_for_another(pool: PoolProcess) -> None:
    side, whole, part = side_of(pool), CHUNKS * SHAPE.chunk_tokens, 2 * SHAPE.chunk_tokens
    first, second = both_promised(side, (part, whole))
    assert side.matched(first, 0) == (part, True)
    side.allocated(first, [list(range(100, 100 + 2 * SHAPE.chunk_blocks))], part)
    assert side.matched(second, 0) == (whole, True)
    side.close()


def test_one_that_waits_for_its_turn_holds_nothing_that_another_needs(near: PoolProcess) -> None:
    """All that asks may hold, wanted by one that the scheduler has not come to."""
    namespace, size = ROOT.namespace, SHAPE.chunk_bytes
    count = near.number("cap_bytes", tier="dram") // 2 // slot_bytes_for(size)
    tokens = [10**6 + number for number in range(count * SHAPE.chunk_tokens)]
    with PatientClient(near.socket) as client:
        chain = Chain(namespace, KeyChain(ROOT).extend(tokens))
        assert client.store(chain, [bytes(size)] * count).stored == count
    queued, due = side_of(near), side_of(near)
    queued.arrived(request_of([*tokens, 7], "queued"))
    wait_until(lambda: queued.begin_step(Output) and near.number("requests_active"), "its arrival")
    request = request_of(list(range(CHUNKS * SHAPE.chunk_tokens + 1)))
    due.arrived(request)
    assert asked(due, request, 0) == CHUNKS * SHAPE.chunk_tokens
    queued.close()
    due.close()


class New:
    """What vLLM's scheduler says of a request that it schedules for the first time."""

    req_id, block_ids, num_computed_tokens = "request", ([5, 6, 7, 8],), 0


class Computed(Output):
    """A step in which a request computes its first chunk."""

    scheduled_new_reqs = (New,)  # type: ignore[assignment]
    num_scheduled_tokens = {"request": SHAPE.chunk_tokens}  # noqa: RUF012 - never changed
    total_num_scheduled_tokens = SHAPE.chunk_tokens


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "preempted"])
def test_t14_a_store_whose_blocks_are_free_is_known(near: PoolProcess, ends: bool) -> None:
    side = side_of(near)
    side.arrived(request_of([8] * (SHAPE.chunk_tokens + 1)))
    step = side.begin_step(Computed)
    side.add_stores(step, Computed)
    assert not step.stores, "it is offered"
    if ends:
        side.finished("request")
    else:
        side._preempted("request")
    wait_until(lambda: side.begin_step(Output) and side._stores._with_slot, "the pool's answer")
    step = side.begin_step(Output)
    side.add_stores(step, Output)
    assert [store.is_freed for store in step.stores] == [True]
    side.close()


def computed_of(name: str, blocks: list[int]) -> type[Output]:
    """A step in which a request computes its first chunk in these blocks."""

    class NewOne(New):
        req_id, block_ids = name, (blocks,)

    class ComputedOne(Computed):
        scheduled_new_reqs = (NewOne,)
        num_scheduled_tokens = {name: SHAPE.chunk_tokens}  # noqa: RUF012 - never changed

    return ComputedOne


def stored(side: SchedulerConnector, name: str, blocks: list[int], token: int) -> StepMetadata:
    """The step in which a new request's first chunk is stored."""
    side.arrived(request_of([token] * (2 * SHAPE.chunk_tokens + 1), name))
    output = computed_of(name, blocks)
    side.add_stores(side.begin_step(output), output)
    return next_stored(side)


def next_stored(side: SchedulerConnector) -> StepMetadata:
    wait_until(lambda: side.begin_step(Output) and side._stores._with_slot, "the pool's answer")
    step = side.begin_step(Output)
    side.add_stores(step, Output)
    assert [store.is_freed for store in step.stores] == [False]
    return step


@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize("field", ["finished_req_ids", "preempted_req_ids"])
def test_t14_workers_are_told_up_to_which_step_freed_blocks_are_stored(
    near: PoolProcess, field: str, is_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = side_of(near)
    stored(side, "a", [5, 6, 7, 8], 9)
    first = stored(side, "b", [15, 16, 17, 18], 10)
    side._requests["a"].tables[0] += [9, 10, 11, 12]
    side._requests["a"].store.offered = 2
    side._stores.offer([side._requests["a"]])
    last = next_stored(side)
    stored(side, "c", [25, 26, 27, 28], 11)
    if is_reset:
        side.reset()
    freed = []
    for gone in (set(), {"another"}, {"another", "a", "b"}, {"a", "b"}):
        monkeypatch.setattr(Output, field, gone)
        freed.append(side.begin_step(Output).freed)
    assert first.number < last.number
    assert freed == [0, 0, last.number, 0], "the last step that stored of either"
    assert StepMetadata().freed == EVERYTHING, "what workers get where our side has failed"
    side.close()


def fails(*_: object) -> None:
    raise RuntimeError


@pytest.mark.parametrize("where", ["_listen", "_follow"])
def test_t14_after_a_step_that_could_not_be_built_nothing_of_before_is_stored(
    near: PoolProcess, where: str
) -> None:
    """The forward of that step may have written blocks that we think are a request's."""
    side, boundary = side_of(near), Boundary()
    side.arrived(request_of([12] * (2 * SHAPE.chunk_tokens + 1)))
    side.build(Computed, boundary)
    wait_until(lambda: side.begin_step(Output) and side._stores._with_slot, "the pool's answer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side, where, fails)
        assert side.build(Output, boundary) == StepMetadata()
    assert boundary.failures == 1
    for _ in range(3):
        assert not side.build(Computed, boundary).stores
    wait_until(lambda: not near.held()["leased_slots"], "slots to be given back")
    side.close()


KNOWN = CHUNKS * SHAPE.chunk_tokens


class Begun(Computed):
    """A step in which a request begins the chunk behind those that the pool knows."""

    class NewOne(New):
        block_ids, num_computed_tokens = (list(range(17)),), KNOWN

    scheduled_new_reqs = (NewOne,)
    num_scheduled_tokens = {"request": 10}  # noqa: RUF012 - never changed


class Ended(Output):
    """A later one, in which it ends that chunk."""

    num_scheduled_tokens = {"request": SHAPE.chunk_tokens - 10}  # noqa: RUF012 - never changed

    class scheduled_cached_reqs:  # noqa: N801 - vLLM's name
        req_ids = ("request",)
        new_block_ids = (([17, 18, 19],),)
        num_computed_tokens = (KNOWN + 10,)
        resumed_req_ids = ()


@pytest.mark.parametrize("is_lost", [True, False])
def test_t14_a_request_whose_blocks_are_not_known_any_more_is_not_stored(
    near: PoolProcess, is_lost: bool
) -> None:
    side, boundary = side_of(near), Boundary()
    side.arrived(request_of([*range(KNOWN), *[14] * (SHAPE.chunk_tokens + 1)]))
    tracked = side._requests["request"]
    wait_until(lambda: side.begin_step(Output) and tracked.store.stored == CHUNKS, "what is known")
    side.build(Begun, boundary)
    if is_lost:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(side, "_listen", fails)
            side.build(Output, boundary)
    side.build(Ended, boundary)
    assert tracked.store.stored == CHUNKS + (not is_lost)
    side.close()


def test_t14_what_is_freed_when_stores_could_not_be_told_is_never_stored(near: PoolProcess) -> None:
    side, boundary = side_of(near), Boundary()
    side.arrived(request_of([13] * (SHAPE.chunk_tokens + 1)))
    side.build(Computed, boundary)
    wait_until(lambda: side.begin_step(Output) and side._stores._with_slot, "the pool's answer")
    side.finished("request")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side._stores, "next_stores", fails)
        assert side.build(Output, boundary).number, "what was asked for is loaded"
    assert boundary.failures == 1
    assert not side.build(Output, boundary).stores
    wait_until(lambda: not near.held()["leased_slots"], "slots to be given back")
    side.close()


def test_a_pool_that_goes_and_comes_is_noticed_however_busy_the_engine_is(
    pool: PoolProcess,
) -> None:
    side = side_of(pool)
    request = request_of([9] * (CHUNKS * SHAPE.chunk_tokens + 1))  # nobody knows it
    side.arrived(request)
    tracked = side._requests["request"]

    def steps_until(is_so: Callable[[], bool], what: str) -> None:
        def step() -> bool:
            side.matched(request, 0)  # every step asks before it is built
            side.begin_step(Output)
            return is_so()

        wait_until(step, what)

    steps_until(lambda: tracked.load.found is not None, "an answer")
    pool.signal(signal.SIGSTOP)
    tracked.tables, tracked.store.offered = [list(range(16))], 1
    side._stores.offer([tracked])  # never answered
    pool.kill()
    side._pool.post(Cancel(999))  # the first to notice
    steps_until(lambda: not side._pool.is_joined, "the pool to be missed")
    assert side.counts["pool.lost"] == 1
    pool.start()
    steps_until(lambda: side._pool.is_joined, "the next pool")
    steps_until(lambda: side.counts["pool.joined"] == 1, "being told of it")
    tracked.store.offered = 1
    side._stores.offer([tracked])
    steps_until(lambda: bool(side._stores.next_stores(1)), "a slot of the next pool")
    side.close()


def test_tokens_that_are_only_drafted_are_not_stored(near: PoolProcess) -> None:
    """The chunk ends in drafts that a step computes; some of them are accepted after it."""
    side, request = side_of(near), request_of([15] * (SHAPE.chunk_tokens - 2))
    side.arrived(request)
    tracked = side._requests["request"]

    class Drafted(Computed):
        num_scheduled_tokens = {"request": SHAPE.chunk_tokens + 2}  # noqa: RUF012 - never changed

    side.add_stores(side.begin_step(Drafted), Drafted)
    assert tracked.store.stored == 0, "its last two tokens are not known"
    request.append_output_token_ids([15, 15, 15])  # a draft was accepted

    class Accepted(Output):
        num_scheduled_tokens = {"request": 4}  # noqa: RUF012 - never changed

        class scheduled_cached_reqs:  # noqa: N801 - vLLM's name
            req_ids = ("request",)
            new_block_ids = (None,)
            num_computed_tokens = (SHAPE.chunk_tokens,)
            resumed_req_ids = ()

    side.add_stores(side.begin_step(Accepted), Accepted)
    assert tracked.store.stored == 1
    assert tracked.keys == KeyChain(ROOT).extend([15] * SHAPE.chunk_tokens)
    side.close()


class Storing:
    """Another engine, which has a slot for each chunk of a prompt and has not committed them."""

    def __init__(self, pool: PoolProcess, tokens: list[int]) -> None:
        self.session = PoolSession(pool.socket, Clock())
        assert self.session.wait_until_joined(time.monotonic() + HANG_S)
        self.session.poll()
        self.keys = KeyChain(ROOT).extend(tokens)
        names = (ROOT.namespace, 0, bytes(32), b"".join(self.keys))
        self.session.post(Reserve(1, [ChunkRun(*names, SHAPE.chunk_bytes)]))
        answer = self.session.take(time.monotonic() + HANG_S)
        assert isinstance(answer, Reserved)
        self.offsets = answer.answers
        assert min(self.offsets) >= 0

    def commit(self) -> None:
        slab, digests = self.session.slab, []
        assert slab is not None
        for offset in self.offsets:
            slot = slab.view(offset, SHAPE.chunk_bytes)
            assert slot is not None
            slot[:] = bytes(SHAPE.chunk_bytes)
            digests.append(payload_hash(bytes(SHAPE.chunk_bytes)))
        self.session.post(Commit(self.session.generation, self.offsets, b"".join(digests)))

    def abort(self) -> None:
        self.session.abort(self.session.generation, self.offsets)


@pytest.mark.parametrize(("is_kept", "expected"), [(True, CHUNKS * 64), (False, 0)])
def test_what_another_engine_just_computed_is_waited_for(
    near: PoolProcess, is_kept: bool, expected: int
) -> None:
    tokens = list(range(5000, 5000 + CHUNKS * SHAPE.chunk_tokens))
    other, side = Storing(near, tokens), side_of(near)
    request = request_of([*tokens, 7])
    request.kv_transfer_params = {"forebay": {"computed_tokens": len(tokens) + 1}}
    side.arrived(request)
    until = time.monotonic() + HANG_S
    while not side.counts["asked_again.coming"]:
        assert side.matched(request, 0) == (None, False)
        side.begin_step(Output)
        assert time.monotonic() < until
    (other.commit if is_kept else other.abort)()
    assert asked(side, request, 0) == expected
    side.finished("request")
    side.close()
    other.session.close()


def test_what_the_engine_has_itself_is_not_waited_for_though_another_stores_it(
    near: PoolProcess,
) -> None:
    tokens = list(range(5000, 5000 + CHUNKS * SHAPE.chunk_tokens))
    other, side = Storing(near, tokens), side_of(near)
    request = request_of([*tokens, 7])
    request.kv_transfer_params = {"forebay": {"computed_tokens": len(tokens) + 1}}
    side.arrived(request)
    until = time.monotonic() + HANG_S
    while not side.counts["asked_again.coming"]:
        assert side.matched(request, len(tokens) - LIMITS.min_tokens) == (None, False)
        side.begin_step(Output)
        assert time.monotonic() < until
    assert side.matched(request, len(tokens)) == (0, False)
    side.close()
    other.abort()
    other.session.close()


def test_a_request_whose_end_cannot_be_told_is_forgotten_all_the_same(near: PoolProcess) -> None:
    side = side_of(near)
    request = request_of([*range(CHUNKS * SHAPE.chunk_tokens), 7])
    side.arrived(request)
    assert asked(side, request, 0) == CHUNKS * SHAPE.chunk_tokens
    request.get_finished_reason = None  # as a release may have it that we do not know
    with pytest.raises(TypeError):
        side.finished("request")
    assert not side._requests
    assert not len(side._lookups)
    side.begin_step(Output)
    wait_until(lambda: not near.number("pinned_chunks"), "the pool to have its slots again")
    side.close()


def test_nothing_is_waited_for_where_nobody_says_that_it_was_computed(near: PoolProcess) -> None:
    tokens = list(range(5000, 5000 + CHUNKS * SHAPE.chunk_tokens))
    other, side = Storing(near, tokens), side_of(near)
    request = request_of([*tokens, 7])
    side.arrived(request)
    assert asked(side, request, 0) == 0
    assert not side.counts["asked_again.coming"]
    side.close()
    other.abort()
    other.session.close()


def test_t14_loads_of_a_step_that_could_not_be_built_come_with_the_next(
    near: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, boundary = side_of(near), Boundary()
    request = request_of(list(range(CHUNKS * SHAPE.chunk_tokens + 1)))
    side.arrived(request)
    tokens = asked(side, request, 0)
    side.allocated(request, [list(range(CHUNKS * SHAPE.chunk_blocks))], tokens)

    def broken() -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(side.reporter, "send", broken)
        assert side.build(Output, boundary) == StepMetadata()
    (load,) = side.build(Output, boundary).loads
    assert load.request == "request"
    assert load.is_last
    assert len(load.pieces) == CHUNKS
    side.close()
