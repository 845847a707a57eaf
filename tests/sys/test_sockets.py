"""Waiting for a socket: as long as was said, whatever its number; and who is at its other end."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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


# Listens, and says for each of three connections what it sees of who made it.
_LISTENER = """
import socket, sys
from forebay.sys.sockets import peer_of
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(8)
print("listening", flush=True)
for _ in range(3):
    link, _ = listener.accept()
    print(peer_of(link).pid, flush=True)
"""
_CLIENT = """
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of processes")
def test_processes_that_a_namespace_hides_are_told_apart(tmp_path: Path) -> None:
    """A pool in a container sees engines in other containers so."""
    path = str(tmp_path / "socket")
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _LISTENER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        links = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        client = [sys.executable, "-c", _CLIENT, path]
        with links[0], links[1], subprocess.Popen(client, stdin=subprocess.PIPE):
            for link in links:
                link.connect(path)
            numbers = [int(listening.stdout.readline()) for _ in range(3)]
    if not any(numbers):
        pytest.skip("this kernel has no numbers for them: Linux 6.9 is needed")
    assert max(numbers) < 0
    assert sorted(Counter(numbers).values()) == [1, 2], "one process has two connections"
