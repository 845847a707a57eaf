"""`forebay bench pool`: the raw drive and Forebay's tier, turn by turn in one run.

Everything happens in fresh directories inside the given ones, within their sizes and within the
time, and is removed at the end. A pair is a slice of raw and a slice of forebay, back to back, in
alternating order, so that what else goes on in the machine meets both.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.bench.disk import microbenchmarks
from forebay.bench.disk.figures import (
    PAIRS,
    DirectoryShare,
    DiskFigures,
    RawComparison,
    Spread,
    compare_in_pairs,
)
from forebay.bench.disk.raw import (
    DEPTH_MAX,
    RawFiles,
    pool_bytes,
    prepared_files,
    raw_slots,
    used_bytes,
)
from forebay.bench.disk.tier_load import TierLoad
from forebay.errors import DirectoryError, SettingsError
from forebay.quantity import format_size
from forebay.record.header import PAYLOAD_BYTES_MAX, record_bytes
from forebay.settings import DiskSetting
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

Progress = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)


@dataclass(frozen=True, slots=True)
class DiskBenchPlan:
    """What to measure."""

    disks: tuple[DiskSetting, ...]
    payload_bytes: int  # of a record
    seconds: float  # for everything


def run(plan: DiskBenchPlan, progress: Progress) -> DiskFigures:
    """Measure; blocks for about `plan.seconds`."""
    _refuse_impossible(plan)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(scratch(disk.path)) for disk in plan.disks]
        _refuse_too_much(plan, places)
        progress("key chain", 0.0)
        keys = microbenchmarks.keys_ms()
        reopen, index = None, None
        if plan.seconds >= SMALL_SECONDS_MIN:
            progress("index memory", 0.01)
            index = microbenchmarks.index_bytes_per_record()
            progress("reopening 100,000 records", 0.05)
            reopen = _reopen(plan, places, start + plan.seconds * _REOPEN_SHARE)
        rest_s = plan.seconds - _CLEANUP_S - (time.monotonic() - start)
        bandwidth = _Bandwidth(plan, places, rest_s, progress)
        read, write, mixed_raw, mixed_forebay = bandwidth.measure()
    return DiskFigures(
        record_payload_bytes=plan.payload_bytes,
        seconds=time.monotonic() - start,
        written_bytes=bandwidth.written_bytes,
        read=read,
        write=write,
        mixed_forebay=mixed_forebay,
        mixed_raw=mixed_raw,
        shares=bandwidth.shares,
        misses=bandwidth.misses,
        dropped=bandwidth.dropped,
        reopen_100k_s=reopen,
        index_bytes_per_record=index,
        keys_100k_ms=keys,
    )


def _refuse_impossible(plan: DiskBenchPlan) -> None:
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


def _refuse_too_much(plan: DiskBenchPlan, places: Sequence[Path]) -> None:
    """Sizes above what is free; directories on one drive count together."""
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


def _reopen(plan: DiskBenchPlan, places: Sequence[Path], until: float) -> Spread | None:
    need = microbenchmarks.reopen_bytes() // len(places)
    if any(used_bytes(disk) < need for disk in plan.disks):
        return None
    homes = [place / "reopen" for place in places]
    for home in homes:
        home.mkdir(mode=0o700)
    try:
        directories = [
            Directory(str(home), used_bytes(disk))
            for home, disk in zip(homes, plan.disks, strict=True)
        ]
        return microbenchmarks.reopen(directories, _REOPEN_TIMES, until)
    finally:
        for home in homes:
            shutil.rmtree(home)


class _Bandwidth:
    """The pairs of one run."""

    def __init__(
        self, plan: DiskBenchPlan, places: Sequence[Path], seconds: float, progress: Progress
    ) -> None:
        self._plan = plan
        self._places = places
        self._progress = progress
        self._until = time.monotonic() + seconds
        self._slices_done = 0
        self.written_bytes = 0
        self.shares: tuple[DirectoryShare, ...] = ()
        self.misses = 0
        self.dropped = 0

    def measure(
        self,
    ) -> tuple[RawComparison, RawComparison, tuple[float, float], tuple[float, float]]:
        """Reads, writes, and both at once: raw and forebay."""
        io_bytes = record_bytes(self._plan.payload_bytes)
        slots = raw_slots(self._plan.disks, io_bytes)
        self._progress("writing the raw file once", 0.3)
        with (
            prepared_files(self._places, io_bytes, slots) as raw,
            self._tier(raw.buffers) as (tier, forebay),
        ):
            read = compare_in_pairs(
                DEPTHS, raw.read, forebay.read, lambda what: self._slice(f"reads, {what}")
            )
            write = compare_in_pairs(
                DEPTHS, raw.write, forebay.write, lambda what: self._slice(f"writes, {what}")
            )
            mixed = [self._mixed(raw, forebay) for _ in range(PAIRS)]
            drives = tier.volumes()
            total = sum(drive.written_bytes for drive in drives) or 1
            self.shares = tuple(
                DirectoryShare(disk.path, round(drive.written_bytes / total, 4))
                for disk, drive in zip(self._plan.disks, drives, strict=True)
            )
            self.written_bytes = total + raw.written_bytes
            self.misses, self.dropped = forebay.misses, forebay.dropped
        columns = [Spread.of(column).median for column in zip(*mixed, strict=True)]
        return read, write, (columns[0], columns[1]), (columns[2], columns[3])

    def _mixed(self, raw: RawFiles, forebay: TierLoad) -> tuple[float, float, float, float]:
        plain = raw.both(MIXED_DEPTH, self._slice("reads and writes at once, raw"))
        tier = forebay.both(MIXED_DEPTH, self._slice("reads and writes at once, forebay"))
        return (*plain, *tier)

    def _slice(self, what: str) -> float:
        """Seconds of the next slice: the time that is left, shared by the slices that are left."""
        self._progress(what, 0.4 + 0.6 * self._slices_done / _SLICES)
        left = (self._until - time.monotonic()) / max(1, _SLICES - self._slices_done)
        self._slices_done += 1
        return max(_SLICE_MIN_S, left)

    @contextlib.contextmanager
    def _tier(self, buffers: list[memoryview]) -> Iterator[tuple[DiskTier, TierLoad]]:
        directories = []
        for disk, place in zip(self._plan.disks, self._places, strict=True):
            home = place / "pool"
            home.mkdir(mode=0o700)
            directories.append(Directory(str(home), pool_bytes(disk)))
        options = Options(read_depth=DEPTH_MAX, write_depth=DEPTH_MAX)
        records = sum(each.cap_bytes for each in directories) // record_bytes(
            self._plan.payload_bytes
        )
        tier = DiskTier.open(directories, options)
        forebay = TierLoad(tier, self._plan.payload_bytes, records, buffers)
        try:
            self._progress("filling the tier once", 0.35)
            forebay.fill(records)
            yield tier, forebay
        finally:
            tier.close(_CLOSE_S)
            forebay.release()
