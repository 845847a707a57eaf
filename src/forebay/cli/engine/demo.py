"""`forebay demo`: what the pool does for dialogs, on this machine, in a few minutes."""

import argparse
import json
import os
from pathlib import Path

from forebay.bench.ab import demo
from forebay.bench.ab.demo import DemoPlan, DemoReport
from forebay.bench.ab.figures import DemoFigures
from forebay.bench.report import page as report_page
from forebay.bench.report.formatting import moved as moves
from forebay.bench.result.format import PoolFigures
from forebay.cli import flags, progress
from forebay.cli.flags import Commands
from forebay.errors import StartupError
from forebay.quantity import format_size
from forebay.sys import scratch

_EPILOG = """\
examples:
  forebay demo
  forebay demo --dir /mnt/nvme --json

Serves a small model with vLLM, first without and then with a pool, and holds the same dialogs with
both; then engine and pool are restarted and each dialog goes on from NVMe. Works in a new directory
inside DIR and removes it at the end; other pools and engines are not touched. A report is written
to the directory of --out. docs/serve.md defines every figure. Exit status: 0 measured, 2 could not
begin.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help="dialogs with vLLM, without and with the pool",
        description="Hold the same dialogs with vLLM without and with the pool, and compare.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--dir", metavar="DIR", help="on the drive for chunks (default: the user's cache directory)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("forebay-demo"),
        help="where the report goes (default: forebay-demo)",
    )
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    parent = parsed.dir or cache_directory()
    with progress.shown() as show:
        report = demo.run(DemoPlan(parent), show)
    page = report_page.write(parsed.out, report.ab)
    if parsed.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print(readable(report))
        print(f"\nThe report: {page}")
        for path in scratch.leftovers(parent):
            print(f"A run that was killed left {path}; remove it with: rm -r {path}")
    return 0


def cache_directory() -> str:
    """Where chunks may lie that nobody needs later."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "forebay"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{path} cannot be made ({error.strerror}); name a --dir.") from None
    return str(path)


def readable(report: DemoReport) -> str:
    """The table for people."""
    dialogs, before = report.dialogs, report.without
    request = f"about {before.prompt_tokens // before.requests:,} tokens a request"
    minutes = f"{report.seconds / 60:.1f} minutes on {os.cpu_count()} cores"
    lines = [
        f"{dialogs.hold} dialogs of {dialogs.turns} turns, {request}",
        f"SmolLM2-135M in float32; its KV cache has {format_size(report.cache_bytes)}",
        "",
        *_measured(report),
        *_moved(report.moved),
        _row("answers equal to those alone", "", f"{report.equal:.0%}"),
        "",
        "Then engine and pool were restarted, and each dialog had its next turn:",
        _row(
            "to the first token",
            _s(report.next_without_ttft_s),
            _s(report.restarted.later_ttft_s),
            f"{report.next_without_ttft_s / report.restarted.later_ttft_s:.1f} times sooner",
        ),
        _row("prompt tokens recomputed", "", _recomputed(report.restarted)),
        *_moved(report.restarted_moved),
        _row("answers equal to those alone", "", f"{report.restarted_equal:.0%}"),
        "",
        f"Measured in {minutes}; times are medians.",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _measured(report: DemoReport) -> list[str]:
    before, after, hit = report.without, report.with_pool, report.again
    sooner = f"{report.speedup:.1f} times sooner"
    longer = f"{hit.pool_ttft_s / hit.own_ttft_s:.1f} times as long"
    later, later_ours = _s(before.later_ttft_s), _s(after.later_ttft_s)
    return [
        _row("", "vLLM alone", "with Forebay", ""),
        _row("first turn, to the first token", _s(before.first_ttft_s), _s(after.first_ttft_s)),
        _row("later turns, to the first token", later, later_ours, sooner),
        _row("own prefix cache, or the pool", _s(hit.own_ttft_s), _s(hit.pool_ttft_s), longer),
        _row("a token after the first", _ms(before.tpot_s), _ms(after.tpot_s)),
        _row("requests a second", f"{before.requests_per_s:.2f}", f"{after.requests_per_s:.2f}"),
        _row("prompt tokens recomputed", _recomputed(before), _recomputed(after)),
    ]


def _moved(pool: PoolFigures) -> list[str]:
    return [_row(name, "", _chunks(chunks, size)) for name, chunks, size in moves(pool)]


def _row(what: str, alone: str, ours: str, remark: str = "") -> str:
    return f"  {what:<32}{alone:>17}{ours:>23}   {remark}"


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _recomputed(figures: DemoFigures) -> str:
    return f"{figures.recomputed_tokens:,} of {figures.prompt_tokens:,}"


def _chunks(count: int, size_bytes: int) -> str:
    return f"{count} chunks, {format_size(size_bytes)}"
