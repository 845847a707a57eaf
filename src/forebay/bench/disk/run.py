"""`forebay bench pool`: the raw drive and Forebay's tier, turn by turn in one run.

Everything happens in fresh directories inside the given ones, within their sizes and within the
time, and is removed at the end. A pair is a slice of raw and a slice of forebay, back to back, in
alternating order, so that what else goes on in the machine meets both.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from forebay.bench.disk import microbenchmarks
from forebay.bench.disk.figures import (
    PAIRS,
    Figures,
    PoolBenchPlan,
    Progress,
    compare_in_pairs,
    spread,
    worth,
)
from forebay.bench.disk.raw import DEPTH_MAX, pool_bytes, prepared_files, raw_slots, used_bytes
from forebay.bench.disk.tier_load import TierLoad
from forebay.errors import DirectoryError, SettingsError
from forebay.quantity import format_size
from forebay.record.header import PAYLOAD_BYTES_MAX, record_bytes
from forebay.sys.scratch import scratch
from forebay.tiers.disk import Directory, DiskTier, Options

DEPTHS: Final = (1, 4, DEPTH_MAX)
MIXED_DEPTH: Final = 4
SECONDS_MIN: Final = 5.0
SECONDS_MAX: Final = 3600.0
SMALL_SECONDS_MIN: Final = 40.0  # with less time, reopening and index are left out
_RECORDS_MIN: Final = 64  # a directory, so that some regions are filled and evicted
_REOPEN_TIMES: Final = 5
_REOPEN_SHARE: Final = 0.5  # of the time may have passed when its records are stored
_CLOSE_S: Final = 60.0
_CLEANUP_S: Final = 1.5  # kept for removing what was made
_SLICE_MIN_S: Final = 0.05
_SLICES: Final = 2 * 2 * PAIRS * len(DEPTHS) + 2 * PAIRS


def run(plan: PoolBenchPlan, progress: Progress) -> Figures:
    """Measure; blocks for about `plan.seconds`."""
    refuse_impossible(plan)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(scratch(disk.path)) for disk in plan.disks]
        _refuse_too_much(plan, places)
        progress("key chain", 0.0)
        found = spread("keys_100k_ms", microbenchmarks.keys_ms(), 2)
        found |= dict.fromkeys(("reopen_100k_s", "reopen_100k_s_spread", "index_bytes_per_record"))
        if plan.seconds >= SMALL_SECONDS_MIN:
            progress("index memory", 0.01)
            found["index_bytes_per_record"] = microbenchmarks.index_bytes_per_record()
            progress("reopening 100,000 records", 0.05)
            found |= _reopen(plan, places, start + plan.seconds * _REOPEN_SHARE)
        rest_s = plan.seconds - _CLEANUP_S - (time.monotonic() - start)
        found |= _Bandwidth(plan, places, rest_s, progress).measure()
    return {
        "record_payload_bytes": plan.payload_bytes,
        "seconds": round(time.monotonic() - start, 1),
        **found,
        **worth(found["read_gbps"]),
    }


def refuse_impossible(plan: PoolBenchPlan) -> None:
    """SettingsError if these sizes are too small to measure anything."""
    if not 0 < plan.payload_bytes <= PAYLOAD_BYTES_MAX:
        raise SettingsError(
            f"--record: a record has 1 byte to {format_size(PAYLOAD_BYTES_MAX)}, for example 4MiB."
        )
    if not SECONDS_MIN <= plan.seconds <= SECONDS_MAX:
        raise SettingsError(f"--seconds: write {SECONDS_MIN:.0f} to {SECONDS_MAX:.0f}.")
    least = _RECORDS_MIN * record_bytes(plan.payload_bytes)
    for disk in plan.disks:
        if disk.cap_bytes < least:
            raise SettingsError(
                f"--disk: {format_size(disk.cap_bytes)} in {disk.path} is too small for records of"
                f" {format_size(plan.payload_bytes)}; give it at least {format_size(least)}."
            )


def _refuse_too_much(plan: PoolBenchPlan, places: Sequence[Path]) -> None:
    """SettingsError for sizes above what is free; directories on one drive count together."""
    wanted: dict[int, int] = {}
    for disk, place in zip(plan.disks, places, strict=True):
        drive = place.stat().st_dev
        wanted[drive] = wanted.get(drive, 0) + disk.cap_bytes
        free_bytes = shutil.disk_usage(place).free
        if wanted[drive] > free_bytes:
            raise DirectoryError(
                f"{disk.path} has {format_size(free_bytes)} free and {format_size(wanted[drive])}"
                " would be needed; lower the size or free some space."
            )


def _reopen(plan: PoolBenchPlan, places: Sequence[Path], until: float) -> Figures:
    """The time to reopen a tier; empty if there is too little space or time."""
    need = microbenchmarks.reopen_bytes() // len(places)
    sizes = [used_bytes(disk) for disk in plan.disks]
    if min(sizes) < need:
        return {}
    directories = _homes(places, "reopen", sizes)
    try:
        seconds = microbenchmarks.reopen(directories, _REOPEN_TIMES, until)
        return spread("reopen_100k_s", seconds) if seconds else {}
    finally:
        for directory in directories:
            shutil.rmtree(directory.path)


def _homes(places: Sequence[Path], name: str, sizes: Sequence[int]) -> list[Directory]:
    """New directories of these sizes inside the places."""
    homes = [place / name for place in places]
    for home in homes:
        home.mkdir(mode=0o700)
    return [Directory(str(home), size) for home, size in zip(homes, sizes, strict=True)]


class _Bandwidth:
    def __init__(
        self, plan: PoolBenchPlan, places: Sequence[Path], seconds: float, progress: Progress
    ) -> None:
        self._plan = plan
        self._places = places
        self._progress = progress
        self._until = time.monotonic() + seconds
        self._slices_done = 0

    def measure(self) -> Figures:
        io_bytes = record_bytes(self._plan.payload_bytes)
        self._progress("writing the raw file once", 0.3)
        with (
            prepared_files(self._places, io_bytes, raw_slots(self._plan.disks, io_bytes)) as raw,
            self._tier(raw.buffers) as (tier, forebay),
        ):
            found = {
                **compare_in_pairs("read", DEPTHS, raw.read, forebay.read, self._slice_of("reads")),
                **compare_in_pairs(
                    "write", DEPTHS, raw.write, forebay.write, self._slice_of("writes")
                ),
            }
            mixed = self._slice_of("reads and writes at once")
            rates = [
                (*raw.both(MIXED_DEPTH, mixed("raw")), *forebay.both(MIXED_DEPTH, mixed("forebay")))
                for _ in range(PAIRS)
            ]
            names = ("raw_mixed_read", "raw_mixed_write", "mixed_read", "mixed_write")
            for name, column in zip(names, zip(*rates, strict=True), strict=True):
                found[f"{name}_gbps"] = round(median(column), 3)
            written = [drive.written_bytes for drive in tier.volumes()]
            total = sum(written) or 1
            return {
                **found,
                "directories": [
                    {"path": disk.path, "share": round(each / total, 4)}
                    for disk, each in zip(self._plan.disks, written, strict=True)
                ],
                "written_bytes": total + raw.written * io_bytes,
                "misses": forebay.misses,
                "dropped": forebay.dropped,
            }

    def _slice_of(self, what: str) -> Callable[[str], float]:
        """Seconds of the next slice: the time that is left, shared by the slices that are left."""

        def slice_s(which: str) -> float:
            self._progress(f"{what}, {which}", 0.4 + 0.6 * self._slices_done / _SLICES)
            left = (self._until - time.monotonic()) / max(1, _SLICES - self._slices_done)
            self._slices_done += 1
            return max(_SLICE_MIN_S, left)

        return slice_s

    @contextlib.contextmanager
    def _tier(self, buffers: list[memoryview]) -> Iterator[tuple[DiskTier, TierLoad]]:
        sizes = [pool_bytes(disk) for disk in self._plan.disks]
        records = sum(sizes) // record_bytes(self._plan.payload_bytes)
        options = Options(read_depth=DEPTH_MAX, write_depth=DEPTH_MAX)
        tier = DiskTier.open(_homes(self._places, "pool", sizes), options)
        forebay = TierLoad(tier, self._plan.payload_bytes, records, buffers)
        try:
            self._progress("filling the tier once", 0.35)
            forebay.fill(records)
            yield tier, forebay
        finally:
            tier.close(_CLOSE_S)
            forebay.release()
