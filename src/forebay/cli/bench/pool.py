"""`forebay bench pool`: a drive, and a pool on it, as ratios from one run."""

import argparse
import json
import os

from forebay.bench.disk.figures import DiskFigures, RawComparison, tokens_per_s, verdict
from forebay.bench.disk.run import DiskBenchPlan
from forebay.bench.disk.run import run as measure_disks
from forebay.bench.pool.figures import Latency, PoolBenchFigures
from forebay.bench.pool.run import PoolBenchPlan, refuse_impossible
from forebay.bench.pool.run import run as measure_pool
from forebay.cli import flags, progress
from forebay.cli.flags import Commands
from forebay.errors import SettingsError
from forebay.quantity import format_size, parse_size
from forebay.sys import scratch

_EPILOG = """\
examples:
  forebay bench pool --disk /mnt/nvme:20GiB
  forebay bench pool --disk /mnt/nvme0:20GiB --disk /mnt/nvme1:20GiB --record 2MiB
  forebay bench pool --disk /mnt/nvme:20GiB --seconds 120 --json
  forebay bench pool --disk /mnt/nvme:20GiB --dram 1GiB

Works in a new directory inside each DIR and removes it at the end; a pool that lives in DIR is not
touched. docs/bench.md defines every figure. Exit status: 0 measured, 2 could not begin.
"""


def add(kinds: Commands) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "pool",
        help="a drive: raw O_DIRECT against Forebay's verified tier",
        description="Is this drive good enough? Raw O_DIRECT bandwidth against Forebay's tier, "
        "every load verified, in alternating pairs of one run.",
        epilog=_EPILOG,
    )
    flags.add_settings(parser, ["disk"])
    parser.add_argument(
        "--dram", metavar="SIZE", help="also measure a running pool with this much DRAM"
    )
    parser.add_argument(
        "--record", metavar="SIZE", default="4MiB", help="payload of a record (default: 4MiB)"
    )
    parser.add_argument(
        "--seconds", metavar="N", help="time for everything (default: 60, with --dram 120)"
    )
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    disks = flags.read_settings(parsed).disk
    if not disks:
        raise SettingsError("--disk is needed, as DIR:SIZE, for example --disk /mnt/nvme:20GiB.")
    record_bytes = _size("--record", parsed.record)
    shares = 1 if parsed.dram is None else 2  # the drives alone, then the pool on them
    seconds = _seconds(parsed.seconds or str(60 * shares)) / shares
    pool_plan = None
    if parsed.dram is not None:
        pool_plan = PoolBenchPlan(_size("--dram", parsed.dram), disks, record_bytes, seconds)
        refuse_impossible(pool_plan)
    with progress.shown() as show:
        figures = measure_disks(DiskBenchPlan(disks, record_bytes, seconds), show)
        pool_figures = None if pool_plan is None else measure_pool(pool_plan, show)
    if parsed.json:
        more = {} if pool_figures is None else pool_figures.as_json()
        print(json.dumps({**figures.as_json(), **more}, indent=2))
    else:
        print(readable(figures))
        if pool_figures is not None:
            print(readable_pool(pool_figures))
        for disk in disks:
            for path in scratch.leftovers(disk.path):
                print(f"A run that was killed left {path}; remove it with: rm -r {path}")
    return 0


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except SettingsError as error:
        raise SettingsError(f"{flag}: {error}") from None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"--seconds: '{text[:40]}' is not a number.") from None


def readable(figures: DiskFigures) -> str:
    """The figures for people."""
    heading = (
        f"records of {format_size(figures.record_payload_bytes)}, GB/s, medians (lowest to highest"
        f" of {len(figures.read.pairs)} pairs), best of depths {_depths(figures.read)}"
    )
    lines = [
        heading,
        "",
        "              raw                   forebay, verified     ratio",
        _row("read", figures.read),
        _row("write", figures.write),
        f"  at once     {_both(figures.mixed_raw)} {_both(figures.mixed_forebay)}",
        "",
        *_small(figures),
    ]
    if len(figures.shares) > 1:
        lines += [f"  {share.path} carried {share.share:.1%}" for share in figures.shares]
    if figures.misses or figures.dropped:
        lines.append(f"  {figures.misses} loads missed and {figures.dropped} stores were dropped")
    lines += [
        f"  {format_size(figures.written_bytes)} written in {figures.seconds:.0f} s, all removed",
        "",
        verdict(figures),
    ]
    return os.linesep.join(lines)


def readable_pool(pool: PoolBenchFigures) -> str:
    """The figures of a running pool, for people."""
    small, commits = format_size(pool.small_payload_bytes), pool.commits_per_s
    half, moved = pool.raw_write_gbps / 2, format_size(pool.found * pool.record_payload_bytes)
    rates = f"{commits.median:,.0f} ({commits.low:,.0f} to {commits.high:,.0f})"
    rows = [
        (f"lookup of {pool.lookup_chunks} chunks", _latency(pool.lookup)),
        ("  beside stores", f"{pool.lookup_beside_gbps:.2f} GB/s (half of raw: {half:.2f})"),
        ("the same", _latency(pool.lookup_beside_commits)),
        ("  beside commits", f"{pool.beside_commits_per_s:,.0f} a second"),
        ("commits a second", f"{rates}, {pool.commit_batch} chunks of {small} at a time"),
        ("NVMe to slab, GB/s", f"{pool.nvme.forebay}, raw {pool.nvme.raw}"),
        ("  ratio", str(pool.nvme.ratio)),
        ("found again", f"{pool.found} of {pool.stored + pool.refused} records, {moved}"),
        ("CPU of the idle pool", f"{pool.idle_cpu_share:.1%} of a core"),
    ]
    lines = ["", f"a pool with {format_size(pool.dram_bytes)} of DRAM, over its socket", ""]
    lines += [f"  {name:<27} {value}" for name, value in rows]
    if pool.lookups_not_ready or pool.nvme_misses:
        lines.append(
            f"  {pool.lookups_not_ready} lookups found less than everything in DRAM,"
            f" {pool.nvme_misses} chunks that were asked for were not promised"
        )
    return os.linesep.join(lines)


def _latency(latency: Latency) -> str:
    return f"p50 {latency.p50_ms} ms, p99 {latency.p99_ms:.2f} ms"


def _depths(comparison: RawComparison) -> str:
    return ", ".join(map(str, comparison.by_depth))


def _row(name: str, comparison: RawComparison) -> str:
    return f"  {name:<11} {comparison.raw!s:<21} {comparison.forebay!s:<21} {comparison.ratio}"


def _both(pair: tuple[float, float]) -> str:
    return f"{f'{pair[0]:.2f} read {pair[1]:.2f} write':<21}"


def _small(figures: DiskFigures) -> list[str]:
    lines = []
    if figures.reopen_100k_s is not None:
        lines.append(f"  reopening 100,000 records   {figures.reopen_100k_s} s")
    if figures.index_bytes_per_record is not None:
        lines.append(f"  index, a record             {figures.index_bytes_per_record:.0f} bytes")
    if len(lines) < 2:
        lines.append("  what is missing here wants more time or space: docs/bench.md")
    lines.append(f"  keys of 100,000 tokens      {figures.keys_100k_ms} ms of CPU")
    lines.append(f"  KV read back                {tokens_per_s(figures):,.0f} tokens/s")
    return lines
