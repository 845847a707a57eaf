"""Run as a child process: a client that stores at a steady rate beside what is measured.

Arguments: the pool's socket, payload bytes of a chunk, chunks of a chain, chains a second. Ends
when its input does, and prints what it has done.
"""

import json
import os
import select
import sys
import time

from forebay.bench.served.stock import new_chain
from forebay.pool.client import Client

_STORE_S = 10.0


def main() -> None:
    """Store until our parent has heard enough, or is no more."""
    socket, payload_bytes, chunks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chains_per_s = float(sys.argv[4])
    payload = memoryview(os.urandom(payload_bytes))
    stored = late = chains = 0
    start = time.monotonic()
    with Client(socket) as client:
        while not _told_to_end(start + chains / chains_per_s):
            chains += 1
            receipt = client.store(new_chain(chunks), [payload] * chunks, timeout_s=_STORE_S)
            stored += receipt.stored
            late += chunks - receipt.stored
            # What could not be had in time is not caught up with: the rate stays what it is.
            chains = max(chains, int((time.monotonic() - start) * chains_per_s))
    seconds = time.monotonic() - start
    print(json.dumps({"stored": stored, "late": late, "seconds": seconds}))  # noqa: T201


def _told_to_end(due: float) -> bool:
    """Wait until it is time for the next chain, or for the end."""
    timeout_s = max(0.0, due - time.monotonic())
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


if __name__ == "__main__":
    main()
