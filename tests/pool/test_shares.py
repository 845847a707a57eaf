"""F3, F6, F9: a stopped, hung or greedy engine costs itself alone, whatever it holds or sends."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests import pool_process
from tests.greedy_engine import LENGTH
from tests.pool_process import PatientClient, PoolProcess, exact, made, running_pool, wait_until

from forebay.pool import wire
from forebay.pool.client import Client, Known, Receipt
from forebay.pool.messages import (
    PROTOCOL,
    Ask,
    ClientMessage,
    Found,
    Hello,
    Lookup,
    PoolMessage,
    Promise,
    Refused,
    Release,
    StatsQuery,
    StatsReply,
)
from forebay.testing.samples import Sample
from forebay.tiers.dram.slab import slot_bytes_for

ROOT = Path(__file__).parent.parent.parent
CHUNKS = 50


@contextmanager
def stopped(work: str, pool: PoolProcess) -> Iterator[int]:
    """An engine that took all it was given and was stopped then; how many chunks it holds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.greedy_engine", work, pool.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        held = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        yield held
    finally:
        process.kill()
        process.communicate()


def store(client: Client, label: str, count: int = CHUNKS) -> list[Sample]:
    chunks, chain = made(label, count)
    receipt = client.store(chain, [chunk.payload for chunk in chunks])
    assert receipt == Receipt(stored=count)
    return chunks


def loads_all(client: Client, label: str, count: int) -> bool:
    chunks, chain = made(label, count)
    with client.load(chain) as loaded:
        return exact(loaded, chunks)


@pytest.mark.parametrize("disk", [False, True])
def test_t57_a_stopped_engine_that_holds_slots_keeps_no_other_from_storing(
    place: Path, disk: bool
) -> None:
    """F6: half of DRAM was reserved by an engine that is stopped: others stored 0 of 50."""
    with (
        running_pool(place, disk=disk) as pool,
        stopped("reserve", pool) as held,
        PatientClient(pool.socket) as honest,
    ):
        assert held * slot_bytes_for(LENGTH) > pool_process.DRAM_BYTES * 2 // 5, (
            "about half of DRAM"
        )
        for number in range(4 if disk else 1):  # with a disk, more than DRAM has left
            store(honest, f"dialog {number}")
        assert loads_all(honest, "dialog 0", 10)
        assert pool.number("leased_slots") == held


@pytest.mark.parametrize("disk", [False, True])
def test_t57_a_stopped_reader_keeps_no_other_from_loading(place: Path, disk: bool) -> None:
    """F6: all that loads may hold was promised to an engine that is stopped: others had nothing."""
    with running_pool(place, disk=disk) as pool, PatientClient(pool.socket) as honest:
        store(honest, "wanted", 70)
        store(honest, "small", 10)
        with stopped("load", pool) as held, PatientClient(pool.socket) as other:
            assert held == 70
            for _ in range(20):
                assert loads_all(other, "small", 10)
            chunks, chain = made("wanted", 70)
            with other.load(chain) as loaded:
                assert exact(loaded, chunks), "what another one reads costs nothing more"
            store(honest, "more", 10)
            assert loads_all(honest, "more", 10)
        assert not pool.number("promises_cut")


def test_t57_many_names_of_one_process_bring_it_one_share(place: Path) -> None:
    """F6: shares went by name, and names are free: one process with sixty held all of it."""
    with (
        running_pool(place, disk=False) as pool,
        stopped("reserve-as-many", pool) as held,
        PatientClient(pool.socket) as honest,
    ):
        assert 0 < held * slot_bytes_for(LENGTH) <= pool_process.DRAM_BYTES // 2
        store(honest, "mine", 20)
        assert loads_all(honest, "mine", 10)


def test_t57_three_stopped_engines_leave_room_for_a_fourth(place: Path) -> None:
    """F6: whatever is held and never given back, something is left for whoever comes next."""
    flags = ("--dram", str(4 * pool_process.DRAM_BYTES))
    with running_pool(place, *flags, disk=False) as pool, PatientClient(pool.socket) as honest:
        store(honest, "wanted", 200)
        with ExitStack() as engines:
            held = [
                engines.enter_context(stopped(work, pool))
                for work in ("load", "reserve", "reserve")
            ]
            assert all(held), held
            store(honest, "mine", 20)
            for _ in range(5):
                assert loads_all(honest, "mine", 10)


def talk(link: socket.socket, *messages: ClientMessage) -> Iterator[PoolMessage]:
    """Say something, and hear what comes until the pool hangs up."""
    for message in messages:
        link.sendall(wire.encode(message))
    reader = wire.pool_reader()
    while data := link.recv(1 << 16):
        reader.feed(data)
        for answer in reader.messages():
            assert not isinstance(answer, wire.FrameError)
            yield answer


@contextmanager
def joined(pool: PoolProcess, engine: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(pool_process.HANG_S)
        link.connect(pool.socket)
        link.sendall(wire.encode(Hello(PROTOCOL, engine)))
        yield link


def test_t57_records_that_no_slot_can_hold_are_absent_and_hold_up_nobody(place: Path) -> None:
    """F3: records larger than an arena were known, and waited for; others got 0 of 60."""
    large, length = made("large", 4, 4 << 20), pool_process.DRAM_BYTES // 8
    assert len(large[0][0].payload) > length, "larger than an arena of a small pool"
    with running_pool(place, "--dram", str(16 * pool_process.DRAM_BYTES)) as pool:
        with PatientClient(pool.socket) as client:
            receipt = client.store(large[1], [chunk.payload for chunk in large[0]])
            assert receipt == Receipt(stored=4)
            wait_until(lambda: pool.number("chunks", tier="disk") == 4, "writing behind")
        assert pool.stop() == 0
    with (
        running_pool(place) as pool,
        joined(pool, "patient") as link,
        PatientClient(pool.socket) as honest,
    ):
        assert honest.lookup(large[1]) == Known(0, 0)
        store(honest, "small", 60)
        lookup = Lookup(1, large[1].namespace, 0, large[1].shorts())
        heard = talk(link, lookup, Ask(1, 0, 4, 1 << 62, stream=False))
        for _ in range(3):
            assert loads_all(honest, "small", 60)
        answers = [next(heard) for _ in range(3)]
        assert [type(answer) for answer in answers[1:]] == [Found, Promise]
        assert isinstance(answers[2], Promise)
        assert answers[2].total == 0


def test_t57_one_message_has_only_so_much_to_do(place: Path) -> None:
    """F9: one Release of 4 MiB kept the pool busy for 670 ms."""
    with running_pool(place, disk=False) as pool, PatientClient(pool.socket) as honest:
        store(honest, "small", 4)
        with joined(pool, "greedy") as link:
            heard = list(talk(link, Release(1, [0] * (4 << 20 - 1))))
        assert isinstance(heard[-1], Refused)
        assert loads_all(honest, "small", 4)
        assert pool.number("errors", kind="malformed") == 1


def test_t57_the_keys_that_an_engine_may_have_looked_up_are_bounded(place: Path) -> None:
    """F9: 4,096 lookups of 2,000 chunks each took 550 MiB, which were not given back."""
    flags, count = ("--dram", str(2 * pool_process.DRAM_BYTES)), 2000
    with running_pool(place, *flags, disk=False) as pool, PatientClient(pool.socket) as honest:
        chunks, chain = made("short", count, 4096)
        receipt = honest.store(chain, [chunk.payload for chunk in chunks])
        assert receipt == Receipt(stored=count)
        before_bytes = pool.resident_bytes()
        with joined(pool, "greedy") as link:
            keys = chain.shorts()
            lookups = (Lookup(number, chain.namespace, 0, keys) for number in range(1000))
            heard = talk(link, *lookups, StatsQuery())
            answers = [type(answer) for answer in heard_until_stats(heard)]
            assert answers.count(Found) == 1000
            assert pool.number("lookups_not_followed") == 1000 - (1 << 19) // count
            assert pool.resident_bytes() - before_bytes < 80 << 20
        wait_until(
            lambda: not pool.number("requests_active"), "the end of the greedy one's requests"
        )
        assert pool.resident_bytes() - before_bytes < 40 << 20


def heard_until_stats(heard: Iterator[PoolMessage]) -> Iterator[PoolMessage]:
    for message in heard:
        yield message
        if isinstance(message, StatsReply):
            return
