"""Leases belong to processes: when an engine is gone for good, and when it is not (T47)."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests import poolside

from forebay.pool.server.engines import Engines
from forebay.pool.server.limits import Limits
from forebay.sys import processes
from forebay.sys.sockets import Peer

LIMITS = Limits(engines_max=3)
GRACE_S, HIDDEN_S = LIMITS.grace_s, LIMITS.hidden_s


class Desk:
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
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.engines.close()
    desk.blind.close()
    assert not desk.watched


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
    desk: Desk, living: list[subprocess.Popen[bytes]]
) -> None:
    first, second = living
    desk.lending.add("e")
    desk.join("e", first.pid, 0)
    desk.join("e", second.pid, 0)
    desk.engines.leave("e", 10)
    desk.engines.leave("e", 10)
    assert desk.engines.take_due(1e9) == []
    end(first)
    desk.look(20)
    assert desk.engines.take_due(1e9) == []
    end(second)
    desk.look(30)
    assert desk.engines.next_due() == 30 + GRACE_S
    assert desk.engines.take_due(30 + GRACE_S - 0.01) == []
    assert desk.engines.take_due(30 + GRACE_S) == ["e"]
    assert desk.engines.take_due(1e9) == []
    assert not desk.watched


def test_an_engine_without_slots_is_gone_with_its_connection(
    desk: Desk, living: list[subprocess.Popen[bytes]]
) -> None:
    for turn in range(100):  # the same process comes and goes
        desk.join(f"e{turn}", living[0].pid, turn)
        assert len(desk.watched) == 1
        desk.engines.leave(f"e{turn}", turn)
        assert desk.engines.take_due(turn) == [f"e{turn}"]
    assert not desk.watched
    assert not len(desk.engines)


def test_an_engine_that_gave_back_its_slots_is_gone_though_its_process_lives(
    desk: Desk, living: list[subprocess.Popen[bytes]]
) -> None:
    desk.lending.add("e")
    for _ in range(2):
        desk.join("e", living[0].pid, 0)
    desk.engines.leave("e", 1)
    desk.lending.clear()
    desk.engines.settled("e", 2)
    assert desk.engines.take_due(1e9) == [], "it has a connection"
    desk.lending.add("e")
    desk.engines.leave("e", 3)
    desk.engines.settled("e", 4)
    assert desk.engines.take_due(1e9) == [], "it has slots"
    desk.lending.clear()
    desk.engines.settled("e", 5)
    desk.engines.settled("unknown", 5)
    assert desk.engines.take_due(5) == ["e"]
    assert not desk.watched


def test_one_process_of_two_engines_is_watched_once(
    desk: Desk, living: list[subprocess.Popen[bytes]]
) -> None:
    desk.lending |= {"a", "b"}
    desk.join("a", living[0].pid, 0)
    desk.engines.leave("a", 1)
    desk.join("b", living[0].pid, 2)
    assert len(desk.watched) == 1
    desk.engines.leave("b", 3)
    end(living[0])
    desk.look(4)
    assert sorted(desk.engines.take_due(4 + GRACE_S)) == ["a", "b"]


def test_a_connection_keeps_its_engine_though_the_process_that_made_it_is_gone(
    desk: Desk, living: list[subprocess.Popen[bytes]]
) -> None:
    desk.lending.add("e")
    desk.join("e", living[0].pid, 0)
    end(living[0])
    desk.look(1)
    assert desk.engines.take_due(1e9) == []
    desk.engines.leave("e", 5)
    assert desk.engines.take_due(5 + GRACE_S) == ["e"]


def test_a_hidden_process_has_ten_seconds_from_its_last_connection(desk: Desk) -> None:
    desk.lending.add("e")
    desk.join("e", 0, 0)
    desk.join("e", 0, 0)
    desk.engines.leave("e", 100)
    assert desk.engines.next_due() is None
    desk.engines.leave("e", 200)
    assert desk.engines.next_due() == 200 + HIDDEN_S
    desk.join("e", 0, 205)  # a late comer of the same engine
    assert desk.engines.next_due() is None
    desk.engines.leave("e", 206)
    assert desk.engines.take_due(206 + HIDDEN_S) == ["e"]


def test_a_process_that_is_gone_before_it_is_looked_at(desk: Desk) -> None:
    desk.lending.add("e")
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    desk.join("e", gone.pid, 0)
    desk.engines.leave("e", 1)
    assert desk.engines.take_due(1 + GRACE_S) == ["e"]


def test_there_is_a_last_engine_that_may_join(desk: Desk) -> None:
    for number in range(LIMITS.engines_max):
        assert desk.engines.admits(f"e{number}")
        desk.join(f"e{number}", 0, 0)
    assert not desk.engines.admits("another")
    assert desk.engines.admits("e0")


def test_the_peers_own_pidfd_is_taken_where_the_kernel_has_one() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        before = poolside.descriptors()
        lending, watched = {"e"}, set[int]()
        engines = Engines(LIMITS, lending.__contains__, watched.add, watched.remove)
        engines.join("e", ours, Peer(0, 0), 0)
        if watched:  # Linux 6.5 and later: no pid is needed
            assert not any(map(processes.has_exited, watched))
        engines.close()
        assert poolside.descriptors() == before
