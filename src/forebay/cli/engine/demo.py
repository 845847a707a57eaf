"""`forebay demo`: what the pool does for dialogs, on this machine, in a few minutes."""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Final

from forebay.bench.ab import demo, demo_page
from forebay.cli import flags, progress
from forebay.cli.flags import Commands
from forebay.errors import SettingsError, StartupError
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
    minutes = _minutes(parsed.minutes)
    with progress.shown() as show:
        report = demo.run(parent, minutes, show, _note)
    page = demo_page.write(parsed.out, report)
    if parsed.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print(demo_page.text(report))
        print(f"\nThe report: {page}")
        for path in scratch.leftovers(parent):
            print(f"A run that was killed left {path}; remove it with: rm -r {path}")
    return 0


def _note(line: str) -> None:
    """Print a permanent line; on a terminal it goes above the progress bar."""
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
    """The directory for chunks that are not needed later."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "forebay"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{path} cannot be made ({error.strerror}); name a --dir.") from None
    return str(path)
