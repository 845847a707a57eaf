"""What becomes of offers, whatever the pool answers and in whichever order."""

import socket
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from forebay.engines.codec.backoff import RawBackoff
from forebay.engines.copies.contract import DOES_NOT_FIT
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.error_budget import ErrorBudget
from forebay.engines.scheduling.lookups import LoadLimits, Lookups
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.scheduling.stores import EngineStores
from forebay.identity.keys import ChainRoot
from forebay.pool import wire
from forebay.pool.client.connection import PoolConnection
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Abort, Found, Reserve, ReserveAnswer, Reserved
from forebay.sys.clock import Clock

SHAPE = Geometry(("layer",), page_bytes=4096, block_tokens=16, chunk_blocks=1)
ROOT = ChainRoot(b"n" * 32, SHAPE.chunk_tokens)


@pytest.fixture
def pool() -> PoolSession:
    """A member of a pool that hears nothing."""
    session = PoolSession("/nowhere", Clock(), maps_slab=False)
    session.generation = 1
    return session


@pytest.fixture
def tracked() -> TrackedRequest:
    """A request of eight chunks that is being computed."""
    tokens = list(range(8 * SHAPE.chunk_tokens))
    request = SimpleNamespace(request_id="request", all_token_ids=tokens)
    tracked = TrackedRequest(request, SHAPE, ROOT)
    tracked.tables = [list(range(8))]
    tracked.extend()
    return tracked


def test_no_to_what_continues_a_chunk_without_a_slot_is_not_for_ever(
    pool: PoolSession, tracked: TrackedRequest
) -> None:
    stores = EngineStores(pool, SHAPE, Counter())
    for computed in (4, 6):  # the second before the first is answered
        tracked.store.offered = computed
        stores.offer([tracked])
    stores.answered(
        Reserved(1, 1, [0, ReserveAnswer.LATER, ReserveAnswer.LATER, ReserveAnswer.LATER])
    )
    stores.answered(Reserved(2, 1, [ReserveAnswer.NO, ReserveAnswer.NO]))
    assert tracked.store.is_wanted, "the pool only does not know the chunk before"
    assert (tracked.store.stored, tracked.store.offered) == (1, 1)
    tracked.store.offered = 6
    stores.offer([tracked])
    stores.answered(Reserved(3, 1, [ReserveAnswer.NO] * 5))
    assert not tracked.store.is_wanted


def test_what_a_reset_drops_is_given_back_and_offered_again(
    pool: PoolSession, tracked: TrackedRequest
) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pool.connection = PoolConnection(ours, Clock())
    reader = wire.client_reader()

    def given_back() -> list[int]:
        reader.feed(theirs.recv(1 << 16))
        said = [each for each in reader.messages() if isinstance(each, Abort)]
        return [offset for each in said for offset in each.offsets]

    stores = EngineStores(pool, SHAPE, Counter())
    for computed in (2, 4):  # the second is not answered before the reset
        tracked.store.offered = computed
        stores.offer([tracked])
    stores.answered(Reserved(1, 1, [0, 4096]))
    stores.drop_offers()
    assert given_back() == [0, 4096]
    assert not stores.next_stores(1)
    stores.answered(Reserved(2, 1, [8192, 12288]))
    assert given_back() == [8192, 12288], "those that come late too"
    assert not stores.next_stores(2)
    assert not stores.has_work
    assert (tracked.store.stored, tracked.store.offered) == (0, 0)
    ours.close()
    theirs.close()


def test_after_a_chunk_without_a_slot_few_are_offered_and_more_as_they_are_taken(
    pool: PoolSession,
) -> None:
    stores = EngineStores(pool, SHAPE, Counter())
    tokens = list(range(400 * SHAPE.chunk_tokens))
    request = SimpleNamespace(request_id="request", all_token_ids=tokens)
    tracked = TrackedRequest(request, SHAPE, ROOT)
    tracked.tables = [list(range(400))]

    def offered() -> int:
        tracked.store.offer_at = 0.0  # a while later
        before = tracked.store.stored
        stores.offer(stores.completed([(tracked, len(tokens))]))
        return tracked.store.stored - before

    assert offered() == 400
    stores.answered(Reserved(1, 1, [ReserveAnswer.LATER] * 400))
    assert offered() == 8
    assert offered() == 0, "what follows them is not offered before they are answered"
    stores.answered(Reserved(2, 1, [ReserveAnswer.HAVE] * 6 + [0, ReserveAnswer.LATER]))
    assert offered() == 8
    stores.answered(Reserved(3, 1, [ReserveAnswer.HAVE] * 8))
    assert offered() == 400 - 15


def test_what_the_pool_has_lost_since_the_lookup_is_stored_again(
    pool: PoolSession, tracked: TrackedRequest
) -> None:
    lookups = Lookups(
        pool,
        SHAPE,
        LoadLimits(16, 5, 5),
        budget=ErrorBudget(Counter()),
        counts=Counter(),
        requests={},
    )
    lookups.look_up(tracked)
    lookups.answered(Found(tracked.load.number, 6, 0))
    assert tracked.store.stored == 6
    lookups.answered(Found(tracked.load.number, 2, 2))
    assert (tracked.store.stored, tracked.store.offered) == (2, 0)


def test_what_does_not_fit_is_offered_again_raw_and_more_of_what_follows_each_time(
    pool: PoolSession, tracked: TrackedRequest
) -> None:
    """Runs of one length each, of which every one continues the one before."""
    shape, counts = replace(SHAPE, is_encoded=True), Counter[str]()
    whole, raw = shape.record_bytes(1), shape.record_bytes(1, is_raw=True)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pool.connection = PoolConnection(ours, Clock())
    reader = wire.client_reader()
    stores = EngineStores(pool, shape, counts)

    def offered(batch: int) -> list[tuple[int, int]]:
        """Chunks and length of each run; they are all given slots, and told to the workers."""
        tracked.store.offered = 8
        stores.offer([tracked])
        reader.feed(theirs.recv(1 << 16))
        (asked,) = [each for each in reader.messages() if isinstance(each, Reserve)]
        parents = [run.parent for run in asked.runs]
        ends = [run.keys[-32:] for run in asked.runs]
        assert parents[1:] == ends[:-1]
        counted = [len(run.keys) // 32 for run in asked.runs]
        stores.answered(Reserved(batch, 1, [4096 * n for n in range(sum(counted))]))
        return list(zip(counted, [run.length for run in asked.runs], strict=True))

    def copied(digests: list[bytes]) -> None:
        """The workers are done with all that is being copied."""
        told = stores.next_stores(1)
        assert len(told) == len(digests)
        stores.copied({each.serial: {0: told} for each, told in zip(told, digests, strict=True)})

    digest = b"d" * 16
    assert offered(1) == [(8, whole)]
    copied([digest, DOES_NOT_FIT, *[digest] * 6])
    assert counts["stores.unfit"] == 1
    assert (tracked.store.stored, tracked.store.raw) == (1, {1})
    assert offered(2) == [(1, raw), (6, whole)]
    copied([digest, *[DOES_NOT_FIT] * 6])
    assert tracked.store.stored == 2
    tracked.store.raw.clear()
    assert offered(3) == [(6, raw)], "after six in a row none is tried for a while"
    ours.close()
    theirs.close()


def test_one_that_fits_ends_the_patience() -> None:
    backoff = RawBackoff()
    assert not backoff.is_raw()
    for left in (1, 2, 4, 8, 16, 32, 64, 64):
        backoff.tried(is_fit=False)
        assert [backoff.is_raw() for _ in range(left + 1)] == [True] * left + [False]
    backoff.tried(is_fit=True)
    assert not backoff.is_raw()
    backoff.tried(is_fit=False)
    assert [backoff.is_raw() for _ in range(2)] == [True, False]
