"""What a store that answers nothing costs the time to the first token, against no store at all.

    python tools/remote_stall.py [--requests 300]

Two real pools with the same chains in DRAM; one of them also has a store (a shared directory, with
chains that only the store has), whose process is stopped by SIGSTOP from the first measured request
on, and so is every process that the pool starts in its place: no request is ever answered. The same
requests go to both pools in turn: a half are in DRAM, a quarter are known to nobody, a quarter lie
in the store alone. Each is looked up, judged as an engine judges it, and asked for or computed. The
time to its first token is what it waited for the pool, and the time that a GPU takes for what it
did not get (8,192 tokens at 30,000 a second, not really spent). Printed: the mean of all, and the
median of each kind, for both pools, and their ratios. The bar is 1.05 for the mean; the exit status
is 1 above it. A request that meets the store as it stalls waits for its deadline: one of them.
"""

import argparse
import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import pool_process  # noqa: E402 - the tests' own processes
from tests.pool_process import PoolProcess, wait_until  # noqa: E402

from forebay.engines.scheduling.load_or_recompute import (  # noqa: E402
    OtherWork,
    fetching_ms,
    worth_fetching,
)
from forebay.metrics.reading import tier_of  # noqa: E402
from forebay.pool.client import Chain, Client  # noqa: E402
from forebay.pool.client.session import PoolSession  # noqa: E402
from forebay.pool.messages import Ask, Cancel, Found, Lookup, Promise, Release  # noqa: E402
from forebay.sys.clock import Clock  # noqa: E402

BAR: Final = 1.05
KINDS: Final = ("in DRAM", "in DRAM", "unknown", "in the store")  # of requests, in turn
CHUNK_BYTES: Final = 2 << 20
CHUNKS: Final = 4  # of a chain
TOKENS: Final = 8192  # that a chain stands for
TOKENS_A_S: Final = 30_000.0
TOKEN_BYTES: Final = CHUNKS * CHUNK_BYTES // TOKENS
DEADLINE_MS: Final = 2000  # of an ask, as engines have it
WAIT_S: Final = 60.0
PAUSE_S: Final = 0.05  # between two requests
LOOK_S: Final = 0.02  # between two looks for a process that calls the store
DRAM: Final = str(1 << 30)
LONG_S: Final = 600.0


Answer = TypeVar("Answer", Found, Promise)


def chain(label: str) -> Chain:
    draw = random.Random(label)
    return Chain(b"n" * 32, [draw.randbytes(32) for _ in range(CHUNKS)])


class Stopper(threading.Thread):
    """Stops every process that calls a store, as soon as it is there."""

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self._place, self._end = str(place).encode(), threading.Event()
        self.stopped: set[int] = set()

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        for process in Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes() if process.name.isdecimal() else b""
                if b"remote.process.child" in words and self._place in words:
                    os.kill(int(process.name), signal.SIGSTOP)
                    self.stopped.add(int(process.name))
            except OSError:
                continue  # it has ended

    def end(self) -> None:
        self._end.set()
        self.join()


class Requester:
    """Sends requests to one pool and keeps the times to their first tokens."""

    def __init__(self, socket: str) -> None:
        self._session = PoolSession(socket, Clock())
        assert self._session.wait_until_joined(time.monotonic() + WAIT_S)
        self._numbers = itertools.count(1)
        self.times: dict[str, list[float]] = defaultdict(list)

    def request(self, wanted: Chain, kind: str) -> None:
        number, begun = next(self._numbers), time.monotonic()
        speed = TOKENS_A_S * TOKEN_BYTES
        self._session.post(
            Lookup(number, wanted.namespace, 0, wanted.shorts(), gpu_bytes_a_s=speed)
        )
        found = self._take(Found, number)
        chunks, deadline_ms = self._worth(found)
        got = 0
        if chunks:
            self._session.post(Ask(number, 0, chunks, deadline_ms, stream=False))
            got = self._take(Promise, number).total
            self._session.post(Release(number, []))
        else:
            self._session.post(Cancel(number))
        computed_s = TOKENS * (1 - got / CHUNKS) / TOKENS_A_S
        self.times[kind].append(time.monotonic() - begun + computed_s)

    def _worth(self, found: Found) -> tuple[int, int]:
        """Chunks to ask for, as an engine with an idle GPU decides, and how long to wait."""
        for run in found.stores:
            if run.first >= found.ready:
                tokens = (found.known - run.first) * TOKENS // CHUNKS
                worth = worth_fetching(
                    tokens, TOKEN_BYTES, OtherWork(), run, TOKENS_A_S, is_tried=False
                )
                chunks = run.first + worth * CHUNKS // TOKENS
                return chunks, int(fetching_ms(chunks * CHUNK_BYTES, run, DEADLINE_MS))
        return found.known, DEADLINE_MS

    def _take(self, kind: type[Answer], number: int) -> Answer:
        until = time.monotonic() + WAIT_S
        while (message := self._session.take(until)) is not None:
            if isinstance(message, kind) and message.request == number:
                return message
        raise TimeoutError(f"no {kind.__name__} came")


def fill(pool: PoolProcess, labels: list[str]) -> None:
    with Client(pool.socket) as client:
        for label in labels:
            client.store(chain(label), [os.urandom(CHUNK_BYTES)] * CHUNKS, timeout_s=WAIT_S)


def chunks_in(pool: PoolProcess, tier: str) -> int:
    return int(tier_of(pool.stats(), tier)["chunks"])


def show(title: str, times: dict[str, list[float]]) -> float:
    """Print what was measured; the mean."""
    every = [one for of_kind in times.values() for one in of_kind]
    medians = ", ".join(
        f"{kind} {1000 * statistics.median(of_kind):.1f}" for kind, of_kind in times.items()
    )
    mean = statistics.mean(every)
    print(
        f"{title:<16} {len(every)} requests: mean {1000 * mean:.1f} ms, longest"
        f" {1000 * max(every):.0f} ms; medians in ms: {medians}"
    )
    return mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=300)
    count = parser.parse_args().requests
    near, far = [f"near {n}" for n in range(16)], [f"far {n}" for n in range(8)]
    with ExitStack() as undo:
        place = undo.enter_context(pool_process.short_directory())
        shared = place / "shared"
        for directory in (shared, place / "a", place / "b", place / "plain"):
            directory.mkdir(mode=0o700)
        remote = f"file://{shared}?cap=1GiB&send=all"

        def begun(name: str, *flags: str) -> PoolProcess:
            running = pool_process.running_pool(place / name, "--dram", DRAM, *flags, disk=False)
            return undo.enter_context(running)

        first = begun("a", "--remote", f"{remote}&host=a")
        fill(first, far)
        wait_until(lambda: chunks_in(first, "remote") == CHUNKS * len(far), "the store", LONG_S)
        first.stop()
        pool, plain = begun("b", "--remote", f"{remote}&host=b"), begun("plain")
        for each in (pool, plain):
            fill(each, near)
        wait_until(lambda: chunks_in(pool, "remote") == CHUNKS * len(near), "the store", LONG_S)
        beside, alone = Requester(pool.socket), Requester(plain.socket)
        beside.request(chain(far[0]), KINDS[3])  # the store is known to be fast
        beside.times.clear()
        stopper = Stopper(shared)
        stopper.look()
        stopper.start()
        for number in range(count):
            kind = number % 4
            label = near[number % len(near)] if kind < 2 else f"unknown {number}"
            label = far[1 + number // 4 % (len(far) - 1)] if kind == 3 else label
            for requester in (beside, alone):
                requester.request(chain(label), KINDS[kind])
            time.sleep(PAUSE_S)
        stopper.end()
        print(f"{len(stopper.stopped)} processes of the store were stopped")
    ratio = show("a stalled store", beside.times) / show("no store", alone.times)
    print(f"ratio of the means: {ratio:.3f} (bar {BAR})")
    return int(ratio > BAR)


if __name__ == "__main__":
    sys.exit(main())
