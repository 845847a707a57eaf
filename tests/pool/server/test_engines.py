"""Leases belong to processes: when an engine is gone for good, and when it is not (T47)."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool.server.test_strangers import heard_one_by_one
from tests.pool_process import PatientClient

from forebay.pool import wire
from forebay.pool.messages import PROTOCOL, Hello, StatsQuery, StatsReply, Welcome
from forebay.pool.server.engines import Engines
from forebay.pool.server.limits import ServerLimits
from forebay.sys import processes
from forebay.sys.sockets import Peer

LIMITS = ServerLimits(engines_max=3, names_max=2)
GRACE_S, HIDDEN_S = LIMITS.grace_s, LIMITS.hidden_s


STRANGER = Peer(0, 0)
FAR = 1024  # a descriptor that select() does not take


class EnginesHarness:
    """Engines whose pidfds nobody selects: the test looks after them."""

    def __init__(self) -> None:
        self.lending: set[str] = set()
        self.watched: set[int] = set()
        self.engines = Engines(
            LIMITS, self.lending.__contains__, self.watched.add, self.watched.remove
        )
        self.blind = socket.socket(socket.AF_INET)  # says nothing of its peer

    def join(self, name: str, pid: int, now: float) -> None:
        self.engines.join(name, self.blind, Peer(pid, 0), now)

    def look(self, now: float) -> None:
        """What a selector would say."""
        for pidfd in list(self.watched):
            if processes.has_exited(pidfd):
                self.engines.exit(pidfd, now)


@pytest.fixture
def harness() -> Iterator[EnginesHarness]:
    harness = EnginesHarness()
    yield harness
    harness.engines.close()
    harness.blind.close()
    assert not harness.watched


@pytest.fixture
def living() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that wait for their end."""
    command = [sys.executable, "-S", "-c", "input()"]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_an_engine_with_slots_is_gone_a_second_after_its_last_process(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    first, second = living
    harness.lending.add("e")
    harness.join("e", first.pid, 0)
    harness.join("e", second.pid, 0)
    harness.engines.leave("e", 10)
    harness.engines.leave("e", 10)
    assert harness.engines.take_due(1e9) == []
    end(first)
    harness.look(20)
    assert harness.engines.take_due(1e9) == []
    end(second)
    harness.look(30)
    assert harness.engines.next_due() == 30 + GRACE_S
    assert harness.engines.take_due(30 + GRACE_S - 0.01) == []
    assert harness.engines.take_due(30 + GRACE_S) == ["e"]
    assert harness.engines.take_due(1e9) == []
    assert not harness.watched


def test_an_engine_without_slots_is_gone_with_its_connection(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    for turn in range(100):  # the same process comes and goes
        harness.join(f"e{turn}", living[0].pid, turn)
        assert len(harness.watched) == 1
        harness.engines.leave(f"e{turn}", turn)
        assert harness.engines.take_due(turn) == [f"e{turn}"]
    assert not harness.watched
    assert not len(harness.engines)


def test_an_engine_that_gave_back_its_slots_is_gone_though_its_process_lives(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    harness.lending.add("e")
    for _ in range(2):
        harness.join("e", living[0].pid, 0)
    harness.engines.leave("e", 1)
    harness.lending.clear()
    harness.engines.update_due("e", 2)
    assert harness.engines.take_due(1e9) == [], "it has a connection"
    harness.lending.add("e")
    harness.engines.leave("e", 3)
    harness.engines.update_due("e", 4)
    assert harness.engines.take_due(1e9) == [], "it has slots"
    harness.lending.clear()
    harness.engines.update_due("e", 5)
    harness.engines.update_due("unknown", 5)
    assert harness.engines.take_due(5) == ["e"]
    assert not harness.watched


def test_one_process_of_two_engines_is_watched_once(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    harness.lending |= {"a", "b"}
    harness.join("a", living[0].pid, 0)
    harness.engines.leave("a", 1)
    harness.join("b", living[0].pid, 2)
    assert len(harness.watched) == 1
    harness.engines.leave("b", 3)
    end(living[0])
    harness.look(4)
    assert sorted(harness.engines.take_due(4 + GRACE_S)) == ["a", "b"]


def test_a_connection_keeps_its_engine_though_the_process_that_made_it_is_gone(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    harness.lending.add("e")
    harness.join("e", living[0].pid, 0)
    end(living[0])
    harness.look(1)
    assert harness.engines.take_due(1e9) == []
    harness.engines.leave("e", 5)
    assert harness.engines.take_due(5 + GRACE_S) == ["e"]


def test_a_hidden_process_has_ten_seconds_from_its_last_connection(harness: EnginesHarness) -> None:
    harness.lending.add("e")
    harness.join("e", 0, 0)
    harness.join("e", 0, 0)
    harness.engines.leave("e", 100)
    assert harness.engines.next_due() is None
    harness.engines.leave("e", 200)
    assert harness.engines.next_due() == 200 + HIDDEN_S
    harness.join("e", 0, 205)  # a late comer of the same engine
    assert harness.engines.next_due() is None
    harness.engines.leave("e", 206)
    assert harness.engines.take_due(206 + HIDDEN_S) == ["e"]


def test_a_process_that_is_gone_before_it_is_looked_at(harness: EnginesHarness) -> None:
    harness.lending.add("e")
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    harness.join("e", gone.pid, 0)
    harness.engines.leave("e", 1)
    assert harness.engines.take_due(1 + GRACE_S) == ["e"]


def test_there_is_a_last_engine_that_may_join(harness: EnginesHarness) -> None:
    for number in range(LIMITS.engines_max):
        assert harness.engines.refusal(f"e{number}", STRANGER) is None
        harness.join(f"e{number}", 0, 0)
    assert harness.engines.refusal("another", STRANGER)
    assert harness.engines.refusal("e0", STRANGER) is None


def test_names_of_one_process_are_bounded(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    one, other = (Peer(process.pid, 0) for process in living)
    for number in range(LIMITS.names_max):
        assert harness.engines.refusal(f"e{number}", one) is None
        harness.join(f"e{number}", one.pid, 0)
    assert harness.engines.refusal("another", one)
    assert harness.engines.refusal("e0", one) is None
    assert harness.engines.refusal("another", other) is None


def test_the_peers_own_pidfd_is_taken_where_the_kernel_has_one() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        before = pool_process.open_files("pidfd")
        lending, watched = {"e"}, set[int]()
        engines = Engines(LIMITS, lending.__contains__, watched.add, watched.remove)
        engines.join("e", ours, Peer(0, 0), 0)
        if watched:  # Linux 6.5 and later: no pid is needed
            assert not any(map(processes.has_exited, watched))
        engines.close()
        assert pool_process.open_files("pidfd") == before


def test_a_process_joins_again_whatever_the_number_of_its_descriptor(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    """A pool has one descriptor for each region file: thousands, with large drives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(FAR)]
    try:
        harness.join("e", living[0].pid, 0)
        assert min(harness.watched) >= FAR
        harness.join("e", living[0].pid, 0)
        harness.look(0)
        assert len(harness.watched) == 1
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_name_is_its_users_and_its_processes_own(
    harness: EnginesHarness, living: list[subprocess.Popen[bytes]]
) -> None:
    """F9: another user cannot join under it; another process cannot settle it."""
    engines, (one, other) = harness.engines, (each.pid for each in living[:2])
    engines.join("e", harness.blind, Peer(one, 7), 0)
    assert engines.refusal("e", Peer(0, 8))
    assert engines.refusal("e", Peer(0, 7)) is None
    assert engines.is_member("e", Peer(one, 7))
    for stranger in (Peer(one, 8), Peer(other, 7), Peer(0, 7), Peer(0, 8)):
        assert not engines.is_member("e", stranger)
    assert not engines.is_member("another", Peer(one, 7))


def test_who_has_left_is_not_counted_by_a_question_that_comes_with_the_leaving(place: Path) -> None:
    """The pool sees both in one round: it is stopped until both have happened."""
    with (
        pool_process.running_pool(place, disk=False) as pool,
        PatientClient(pool.socket) as leaving,
        socket.socket(socket.AF_UNIX) as link,
    ):
        link.settimeout(pool_process.HANG_S)
        link.connect(pool.socket)
        link.sendall(wire.encode(Hello(PROTOCOL, "operator", is_operator=True)))
        said = heard_one_by_one(link)
        assert isinstance(next(said), Welcome)
        assert leaving.join()

        def engines() -> int:
            link.sendall(wire.encode(StatsQuery()))
            pool.signal(signal.SIGCONT)
            reply = next(said)
            assert isinstance(reply, StatsReply)
            return len(json.loads(reply.json)["engines"])

        assert engines() == 1
        pool.signal(signal.SIGSTOP)
        leaving.close()
        assert engines() == 0
