"""Real Mooncake for tests: a master, and processes that lend their memory to the store."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from tests.remote_harness import damaged

from forebay.sys import memory
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.mooncake.client import MasterAccess, MooncakeClient
from forebay.tiers.remote.stores.mooncake.store import MooncakeStore
from forebay.urls import parse_url

_START_S: Final = 240.0
_TTL_S: Final = 2  # without a sign of life for so long, the master takes a process for dead
_BIN: Final = Path(sys.executable).parent
_Answer = TypeVar("_Answer")


class Mooncake:
    """One master on a loopback address of its own."""

    def __init__(self, place: Path, *options: str) -> None:
        self.place, self._options = place, options
        address = (random.randrange(64, 250), random.randrange(250), random.randrange(1, 250))
        self.host = "127.{}.{}.{}".format(*address)
        self.port, self._metrics_port = _free_ports(self.host, 2)
        self._master: subprocess.Popen[bytes] | None = None
        self.owners: list[subprocess.Popen[bytes]] = []
        place.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, prefix: str = "forebay", options: str = "cap=3MiB") -> str:
        return f"mooncake://{self.address}/{prefix}?{options}"

    def start(self) -> None:
        """Run the master, which knows nothing of what one before it knew."""
        self._master = self._run(
            "mooncake_master",
            f"--rpc_address={self.host}",
            f"--rpc_port={self.port}",
            f"--metrics_host={self.host}",
            f"--metrics_port={self._metrics_port}",
            f"--client_ttl={_TTL_S}",
            *self._options,
        )
        until = time.monotonic() + _START_S
        while not _listens(self.host, self.port):
            assert time.monotonic() < until, self.log("mooncake_master")
            assert self._master.poll() is None, self.log("mooncake_master")
            time.sleep(0.05)

    def lend(self, size: str = "256 MB") -> subprocess.Popen[bytes]:
        """Have one more process whose memory is the store's, as Mooncake's users run it."""
        (port,) = _free_ports(self.host, 1)
        owner = self._run(
            "mooncake_client",
            f"--host={self.host}",
            f"--port={port}",
            f"--global_segment_size={size}",
            f"--master_server_address={self.address}",
            "--metadata_server=P2PHANDSHAKE",
        )
        self.owners.append(owner)
        return owner

    def wait_until_lent(self, processes: int = 1) -> None:
        """Until so many processes have lent their memory."""
        access = MasterAccess((self.host, self.port), "tcp", "", "", processes)
        client, until = MooncakeClient(access), time.monotonic() + _START_S
        while client.put("tried", [memoryview(b"tried")], pinned=False) is not None or (
            len(client._connected().get_replica_desc("tried")) < processes  # type: ignore[union-attr]
        ):
            assert time.monotonic() < until, self.log("mooncake_client")
            assert client.remove("tried") is None
            time.sleep(0.05)
        client.close()

    def stop(self) -> None:
        """End the master; those that lend memory go on."""
        if self._master is not None:
            _end(self._master)
            self._master = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._master is not None
        os.kill(self._master.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._master is not None
        os.kill(self._master.pid, signal.SIGCONT)

    def pause_owners(self) -> None:
        """The master goes on, and says where everything is; nothing of it moves."""
        for owner in self.owners:
            os.kill(owner.pid, signal.SIGSTOP)

    def resume_owners(self) -> None:
        for owner in self.owners:
            os.kill(owner.pid, signal.SIGCONT)

    def end_owners(self) -> None:
        """Whatever the store held is gone with them."""
        while self.owners:
            _end(self.owners.pop())

    def log(self, name: str) -> str:
        return (self.place / f"{name}.log").read_text(errors="replace")[-2000:]

    def _run(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.place / f"{name}.log").open("ab") as log:
            command = [str(_BIN / name), *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log)


@contextmanager
def serving(place: Path, *options: str, size: str = "256 MB") -> Iterator[Mooncake]:
    """A master and one process that lends so much memory, until the block is left."""
    servers = Mooncake(place, *options)
    try:
        servers.start()
        servers.lend(size)
        servers.wait_until_lent()
        yield servers
    finally:
        servers.end_owners()
        servers.stop()


def settled(call: Callable[[], _Answer | StoreFailure]) -> _Answer:
    """What a store answers when nobody writes what has to be read for it."""
    until = time.monotonic() + _START_S
    while isinstance(answer := call(), StoreFailure):
        assert time.monotonic() < until, answer
        time.sleep(0.02)
    return answer


def packs_of(store: MooncakeStore, host: str) -> dict[str, int]:
    """All packs of a host, and their sizes."""
    found: dict[str, int] = {}
    for space in settled(lambda: store.listing("packs")):
        prefix = f"packs/{space.name}{host}"
        packs = settled(lambda prefix=prefix: store.listing(prefix))  # type: ignore[misc]
        found |= {f"{prefix}/{each.name}": each.size_bytes for each in packs}
    return found


def damage_packs(url: str, host: str) -> None:
    """Change a byte of every payload that a host has put."""
    store = MooncakeStore(parse_url(url), host)
    for name, size in packs_of(store, host).items():
        buffer = memory.allocate(size)[:size]
        assert store.get(name, 0, [buffer]) == size
        source = memoryview(damaged(bytes(buffer)))
        settled(lambda name=name, source=source: store.put(name, [source]))  # type: ignore[misc]
    store.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 60).close()
    except OSError:
        return False
    return True


def _free_ports(host: str, count: int) -> list[int]:
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
