"""An engine of its own for a measurement: a real server in a session of its own, ended by us."""

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from forebay.bench import child
from forebay.bench.load import client
from forebay.bench.load.client import Endpoint
from forebay.errors import StartupError

HOST: Final = "127.0.0.1"
_BEGIN_S: Final = 400.0  # 25 to 55 s on two cores that have nothing else to do
_LOOK_S: Final = 0.25
_END_S: Final = 30.0
_SAID_LINES: Final = 15


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], port: int, log: Path
) -> Iterator[Endpoint]:
    """A server that answers at `port`; it and everything it started is gone afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only us
            env=dict(variables),
        )
    try:
        endpoint = Endpoint(HOST, port)
        _wait_for(process, endpoint, log)
        yield endpoint
    finally:
        child.end(process, _END_S)


def _wait_for(process: "subprocess.Popen[bytes]", endpoint: Endpoint, log: Path) -> None:
    until = time.monotonic() + _BEGIN_S
    while not asyncio.run(client.is_up(endpoint)):
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = "\n".join(lines[-_SAID_LINES:]) or "nothing"
            raise StartupError(f"the engine could not begin; it said last:\n{said}")
        time.sleep(_LOOK_S)
