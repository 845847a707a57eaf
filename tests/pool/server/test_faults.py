"""F2: one unexpected exception ends one message or one job, and never the pool."""

import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests import pool_process
from tests.core_harness import Client, CoreHarness, chain
from tests.pool.server.test_strangers import connected, heard
from tests.pool_process import PatientClient, PoolProcess, exact, made, wait_until

from forebay.barrier import FAULT, Barrier
from forebay.pool import wire
from forebay.pool.messages import (
    PROTOCOL,
    AdminReply,
    Clear,
    ClientMessage,
    Hello,
    Refused,
    StatsQuery,
    StatsReply,
    Welcome,
)
from forebay.sys.clock import Clock
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing.clock import ManualClock

THREAD_BYTES = 8 << 20  # of stack, and more than is left to the pool
SECRET = "what a user said"
SENT: tuple[ClientMessage, ...] = (Hello(PROTOCOL, "e"), StatsQuery())


@contextmanager
def without_threads(pool: PoolProcess) -> Iterator[None]:
    """The pool can start no thread: there is no address space left for its stack."""
    used_bytes = int(Path(f"/proc/{pool.pid}/statm").read_text().split()[0]) * 4096
    limits = resource.prlimit(pool.pid, resource.RLIMIT_AS)
    resource.prlimit(pool.pid, resource.RLIMIT_AS, (used_bytes + THREAD_BYTES // 2, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pool.pid, resource.RLIMIT_AS, limits)


def test_t56_a_missing_thread_costs_no_more_than_what_wanted_it(place: Path) -> None:
    """The first clear finds the stack of a thread that ended, and hangs; a later one finds none."""
    chunks, stored = made("kept")
    (place / "faults").touch()
    flags = ("--faults-file", str(place / "faults"))
    with (
        pool_process.running_pool(place, *flags, faulty=True) as pool,
        PatientClient(pool.socket) as honest,
        ExitStack() as operators,
    ):
        honest.store(stored, [chunk.payload for chunk in chunks])
        wait_until(lambda: pool.number("chunks", tier="disk") == len(chunks), "writing behind")
        (place / "faults").write_text("write:hang")
        pool.signal(signal.SIGHUP)
        wait_until(lambda: "faults are on" in pool.log.read_text(), "the fault")
        with without_threads(pool):
            said = [
                clearing(operators.enter_context(socket.socket(socket.AF_UNIX)), pool)
                for _ in range(4)  # as many as a pool begins at once
            ]
            assert said[-1] == "no thread can be had now; try again."
            again, chain = made("again")
            assert honest.store(chain, [chunk.payload for chunk in again]).stored == len(again)
            with honest.load(chain) as loaded:
                assert exact(loaded, again)


def clearing(link: socket.socket, pool: PoolProcess) -> str | None:
    """Wants everything cleared; what the pool says of it, if it says anything soon."""
    link.connect(pool.socket)
    link.settimeout(pool_process.HANG_S)
    for sent in (Hello(PROTOCOL, "o"), Clear(None), StatsQuery()):
        link.sendall(wire.encode(sent))
    reader, sentence = wire.pool_reader(), None
    while True:
        reader.feed(link.recv(1 << 16))
        for message in reader.messages():
            if isinstance(message, AdminReply):
                sentence = message.sentence
            if isinstance(message, StatsReply):
                return sentence


class BuggyClock(Clock):
    """Raises what no clock raises, while a message is acted on."""

    def monotonic(self) -> float:
        if sys._getframe(1).f_code.co_name == "_pass_on":
            raise ZeroDivisionError(SECRET)
        return super().monotonic()


@pytest.mark.expects_faults
def test_t56_a_message_that_raises_ends_its_session_alone(place: Path) -> None:
    with pool_process.serving(place, world=World(clock=BuggyClock())) as service:
        for _ in range(2):
            with connected(service, b"".join(map(wire.encode, SENT))) as link:
                welcome, refused = heard(link)
            assert isinstance(welcome, Welcome)
            assert refused == Refused("the pool could not act on this message; its log says why.")
        assert service._pool.barrier.caught == 2


def test_a_path_that_is_not_utf_8_is_told_as_it_is(place: Path) -> None:
    path = os.fsdecode(os.fsencode(place) + b"/d\xff\xfe")
    Path(path).mkdir(mode=0o700)
    flags = ("--disk", f"{path}:{pool_process.DISK_BYTES}")
    with pool_process.running_pool(place, *flags, disk=False) as pool:
        assert pool.volume()["path"] == path
        pool.check_alive()


class BuggyDisk(Disk):
    """Raises what no disk raises, while it is told to."""

    def __init__(self) -> None:
        self.is_buggy = False

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self.is_buggy:
            raise ZeroDivisionError(SECRET)
        return super().read(descriptor, buffers, offset)

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self.is_buggy:
            raise ZeroDivisionError(SECRET)
        return super().write(descriptor, buffers, offset)


@pytest.mark.expects_faults
def test_t56_a_job_that_raises_is_a_miss_and_its_thread_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BuggyDisk()
    harness = CoreHarness(1 << 20, tmp_path, 64 << 20, World(disk, ManualClock()))
    client, keys = Client("e"), chain("a", 4)
    harness.store(client, keys)
    harness.pass_time_until(lambda: harness.number("chunks", tier="disk") == 4)
    for number in range(8):  # until nothing of it is left in DRAM
        harness.store(client, chain(f"other {number}", 4))
    harness.settle()
    disk.is_buggy = True
    for _ in range(20):  # more than a drive has threads
        assert harness.load(client, keys) == 0
    harness.settle()
    disk.is_buggy = False
    assert harness.load(client, keys) == 4
    assert harness.pool.barrier.caught >= 20
    assert FAULT in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text
    harness.pool.close(60.0)


def test_what_the_barrier_catches_fails_a_test() -> None:
    with pytest.raises(KeyError, match="no such thing"):
        Barrier().call("a test", {}.__getitem__, "no such thing")


@pytest.mark.expects_faults
def test_kinds_that_are_logged_are_few(caplog: pytest.LogCaptureFixture) -> None:
    barrier = Barrier()
    with caplog.at_level(logging.ERROR):
        results = [barrier.call("a test", {}.__getitem__, number) for number in range(100)]
    assert not any(results)
    assert barrier.caught == 100
    assert len(caplog.records) == 1
    assert barrier.result("a test", 3, int, "4") == 4
