"""`forebay stats`: what the pool holds and does, for people; with --json every metric by name."""

import argparse
import json
import sys
from typing import Any, Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.cli.view.intervals import INTERVAL_S, can_be_drawn_on, interval
from forebay.sys.clock import Clock

_CLEAR: Final = "\x1b[H\x1b[2J"  # a terminal's screen
_EPILOG = """\
examples:
  forebay stats
  forebay stats --watch 5
  forebay stats --json

Shares and rates are since the pool began; with --watch, since the look before. docs/terminal.md
explains every line. --json prints the pool's snapshot with the names of docs/metrics.md, with
--watch one a line. forebay top shows the same as a live screen. Exit status: 0 answered, 2 there
is no pool.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "stats",
        description="Print what the running pool holds and does: shares, rates, sizes, reasons.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        const=INTERVAL_S,
        type=flags.typed(interval, "a number of seconds"),
        help=f"again and again, so many seconds apart ({INTERVAL_S:g})",
    )
    running.add_socket(parser)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    clock, before = Clock(), None
    with running.client_of(parsed) as client:
        while True:
            snapshot = running.answered(client, client.stats(running.TIMEOUT_S))
            _print(snapshot, before, parsed)
            if parsed.watch is None:
                return 0
            sys.stdout.flush()
            before = snapshot
            clock.sleep(parsed.watch)


def _print(
    snapshot: dict[str, Any], before: dict[str, Any] | None, parsed: argparse.Namespace
) -> None:
    if parsed.json:
        print(json.dumps(snapshot, indent=None if parsed.watch else 2))
        return
    from forebay.cli.view.text import stats_text  # noqa: PLC0415 - of no use to programs

    text = stats_text(snapshot, before)
    clear = _CLEAR if parsed.watch and can_be_drawn_on() else ""
    print(f"{clear}{text}" + "\n" * bool(parsed.watch))
