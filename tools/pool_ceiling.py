"""What one pool process moves where no drive is the limit: GB/s in and out, commits, lookups.

Usage: pool_ceiling.py [--dir /dev/shm] [--engines 1,4,8] [--gib 12] [--seconds 4]. The drive is a
directory in memory, so that bytes are really copied, hashed and verified, and nothing waits for a
device. Engines are processes with a client each, in turns of one, four and eight:

  in       payloads copied into slots, hashed and committed; `written`: of them, put on the drive
  out      chunks read from the drive into DRAM, verified and promised
  commits  chunks of 4 KiB a second      lookups   of a chain of 500 chunks a second

Needs memory for three times --gib. Ratios are to the first line of this run. The pool's own CPU
seconds a second tell how many cores it used: one thread decides, others copy and hash.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from forebay.bench.pool.stored_chains import new_chain  # noqa: E402
from forebay.bench.processes import PoolProcess, running_pool, settled  # noqa: E402
from forebay.metrics import reading  # noqa: E402
from forebay.pool.client import Client  # noqa: E402
from forebay.pool.client.chain import Chain  # noqa: E402
from forebay.pool.client.outcomes import Known, Loaded  # noqa: E402
from forebay.settings import DiskSetting  # noqa: E402

PAYLOAD_BYTES = 4 << 20  # a chunk as engines make it
SMALL_BYTES = 4096
WINDOW = 8  # chunks of a chain
LOOKUP_CHUNKS = 500
TIMEOUT_S = 60.0
Done = tuple[int, list[Chain]]  # bytes or calls, and what was stored
Work = Callable[[Client, float, list[Chain]], Done]


def store(client: Client, until: float, _: list[Chain]) -> Done:
    payloads = [memoryview(os.urandom(PAYLOAD_BYTES))] * WINDOW
    made, done = [], 0
    while time.monotonic() < until:
        chain = new_chain(WINDOW)
        done += client.store(chain, payloads, timeout_s=TIMEOUT_S).stored * PAYLOAD_BYTES
        made.append(chain)
    return done, made


def load(client: Client, until: float, chains: list[Chain]) -> Done:
    """In the order in which they were stored: what is asked for left DRAM long ago."""
    done, number = 0, 0
    while time.monotonic() < until and chains:
        with client.load(chains[number % len(chains)], 0, TIMEOUT_S) as loaded:
            done += sum(map(len, loaded.chunks)) if isinstance(loaded, Loaded) else 0
        number += 1
    return done, chains


def commit(client: Client, until: float, _: list[Chain]) -> Done:
    payloads, done = [memoryview(os.urandom(SMALL_BYTES))] * 32, 0
    while time.monotonic() < until:
        done += client.store(new_chain(32), payloads, timeout_s=TIMEOUT_S).stored
    return done, []


def look_up(client: Client, until: float, _: list[Chain]) -> Done:
    chain, done = new_chain(LOOKUP_CHUNKS), 0
    client.store(chain, [memoryview(os.urandom(SMALL_BYTES))] * LOOKUP_CHUNKS, timeout_s=TIMEOUT_S)
    while time.monotonic() < until:
        done += isinstance(client.lookup(chain, TIMEOUT_S), Known)
    return done, []


def engine(socket: str, work: Work, until: float, chains: list[Chain], told: "Queue[Done]") -> None:
    with Client(socket) as client:
        client.join(TIMEOUT_S)
        told.put(work(client, until, chains))


def together(
    pool: PoolProcess, work: Work, seconds: float, chains: list[list[Chain]]
) -> tuple[float, float, list[list[Chain]]]:
    """What all engines did a second, the pool's CPU seconds a second, and the engines' chains."""
    context = multiprocessing.get_context("fork")
    told: Queue[Done] = context.Queue()
    begun, cpu_s = time.monotonic(), pool.cpu_s()
    until = begun + seconds
    running = [
        context.Process(target=engine, args=(pool.socket, work, until, mine, told))
        for mine in chains
    ]
    for each in running:
        each.start()
    found = [told.get(timeout=2 * TIMEOUT_S + seconds) for _ in running]
    for each in running:
        each.join()
    took_s = time.monotonic() - begun
    done = sum(count for count, _ in found)
    return done / took_s, (pool.cpu_s() - cpu_s) / took_s, [mine for _, mine in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--engines", default="1,4,8")
    parser.add_argument("--gib", type=float, default=12.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    wanted = parser.parse_args()
    first: dict[str, float] = {}
    place = Path(tempfile.mkdtemp(dir=wanted.dir))
    print("engines   in GB/s  written  cores   out GB/s  cores   commits/s   lookups/s   (ratios)")
    try:
        for count in map(int, wanted.engines.split(",")):
            directory = place / f"{count}"
            directory.mkdir(mode=0o700)
            dram_bytes = int(wanted.gib * 2**30) // 4
            disks = [DiskSetting(str(directory), int(wanted.gib * 2**30))]
            with running_pool(dram_bytes, disks) as pool, pool.client() as watch:
                found = measured(pool, watch, count, wanted.seconds)
            shutil.rmtree(directory)
            first = first or found
            ratios = " ".join(
                f"{name} {found[name] / first[name]:.2f}" for name in found if first[name]
            )
            print(
                f"{count:7} {found['in']:9.2f} {found['written']:8.2f} {found['in_cores']:6.1f}"
                f" {found['out']:10.2f} {found['out_cores']:6.1f} {found['commits']:11,.0f}"
                f" {found['lookups']:11,.0f}   ({ratios})",
                flush=True,
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def measured(pool: PoolProcess, watch: Client, count: int, seconds: float) -> dict[str, float]:
    nobody: list[list[Chain]] = [[] for _ in range(count)]
    before, begun = reading.counters(stats(watch)), time.monotonic()
    moved_in, in_cores, chains = together(pool, store, seconds, nobody)
    after, took_s = reading.counters(stats(watch)), time.monotonic() - begun
    name = "moved_bytes.disk.store"
    written = (after.get(name, 0) - before.get(name, 0)) / took_s
    settled(watch, 0.3)
    moved_out, out_cores, _ = together(pool, load, seconds, chains)
    commits, _, _ = together(pool, commit, seconds / 2, nobody)
    lookups, _, _ = together(pool, look_up, seconds / 2, nobody)
    return {
        "in": moved_in / 1e9,
        "written": written / 1e9,
        "in_cores": in_cores,
        "out": moved_out / 1e9,
        "out_cores": out_cores,
        "commits": commits,
        "lookups": lookups,
    }


def stats(watch: Client) -> dict[str, object]:
    found = watch.stats(TIMEOUT_S)
    assert isinstance(found, dict), found
    return found


if __name__ == "__main__":
    sys.exit(main())
