"""A client in a separate process that stores at a steady rate during a measurement.

Run as a module it is that client: it stores until its input ends, so that it outlives nobody, and
then prints what it has done.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from forebay.bench import processes
from forebay.bench.pool.stored_chains import new_chain
from forebay.errors import StartupError
from forebay.pool.client import Client

_MODULE: Final = "forebay.bench.pool.background_client"
_STORE_S: Final = 10.0
_BEGIN_S: Final = 30.0
_END_S: Final = 30.0


@contextlib.contextmanager
def running_beside(
    socket: str, payload_bytes: int, chunks: int, chunks_per_s: float
) -> Iterator[dict[str, float]]:
    """A client that stores chains of so many chunks meanwhile.

    At the end it says how many chunks it `stored`, how many were `refused`, in how many `seconds`.
    """
    report: dict[str, float] = {}
    arguments = [socket, str(payload_bytes), str(chunks), str(chunks_per_s / chunks)]
    child = processes.begin_module(
        _MODULE, arguments, stdin=subprocess.PIPE, output=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], _BEGIN_S)[0]:
            raise StartupError("the client beside did not begin in time.")
        child.stdout.readline()
        yield report
        output, _ = child.communicate(timeout=_END_S)
        try:
            report |= msgspec.json.decode(output, type=dict[str, float])
        except msgspec.DecodeError:
            raise StartupError(f"the client beside failed: {output[-200:]!r}") from None
    finally:
        processes.end(child)


def main() -> None:
    """Arguments: socket, payload bytes of a chunk, chunks of a chain, chains a second."""
    socket, payload_bytes, chunks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chains_per_s = float(sys.argv[4])
    payloads = [memoryview(os.urandom(payload_bytes))] * chunks
    print("begun", flush=True)  # noqa: T201
    start = time.monotonic()
    chains = stored = refused = 0
    with Client(socket) as client:
        while not _told_to_end(start + chains / chains_per_s):
            receipt = client.store(new_chain(chunks), payloads, timeout_s=_STORE_S)
            stored += receipt.stored
            refused += chunks - receipt.stored
            # Late chains are not caught up with: the rate is a limit, never a burst.
            chains = max(chains + 1, int((time.monotonic() - start) * chains_per_s))
    report = {"stored": stored, "refused": refused, "seconds": time.monotonic() - start}
    print(msgspec.json.encode(report).decode())  # noqa: T201


def _told_to_end(due: float) -> bool:
    """Wait until it is time for the next chain, or for the end."""
    timeout_s = max(0.0, due - time.monotonic())
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


if __name__ == "__main__":
    main()
