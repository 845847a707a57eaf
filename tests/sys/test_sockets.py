"""Waiting for a socket: as long as was said, whatever its number."""

import os
import resource
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from forebay.sys import sockets

FAR = 1500  # a descriptor that select() does not take


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FAR + 1), hard))
    mine, theirs = socket.socketpair()
    os.dup2(mine.fileno(), FAR)
    with socket.socket(fileno=FAR) as far, theirs:
        mine.close()
        far.setblocking(False)
        yield far, theirs
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_has_come_is_not_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    assert not sockets.wait(mine, write=False, timeout_s=0.0)
    theirs.send(b"x")
    assert sockets.wait(mine, write=False, timeout_s=60.0)


def test_who_wants_to_write_is_told_when_there_is_room(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    mine, _ = pair
    assert sockets.wait(mine, write=True, timeout_s=60.0)
    while sockets.send(mine, bytes(1 << 16)):
        pass
    assert not sockets.wait(mine, write=True, timeout_s=0.01)


def test_a_wait_ends_with_its_time(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, _ = pair
    begun = time.monotonic()
    assert not sockets.wait(mine, write=False, timeout_s=1.05)
    assert time.monotonic() - begun >= 1.05, "seconds and their parts"
    assert not sockets.wait(mine, write=False, timeout_s=-1.0)


def test_a_signal_ends_a_wait_early_and_nothing_else(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    mine, _ = pair
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # again, if it came before the wait began
    try:
        assert not sockets.wait(mine, write=False, timeout_s=1e6)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert set(came) == {signal.SIGALRM}
