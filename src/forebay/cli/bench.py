"""`forebay bench`: measurements that print ratios from one run."""

import argparse
import json
import os

from forebay.bench import pool
from forebay.bench.figures import Figures, Versus, tokens_per_s, verdict
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

Works in a new directory inside each DIR and removes it at the end; a pool that lives in DIR is not
touched. docs/bench.md defines every figure. Exit status: 0 measured, 2 could not begin.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    bench = commands.add_parser("bench", help="measure this machine")
    kinds = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    parser = kinds.add_parser(
        "pool",
        help="a drive: raw O_DIRECT against Forebay's verified tier",
        description="Is this drive good enough? Raw O_DIRECT bandwidth against Forebay's tier, "
        "every load verified, in alternating pairs of one run.",
        epilog=_EPILOG,
    )
    flags.add_settings(parser, ["disk"])
    parser.add_argument(
        "--dram", metavar="SIZE", help="not yet: DRAM is measured once the pool serves it"
    )
    parser.add_argument(
        "--record", metavar="SIZE", default="4MiB", help="payload of a record (default: 4MiB)"
    )
    parser.add_argument(
        "--seconds", metavar="N", default="60", help="time for everything (default: 60)"
    )
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    disks = flags.read_settings(parsed).disk
    if not disks:
        raise SettingsError("--disk is needed, as DIR:SIZE, for example --disk /mnt/nvme:20GiB.")
    if parsed.dram is not None:
        raise SettingsError("--dram cannot be measured yet; leave it out.")
    plan = pool.Plan(disks, _record_bytes(parsed.record), _seconds(parsed.seconds))
    with progress.shown() as show:
        figures = pool.run(plan, show)
    if parsed.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        print(readable(figures))
        for disk in disks:
            for path in scratch.leftovers(disk.path):
                print(f"A run that was killed left {path}; remove it with: rm -r {path}")
    return 0


def _record_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except SettingsError as error:
        raise SettingsError(f"--record: {error}") from None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"--seconds: '{text[:40]}' is not a number.") from None


def readable(figures: Figures) -> str:
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
        f"  at once     {_both(figures.mixed_raw)} {_both(figures.mixed_ours)}",
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


def _depths(versus: Versus) -> str:
    return ", ".join(map(str, versus.by_depth))


def _row(name: str, versus: Versus) -> str:
    return f"  {name:<11} {versus.raw!s:<21} {versus.ours!s:<21} {versus.ratio}"


def _both(pair: tuple[float, float]) -> str:
    return f"{f'{pair[0]:.2f} read {pair[1]:.2f} write':<21}"


def _small(figures: Figures) -> list[str]:
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
