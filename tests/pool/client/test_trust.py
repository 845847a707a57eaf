"""T55: a pool that is not ours gets no byte and is not believed (F1)."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests import pool_process
from tests.other_user import OTHER_UID, needs_root, other_user, received

from forebay.cli.main import main
from forebay.errors import StartupError
from forebay.pool import address, wire
from forebay.pool.client import Client
from forebay.pool.client.session import UNTRUSTED, PoolSession, join
from forebay.pool.messages import PROTOCOL, Welcome
from forebay.pool.service import Service, join_or_start
from forebay.settings import Settings
from forebay.sys import scratch
from forebay.sys.clock import Clock

SLAB_BYTES = 16 << 20


def imitate(path: str, greets: bool, pipe: Connection) -> None:
    """A pool as an attacker writes it: greets whoever comes, and tells what it was sent."""
    with ExitStack() as closing:
        listener = closing.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        Path(path).chmod(0o666)
        listener.listen()
        slab = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
        os.truncate(slab, SLAB_BYTES)
        fcntl.fcntl(slab, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        pipe.send("listening")
        while True:
            link = closing.enter_context(listener.accept()[0])
            sent = link.recv(1 << 16)
            pipe.send(sent)
            if sent and greets:
                welcome = wire.encode(
                    Welcome(PROTOCOL, 1, SLAB_BYTES, SLAB_BYTES, [SLAB_BYTES], [])
                )
                socket.send_fds(link, [welcome], [slab])


@contextmanager
def imitated(path: Path) -> Iterator[Connection]:
    """Another user's imitation of a pool; what it is sent comes through the pipe."""
    with other_user(partial(imitate, str(path), True)) as pipe:
        assert received(pipe) == "listening"
        yield pipe


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


@pytest.fixture
def sticky(place: Path) -> Path:
    """A directory in which everybody may put a socket, and nobody remove another's: as /tmp is."""
    place.chmod(0o755)
    path = place / "sticky"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def foreign(place: Path) -> Path:
    """Another user's directory."""
    place.chmod(0o755)
    path = place / "foreign"
    path.mkdir(mode=0o755)
    os.chown(path, OTHER_UID, OTHER_UID)
    return path


def refused_by_all(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody who looks for a pool joins the one at this path: library, engine, worker, command."""
    with Client(str(path)) as client:
        assert not client.join()
        assert client.why.startswith(UNTRUSTED)
    clock = Clock()
    scheduler = PoolSession(str(path), clock, maps_slab=False)
    assert not scheduler.wait_until_joined(clock.monotonic() + 1)
    assert scheduler.why.startswith(UNTRUSTED)
    worker = join(str(path), "e", clock, clock.monotonic() + 1)
    assert isinstance(worker, str)
    assert worker.startswith(UNTRUSTED)
    for no_pool in ("start", "serve", "fail"):
        with pytest.raises(StartupError, match=UNTRUSTED):
            join_or_start(Settings(socket=str(path), no_pool=no_pool, dram=SLAB_BYTES))
    for words in (["stats"], ["clear", "--all"], ["set", "dram=1GiB"]):
        assert main([*words, "--socket", str(path)]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.count("\n") == 1


@needs_root
@pytest.mark.parametrize("where", ["sticky", "foreign"])
def test_t55_a_pool_in_a_directory_of_others_is_not_even_connected_to(
    where: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """F1: another user's socket where everybody, or that user alone, may put one."""
    path: Path = request.getfixturevalue(where) / "pool.sock"
    with imitated(path) as pipe:
        refused_by_all(path, capsys)
        assert not pipe.poll(), "it was connected to"


@needs_root
def test_t55_another_users_pool_in_our_directory_hears_nothing(
    place: Path, foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F1: the kernel says who listens, wherever the socket lies."""
    with imitated(foreign / "pool.sock") as pipe:
        (foreign / "pool.sock").rename(place / "pool.sock")
        refused_by_all(place / "pool.sock", capsys)
        heard = [received(pipe) for _ in range(9)]
        assert heard == [b""] * 9, "each of them hung up before it said a word"


@needs_root
def test_t55_a_pool_of_a_user_who_was_named_is_joined(place: Path, foreign: Path) -> None:
    """The control: the imitation is one that a client would join."""
    with imitated(foreign / "pool.sock") as pipe:
        with Client(str(foreign / "pool.sock"), pool_uids=[OTHER_UID]) as client:
            assert client.join()
        assert received(pipe)
        (foreign / "pool.sock").rename(place / "pool.sock")
        path = str(place / "pool.sock")
        settings = Settings(socket=path, no_pool="fail", allow_uid=(OTHER_UID,))
        assert join_or_start(settings) == path


def test_t55_a_pool_does_not_begin_where_others_could_replace_it(sticky: Path) -> None:
    """F1: neither by hand nor by an engine."""
    settings = Settings(socket=str(sticky / "pool.sock"), dram=SLAB_BYTES)
    for begin in (Service.open, join_or_start):
        with pytest.raises(StartupError, match="written by others"):
            begin(settings)
    assert not list(sticky.iterdir())


@needs_root
def test_t55_the_default_directory_that_another_user_made_is_refused(
    sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: `/tmp/forebay-UID` is there before us, and is not ours."""
    taken = sticky / f"forebay-{os.geteuid()}"
    taken.mkdir(mode=0o755)
    os.chown(taken, OTHER_UID, OTHER_UID)
    monkeypatch.setattr("forebay.pool.address._FALLBACK", str(sticky / "forebay"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for no_pool in ("start", "fail", "serve"):
        with pytest.raises(StartupError, match=r"belongs to|only you can use"):
            join_or_start(Settings(no_pool=no_pool, dram=SLAB_BYTES))


@needs_root
def test_a_runtime_directory_of_another_user_is_passed_over(foreign: Path) -> None:
    """Left in the environment by `su` or `sudo -E`."""
    found = address.find_address("", {"XDG_RUNTIME_DIR": str(foreign)})
    assert not found.path.startswith(str(foreign))


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o1775])
def test_t55_every_directory_above_the_socket_counts(place: Path, mode: int) -> None:
    """F1: one that others can write is refused; if it is sticky and above, ours stays in place."""
    own = place / "above" / "own"
    own.mkdir(parents=True, mode=0o700)
    own.parent.chmod(mode)
    owners = {os.geteuid(), 0}
    assert (scratch.why_replaceable(str(own), owners) is None) == bool(mode & 0o1000)
    assert scratch.why_replaceable(str(own.parent), owners) is not None
    assert scratch.why_replaceable(str(own / ".."), owners) is not None


@needs_root
def test_t55_links_on_the_way_must_be_ours_too(place: Path, sticky: Path) -> None:
    """F1: who owns a link decides where it leads."""
    own = place / "own"
    own.mkdir(mode=0o700)
    (sticky / "ours").symlink_to(own)
    (sticky / "theirs").symlink_to("../own")
    os.chown(sticky / "theirs", OTHER_UID, OTHER_UID, follow_symlinks=False)
    (place / "twice").symlink_to("sticky/theirs")
    owners = {os.geteuid(), 0}
    assert scratch.why_replaceable(str(sticky / "ours"), owners) is None
    for name in ("sticky/theirs", "twice"):
        assert "belongs to" in str(scratch.why_replaceable(str(place / name), owners))
    (place / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many") as caught:
        scratch.why_replaceable(str(place / "loop"), owners)
    assert caught.value.errno == errno.ELOOP
