"""The synchronous client: exact bytes, values instead of exceptions, no call beyond its time."""

import gc
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests import pool_process
from tests.clocks import CountingClock, SlowClock, waiting_in_vain
from tests.pool_process import HANG_S, PatientClient, exact, made

from forebay.metrics.reading import count
from forebay.pool.client import Chain, Client, Known, Loaded, Receipt
from forebay.pool.client.streaming import StreamCall
from forebay.pool.messages import Ready
from forebay.pool.service import Service
from forebay.testing import samples
from forebay.testing.clock import ManualClock
from forebay.tiers.contract import Miss, MissReason

NO_POOL = Miss(MissReason.NO_POOL)


def slabs() -> int:
    """Mappings of a slab in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:forebay-slab")


def test_what_is_stored_is_loaded_bit_for_bit(client: Client) -> None:
    chunks, chain = made("a", 20)
    assert client.lookup(chain) == Known(0, 0)
    assert client.store(chain, [chunk.payload for chunk in chunks]) == Receipt(stored=20)
    assert client.lookup(chain) == Known(20, 20)
    with client.load(chain) as loaded:
        assert exact(loaded, chunks)
    with client.load(chain, first=7) as loaded:
        assert isinstance(loaded, Loaded)
        assert loaded.first == 7
        assert exact(loaded, chunks)


def test_chunks_of_several_lengths_are_one_store(client: Client) -> None:
    chunks = samples.chain("lengths", [100, 100, 5000, 1, 4096, 4096, 100])
    chain = pool_process.chain_of(chunks)
    payloads = [chunk.payload for chunk in chunks]
    assert client.store(chain, payloads[:3]) == Receipt(stored=3)
    assert client.store(chain, payloads[2:], first=2) == Receipt(had=1, stored=4)
    with client.load(chain) as loaded:
        assert exact(loaded, chunks)


def test_what_is_loaded_can_only_be_read_and_only_inside_the_block(client: Client) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    with client.load(chain) as loaded:
        assert isinstance(loaded, Loaded)
        view = loaded.chunks[0]
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_an_unknown_chain_is_a_miss(client: Client) -> None:
    with client.load(made("unknown")[1]) as loaded:
        assert loaded == Miss(MissReason.ABSENT)


def test_a_prefix_that_is_gone_is_not_continued(client: Client) -> None:
    chunks, chain = made("orphan")
    assert client.store(chain, [chunks[2].payload], first=2) == Receipt(unwanted=1)


def test_t9_equal_short_keys_of_other_chunks_do_not_hit(client: Client) -> None:
    chunks, chain = made("a", 3)
    client.store(chain, [chunk.payload for chunk in chunks])
    twins = Chain(chain.namespace, [key[:16] + bytes(16) for key in chain.keys])
    assert client.lookup(twins) == Known(3, 3)
    with client.load(twins) as loaded:
        assert loaded == Miss(MissReason.WRONG_RECORD)


def test_who_names_a_wrong_namespace_costs_nobody_a_record(place: Path) -> None:
    """A key in hand and a wrong namespace: such a read had the sound record forgotten."""
    chunks, chain = made("a")
    settings = pool_process.with_disk(place)
    with pool_process.serving(place, settings), PatientClient(str(place / "pool.sock")) as client:
        assert client.store(chain, [chunk.payload for chunk in chunks]).stored == len(chunks)
    with pool_process.serving(place, settings), PatientClient(str(place / "pool.sock")) as client:
        with client.load(Chain(b"Z" * 32, chain.keys)) as loaded:
            assert isinstance(loaded, Miss)

        def is_there() -> bool:
            with client.load(chain) as loaded:
                return exact(loaded, chunks)

        # Of what was read under the wrong name, the rest may still be on its way.
        pool_process.wait_until(is_there, "the records")


def test_another_namespace_does_not_hit(client: Client) -> None:
    chunks, chain = made("a", 3)
    client.store(chain, [chunk.payload for chunk in chunks])
    with client.load(Chain(bytes(32), chain.keys)) as loaded:
        assert isinstance(loaded, Miss)


def test_more_than_dram_holds_is_stored_until_the_deadline_and_no_longer(service: Service) -> None:
    _, chain = made("large", 64, 1 << 20)
    payload, clock = bytes(1 << 20), CountingClock()
    with Client(service.address.path, clock) as client:
        outcome = client.store(chain, [payload] * 64, timeout_s=0.5)
    assert clock.monotonic() < 0.6
    assert outcome.stored > 0
    assert outcome.stored + outcome.late + outcome.unwanted == 64


def test_without_a_pool_every_call_is_a_miss_at_once(place: Path) -> None:
    _, chain = made("a")
    clock = ManualClock()
    with waiting_in_vain(clock), Client(str(place / "none.sock"), clock) as client:
        assert not client.join()
        assert client.why
        assert client.lookup(chain) == NO_POOL
        assert client.stats() == NO_POOL
        assert client.store(chain, [b"x"]) == Receipt(lost=1)
        with client.load(chain) as loaded:
            assert loaded == NO_POOL
    assert clock.monotonic() == 0.0


def test_a_pool_that_never_answers_costs_no_more_than_the_deadline(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(place / "deaf.sock"))
        deaf.listen(1)
        clock = ManualClock()
        with waiting_in_vain(clock), Client(str(place / "deaf.sock"), clock) as client:
            assert client.lookup(made("a")[1], 0.2) == NO_POOL
            assert clock.monotonic() == pytest.approx(0.2)
            assert client.store(made("a")[1], [b"x"], 0, 0.2) == Receipt(lost=1)
            assert clock.monotonic() == pytest.approx(0.4)


def test_join_waits_for_a_busy_pool_as_long_as_it_is_told(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(place / "deaf.sock"))
        deaf.listen(8)
        clock = ManualClock()
        with waiting_in_vain(clock), Client(str(place / "deaf.sock"), clock) as client:
            assert not client.join(30.0)
        assert clock.monotonic() == pytest.approx(30.0)
        with waiting_in_vain(clock), Client(str(place / "deaf.sock"), clock) as client:
            assert client.stats(30.0) == NO_POOL
        assert clock.monotonic() == pytest.approx(60.0)
        with waiting_in_vain(clock), Client(str(place / "deaf.sock"), clock) as client:
            assert client.lookup(made("a")[1], 30.0) == NO_POOL
        assert clock.monotonic() == pytest.approx(61.0)


def test_the_pool_restarts_and_the_client_rejoins_by_itself(place: Path) -> None:
    chunks, chain = made("a")
    payloads = [chunk.payload for chunk in chunks]
    gc.collect()  # pools that earlier tests have let go of
    before = slabs()
    with Client(str(place / "pool.sock"), clock := ManualClock()) as client:
        generations = set()
        for _ in range(3):
            with pool_process.serving(place):
                assert client.store(chain, payloads) == Receipt(stored=4)
                assert (
                    slabs() == before + 2
                )  # the pool's own, on a thread of ours, and the client's
                generations.add(client.generation)
            with waiting_in_vain(clock):
                assert client.lookup(chain) == NO_POOL
        assert clock.monotonic() == 0.0, "at once"
        assert len(generations) == 3
    assert slabs() == before


def test_a_load_outlives_its_pool_and_holds_back_the_next_mapping(place: Path) -> None:
    chunks, chain = made("a")
    with PatientClient(str(place / "pool.sock")) as client:
        with pool_process.serving(place):
            client.store(chain, [chunk.payload for chunk in chunks])
            load = client.load(chain)
            loaded = load.__enter__()
        with pool_process.serving(place):
            assert exact(loaded, chunks)
            assert client.lookup(chain) == NO_POOL
            assert client.why
            load.__exit__(None, None, None)
            assert client.lookup(chain) == Known(0, 0)


def test_t48_after_a_fork_both_go_on_for_themselves(client: Client) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    child = os.fork()
    if not child:
        signal.alarm(60)
        with client.load(chain) as loaded:
            os._exit(0 if exact(loaded, chunks) else 1)
    with client.load(chain) as loaded:
        assert exact(loaded, chunks)
    assert os.waitpid(child, 0)[1] == 0
    assert client.lookup(chain) == Known(4, 4)


def figures(client: Client) -> dict[str, Any]:
    stats = client.stats()
    assert isinstance(stats, dict)
    return stats


def requests(client: Client) -> int:
    return int(figures(client)["requests"]["active"])


def pinned(client: Client) -> int:
    return count(figures(client), "pinned_bytes")


def test_what_is_read_stays_pinned_when_the_connection_is_lost(
    service: Service, client: Client
) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    with PatientClient(service.address.path) as reader:
        load = reader.load(chain)
        loaded = load.__enter__()
        assert reader._session.connection is not None
        reader._session.connection.close()
        reader.lookup(chain)
        pool_process.wait_until(lambda: not requests(client), "the loss to be seen")
        assert pinned(client)
        assert exact(loaded, chunks)
        load.__exit__(None, None, None)
        assert reader.lookup(chain) == Known(4, 4)
        pool_process.wait_until(lambda: not pinned(client), "the pool to hear that nobody reads")


def test_what_is_read_when_its_client_leaves_stays_where_it_is(
    service: Service, client: Client
) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    reader = PatientClient(service.address.path)
    load = reader.load(chain)
    loaded = load.__enter__()
    reader.close()
    pool_process.wait_until(lambda: not requests(client), "its end to be seen")
    assert pinned(client)
    assert exact(loaded, chunks)
    load.__exit__(None, None, None)


def test_t48_a_child_does_not_give_back_what_its_parent_reads(client: Client) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    with client.load(chain) as loaded:
        child = os.fork()
        if not child:
            signal.alarm(60)
            os._exit(0 if client.lookup(chain) == Known(4, 4) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert pinned(client)
        assert exact(loaded, chunks)


@pytest.mark.slow
def test_late_answers_are_put_away_and_late_slots_given_back(place: Path) -> None:
    chunks, chain = made("a")
    payloads = [chunk.payload for chunk in chunks]
    clock = ManualClock()
    with pool_process.running_pool(place, disk=False) as pool, Client(pool.socket, clock) as client:
        assert client.join()
        pool.signal(signal.SIGSTOP)
        late = Miss(MissReason.DEADLINE)
        with waiting_in_vain(clock):
            assert client.lookup(chain, 0.1) == late
            assert client.stats(0.1) == late
            assert client.store(chain, payloads, 0, 0.1) == Receipt(late=4)
        assert clock.monotonic() == pytest.approx(0.3)
        pool.signal(signal.SIGCONT)
        assert isinstance(client.stats(), dict)
        pool_process.wait_until(
            lambda: client.lookup(chain) == Known(0, 0) and not pool.held()["leased_slots"],
            "the slots of the late answer",
        )
        assert client.store(chain, payloads) == Receipt(stored=4)
        with client.load(chain) as loaded:
            assert exact(loaded, chunks)


def test_operators_ask_through_it_too(service: Service, client: Client) -> None:
    done = client.resize(8 << 20)
    assert not isinstance(done, Miss)
    assert done.ok
    done = client.resize(None, [("/nowhere", 1 << 20)])
    assert not isinstance(done, Miss)
    assert not done.ok
    assert done.sentence.endswith(".")
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    with client.load(chain) as loaded, PatientClient(service.address.path) as operator:
        done = operator.clear(chain.namespace.hex()[:8])
        assert not isinstance(done, Miss)
        assert done.ok
        assert exact(loaded, chunks)
    pool_process.wait_until(
        lambda: client.lookup(chain) == Known(0, 0), "the namespace to be empty"
    )


def test_a_stream_is_longer_than_the_memory(place: Path) -> None:
    """Thirty chunks of a MiB through sixteen MiB of DRAM, half of which loads may use."""
    chunks, chain = made("long", 30, 1 << 20)
    with (
        pool_process.serving(place, pool_process.with_disk(place)) as service,
        PatientClient(service.address.path) as client,
    ):
        payloads = [chunk.payload for chunk in chunks]
        assert client.store(chain, payloads) == Receipt(stored=30)
        count = 0
        for position, view in client.stream(chain):
            assert position == count
            assert bytes(view) == chunks[position].payload
            count += 1
        assert count == 30
        with pytest.raises(ValueError, match="released"):
            view[0]
        for position, _ in client.stream(chain, first=20):
            if position == 22:
                break
        pool_process.wait_until(lambda: not held_requests(client), "the stream to be cancelled")
        twins = Chain(chain.namespace, [key[:16] + bytes(16) for key in chain.keys])
        assert not list(client.stream(twins))
        assert not list(client.stream(made("unknown")[1]))


def held_requests(client: Client) -> object:
    stats = client.stats()
    assert isinstance(stats, dict)
    return stats["requests"]["active"]


def test_a_streamed_chunk_must_have_the_full_key(client: Client) -> None:
    _, chain = made("a")
    assert client.join()
    session, slab = client._session, client._session.slab
    assert slab is not None
    streaming = StreamCall(client._calls, chain, 1.0)
    sound = Ready(1, session.generation, 2, 4096, 100, chain.keys[2])
    wrong = [
        replace(sound, key=chain.keys[2][:16] + bytes(16)),
        replace(sound, key=chain.keys[1]),
        replace(sound, generation=session.generation + 1),
        replace(sound, length=0),
        replace(sound, offset=-1),
        replace(sound, offset=slab.size_bytes),
        replace(sound, length=1 << 62),
        replace(sound, chunk=4),
        replace(sound, chunk=-2),
    ]
    for ready in wrong:
        assert not streaming._take(slab, ready, {})
    came: dict[int, memoryview] = {}
    assert streaming._take(slab, sound, came)
    came.pop(2).release()


def test_an_operator_that_joins_the_next_pool_is_no_engine(place: Path) -> None:
    path = str(place / "pool.sock")
    with Client(path, SlowClock(), is_operator=True) as client:
        with pool_process.serving(place):
            assert isinstance(client.stats(HANG_S), dict)
        with pool_process.serving(place):
            client.stats(HANG_S)
            stats = client.stats(HANG_S)
            assert isinstance(stats, dict)
            assert stats["engines"] == []
            assert count(stats, "errors") == 0


def test_a_payload_in_pieces_is_stored_as_one(client: Client) -> None:
    chunks, chain = made("pieces", 3, 5000)
    whole = [memoryview(chunk.payload) for chunk in chunks]
    cut = [[view[:1], view[1:4096], view[4096:]] for view in whole]
    assert client.store(chain, [cut[0], whole[1], cut[2]]) == Receipt(stored=3)
    assert client.store(chain, whole) == Receipt(had=3)
    with client.load(chain) as loaded:
        assert exact(loaded, chunks)
