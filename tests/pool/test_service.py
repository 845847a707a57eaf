"""The life of a pool: one a socket, begun by whoever comes first, ended as it should be."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import PatientClient, exact, made

from forebay.errors import StartupError
from forebay.pool import address
from forebay.pool.client import Known, Receipt
from forebay.pool.service import Service, join_or_start, socket_path
from forebay.settings import DiskSetting, Settings
from forebay.sys import sockets
from forebay.sys.disk import Disk
from forebay.sys.machine.nodes import allowed_nodes
from forebay.sys.world import World

STARTER = """
import sys, time
from forebay.pool.service import join_or_start
from forebay.settings import Settings
settings = Settings(dram=16 << 20, socket=sys.argv[1], linger_s=float(sys.argv[2]))
sys.stdin.readline()
print(join_or_start(settings), flush=True)
sys.stdin.readline()
"""


def pool_pids(socket: str) -> list[int]:
    """Processes that were started as this socket's pool."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "pool" in words and socket in words and "forebay.cli" in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def socket_at(place: Path) -> Iterator[str]:
    """A path for a pool's socket; whatever pool was started there ends with the test."""
    path = str(place / "pool.sock")
    yield path
    for pid in pool_pids(path):
        os.kill(pid, signal.SIGKILL)


def starter(socket: str, linger_s: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, socket, str(linger_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=pool_process.environment(),
    )


def say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


@pytest.mark.slow
def test_t21_engines_that_start_at_once_start_one_pool_that_outlives_them(socket_at: str) -> None:
    engines = [starter(socket_at, 3.0) for _ in range(4)]
    with PatientClient(socket_at) as client:
        for engine in engines:
            say(engine)
        pool_process.wait_until(client.join, "the pool")
        for engine in engines:
            assert engine.stdout is not None
            assert engine.stdout.readline().decode().strip() == socket_at
        assert len(pool_pids(socket_at)) == 1
        for engine in engines:
            os.killpg(engine.pid, signal.SIGKILL)
            engine.communicate()
        chunks, chain = made("a")
        assert client.store(chain, [chunk.payload for chunk in chunks]) == Receipt(stored=4)
    pool_process.wait_until(lambda: not pool_pids(socket_at), "the pool to end after its linger")
    assert not Path(socket_at).exists()


@pytest.mark.slow
def test_a_pool_that_cannot_begin_says_why_to_the_engine(socket_at: str) -> None:
    settings = Settings(
        dram=16 << 20, disk=(DiskSetting("/nowhere/at/all", 1 << 30),), socket=socket_at
    )
    with pytest.raises(StartupError, match="/nowhere/at/all"):
        join_or_start(settings)
    pool_process.wait_until(lambda: not pool_pids(socket_at), "it to end")


def test_another_wish_is_one_log_line(
    service: Service, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(dram=64 << 20, socket=service.address.path)
    assert join_or_start(settings) == service.address.path
    assert len(caplog.messages) == 1
    assert "64 MiB" in caplog.messages[0]
    caplog.clear()
    join_or_start(replace(settings, dram=pool_process.DRAM_BYTES))
    assert not caplog.messages


def test_who_asked_for_no_size_hears_of_none(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pool_process.serving(place, pool_process.with_disk(place)) as service:
        join_or_start(Settings(socket=service.address.path))
    assert "asked for" not in caplog.text


class StrangersDisk(Disk):
    """The disk of a user that we are not."""

    def user(self) -> int:
        return super().user() + 1


def test_an_engine_that_is_refused_hears_why_at_once(place: Path) -> None:
    with (
        pool_process.serving(place, world=World(StrangersDisk())) as service,
        pytest.raises(StartupError, match="--allow-uid"),
    ):
        join_or_start(replace(pool_process.SMALL, socket=service.address.path))


def test_a_second_pool_at_one_socket_is_refused(service: Service, place: Path) -> None:
    with pytest.raises(StartupError, match="already"):
        Service.open(replace(pool_process.SMALL, socket=service.address.path))
    with PatientClient(service.address.path) as client:
        assert client.join()


@pytest.mark.slow
def test_a_socket_left_by_a_killed_pool_is_replaced(place: Path) -> None:
    pool = pool_process.PoolProcess(place, disk=False).start()
    pool.kill()
    assert Path(pool.socket).is_socket()
    with pool_process.serving(place) as service, PatientClient(service.address.path) as client:
        assert client.join()


def test_what_is_no_socket_is_left_alone(place: Path) -> None:
    (place / "pool.sock").write_text("mine")
    with pytest.raises(StartupError, match=r"pool\.sock"), pool_process.serving(place):
        pass
    assert (place / "pool.sock").read_text() == "mine"


@pytest.mark.slow
def test_sigterm_keeps_what_was_stored(place: Path) -> None:
    chunks, chain = made("a")
    payloads = [chunk.payload for chunk in chunks]
    pool = pool_process.PoolProcess(place)
    with PatientClient(pool.socket) as client:
        pool.start()
        assert client.store(chain, payloads) == Receipt(stored=4)
        pool_process.wait_until(lambda: pool.number("chunks", tier="disk") == 4, "writing behind")
        assert pool.stop() == 0
        assert not Path(pool.socket).exists()
        pool.start()
        try:
            assert client.lookup(chain) == Known(4, 0)
            with client.load(chain) as loaded:
                assert exact(loaded, chunks)
        finally:
            assert pool.stop() == 0


@pytest.mark.slow
def test_an_idle_pool_sleeps(place: Path) -> None:
    with pool_process.running_pool(place) as pool:
        pool_process.wait_until(lambda: cpu_s_of_half_a_second(pool.pid) < 0.1, "it to calm down")


def cpu_s_of_half_a_second(pid: int) -> float:
    before = cpu_s(pid)
    time.sleep(0.5)
    return cpu_s(pid) - before


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_t44_the_socket_is_ours_alone_under_any_umask(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = sockets.listen(str(place / "s"), 0o600, 1)
    finally:
        os.umask(before)
    listener.close()
    assert (place / "s").stat().st_mode & 0o777 == 0o600


def test_the_default_socket_is_this_users(place: Path) -> None:
    found = address.find_address("", {"XDG_RUNTIME_DIR": str(place)})
    assert found.path == f"{place}/forebay/pool.sock"
    address.prepare(found)
    assert Path(found.directory).stat().st_mode & 0o777 == 0o700
    found = address.find_address("", {})
    assert found.path == f"/tmp/forebay-{os.geteuid()}/pool.sock"
    assert socket_path(Settings(socket="x.sock")) == str(Path.cwd() / "x.sock")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_t44_a_directory_that_others_can_use_is_refused(place: Path, mode: int) -> None:
    own = place / "forebay"
    own.mkdir()
    own.chmod(mode)
    with pytest.raises(StartupError, match="--socket"):
        address.prepare(address.find_address("", {"XDG_RUNTIME_DIR": str(place)}))


def test_t44_a_link_in_place_of_the_directory_is_refused(place: Path) -> None:
    (place / "elsewhere").mkdir(mode=0o700)
    (place / "forebay").symlink_to(place / "elsewhere")
    with pytest.raises(StartupError, match="--socket"):
        address.prepare(address.find_address("", {"XDG_RUNTIME_DIR": str(place)}))


def test_a_path_too_long_for_a_socket_is_a_sentence() -> None:
    with pytest.raises(StartupError, match="107"):
        address.find_address("/" + "x" * 107)
    assert address.find_address("/" + "x" * 106)


def test_an_engine_that_shall_not_start_a_pool_joins_one(service: Service) -> None:
    path = service.address.path
    for no_pool in ("fail", "serve"):
        assert join_or_start(Settings(socket=path, no_pool=no_pool)) == path


def test_an_engine_that_shall_not_start_a_pool_fails_or_serves(
    socket_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartupError, match=r"no pool answers .* forebay pool --socket"):
        join_or_start(Settings(socket=socket_at, no_pool="fail"))
    assert join_or_start(Settings(socket=socket_at, no_pool="serve")) == socket_at
    assert "serving without it until one does" in caplog.text
    assert pool_pids(socket_at) == []


def test_a_pool_says_on_which_nodes_its_memory_lies(place: Path) -> None:
    node = min(allowed_nodes(Path("/")), default=0)
    try:
        with pool_process.serving(place, replace(pool_process.SMALL, numa=str(node))) as service:
            stats = service.stats(pool_process.HANG_S)
    except StartupError as error:
        assert "SYS_NICE" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    assert stats is not None
    dram = stats["tiers"][0]
    assert dram["node_bytes"] == {str(node): dram["allocated_bytes"]}


@pytest.mark.slow
def test_an_engine_hears_that_the_nodes_it_named_cannot_be_had(socket_at: str) -> None:
    settings = Settings(dram=16 << 20, socket=socket_at, numa="999")
    with pytest.raises(StartupError, match="NUMA node 999 has no memory; change --numa"):
        join_or_start(settings)
    pool_process.wait_until(lambda: not pool_pids(socket_at), "it to end")
