"""Processes that a benchmark starts: pools, inference servers, and background clients.

Each runs in a separate session, so that Ctrl-C reaches only us, and is ended with everything that
it started. If we are killed, a pool that we leave behind ends soon after its last client.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forebay.bench.load import client
from forebay.bench.load.client import Endpoint
from forebay.errors import StartupError
from forebay.metrics import reading
from forebay.pool.client import Client
from forebay.pool.service import COMMAND, TAKEN_BYTES_PER_S
from forebay.settings import VARIABLE_PREFIX, DiskSetting
from forebay.sys.scratch import scratch
from forebay.tiers.contract import Miss

HOST: Final = "127.0.0.1"
_POOL_LINGER_S: Final = 20
_POOL_START_S: Final = 60.0
_POOL_POLL_S: Final = 0.02
_POOL_END_S: Final = 5.0
_POOL_SETTLE_S: Final = 60.0
_POOL_STATS_S: Final = 10.0
_SERVER_START_S: Final = 400.0  # vLLM takes 25 to 55 s on two cores that have nothing else to do
_SERVER_POLL_S: Final = 0.25
_SERVER_END_S: Final = 30.0
_KILLED_S: Final = 60.0  # a busy machine takes its time to free gigabytes
_LOG_LINES: Final = 15
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what the kernel gives
_PORTS_FROM: Final = 12_000  # well-known services listen below
_PORT_TRIES: Final = 100


def free_port() -> int:
    """A port at which nobody listens, outside the range that the kernel assigns by itself.

    So it is still free when a server starts to listen at it, seconds later.
    """
    stop = int(_PORT_RANGE.read_text(encoding="ascii").split()[0])
    ours = range(_PORTS_FROM, stop)
    named = [secrets.choice(ours) for _ in range(_PORT_TRIES)] if ours else []
    for port in (*named, 0):  # the kernel's own, where no other is left
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise StartupError(f"no port of {HOST} is free.")


def begin_module(
    module: str, arguments: Sequence[str], *, stdin: int, output: int
) -> "subprocess.Popen[bytes]":
    """Run a module of ours with default settings; the caller ends it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # What an operator has set for pools in general must not reach this one.
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith(VARIABLE_PREFIX)
        },
    )


def end(process: "subprocess.Popen[bytes]", patience_s: float = _POOL_END_S) -> None:
    """Terminate; after `patience_s`, or if we are interrupted, kill all of its session."""
    try:
        process.terminate()
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILLED_S)


class PoolProcess:
    """A running pool."""

    def __init__(self, process: "subprocess.Popen[bytes]", socket_path: str) -> None:
        self._process = process
        self.pid = process.pid
        self.socket = socket_path

    def client(self) -> Client:
        """A new client that has joined; the caller's to close."""
        joined = Client(self.socket)
        if not joined.join():
            raise StartupError(f"the pool cannot be joined: {joined.why}")
        return joined

    def stop(self, timeout_s: float) -> None:
        """End the pool, and wait until it has written what is worth keeping."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise StartupError(f"the pool did not end within {timeout_s:.0f} s.") from None

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pool_stats(watch: Client) -> dict[str, Any]:
    """A pool's statistics."""
    stats = watch.stats(_POOL_STATS_S)
    if isinstance(stats, Miss):
        raise StartupError(f"the pool went away: {watch.why}")
    return stats


def settled(watch: Client, quiet_s: float) -> dict[str, float]:
    """A pool's counters once none has changed for so long and nothing is being stored."""
    until = time.monotonic() + _POOL_SETTLE_S
    counters: dict[str, float] = {}
    since = time.monotonic()
    while time.monotonic() < until:
        stats = pool_stats(watch)
        if reading.counters(stats) != counters or reading.total(stats, "leased_slots"):
            counters, since = reading.counters(stats), time.monotonic()
        elif time.monotonic() - since >= quiet_s:
            break
        time.sleep(quiet_s / 5)
    return counters


@contextlib.contextmanager
def running_pool(
    dram_bytes: int, disks: Sequence[DiskSetting], module: str = COMMAND, more: Sequence[str] = ()
) -> Iterator[PoolProcess]:
    """A pool that answers; ended, with all that was made for it but the disks, afterwards.

    `more` are further flags of its module's command `pool`.
    """
    with scratch(tempfile.gettempdir()) as place:
        socket_path = str(place / "pool.sock")
        log = place / "log"
        arguments = ["pool", "--socket", socket_path, "--dram", str(dram_bytes)]
        arguments += ["--linger", str(_POOL_LINGER_S), "--metrics-address", "none", *more]
        for disk in disks:
            arguments += ["--disk", f"{Path(disk.path).resolve()}:{disk.cap_bytes}"]
        with log.open("wb") as output:
            process = begin_module(
                module, arguments, stdin=subprocess.DEVNULL, output=output.fileno()
            )
        try:
            start_s = _POOL_START_S + dram_bytes / TAKEN_BYTES_PER_S
            _wait_for_pool(process, socket_path, log, start_s)
            yield PoolProcess(process, socket_path)
        finally:
            end(process)


def _wait_for_pool(
    process: "subprocess.Popen[bytes]", socket_path: str, log: Path, timeout_s: float
) -> None:
    until = time.monotonic() + timeout_s
    with Client(socket_path) as joining:
        while not joining.join():
            if process.poll() is not None or time.monotonic() > until:
                last = (_last_lines(log) or ["it said nothing."])[-1]
                raise StartupError(f"the pool could not begin: {last.removeprefix('forebay: ')}")
            time.sleep(_POOL_POLL_S)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """An inference server that was started, and its log."""

    process: "subprocess.Popen[bytes]"
    endpoint: Endpoint
    log: Path

    @classmethod
    def start(
        cls, command: Sequence[str], variables: Mapping[str, str], port: int, log: Path
    ) -> "ServerProcess":
        """Start it; it does not answer yet."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(variables),
            )
        return cls(process, Endpoint(HOST, port), log)

    def wait(self, on_look: Callable[[], None] = lambda: None) -> None:
        """Until it answers; a StartupError with its last lines if it does not. Not in a loop."""
        until = time.monotonic() + _SERVER_START_S
        while not asyncio.run(client.is_up(self.endpoint)):
            if self.process.poll() is not None or time.monotonic() > until:
                raise StartupError(f"the engine could not begin; {self.last_lines()}")
            on_look()
            time.sleep(_SERVER_POLL_S)

    def last_lines(self) -> str:
        """The end of its log, for an error."""
        lines = _last_lines(self.log) or ["nothing"]
        return "it said last:\n" + "\n".join(lines[-_LOG_LINES:])

    def kill(self) -> None:
        """Kill all its processes at once, as if the engine had crashed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it, and everything it started."""
        end(self.process, _SERVER_END_S)


def _last_lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
