"""`forebay bench pool`: a drive, and a pool on it, as ratios from one run."""

import argparse
import json
from collections.abc import Sequence

from forebay.bench.disk import encryption
from forebay.bench.disk import run as disks
from forebay.bench.disk.figures import Figures, PoolBenchPlan
from forebay.bench.pool import run as pool
from forebay.cli import flags, progress
from forebay.cli.flags import Commands
from forebay.errors import MediumError, SettingsError
from forebay.quantity import format_size, parse_size
from forebay.report.page import Table
from forebay.report.text import plain
from forebay.sys import scratch

_EPILOG = """\
examples:
  forebay bench pool --disk /mnt/nvme:20GiB
  forebay bench pool --disk /mnt/nvme0:20GiB --disk /mnt/nvme1:20GiB --record 2MiB
  forebay bench pool --disk /mnt/nvme:20GiB --seconds 120 --json
  forebay bench pool --disk /mnt/nvme:20GiB --dram 1GiB
  forebay bench pool --disk /mnt/nvme:20GiB --encryption

Works in a new directory inside each DIR and removes it at the end; a pool that lives in DIR is not
touched. docs/bench.md defines every figure. Exit status: 0 measured, 2 could not begin.
"""


def add(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "pool",
        description="Is this drive good enough? Raw O_DIRECT bandwidth against Forebay's tier, "
        "every load verified, in alternating pairs of one run.",
        epilog=_EPILOG,
    )
    flags.add_settings(parser, ["disk"])
    size = flags.typed(parse_size, "a size")
    parser.add_argument(
        "--dram", metavar="SIZE", type=size, help="also measure a running pool with this much DRAM"
    )
    parser.add_argument(
        "--encryption",
        dest="with_encryption",
        action="store_true",
        help="only compare the tier with and without encryption",
    )
    parser.add_argument(
        "--record", metavar="SIZE", type=size, default="4MiB", help="a record's payload (4MiB)"
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=flags.typed(float, "a number"),
        help="time for everything (default: 60, with --dram 120)",
    )
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    settings = flags.read_settings(parsed)
    if not settings.disk:
        raise SettingsError("--disk is needed, as DIR:SIZE, for example --disk /mnt/nvme:20GiB.")
    shares = 1 if parsed.dram is None else 2  # the drives alone, then the pool on them
    seconds = 60.0 if parsed.seconds is None else parsed.seconds / shares
    plan = PoolBenchPlan(settings.disk, parsed.record, seconds, parsed.dram or 0)
    if parsed.with_encryption:
        return _compare_encryption(parsed, plan)
    if parsed.dram is not None:
        pool.refuse_impossible(plan)
    try:
        with progress.shown() as show:
            found = disks.run(plan, show)
            if parsed.dram is not None:
                found |= pool.run(plan, show)
    except OSError as error:
        raise MediumError(f"--disk: the benchmark's files fail: {error.strerror}.") from None
    if parsed.json:
        print(json.dumps(found, indent=2))
        return 0
    print(readable(found))
    if parsed.dram is not None:
        print(readable_pool(found))
    for disk in settings.disk:
        for path in scratch.leftovers(disk.path):
            print(f"A run that was killed left {path}; remove it with: rm -r {path}")
    return 0


def _compare_encryption(parsed: argparse.Namespace, plan: PoolBenchPlan) -> int:
    if parsed.dram is not None:
        raise SettingsError("--encryption measures drives alone; leave out --dram.")
    disks.refuse_impossible(plan)
    try:
        with progress.shown() as show:
            found = encryption.run(plan, show)
    except OSError as error:
        raise MediumError(f"--disk: the benchmark's files fail: {error.strerror}.") from None
    print(json.dumps(found, indent=2) if parsed.json else readable_encryption(plan, found))
    return 0


def readable_encryption(plan: PoolBenchPlan, found: Figures) -> str:
    rows = [
        [
            what,
            _spread(found, f"plain_{what}_gbps"),
            _spread(found, f"encrypted_{what}_gbps"),
            _spread(found, f"encrypted_{what}_ratio"),
            f"{found[f'plain_{what}_cpu_s_per_gb']:.2f}",
            f"{found[f'encrypted_{what}_cpu_s_per_gb']:.2f}",
            f"{found[f'encrypted_{what}_cores']:.1f}",
        ]
        for what in ("read", "write")
    ]
    head = ["", "plain, GB/s", "encrypted, GB/s", "ratio", "CPU s/GB, plain", "encrypted"]
    head.append("cores to keep up")
    pairs = len(found["encrypted_read_ratios"])
    heading = (
        f"records of {format_size(plan.payload_bytes)}, medians (lowest to highest of {pairs})"
    )
    lines = [heading, "", *plain(Table(head, rows, range(7)))]
    if found["encryption_misses"] or found["encryption_dropped"]:
        lost = f"{found['encryption_misses']} loads missed"
        lines.append(f" {lost} and {found['encryption_dropped']} stores were dropped")
    return "\n".join(lines)


def readable(found: Figures) -> str:
    size, depths = format_size(found["record_payload_bytes"]), ", ".join(found["read_by_depth"])
    heading = (
        f"records of {size}, GB/s, medians (lowest to highest of {len(found['read_ratios'])}"
        f" pairs), best of depths {depths}"
    )
    rates = [
        [
            name,
            *(_spread(found, key) for key in (f"raw_{name}_gbps", f"{name}_gbps", f"{name}_ratio")),
        ]
        for name in ("read", "write")
    ]
    rates.append(["at once", _both(found, "raw_mixed"), _both(found, "mixed"), ""])
    head = ["", "raw", "forebay, verified", "ratio"]
    lines = [heading, "", *plain(Table(head, rates, range(4))), "", *_rows(_small(found))]
    if found["misses"] or found["dropped"]:
        lines.append(f" {found['misses']} loads missed and {found['dropped']} stores were dropped")
    written = format_size(found["written_bytes"])
    lines.append(f" {written} written in {found['seconds']:.0f} s, all removed")
    return "\n".join([*lines, "", found["verdict"]])


def _small(found: Figures) -> list[tuple[str, str]]:
    rows = []
    if found["reopen_100k_s"] is not None:
        rows.append(("reopening 100,000 records", f"{_spread(found, 'reopen_100k_s')} s"))
    if found["index_bytes_per_record"] is not None:
        rows.append(("index, a record", f"{found['index_bytes_per_record']:.0f} bytes"))
    if len(rows) < 2:
        rows.append(("not measured", "what wants more time or space: docs/bench.md"))
    rows.append(("keys of 100,000 tokens", f"{_spread(found, 'keys_100k_ms')} ms of CPU"))
    rows.append(("KV read back", f"{found['tokens_per_s']:,} tokens/s"))
    shares = found["directories"] if len(found["directories"]) > 1 else []
    return rows + [(f"{each['path']} carried", f"{each['share']:.1%}") for each in shares]


def readable_pool(found: Figures) -> str:
    small, half = format_size(found["small_payload_bytes"]), found["pool_raw_write_gbps"] / 2
    moved = format_size(found["found_records"] * found["record_payload_bytes"])
    all_records = found["stored_records"] + found["refused_records"]
    commits, nvme = _spread(found, "commits_per_s", ",.0f"), _spread(found, "nvme_to_slab_gbps")
    rows = [
        (f"lookup of {found['lookup_chunks']} chunks", _latency(found, "lookup_500")),
        ("  beside stores", f"{found['lookup_beside_gbps']:.2f} GB/s (half of raw: {half:.2f})"),
        ("the same", _latency(found, "lookup_500_beside_commits")),
        ("  beside commits", f"{found['beside_commits_per_s']:,} a second"),
        ("commits a second", f"{commits}, {found['commit_batch']} chunks of {small} at a time"),
        ("NVMe to slab, GB/s", f"{nvme}, raw {_spread(found, 'raw_nvme_to_slab_gbps')}"),
        ("  ratio", _spread(found, "nvme_to_slab_ratio")),
        ("found again", f"{found['found_records']} of {all_records} records, {moved}"),
        ("lookups not all in DRAM", str(found["lookups_not_ready"])),
        ("asked for, not promised", f"{found['nvme_to_slab_misses']} chunks"),
        ("CPU of the idle pool", f"{found['pool_idle_cpu_share']:.1%} of a core"),
    ]
    heading = f"a pool with {format_size(found['dram_bytes'])} of DRAM, over its socket"
    return "\n".join(["", heading, "", *_rows(rows)])


def _rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    return plain(Table(["", ""], rows, range(2)))


def _spread(found: Figures, name: str, form: str = ".2f") -> str:
    low, high = found[f"{name}_spread"]
    return f"{found[name]:{form}} ({low:{form}} to {high:{form}})"


def _latency(found: Figures, name: str) -> str:
    return f"p50 {_spread(found, f'{name}_p50_ms')} ms, p99 {found[f'{name}_p99_ms']:.2f} ms"


def _both(found: Figures, name: str) -> str:
    return f"{found[f'{name}_read_gbps']:.2f} read {found[f'{name}_write_gbps']:.2f} write"
