"""Figures that no bandwidth shows: reopening, memory of the index, time of the key chain."""

import gc
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Semaphore
from typing import Final

from forebay.bench.disk.tier_load import new_name
from forebay.errors import StartupError
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.record.header import ROOT, record_bytes
from forebay.record.region import ENTRY_BYTES
from forebay.sys import memory
from forebay.tiers.contract import Stored, StoreOutcome
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.disk.index import Index, RecordPlace

REOPEN_RECORDS: Final = 100_000
REOPEN_PAYLOAD_BYTES: Final = 4096
INDEX_RECORDS: Final = 1_000_000
KEY_TOKENS: Final = 100_000
KEY_CHUNK_TOKENS: Final = 16
_CHAIN_RECORDS: Final = 64  # a dialog's worth of chunks between two roots
_IN_FLIGHT: Final = 64
_CHILD_TIMEOUT_S: Final = 120
_CLOSE_S: Final = 60.0
_MODULE: Final = "forebay.bench.disk.microbenchmarks"


def reopen_bytes() -> int:
    """Space that the reopening needs: the records, their tables, and slack for whole regions."""
    each = record_bytes(REOPEN_PAYLOAD_BYTES) + ENTRY_BYTES
    return REOPEN_RECORDS * each * 6 // 5


def reopen(
    directories: Sequence[Directory], times: int, until: float, records: int = REOPEN_RECORDS
) -> list[float]:
    """Seconds until a tier with so many records is open again, everything indexed, each time.

    None at all if they could not be stored by `until` (monotonic).
    """
    tier = DiskTier.open(directories, Options())
    try:
        stored = _store_chains(tier, records, until)
    finally:
        tier.close(_CLOSE_S)
    if stored < records:
        return []
    seconds = []
    for _ in range(times):
        start = time.monotonic()
        tier = DiskTier.open(directories, Options())
        seconds.append(time.monotonic() - start)
        found = tier.usage().records
        tier.close(_CLOSE_S)
        if found != stored:
            raise StartupError(f"{stored} records were stored and {found} found again.")
    return seconds


def _store_chains(tier: DiskTier, records: int, until: float) -> int:
    """Store chains of small records; how many arrived."""
    free = deque(memory.allocate(REOPEN_PAYLOAD_BYTES) for _ in range(_IN_FLIGHT))
    slots = Semaphore(_IN_FLIGHT)
    arrived: deque[None] = deque()

    def submit(source: memoryview, parent: bytes) -> bytes:
        def done(outcome: StoreOutcome) -> None:
            if isinstance(outcome, Stored):
                arrived.append(None)
            free.append(source)
            slots.release()

        name = new_name(parent)
        tier.submit_store(name, source, REOPEN_PAYLOAD_BYTES, done)
        return name.key

    parent = ROOT
    for number in range(records):
        slots.acquire()
        if time.monotonic() > until:
            slots.release()
            break
        parent = submit(free.popleft(), ROOT if number % _CHAIN_RECORDS == 0 else parent)
    for _ in range(_IN_FLIGHT):
        slots.acquire()
    return len(arrived)


def index_bytes_per_record(records: int = INDEX_RECORDS) -> float:
    """Growth of resident memory a record, over so many records, in a process of its own."""
    command = [sys.executable, "-m", _MODULE, str(records)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise StartupError(f"the index could not be measured: {error}.") from None
    return float(json.loads(ended.stdout)["bytes_per_record"])


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def keys_ms(times: int = 41) -> list[float]:
    """Thread CPU time of the key chain over 100,000 tokens in chunks of 16, in milliseconds."""
    tokens = [number * 7919 % 150_000 for number in range(KEY_TOKENS)]
    root = ChainRoot(bytes(32), KEY_CHUNK_TOKENS, salt="tenant")

    def once() -> float:
        start = time.thread_time()
        KeyChain(root).extend(tokens)
        return (time.thread_time() - start) * 1e3

    return [once() for _ in range(times)]


def main() -> None:
    """Run as a child process: fill an index with so many records, print its memory a record."""
    records = int(sys.argv[1])
    index = Index()
    gc.collect()
    before = resident_bytes()
    parent: bytes | None = None
    for number in range(records):
        key = os.urandom(16)
        if number % _CHAIN_RECORDS == 0:
            parent = None
        index.reserve(key, parent, bytes(32))
        index.settle(key, RecordPlace(number // 4096, number * 4096, 4096))
        parent = key
    grown = resident_bytes() - before
    print(json.dumps({"bytes_per_record": grown / records}))  # noqa: T201


if __name__ == "__main__":
    main()
