"""F8: what a hostile client can do with the slab, which it maps for writing.

Each attack goes against a pool in a process of its own. A pool that is stopped while a commit and
the write behind it happen sees both in the attacker's order, however busy the machine is.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clocks import SlowClock
from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    count_exact,
    made,
    running_pool,
    short_directory,
)

from forebay.pool.client.chain import Chain
from forebay.pool.client.session import PoolSession, join
from forebay.pool.messages import Commit, Committed, Reserve, Reserved
from forebay.record.header import payload_hash
from forebay.testing.samples import Sample

CHUNKS = 40
LENGTH = 100_000


@pytest.fixture(name="place")
def made_place() -> Iterator[Path]:
    with short_directory() as place:
        yield place


@contextmanager
def attacker(pool: PoolProcess) -> Iterator[PoolSession]:
    """A client that says what it likes."""
    clock = SlowClock()
    session = join(pool.socket, "attacker", clock, clock.monotonic() + HANG_S)
    assert isinstance(session, PoolSession), session
    try:
        yield session
    finally:
        session.close()


def store_and_overwrite(
    pool: PoolProcess, link: PoolSession, label: str
) -> tuple[list[Sample], Chain]:
    """Commit chunks with their digests, and write other bytes before the pool can see them."""
    chunks, chain = made(label, CHUNKS, LENGTH)
    until = SlowClock().monotonic() + HANG_S
    link.post(Reserve(1, chain.runs([(position, LENGTH) for position in range(CHUNKS)])))
    reserved = link.take(until)
    assert isinstance(reserved, Reserved)
    assert link.slab is not None
    views = [link.slab.view(offset, LENGTH) for offset in reserved.answers]
    for view, chunk in zip(views, chunks, strict=True):
        assert view is not None
        view[:] = chunk.payload
    digests = b"".join(payload_hash(chunk.payload) for chunk in chunks)
    pool.signal(signal.SIGSTOP)
    link.post(Commit(link.generation, reserved.answers, digests))
    for view in views:
        assert view is not None
        view[: LENGTH // 2] = b"\x66" * (LENGTH // 2)
        view.release()
    pool.signal(signal.SIGCONT)
    committed = link.take(until)
    assert committed == Committed(CHUNKS)
    return chunks, chain


def served(pool: PoolProcess, chunks: list[Sample], chain: Chain) -> int:
    """How many chunks the pool hands to somebody else, every one exact."""
    with PatientClient(pool.socket) as client, client.load(chain) as loaded:
        return count_exact(loaded, chunks)


def test_t58_what_is_written_behind_a_commit_is_never_served_from_disk(place: Path) -> None:
    """F8: such bytes were hashed as truth, and served after a restart, 380 of 380."""
    with running_pool(place) as pool:
        with attacker(pool) as link:
            chunks, chain = store_and_overwrite(pool, link, "overwritten")
        honest, honest_chain = made("honest", CHUNKS, LENGTH)
        with PatientClient(pool.socket) as client:
            receipt = client.store(honest_chain, [chunk.payload for chunk in honest])
            assert receipt.stored == CHUNKS
        assert pool.stop() == 0  # which writes everything
        pool.start()
        assert served(pool, chunks, chain) == 0
        assert served(pool, honest, honest_chain) == CHUNKS


def test_t58_what_is_written_behind_a_commit_is_never_served_by_verify_dram(place: Path) -> None:
    """F8: with `--verify-dram` too: the digest was of what had been overwritten."""
    with running_pool(place, "--verify-dram", disk=False) as pool:
        with attacker(pool) as link:
            chunks, chain = store_and_overwrite(pool, link, "overwritten")
        assert served(pool, chunks, chain) == 0


def test_a_commit_without_a_digest_for_each_slot_gives_the_slots_back(place: Path) -> None:
    """F8: a chunk without its producer's digest could not be verified."""
    chunks, chain = made("undigested", 3, LENGTH)
    until = SlowClock().monotonic() + HANG_S
    with running_pool(place, "--verify-dram", disk=False) as pool:
        with attacker(pool) as link:
            for digests in (b"", payload_hash(chunks[0].payload), bytes(49)):
                link.post(Reserve(1, chain.runs([(position, LENGTH) for position in range(3)])))
                reserved = link.take(until)
                assert isinstance(reserved, Reserved)
                assert min(reserved.answers) >= 0, "nothing of it is left from before"
                link.post(Commit(link.generation, reserved.answers, digests))
                assert link.take(until) == Committed(0)
        assert pool.stats()["dram"]["chunks"] == 0
