"""What a scrape costs a pool that holds 100,000 chunks, and what it costs those who look things up.

    python tools/scrape_cost.py [--chunks 100000] [--rounds 5] [--seconds 4]

A real pool of 100 namespaces is filled over its socket. Before each scrape something is stored and
loaded in every namespace, so that what is scraped has changed. Printed: the processor time of the
pool's own thread and of its process for one scrape, the median of each round and of all; then the
median, p99 and longest time of lookups of 64 chunks, in turns of some seconds without and with a
scraper in a process of its own that reads /metrics once a second, and their ratios. The bar is
10 ms of the process's time a scrape; the exit status is 1 above it.
"""

import argparse
import hashlib
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import pool_process  # noqa: E402 - the tests' own processes
from tests.pool_process import PoolProcess  # noqa: E402

from forebay.pool.client import Chain, Client, Known  # noqa: E402

BAR_S: Final = 0.010
CHUNK_BYTES: Final = 4096
CHAIN: Final = 64
FRESH_S: Final = 1.05  # a snapshot serves everyone for a second
SCRAPES: Final = 8  # a round
STORE_S: Final = 120.0
SCRAPER: Final = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1] + "/metrics", timeout=60).read()
    time.sleep(1.0)
"""


def chains(count: int) -> list[Chain]:
    """So many chains of made-up keys, of a hundred namespaces."""
    luck = random.Random(7)
    names = [luck.randbytes(32) for _ in range(100)]
    return [
        Chain(names[number % 100], [luck.randbytes(32) for _ in range(CHAIN)])
        for number in range(count)
    ]


def cpu_s(pid: int) -> tuple[float, float]:
    """Processor time of the pool's own thread, and of its process, to the nanosecond."""
    own_ns = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
    clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) has it
    return own_ns / 1e9, time.clock_gettime_ns(clock) / 1e9


def scrape_cost(
    pool: PoolProcess, client: Client, known: list[Chain], name: str
) -> tuple[float, float]:
    """Seconds of the pool's thread, and of the process, for one scrape with a new snapshot."""
    own_s, all_s = list[float](), list[float]()
    for number in range(SCRAPES):
        work(client, known, f"{name} {number}")
        time.sleep(FRESH_S)
        before = cpu_s(pool.pid)
        urllib.request.urlopen(pool.url() + "/metrics", timeout=60).read()
        after = cpu_s(pool.pid)
        own_s.append(after[0] - before[0])
        all_s.append(after[1] - before[1])
    return statistics.median(own_s), statistics.median(all_s)


def work(client: Client, known: list[Chain], name: str) -> None:
    """Something of every kind, the same each time: metrics change as they do in a busy pool."""
    for chain in known[:100]:  # one of every namespace
        key = hashlib.sha256(chain.keys[0] + name.encode()).digest()
        client.store(Chain(chain.namespace, [key]), [bytes(CHUNK_BYTES)], timeout_s=STORE_S)
        with client.load(chain, CHAIN - 1):
            pass


def lookups(client: Client, known: list[Chain], seconds: float) -> list[float]:
    """How long each lookup took, one after the other."""
    took = []
    until = time.monotonic() + seconds
    while (begun := time.perf_counter()) and time.monotonic() < until:
        assert client.lookup(random.choice(known)) == Known(CHAIN, CHAIN)
        took.append(time.perf_counter() - begun)
    return took


def show(title: str, took: list[float]) -> tuple[float, float, float]:
    ordered = sorted(took)
    figures = statistics.median(took), ordered[int(0.99 * len(took))], ordered[-1]
    words = ", ".join(
        f"{name} {1000 * figure:.3f} ms"
        for name, figure in zip(("median", "p99", "longest"), figures, strict=True)
    )
    print(f"{title:<18} {len(took)} lookups: {words}")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parsed = parser.parse_args()
    dram = str(max(64 << 20, parsed.chunks * CHUNK_BYTES * 5 // 4))
    flags = ("--metrics-address", "127.0.0.1:0", "--dram", dram)
    with (
        pool_process.short_directory() as place,
        pool_process.running_pool(place, *flags) as pool,
        Client(pool.socket) as client,
    ):
        known = chains(-(-parsed.chunks // CHAIN))
        for chain in known:
            stored = client.store(chain, [bytes(CHUNK_BYTES)] * CHAIN, timeout_s=STORE_S)
            assert stored.stored == CHAIN
        print(f"{pool.number('chunks', tier='dram')} chunks in DRAM,", end=" ")
        print(f"{pool.number('chunks', tier='disk')} on disk")
        rounds = [scrape_cost(pool, client, known, str(each)) for each in range(parsed.rounds)]
        for number, (own_s, all_s) in enumerate(rounds, 1):
            print(f"round {number}: {1000 * own_s:.2f} ms and {1000 * all_s:.2f} ms")
        own_s, all_s = (statistics.median(figures) for figures in zip(*rounds, strict=True))
        print(f"a scrape: the pool's thread {1000 * own_s:.2f} ms, its process", end=" ")
        print(f"{1000 * all_s:.2f} ms of processor time (bar: {1000 * BAR_S:.0f} ms)")
        quiet, scraped = list[float](), list[float]()
        for _ in range(parsed.rounds):
            quiet += lookups(client, known, parsed.seconds)
            scraper = subprocess.Popen([sys.executable, "-c", SCRAPER, pool.url()])
            try:
                scraped += lookups(client, known, parsed.seconds)
            finally:
                scraper.kill()
                scraper.wait()
    before, after = show("without scraping", quiet), show("scraped each second", scraped)
    print("ratios: " + ", ".join(f"{b / a:.2f}" for a, b in zip(before, after, strict=True)))
    return int(all_s > BAR_S)


if __name__ == "__main__":
    sys.exit(main())
