"""`forebay demo`: what the pool does for dialogs, on this machine, in a few minutes."""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Final

from forebay.bench.ab import demo, demo_page
from forebay.bench.ab.demo import DemoPlan
from forebay.bench.ab.demo_report import DemoReport
from forebay.bench.ab.figures import DemoFigures, Spread, in_words, returning, share_equal
from forebay.bench.report.formatting import moved as moves
from forebay.bench.result.format import PoolFigures
from forebay.cli import flags, progress
from forebay.cli.flags import Commands
from forebay.errors import SettingsError, StartupError
from forebay.quantity import format_size
from forebay.sys import scratch

_EPILOG = """\
examples:
  forebay demo
  forebay demo --dir /mnt/nvme --json

Serves a small model with vLLM twice, without and with a pool, and asks both the same dialogs, one
request at a time; then the second engine and its pool are restarted and each dialog goes on from
NVMe. How long and how many the dialogs are depends on how fast this machine is and on --minutes.
Works in a new directory inside DIR and removes it at the end; other pools and engines are not
touched. A report is written to the directory of --out. docs/serve.md defines every figure. Exit
status: 0 measured, 2 could not begin.
"""
_MINUTES_MAX: Final = 60.0


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
    parser.add_argument(
        "--minutes",
        metavar="N",
        default="3",
        help="how long it may take; what is measured is made to fit (default: 3)",
    )
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    parent = parsed.dir or cache_directory()
    plan = DemoPlan(parent, _minutes(parsed.minutes))
    with progress.shown() as show:
        report = demo.run(plan, show, _note)
    page = demo_page.write(parsed.out, report)
    if parsed.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print(readable(report))
        print(f"\nThe report: {page}")
        for path in scratch.leftovers(parent):
            print(f"A run that was killed left {path}; remove it with: rm -r {path}")
    return 0


def _note(line: str) -> None:
    """A line that stays; on a terminal it goes above the progress bar."""
    print(f"forebay: {line}", file=sys.stderr, flush=True)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes <= _MINUTES_MAX:
        raise SettingsError(f"--minutes: '{text[:40]}' is not a number up to {_MINUTES_MAX:g}.")
    return minutes


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
    dialogs, after = report.dialogs, report.restarted
    minutes = f"{report.seconds / 60:.1f} minutes on {os.cpu_count()} cores"
    sooner, still = (in_words(each.median) for each in (report.speedups, report.restarted_speedups))
    history = f"about {dialogs.first_tokens:,} tokens of history each"
    cache = f"a KV cache of {format_size(report.cache_bytes)}, too small for all of them"
    lines = [
        f"{dialogs.hold} dialogs of {dialogs.turns} turns, {history}",
        f"SmolLM2-135M in float32 with {cache}",
        "",
        *_measured(report),
        *_moved(report.moved),
        _row("answers equal to those alone", "", f"{share_equal(report.turns):.0%}"),
        "",
        "Then the engine with Forebay and its pool were restarted, and each dialog went on:",
        _row(
            "to the first token, s",
            _range([turn.alone.ttft_s for turn in after]),
            _range([turn.with_pool.ttft_s for turn in after]),
            in_words(report.restarted_speedups.median),
        ),
        _row(
            "prompt tokens recomputed",
            _recomputed(report.restarted_without),
            _recomputed(report.restarted_with),
        ),
        *_moved(report.restarted_moved),
        _row("answers equal to those alone", "", f"{share_equal(after):.0%}"),
        "",
        f"Measured in {minutes}; times are medians (least to most).",
        f"The first token of a dialog that comes back is there {sooner}, because its history",
        f"is loaded and not computed; {still} after the restart, loaded from NVMe.",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _measured(report: DemoReport) -> list[str]:
    before, after, hit = report.without, report.with_pool, report.again
    back = returning(report.turns)
    first = [turn for turn in report.turns if turn.number == 0]
    longer = f"{hit.pool_ttft_s / hit.own_ttft_s:.1f} times as long"
    return [
        _row("", "vLLM alone", "with Forebay"),
        _row(
            "first turn, to the first token, s",
            _range([turn.alone.ttft_s for turn in first]),
            _range([turn.with_pool.ttft_s for turn in first]),
            "new to both",
        ),
        _row(
            "later turns, to the first token, s",
            _range([turn.alone.ttft_s for turn in back]),
            _range([turn.with_pool.ttft_s for turn in back]),
            in_words(report.speedups.median),
        ),
        _row("own prefix cache, or the pool, s", _s(hit.own_ttft_s), _s(hit.pool_ttft_s), longer),
        _row("a token after the first", _ms(before.tpot_s), _ms(after.tpot_s)),
        _row("requests a second", f"{before.requests_per_s:.2f}", f"{after.requests_per_s:.2f}"),
        _row("prompt tokens recomputed", _recomputed(before), _recomputed(after)),
    ]


def _moved(pool: PoolFigures) -> list[str]:
    return [_row(name, "", _chunks(chunks, size)) for name, chunks, size in moves(pool)]


def _row(what: str, alone: str, ours: str, remark: str = "") -> str:
    return f"  {what:<34}{alone:>21}{ours:>21}  {remark}"


def _range(values: list[float]) -> str:
    found = Spread.of(values)
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})"


def _s(seconds: float) -> str:
    return f"{seconds:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _recomputed(figures: DemoFigures) -> str:
    return f"{figures.recomputed_tokens:,} of {figures.prompt_tokens:,}"


def _chunks(count: int, size_bytes: int) -> str:
    return f"{count} chunks, {format_size(size_bytes)}"
