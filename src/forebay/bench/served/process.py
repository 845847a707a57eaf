"""A pool of its own for a measurement: a real process, begun by the product's own command.

Its socket and its log lie in a private directory that is removed at the end. It runs in a session
of its own, so that Ctrl-C reaches only us, and we end it; should we be killed, it ends by itself
soon after its last client.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from forebay.bench import child
from forebay.errors import StartupError
from forebay.pool.client import Client
from forebay.pool.life import COMMAND
from forebay.settings import DiskSetting
from forebay.sys.scratch import scratch

_LINGER_S: Final = 20
_BEGIN_S: Final = 60.0
_LOOK_S: Final = 0.02
_END_S: Final = 5.0


class PoolProcess:
    """A running pool."""

    def __init__(self, process: "subprocess.Popen[bytes]", socket: str) -> None:
        self._process = process
        self.socket = socket

    @property
    def pid(self) -> int:
        """The process, for whoever looks at its memory and time."""
        return self._process.pid

    def client(self) -> Client:
        """A new client that has joined; the caller's to close."""
        client = Client(self.socket)
        if not client.join():
            raise StartupError(f"the pool cannot be joined: {client.why}")
        return client

    def stop(self, timeout_s: float) -> None:
        """End it and wait until it has written what is worth keeping."""
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


@contextlib.contextmanager
def running(dram_bytes: int, disks: Sequence[DiskSetting]) -> Iterator[PoolProcess]:
    """A pool that answers; ended, with all that was made for it but the disks, afterwards."""
    with scratch(tempfile.gettempdir()) as place:
        socket = str(place / "pool.sock")
        log = place / "log"
        arguments = ["pool", "--socket", socket, "--dram", str(dram_bytes)]
        arguments += ["--linger", str(_LINGER_S)]
        for disk in disks:
            arguments += ["--disk", f"{Path(disk.path).resolve()}:{disk.cap_bytes}"]
        with log.open("wb") as output:
            process = begin(COMMAND, arguments, stdin=subprocess.DEVNULL, output=output.fileno())
        try:
            _wait_for(process, socket, log)
            yield PoolProcess(process, socket)
        finally:
            end(process)


def begin(
    module: str, arguments: Sequence[str], *, stdin: int, output: int
) -> "subprocess.Popen[bytes]":
    """Run a module of ours that Ctrl-C does not reach; `end` it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # What an operator has set for pools in general must not reach this one.
        env={name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")},
    )


def end(process: "subprocess.Popen[bytes]") -> None:
    """End what was begun; nothing of it is worth keeping."""
    child.end(process, _END_S)


def _wait_for(process: "subprocess.Popen[bytes]", socket: str, log: Path) -> None:
    until = time.monotonic() + _BEGIN_S
    with Client(socket) as client:
        while not client.join():
            if process.poll() is not None or time.monotonic() > until:
                raise StartupError(f"the pool could not begin: {_last_line(log)}")
            time.sleep(_LOOK_S)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("forebay: ") if lines else "it said nothing."
