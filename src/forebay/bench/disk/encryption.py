"""`--encryption`: the NVMe tier with and without encryption, turn by turn in one run.

Both tiers are open at once in the same directories, a half of the size each, with random keys. A
pair is a slice of one and a slice of the other, back to back, in alternating order. Both load into
and store from shared memory full of random bytes, as a pool's slab is of KV. Digests are given with
the stores, as a pool gives them: no tier hashes what it is to write.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from forebay.bench.disk.figures import (
    PAIRS,
    Figures,
    Measure,
    PoolBenchPlan,
    Progress,
    compare_in_pairs,
)
from forebay.bench.disk.raw import DEPTH_MAX, used_bytes
from forebay.bench.disk.tier_load import TierLoad
from forebay.record.header import Digest, payload_hash, record_bytes
from forebay.record.keyring import Keyring, MasterKeys
from forebay.sys import memory
from forebay.sys.scratch import scratch
from forebay.sys.shared import SharedMemory
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.hidden_names import HiddenNamesTier

DEPTHS: Final = (4, DEPTH_MAX)
_CLOSE_S: Final = 60.0
_SLICE_MIN_S: Final = 0.05
_SLICES: Final = 2 * 2 * PAIRS * len(DEPTHS)


def run(plan: PoolBenchPlan, progress: Progress) -> Figures:
    """Measure; blocks for about `plan.seconds`, and as long as filling takes."""
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(scratch(disk.path)) for disk in plan.disks]
        sizes = [used_bytes(disk) // 2 for disk in plan.disks]
        buffers = stack.enter_context(_noise(plan.payload_bytes))
        loads = []
        for name, keyring in (("plain", None), ("encrypted", Keyring(MasterKeys.create()))):
            progress(f"filling the {name} tier once", 0.0)
            directories = _homes(places, name, sizes)
            loads.append(stack.enter_context(_filled(directories, keyring, plan, buffers)))
        return _compare(loads[0], loads[1], plan.seconds, progress)


@contextlib.contextmanager
def _noise(payload_bytes: int) -> Iterator[list[memoryview]]:
    """Buffers for reads and writes at once, all with the same bytes.

    Zeros that nobody has written would be one page of the kernel's, and cost next to nothing.
    """
    size = memory.padded(payload_bytes)
    shared, noise = SharedMemory.of(2 * DEPTH_MAX * size), os.urandom(size)
    buffers = [shared.view[at : at + size] for at in range(0, shared.size_bytes, size)]
    for buffer in buffers:
        buffer[:] = noise
    try:
        yield buffers
    finally:
        for buffer in buffers:
            buffer.release()
        shared.close()


def _homes(places: Sequence[Path], name: str, sizes: Sequence[int]) -> list[Directory]:
    homes = [place / name for place in places]
    for home in homes:
        home.mkdir(mode=0o700)
    return [Directory(str(home), size) for home, size in zip(homes, sizes, strict=True)]


@contextlib.contextmanager
def _filled(
    directories: list[Directory],
    keyring: Keyring | None,
    plan: PoolBenchPlan,
    buffers: list[memoryview],
) -> Iterator[TierLoad]:
    options = Options(read_depth=DEPTH_MAX, write_depth=DEPTH_MAX, keyring=keyring)
    opener, listener = partial(DiskTier.open, directories, options, None), TierListener()
    names = None if keyring is None else keyring.names
    tier: Tier = opener(listener) if names is None else HiddenNamesTier(opener, names, listener)
    records = sum(each.cap_bytes for each in directories) // record_bytes(plan.payload_bytes)
    digest = Digest(payload_hash(buffers[0][: plan.payload_bytes]))  # of all, and they stay so
    load = TierLoad(tier, plan.payload_bytes, records, buffers, digest=digest)
    try:
        load.fill(records)
        yield load
    finally:
        tier.close(_CLOSE_S)
        load.release()


class _Meter:
    """A measurement, and what it costs this process in CPU time."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._cpu_s = self._gigabytes = 0.0

    def __call__(self, depth: int, seconds: float) -> float:
        cpu_s, start = time.process_time(), time.monotonic()
        gbps = self._measure(depth, seconds)
        self._cpu_s += time.process_time() - cpu_s
        self._gigabytes += gbps * (time.monotonic() - start)
        return gbps

    @property
    def cpu_s_per_gb(self) -> float:
        return round(self._cpu_s / max(1e-9, self._gigabytes), 3)


def _compare(plain: TierLoad, encrypted: TierLoad, seconds: float, progress: Progress) -> Figures:
    until, done = time.monotonic() + seconds, 0

    def slice_s(which: str) -> float:
        nonlocal done
        progress(f"encryption: {which}", done / _SLICES)
        left_s = (until - time.monotonic()) / max(1, _SLICES - done)
        done += 1
        return max(_SLICE_MIN_S, left_s)

    found: Figures = {}
    for what in ("read", "write"):
        meters = _Meter(getattr(plain, what)), _Meter(getattr(encrypted, what))
        rates = compare_in_pairs(f"encrypted_{what}", DEPTHS, meters[0], meters[1], slice_s)
        found |= {name.replace("raw_encrypted_", "plain_"): rate for name, rate in rates.items()}
        for name, meter in zip(("plain", "encrypted"), meters, strict=True):
            found[f"{name}_{what}_cpu_s_per_gb"] = meter.cpu_s_per_gb
        cores = meters[1].cpu_s_per_gb * found[f"plain_{what}_gbps"]
        found[f"encrypted_{what}_cores"] = round(cores, 2)
    misses, dropped = plain.misses + encrypted.misses, plain.dropped + encrypted.dropped
    return found | {"encryption_misses": misses, "encryption_dropped": dropped}
