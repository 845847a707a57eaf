"""The `--dram` figures: one pool, filled several times over its DRAM, then measured in turn."""

import contextlib
import os
import time
from statistics import median
from typing import Final

from forebay.bench.disk.figures import (
    PAIRS,
    Figures,
    PoolBenchPlan,
    Progress,
    compare_in_pairs,
    latency,
    spread,
)
from forebay.bench.disk.raw import RawFiles, pool_bytes, prepared_files, raw_slots
from forebay.bench.pool.background_client import running_beside
from forebay.bench.pool.nvme_reads import NvmeReads
from forebay.bench.pool.stored_chains import StoredChains, new_chain
from forebay.bench.processes import PoolProcess, running_pool, settled
from forebay.errors import SettingsError, StartupError
from forebay.pool.client import Client
from forebay.pool.client.outcomes import Known
from forebay.quantity import format_size
from forebay.record.header import record_bytes
from forebay.settings import DiskSetting
from forebay.sys.scratch import scratch

LOOKUP_CHUNKS: Final = 500
SMALL_PAYLOAD_BYTES: Final = 4096
COMMIT_BATCH: Final = 32  # what the client reserves at once
BESIDE_COMMITS_PER_S: Final = 1000
DEPTHS: Final = (4, 8, 16)  # records wanted at a time
DRAM_TIMES_MIN: Final = 4  # NVMe must hold so many times the DRAM
_DRAM_RECORDS_MIN: Final = 32
_FILL_SHARE: Final = 0.8  # of the pool's NVMe: nothing of it is overwritten before it is found
_FILL_TIMES: Final = 8  # of the DRAM
_ROUNDS: Final = 5
_RAW_DEPTH: Final = 8
_BESIDE_CHAIN: Final = 4
_LOOKUP_PAUSE_S: Final = 0.004
_SETTLED_S: Final = 0.5  # without a write to disk, nothing waits to be written
_QUIET_S: Final = 1.5  # until it ticks as slowly as it does all night
_IDLE_S: Final = 2.0
_TIMEOUT_S: Final = 60.0


def refuse_impossible(plan: PoolBenchPlan) -> None:
    """A SettingsError if these sizes could show nothing."""
    least = _DRAM_RECORDS_MIN * plan.payload_bytes
    if plan.dram_bytes < least:
        raise SettingsError(
            f"--dram: {format_size(plan.dram_bytes)} is too small for records of"
            f" {format_size(plan.payload_bytes)}; give it at least {format_size(least)}."
        )
    most = _fill_bytes_max(plan) // DRAM_TIMES_MIN
    if plan.dram_bytes > most:
        room = format_size(sum(map(pool_bytes, plan.disks)))
        raise SettingsError(
            f"--dram: the benchmark takes {room} of the drives for its pool and wants"
            f" several times the DRAM there; give it at most {format_size(most)}."
        )


def run(plan: PoolBenchPlan, progress: Progress) -> Figures:
    """Measure; blocks for about `plan.seconds`, or as long as filling takes."""
    refuse_impossible(plan)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(scratch(disk.path)) for disk in plan.disks]
        progress("writing the raw file once", 0.0)
        io_bytes = record_bytes(plan.payload_bytes)
        slots = raw_slots(plan.disks, io_bytes)
        raw = stack.enter_context(prepared_files(places, io_bytes, slots))
        disks = []
        for disk, place in zip(plan.disks, places, strict=True):
            (place / "pool").mkdir(mode=0o700)
            disks.append(DiskSetting(str(place / "pool"), pool_bytes(disk)))
        pool = stack.enter_context(running_pool(plan.dram_bytes, disks))
        client = stack.enter_context(pool.client())
        found = _Measurement(plan, pool, client, raw, progress).run(start)
        return {**found, "pool_seconds": round(time.monotonic() - start, 1)}


def _fill_bytes_max(plan: PoolBenchPlan) -> int:
    return int(sum(map(pool_bytes, plan.disks)) * _FILL_SHARE)


class _Measurement:
    def __init__(
        self,
        plan: PoolBenchPlan,
        pool: PoolProcess,
        client: Client,
        raw: RawFiles,
        progress: Progress,
    ) -> None:
        self._plan, self._pool, self._client, self._raw = plan, pool, client, raw
        self._progress = progress
        self._not_ready = 0

    def run(self, start: float) -> Figures:
        until = start + self._plan.seconds
        stored = self._fill(until)
        left_s = max(1.0, until - time.monotonic() - _QUIET_S - _IDLE_S)
        nvme = self._nvme(stored, 0.45 * left_s)
        commits = [self._commits(0.1 * left_s / _ROUNDS) for _ in range(_ROUNDS)]
        raw_gbps = median(self._raw.write(_RAW_DEPTH, 0.03 * left_s) for _ in range(3))
        size, name, each_s = self._plan.payload_bytes, "lookup_500", 0.18 * left_s
        storing = (size, _BESIDE_CHAIN, raw_gbps / 2 * 1e9 / size)
        lookup, stored_per_s = self._lookups(name, storing, each_s)
        committing = (SMALL_PAYLOAD_BYTES, COMMIT_BATCH, BESIDE_COMMITS_PER_S)
        beside, committed_per_s = self._lookups(f"{name}_beside_commits", committing, each_s)
        return {
            "dram_bytes": self._plan.dram_bytes,
            "small_payload_bytes": SMALL_PAYLOAD_BYTES,
            "pool_raw_write_gbps": round(raw_gbps, 3),
            **lookup,
            "lookup_beside_gbps": round(stored_per_s * size / 1e9, 3),
            **beside,
            "beside_commits_per_s": round(committed_per_s),
            "lookup_chunks": LOOKUP_CHUNKS,
            "lookups_not_ready": self._not_ready,
            **spread("commits_per_s", commits, None),
            "commit_batch": COMMIT_BATCH,
            **nvme,
            "stored_records": stored.found + stored.missing,
            "found_records": stored.found,
            "refused_records": stored.refused,
            "everything_found": not stored.missing and not stored.refused,
            "pool_idle_cpu_share": round(self._idle(), 4),
        }

    def _fill(self, until: float) -> StoredChains:
        self._progress("filling the pool", 0.1)
        stored = StoredChains(self._client, self._plan.payload_bytes)
        left_s = until - time.monotonic()
        wanted_bytes = min(_fill_bytes_max(self._plan), _FILL_TIMES * self._plan.dram_bytes)
        stored.fill(wanted_bytes, time.monotonic() + left_s / 2)
        settled(self._client, _SETTLED_S)
        self._progress("finding everything again", 0.3)
        stored.find()
        return stored

    def _nvme(self, stored: StoredChains, seconds: float) -> Figures:
        """Pairs of raw reads and asks; the order of the two changes from round to round."""

        def slice_s(what: str) -> float:
            self._progress(f"NVMe to slab, {what}", 0.5)
            return seconds / (2 * PAIRS * len(DEPTHS))

        name = "nvme_to_slab"
        with contextlib.closing(NvmeReads(self._pool, self._client, stored.chains)) as reads:
            found = compare_in_pairs(name, DEPTHS, self._raw.read, reads.read, slice_s)
            return {**found, f"{name}_misses": reads.misses}

    def _commits(self, seconds: float) -> float:
        """Small chunks reserved, filled and committed a second, by one client."""
        self._progress("commits", 0.65)
        payload = memoryview(os.urandom(SMALL_PAYLOAD_BYTES))
        payloads = [payload] * COMMIT_BATCH
        chains = [new_chain(COMMIT_BATCH) for _ in range(2000)]
        stored = 0
        start = time.monotonic()
        for chain in chains:
            stored += self._client.store(chain, payloads, timeout_s=_TIMEOUT_S).stored
            if time.monotonic() - start >= seconds:
                break
        rate = stored / (time.monotonic() - start)
        settled(self._client, _SETTLED_S)
        return rate

    def _lookups(
        self, name: str, load: tuple[int, int, float], seconds: float
    ) -> tuple[Figures, float]:
        """Lookups of a chain that lies in DRAM, and the chunks a second stored beside them."""
        self._progress("lookups beside a client that stores", 0.7)
        chain = new_chain(LOOKUP_CHUNKS)
        payload = memoryview(os.urandom(SMALL_PAYLOAD_BYTES))
        receipt = self._client.store(chain, [payload] * LOOKUP_CHUNKS, timeout_s=_TIMEOUT_S)
        if receipt.stored != LOOKUP_CHUNKS:
            raise StartupError(f"the pool took {receipt.stored} of {LOOKUP_CHUNKS} chunks.")
        rounds: list[list[float]] = []
        with running_beside(self._pool.socket, *load) as report:
            for _ in range(_ROUNDS):
                until = time.monotonic() + seconds / _ROUNDS
                times: list[float] = []
                while not times or time.monotonic() < until:
                    time.sleep(_LOOKUP_PAUSE_S)
                    start = time.perf_counter()
                    known = self._client.lookup(chain)
                    times.append(time.perf_counter() - start)
                    self._not_ready += known != Known(LOOKUP_CHUNKS, LOOKUP_CHUNKS)
                rounds.append(times)
        settled(self._client, _SETTLED_S)
        return latency(name, rounds), report["stored"] / report["seconds"]

    def _idle(self) -> float:
        self._progress("doing nothing", 0.95)
        settled(self._client, _SETTLED_S)
        time.sleep(_QUIET_S)
        before, start = self._pool.cpu_s(), time.monotonic()
        time.sleep(_IDLE_S)
        return (self._pool.cpu_s() - before) / (time.monotonic() - start)
