"""Stores that hosts share: SeaweedFS on the store's host, a directory, JuiceFS mounted on both."""

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
KINDS: Final = ("s3", "file", "juicefs")
VARIABLES: Final = {"AWS_ACCESS_KEY_ID": "AKFOREBAYTESTS", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
START_S: Final = 300.0  # a guard against hanging
_S3_PORT: Final = 8333
_CAP: Final = "256MiB"
# What such a command starts ends with it, whatever ends it.
_WITH_CHILDREN: Final = ("unshare", "--pid", "--fork", "--kill-child")


class SeaweedServer:
    """An S3 server on the store's host; it may be killed and started again."""

    def __init__(self, host: Host, place: Path, sockets: Path) -> None:
        """What it keeps lies in `place`; the path of `sockets` is short enough for them."""
        self._host, self._place, self._sockets = host, place, sockets
        self.url = f"http://{host.address}:{_S3_PORT}"
        key, secret = VARIABLES.values()
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Pools find out by themselves when it answers. No port is taken: the host is its own."""
        words: list[str | Path] = [
            PYTHON.parent / "weed",
            "server",
            f"-ip={self._host.address}",
            "-ip.bind=0.0.0.0",
            f"-dir={self._place}",
            "-filer",
            "-s3",
            f"-s3.port={_S3_PORT}",
            f"-s3.config={self._place / 's3.json'}",
            # Files are the machine's: these would be those of another test's server.
            f"-filer.localSocket={self._sockets / 'filer.sock'}",
            f"-s3.localSocket={self._sockets / 's3.sock'}",
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
            words = [juicefs, "mount", "--no-usage-report", "--cache-size", "0", meta, mount]
            process = started(host, [*_WITH_CHILDREN, *words], place / f"{host.name}.log")
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


def start_pool(host: Host, place: Path, url: str) -> PoolProcess:
    """A pool on a host, with a store and without a drive."""
    named = f"{url}{'&' if '?' in url else '?'}cap={_CAP}&host={host.name}"
    place.mkdir(mode=0o700, exist_ok=True)
    pool = PoolProcess(place, "--remote", named, "--dram", "64MiB", disk=False)
    pool.command = [*host.enter, str(PYTHON), *pool.command[1:]]
    return pool.start()
