"""What a scrape costs a pool that holds 100,000 chunks, and what it costs those who look things up.

    python tools/scrape_cost.py [--chunks 100000] [--rounds 5] [--seconds 4]

A real pool of 100 namespaces is filled over its socket. A scrape's processor time, of the pool's
own thread and of its process, is what the same work costs more when /metrics is read once a second:
stores, loads and lookups, so that what is scraped has changed. Then a client looks up chains of 64
chunks, in turns of some seconds without and with a scraper in a process of its own. Printed: the
processor time; lookups' median, p99 and longest with and without; and their ratios. The bar is
10 ms of the pool's processor time a scrape; the exit status is 1 above it.
"""

import argparse
import hashlib
import random
import re
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
SCRAPES: Final = 20
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


def url_of(pool: PoolProcess) -> str:
    found = re.search(r"metrics at (http://\S+)/metrics", pool.log.read_text())
    assert found is not None, pool.log.read_text()
    return found[1]


def cpu_s(pid: int) -> float:
    """Processor time of the pool's own thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def process_s(pid: int) -> float:
    """Processor time of the process, threads that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def scrape_cost(pool: PoolProcess, client: Client, known: list[Chain]) -> tuple[float, float]:
    """Seconds of the pool's thread, and of the process, for one scrape with a new snapshot."""
    url = url_of(pool)
    spent: list[tuple[float, float]] = []  # without scrapes, and with them
    for scrapes in (False, True):
        begun, begun_all = cpu_s(pool.pid), process_s(pool.pid)
        for number in range(SCRAPES):
            work(client, known, f"{scrapes} {number}")
            if scrapes:
                urllib.request.urlopen(url + "/metrics", timeout=60).read()
            time.sleep(FRESH_S)
        spent.append((cpu_s(pool.pid) - begun, process_s(pool.pid) - begun_all))
    (quiet_own, quiet_all), (own, of_all) = spent
    return (own - quiet_own) / SCRAPES, (of_all - quiet_all) / SCRAPES


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
        own_s, all_s = scrape_cost(pool, client, known)
        print(f"a scrape: the pool's thread {1000 * own_s:.2f} ms, its process", end=" ")
        print(f"{1000 * all_s:.2f} ms of processor time (bar: {1000 * BAR_S:.0f} ms)")
        quiet, scraped = list[float](), list[float]()
        for _ in range(parsed.rounds):
            quiet += lookups(client, known, parsed.seconds)
            scraper = subprocess.Popen([sys.executable, "-c", SCRAPER, url_of(pool)])
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
