"""F8: what a hostile client can do with the slab, which it maps for writing.

Each attack goes against a pool in a process of its own. A pool that is stopped while a commit and
the write behind it happen sees both in the attacker's order, however busy the machine is.
"""

import mmap
import os
import signal
import socket
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

from forebay.pool import wire
from forebay.pool.client import Client
from forebay.pool.client.chain import Chain
from forebay.pool.client.outcomes import AdminOutcome
from forebay.pool.client.session import PoolSession, join
from forebay.pool.messages import (
    PROTOCOL,
    Commit,
    Committed,
    Hello,
    Reserve,
    Reserved,
    Welcome,
)
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


def received(pool: PoolProcess) -> tuple[Welcome, list[int]]:
    """What a client is given when it says Hello, as it comes from the socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(HANG_S)
        link.connect(pool.socket)
        link.sendall(wire.encode(Hello(PROTOCOL, "attacker")))
        reader = wire.pool_reader()
        data, descriptors, _, _ = socket.recv_fds(link, wire.RECEIVE_BYTES, 64)
        reader.feed(data)
        welcome = next(iter(reader.messages()))
        assert isinstance(welcome, Welcome), welcome
        return welcome, descriptors


def test_t59_a_client_cannot_take_memory_beyond_the_cap(place: Path) -> None:
    """F8: a client of a 32 MiB pool grew shared memory by 512 MiB, which stayed when it left."""
    cap_bytes, more_bytes = 32 << 20, 512 << 20
    with running_pool(place, "--dram", str(cap_bytes), disk=False) as pool:
        assert pool.slab_bytes() == cap_bytes, "all of it is taken before the pool answers"
        _, descriptors = received(pool)
        for descriptor in descriptors:
            size_bytes = os.fstat(descriptor).st_size
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size_bytes + more_bytes)
            with pytest.raises(OSError, match=r"."):
                os.posix_fallocate(descriptor, 0, size_bytes + more_bytes)
            reach_bytes = min(size_bytes, cap_bytes + more_bytes)
            with mmap.mmap(descriptor, reach_bytes) as memory:
                for at in range(0, reach_bytes, mmap.PAGESIZE):
                    memory[at] = 1
            os.close(descriptor)
        assert pool.slab_bytes() == cap_bytes


def test_t59_dram_grows_by_a_segment_that_is_sealed_too(place: Path) -> None:
    """F8: what `set dram` adds is taken before it is used, and everybody has it then."""
    chunks, chain = made("large", 150, LENGTH)  # nearly the raised cap
    payloads = [chunk.payload for chunk in chunks]
    with running_pool(place, disk=False) as pool, PatientClient(pool.socket) as old:
        assert old.join()
        with Client(pool.socket, SlowClock(), is_operator=True) as operator:
            refused = operator.resize(1 << 60)
            assert isinstance(refused, AdminOutcome)
            assert not refused.ok
            for cap_bytes in (8 << 20, 24 << 20):
                outcome = operator.resize(cap_bytes)
                assert isinstance(outcome, AdminOutcome)
                assert outcome.ok, outcome
                assert pool.slab_bytes() == cap_bytes == pool.number("cap_bytes", tier="dram")
        assert old.store(chain, payloads).stored == len(chunks), "who joined before"
        with PatientClient(pool.socket) as new, new.load(chain) as loaded:
            assert count_exact(loaded, chunks) > 0, "who joins now"
        welcome, descriptors = received(pool)
        assert len(descriptors) == 2
        assert sum(welcome.segments) == (16 + 16) << 20, "what was given back is not used again"
        assert sorted(welcome.given_back) == sorted(set(welcome.given_back))
        assert len(welcome.given_back) * welcome.arena_bytes == 8 << 20
        for descriptor in descriptors:
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size + (1 << 20))
            os.close(descriptor)


def test_t59_an_absurd_cap_is_refused(place: Path) -> None:
    """F8: a cap of 2^63 was taken."""
    with (
        running_pool(place) as pool,
        Client(pool.socket, SlowClock(), is_operator=True) as operator,
    ):
        before = pool.number("cap_bytes", tier="disk")
        for cap_bytes in ((1 << 60) + 1, 1 << 62, 1 << 63, (1 << 64) - 1):
            for refused in (
                operator.resize(cap_bytes),
                operator.resize(None, [(str(place / "disk"), cap_bytes)]),
            ):
                assert refused == AdminOutcome(
                    ok=False, sentence=f"a cap is {1 << 60} bytes at most."
                )
        assert pool.number("cap_bytes", tier="disk") == before


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
        assert pool.number("chunks", tier="dram") == 0
