"""A client that stores and loads chains of one namespace until told to stop, and checks each byte.

Run as `python -m tests.load_generator SOCKET NAMESPACE SEED [PAUSE_S]`. A payload follows from its
name, so every generator knows what it must be given, whoever stored it. At the end of its input it
prints a report in JSON; a wrong byte ends it at once with status 3.
"""

import hashlib
import json
import random
import select
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests import pool_process

from forebay.pool.client import Client, Known, Loaded
from forebay.testing import samples

WRONG_BYTES: Final = 3
DIALOGS: Final = 60
CHUNKS_MAX: Final = 10
LENGTHS: Final = (40_000, 100_000, 160_000)
PAUSE_S: Final = 0.005  # between two calls
TIMEOUTS_S: Final = (0.02, 0.2, 1.0)


class LoadGenerator:
    """One client and its random choices."""

    def __init__(self, socket: str, number: int, seed: int) -> None:
        self.client = Client(socket)
        self.random = random.Random(seed)
        self.namespace = hashlib.blake2b(b"generator %d" % number, digest_size=32).digest()
        self.number = number
        self.length = LENGTHS[number % len(LENGTHS)]
        self.counts: Counter[str] = Counter()
        self.late_s = 0.0  # the most that a call exceeded its deadline by

    @property
    def has_seen_both(self) -> bool:
        """Whether it has stored and loaded."""
        return bool(self.counts["stored"] and self.counts["hits"])

    def turn(self) -> None:
        """One call with a deadline."""
        dialog = min(self.random.randrange(DIALOGS), self.random.randrange(DIALOGS))
        count = self.random.randrange(1, CHUNKS_MAX + 1)
        label = f"{self.number}/{dialog}"
        chunks = samples.chain(label, [self.length] * count, self.namespace)
        chain = pool_process.chain_of(chunks)
        timeout_s = self.random.choice(TIMEOUTS_S)
        kind = self.random.randrange(10)
        payloads = [chunk.payload for chunk in chunks] if kind >= 6 else []
        started = time.monotonic()
        if kind == 0:
            known = self.client.lookup(chain, timeout_s)
            self.counts["lookups"] += isinstance(known, Known)
        elif kind < 6:
            with self.client.load(chain, timeout_s=timeout_s) as loaded:
                self.late_s = max(self.late_s, time.monotonic() - started - timeout_s)
                if isinstance(loaded, Loaded):
                    self.check(loaded, chunks)
                else:
                    self.counts[f"miss {loaded.reason}"] += 1
            return
        else:
            receipt = self.client.store(chain, payloads, timeout_s=timeout_s)
            self.counts["stored"] += receipt.stored
            self.counts["lost"] += receipt.lost
        self.late_s = max(self.late_s, time.monotonic() - started - timeout_s)

    def check(self, loaded: Loaded, chunks: list[samples.Sample]) -> None:
        """Every byte must be the one that follows from the name."""
        for view, chunk in zip(loaded.chunks, chunks[loaded.first :], strict=False):
            if bytes(view) != chunk.payload:
                print(json.dumps({"wrong": chunk.name.key.hex()}), flush=True)
                sys.exit(WRONG_BYTES)
            self.counts["hits"] += 1


def main() -> None:
    socket, number, seed, *pause = sys.argv[1:]
    pause_s = float(pause[0]) if pause else PAUSE_S
    generator = LoadGenerator(socket, int(number), int(seed))
    print("ready", flush=True)
    # Each goes on until it was given something and something was taken from it.
    while not (select.select([sys.stdin], [], [], 0)[0] and generator.has_seen_both):
        generator.turn()
        time.sleep(pause_s)
    status = Path("/proc/self/status").read_text()
    anonymous_kb = int(status.partition("RssAnon:")[2].split()[0])
    report = {"counts": generator.counts, "late_s": generator.late_s, "anonymous_kb": anonymous_kb}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
