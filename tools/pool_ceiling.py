"""What one pool process moves where no drive is the limit: GB/s in and out, commits, lookups.

Usage: pool_ceiling.py [--dir /dev/shm] [--engines 1,4,8] [--gib 4] [--seconds 4] [--drives 1].
A drive takes no time (`forebay.testing.nulldisk`): the pool does all it does for a real one,
hashing and verifying too, and the copy between slots and drive, which a drive's own DMA makes,
costs nothing. Payloads are really copied into slots by the engines, processes with a client each:

  in       payloads copied into slots, hashed and committed; `written`: of them, put on the drive
  out      chunks promised; `read`: of them, from the drive into DRAM, and verified
  us       CPU microseconds of the pool for each of them; `in` until all is on the drive
  commits  chunks of 4 KiB a second      lookups   of a chain of 500 chunks a second

Needs memory for --gib, the pool's DRAM, and 200 MB beside it. Ratios are to the first line of this
run. The pool's own CPU seconds a second tell how many cores it used: one thread decides, others
hash and verify.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from forebay.bench.pool.stored_chains import new_chain  # noqa: E402
from forebay.bench.processes import PoolProcess, pool_stats, running_pool, settled  # noqa: E402
from forebay.metrics import reading  # noqa: E402
from forebay.pool.client import Client  # noqa: E402
from forebay.pool.client.chain import Chain  # noqa: E402
from forebay.pool.client.outcomes import Known, Loaded  # noqa: E402
from forebay.settings import DiskSetting  # noqa: E402

PAYLOAD_BYTES = 4 << 20  # a chunk as engines make it
PAYLOAD = memoryview(random.Random("payload").randbytes(PAYLOAD_BYTES))  # of every chunk
DISK_BYTES = 256 << 30  # none of it is taken
FILL = 3  # times the DRAM is stored, so that what is loaded left it long ago
SMALL_BYTES = 4096
WINDOW = 8  # chunks of a chain
LOOKUP_CHUNKS = 500
TIMEOUT_S = 60.0
Done = tuple[int, list[Chain]]  # chunks or calls, and what was stored
Work = Callable[[Client, float, list[Chain]], Done]


def store(client: Client, until: float, _: list[Chain], least_chunks: int) -> Done:
    payloads = [PAYLOAD] * WINDOW
    made, done = [], 0
    while time.monotonic() < until or done < least_chunks:
        chain = new_chain(WINDOW)
        receipt = client.store(chain, payloads, timeout_s=TIMEOUT_S)
        assert not receipt.lost, "the pool went away"
        done += receipt.stored
        made.append(chain)
    return done, made


def load(client: Client, until: float, chains: list[Chain]) -> Done:
    """In the order in which they were stored: what is asked for left DRAM long ago."""
    done, number = 0, 0
    while time.monotonic() < until and chains:
        with client.load(chains[number % len(chains)], 0, TIMEOUT_S) as loaded:
            done += len(loaded.chunks) if isinstance(loaded, Loaded) else 0
        number += 1
    return done, chains


def commit(client: Client, until: float, _: list[Chain]) -> Done:
    payloads, done = [memoryview(os.urandom(SMALL_BYTES))] * 32, 0
    while time.monotonic() < until:
        done += client.store(new_chain(32), payloads, timeout_s=TIMEOUT_S).stored
    return done, []


def store_small(client: Client, _until: float, _: list[Chain]) -> Done:
    """The chain that is looked up then."""
    chain, payloads = new_chain(LOOKUP_CHUNKS), [memoryview(bytes(SMALL_BYTES))] * LOOKUP_CHUNKS
    return client.store(chain, payloads, timeout_s=TIMEOUT_S).stored, [chain]


def look_up(client: Client, until: float, chains: list[Chain]) -> Done:
    done = 0
    while time.monotonic() < until:
        done += isinstance(client.lookup(chains[0], TIMEOUT_S), Known)
    return done, chains


def engine(socket: str, work: Work, until: float, chains: list[Chain], told: "Queue[Done]") -> None:
    with Client(socket) as client:
        client.join(TIMEOUT_S)
        told.put(work(client, until, chains))


class Together(NamedTuple):
    """What all engines did at once."""

    rate: float  # chunks or calls a second
    cores: float  # the pool's CPU seconds a second
    cpu_us: float  # of the pool, for each of them
    written: float  # bytes a second, to the drive
    read: float
    chains: list[list[Chain]]


def together(
    pool: PoolProcess, watch: Client, work: Work, seconds: float, chains: list[list[Chain]]
) -> Together:
    """All engines at once, until the pool has nothing left to write."""
    context = multiprocessing.get_context("fork")
    told: Queue[Done] = context.Queue()
    before, begun, cpu_s = settled(watch, 0.3), time.monotonic(), pool.cpu_s()
    until = begun + seconds
    running = [
        context.Process(target=engine, args=(pool.socket, work, until, mine, told))
        for mine in chains
    ]
    for each in running:
        each.start()
    found = [told.get(timeout=4 * TIMEOUT_S + seconds) for _ in running]
    for each in running:
        each.join()
    took_s, busy_s = time.monotonic() - begun, pool.cpu_s() - cpu_s
    after = reading.counters(pool_stats(watch))
    settled(watch, 0.3)
    all_s, done = pool.cpu_s() - cpu_s, sum(count for count, _ in found)
    written, read = (
        (after.get(name, 0) - before.get(name, 0)) / took_s
        for name in ("moved_bytes.disk.store", "moved_bytes.disk.load")
    )
    us = 1e6 * all_s / max(1, done)
    return Together(done / took_s, busy_s / took_s, us, written, read, [mine for _, mine in found])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--engines", default="1,4,8")
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--drives", type=int, default=1, help="0: DRAM alone, to compare")
    wanted = parser.parse_args()
    dram_bytes = int(wanted.gib * 2**30)
    first: dict[str, float] = {}
    place = Path(tempfile.mkdtemp(dir=wanted.dir))
    print(
        "engines   in GB/s  written cores  us/chunk   out GB/s  read cores  us/chunk"
        "   commits/s  us/each   lookups/s  us/each   (ratios)"
    )
    try:
        for count in map(int, wanted.engines.split(",")):
            directory = place / f"{count}"
            directory.mkdir(mode=0o700)
            drives = [directory / f"{number}" for number in range(wanted.drives)]
            for drive in drives:
                drive.mkdir(mode=0o700)
            disks = [DiskSetting(str(drive), DISK_BYTES // len(drives)) for drive in drives]
            pool_of = running_pool(dram_bytes, disks, "forebay.testing", ["--null-drive"])
            with pool_of as pool, pool.client() as watch:
                found = measured(pool, watch, count, wanted.seconds, dram_bytes)
            shutil.rmtree(directory)
            first = first or found
            rates = ("in", "out", "commits", "lookups")
            ratios = " ".join(
                f"{each} {found[each] / first[each]:.2f}" for each in rates if first[each]
            )
            print(
                f"{count:7} {found['in']:9.2f} {found['written']:8.2f} {found['in_cores']:5.1f}"
                f" {found['in_us']:9.0f} {found['out']:10.2f} {found['read']:5.2f}"
                f" {found['out_cores']:5.1f} {found['out_us']:9.0f} {found['commits']:11,.0f}"
                f" {found['commit_us']:8.0f} {found['lookups']:11,.0f} {found['lookup_us']:8.0f}"
                f"   ({ratios})",
                flush=True,
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def measured(
    pool: PoolProcess, watch: Client, count: int, seconds: float, dram_bytes: int
) -> dict[str, float]:
    nobody: list[list[Chain]] = [[] for _ in range(count)]
    fill = partial(store, least_chunks=FILL * dram_bytes // PAYLOAD_BYTES // count)
    moved_in = together(pool, watch, fill, seconds, nobody)
    moved_out = together(pool, watch, load, seconds, moved_in.chains)
    commits = together(pool, watch, commit, seconds / 2, nobody)
    small = together(pool, watch, store_small, 0.0, nobody)
    lookups = together(pool, watch, look_up, seconds / 2, small.chains)
    return {
        "in": moved_in.rate * PAYLOAD_BYTES / 1e9,
        "written": moved_in.written / 1e9,
        "in_cores": moved_in.cores,
        "in_us": moved_in.cpu_us,
        "out": moved_out.rate * PAYLOAD_BYTES / 1e9,
        "read": moved_out.read / 1e9,
        "out_cores": moved_out.cores,
        "out_us": moved_out.cpu_us,
        "commits": commits.rate,
        "commit_us": commits.cpu_us,
        "lookups": lookups.rate,
        "lookup_us": lookups.cpu_us,
    }


if __name__ == "__main__":
    sys.exit(main())
