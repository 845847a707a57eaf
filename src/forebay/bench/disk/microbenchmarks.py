"""Figures other than bandwidth: time to reopen, memory of the index, time of the key chain."""

import gc
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from forebay.bench.disk.raw import DEPTH_MAX
from forebay.bench.disk.tier_load import CHAIN_RECORDS, TierLoad
from forebay.errors import StartupError
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.record.header import record_bytes
from forebay.record.region import ENTRY_BYTES
from forebay.sys import memory
from forebay.tiers.catalog.index import Index, RecordPlace
from forebay.tiers.disk import Directory, DiskTier, Options

REOPEN_RECORDS: Final = 100_000
REOPEN_PAYLOAD_BYTES: Final = 4096
INDEX_RECORDS: Final = 1_000_000
KEY_TOKENS: Final = 100_000
KEY_CHUNK_TOKENS: Final = 16
_CHILD_TIMEOUT_S: Final = 120
_CLOSE_S: Final = 60.0


def reopen_bytes() -> int:
    """Space that the reopening needs: the records, their tables, and slack for whole regions."""
    each = record_bytes(REOPEN_PAYLOAD_BYTES) + ENTRY_BYTES
    return REOPEN_RECORDS * each * 6 // 5


def reopen(
    directories: Sequence[Directory], times: int, until: float, records: int = REOPEN_RECORDS
) -> list[float]:
    """Seconds to reopen a tier with this many records, with everything indexed, for each time.

    Empty if the records could not be stored by `until` (monotonic).
    """
    tier = DiskTier.open(directories, Options())
    buffers = [memory.allocate(REOPEN_PAYLOAD_BYTES) for _ in range(2 * DEPTH_MAX)]
    try:
        load = TierLoad(tier, REOPEN_PAYLOAD_BYTES, records, buffers)
        stored = load.fill(records, until - time.monotonic())
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
        if found < stored:
            raise StartupError(f"{stored} records were stored and {found} found again.")
    return seconds


def index_bytes_per_record(records: int = INDEX_RECORDS) -> float:
    """Growth of resident memory per record, over this many records, in a separate process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        try:
            return child.submit(_grown_bytes, records).result(_CHILD_TIMEOUT_S) / records
        except (TimeoutError, BrokenProcessPool) as error:
            raise StartupError(f"the index could not be measured: {error!r}.") from None


def _grown_bytes(records: int) -> int:
    """What an index of so many records takes in this process."""
    index = Index()
    gc.collect()
    before = _resident_bytes()
    parent: bytes | None = None
    for number in range(records):
        key = os.urandom(16)
        if number % CHAIN_RECORDS == 0:
            parent = None
        index.reserve(key, parent, bytes(32))
        index.settle(key, RecordPlace(number // 4096, number * 4096, 4096))
        parent = key
    return _resident_bytes() - before


def _resident_bytes() -> int:
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
