"""One process with many connections, frames or descriptors costs the others next to nothing."""

import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests import pool_process
from tests.core_harness import NAMESPACE, chain
from tests.pool.server.test_strangers import HELLO, connected, heard, heard_one_by_one
from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    descriptors,
    environment,
    made,
    running_pool,
    wait_until,
)

from forebay.metrics.reading import count
from forebay.pool import wire
from forebay.pool.client import Known, Receipt
from forebay.pool.messages import (
    FRAME_BYTES_MAX,
    ChunkRun,
    Lookup,
    Refused,
    Reserve,
    StatsQuery,
    StatsReply,
)
from forebay.pool.server.limits import ServerLimits
from forebay.record.header import ROOT
from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.testing.clock import ManualClock

LIMITS = ServerLimits()
LINKS = 50  # of a greedy process; with all others fewer than a backlog
LOOKUPS = wire.encode(Lookup(1, NAMESPACE, 0, bytes(16))) * 500
A_ROUND = 16  # chunks of an offer
CHUNKS, CHAIN = made("honest")


def offer(label: str, count: int) -> bytes:
    run = ChunkRun(NAMESPACE, 0, ROOT, b"".join(chain(label, count)), 1)
    return wire.encode(Reserve(1, [run]))


# Connects as often as it is told, says what it reads from stdin through each, and stays.
TALKER = """
import socket, sys
count, path = int(sys.argv[1]), sys.argv[2]
said = sys.stdin.buffer.read(int(sys.argv[3]))
links = [socket.socket(socket.AF_UNIX) for _ in range(count)]
for link in links:
    link.settimeout(30.0)
    try:
        link.connect(path)
        link.sendall(said)
    except OSError:
        pass  # there is no place for it
print("said", flush=True)
sys.stdin.read()
"""


@contextmanager
def talker(pool: PoolProcess, count: int, said: bytes) -> Iterator[None]:
    """Another process that has said this through so many connections."""
    command = [sys.executable, "-c", TALKER, str(count), pool.socket, str(len(said))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(said)
        process.stdin.flush()
        assert process.stdout.readline() == b"said\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("said", [LOOKUPS, offer("many", 500)], ids=["lookups", "offers"])
def test_t57_a_process_has_one_turn_a_round_however_many_connections_it_has(
    place: Path, said: bytes
) -> None:
    """A4: each connection had a share of its own, so that who opened most had most of the pool."""
    with running_pool(place, disk=False) as pool:
        pool.signal(signal.SIGSTOP)  # all is there before the pool sees any of it
        with talker(pool, LINKS, HELLO + said), socket.socket(socket.AF_UNIX) as honest:
            honest.settimeout(HANG_S)
            honest.connect(pool.socket)
            mine = offer("mine", 10 * A_ROUND) if said != LOOKUPS else b""
            honest.sendall(HELLO + mine + wire.encode(StatsQuery()))  # asked when it is through
            pool.signal(signal.SIGCONT)
            reply = next(each for each in heard_one_by_one(honest) if type(each) is StatsReply)
    stats = json.loads(reply.json)
    assert count(stats, "connections") == LINKS + 1, "they were all there"
    assert count(stats, "lookups") <= 2 * LIMITS.messages_a_round_max
    offered = count(stats, "leased_slots") + count(stats, "stores_refused", reason="have")
    assert offered <= 2 * 10 * A_ROUND + 4 * A_ROUND, "half is mine"


def test_t57_every_connection_of_a_process_has_its_turn(place: Path) -> None:
    with (
        running_pool(place, disk=False) as pool,
        talker(pool, 2, HELLO + LOOKUPS),
        ExitStack() as links,
    ):
        mine = [links.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(8)]
        for link in mine:
            link.settimeout(HANG_S)
            link.connect(pool.socket)
            link.sendall(HELLO + LOOKUPS + wire.encode(StatsQuery()))
        for link in mine:
            assert any(type(each) is StatsReply for each in heard_one_by_one(link))


def test_t57_large_frames_that_never_end_are_few(place: Path) -> None:
    """A5: 4 MiB for each connection, as long as it liked."""
    begun = HELLO + FRAME_BYTES_MAX.to_bytes(4, "little") + bytes(FRAME_BYTES_MAX - 1)
    with running_pool(place, disk=False) as pool, PatientClient(pool.socket) as honest:
        before_bytes = pool.resident_bytes()
        with ExitStack() as links:
            for _ in range(32):
                link = links.enter_context(socket.socket(socket.AF_UNIX))
                link.settimeout(HANG_S)
                link.connect(pool.socket)
                with suppress(BrokenPipeError, ConnectionResetError):
                    link.sendall(begun)
            held_bytes = pool.resident_bytes() - before_bytes
            assert held_bytes < LIMITS.input_bytes_max * 3 // 2
            receipt = honest.store(CHAIN, [chunk.payload for chunk in CHUNKS])
            assert receipt == Receipt(stored=4), "even of the same process"


def test_t57_a_frame_that_does_not_end_in_time_ends_its_connection(place: Path) -> None:
    """A5: half a message, and a byte more now and then, was waited for without an end."""
    clock = ManualClock()
    with (
        pool_process.serving(place, world=World(clock=clock)) as service,
        PatientClient(service.address.path) as honest,
        connected(service, HELLO + (1 << 20).to_bytes(4, "little")) as slow,
    ):
        assert honest.join()
        slow.setblocking(False)
        answers = b""

        def has_ended() -> bool:
            nonlocal answers
            clock.advance(LIMITS.frame_s / 4)
            with suppress(BlockingIOError, BrokenPipeError):
                slow.send(bytes(1))
            with suppress(BlockingIOError):
                answers += (data := slow.recv(1 << 16))
                return not data
            return False

        wait_until(has_ended, "the slow one's end")
        reader = wire.pool_reader()
        reader.feed(answers)
        assert "did not come in time" in str(list(reader.messages())[-1])
        assert honest.lookup(CHAIN) == Known(0, 0), "who says nothing is left in peace"


class BuggyClock(Clock):
    """Raises what no clock raises when a socket can be read, while it is told to."""

    is_buggy = False

    def monotonic(self) -> float:
        if self.is_buggy and sys._getframe(1).f_code.co_name in {"_ready", "_exchange"}:
            raise ZeroDivisionError
        return super().monotonic()


@pytest.mark.expects_faults
def test_t56_an_exception_in_a_sockets_event_ends_that_connection_alone(place: Path) -> None:
    """A5: it was caught, and raised again in every round from then on."""
    clock = BuggyClock()
    with (
        pool_process.serving(place, world=World(clock=clock)) as service,
        PatientClient(service.address.path) as honest,
    ):
        assert honest.join()
        clock.is_buggy = True
        with connected(service, HELLO) as link:
            assert [type(answer) for answer in heard(link)] == [Refused]
        clock.is_buggy = False
        assert service._pool.barrier.caught == 1
        assert honest.lookup(CHAIN) == Known(0, 0)


def test_t57_who_has_all_descriptors_keeps_nobody_out(place: Path) -> None:
    """A7: nothing was accepted any more, whoever came; and ten lines a second were logged."""
    began = time.monotonic()
    with running_pool(place, disk=False) as pool:
        resource.prlimit(pool.pid, resource.RLIMIT_NOFILE, (descriptors(pool.pid) + 30,) * 2)
        with talker(pool, 2 * LINKS, HELLO), PatientClient(pool.socket) as honest:
            wait_until(honest.join, "a place")
            receipt = honest.store(CHAIN, [chunk.payload for chunk in CHUNKS])
            assert receipt == Receipt(stored=4)
            stats = pool.stats()
            assert count(stats, "errors", kind="displaced") > 0
            assert count(stats, "errors", kind="bug") == 0

        def lines() -> int:
            return pool.log.read_text().count("short of descriptors")

        wait_until(lines, "the log, which a thread of its own writes")
        assert lines() <= 1 + (time.monotonic() - began) / 60


def test_a_pool_takes_all_the_descriptors_that_it_may_have(place: Path) -> None:
    """A7: a large directory has thousands of regions, and a shell allows 1,024 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with running_pool(place, disk=False) as pool:
            assert resource.prlimit(pool.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
