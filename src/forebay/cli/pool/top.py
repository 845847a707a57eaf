"""`forebay top`: a running pool, live in a terminal.

If the output is no terminal that can be drawn on (a pipe, a file, TERM=dumb), the same is printed
once as plain lines; with --json one object per interval, until the command is ended.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.cli.view.frame import View, frame
from forebay.cli.view.intervals import (
    INTERVAL_S,
    INTERVAL_S_MAX,
    INTERVAL_S_MIN,
    can_be_drawn_on,
    interval,
)
from forebay.cli.view.lines import ASCII, UNICODE, Glyphs, plain
from forebay.pool.client import Client
from forebay.pool.client.session import UNANSWERED
from forebay.sys.clock import Clock
from forebay.tiers.contract import Miss

_COUNT_MAX: Final = 1_000_000_000
_ANSWER_S: Final = 2.0  # short, so that keys work even if the pool is busy
_COLUMNS: Final = 100  # width of lines that go to no terminal
_FASTER: Final = 2.0  # factor by which + and - change the interval
_STYLES: Final = {
    "title": "bold cyan",
    "soft": "dim",
    "bar": "green",
    "good": "green",
    "bad": "bold red",
}
_EPILOG = """\
examples:
  forebay top
  forebay top --interval 5
  forebay top | cat
  forebay top --json --count 10 > pool.jsonl

Keys: q quits, p pauses, s sorts the namespaces by size, chunks or model, + and - change the
interval. Rates and the hit rate are of the last interval, misses and what runs out of the last 30.
Piped, or with TERM=dumb, it prints one plain snapshot (--count N: so many); NO_COLOR is heeded.
docs/terminal.md explains every line. Exit status: 0 ended as asked, 2 there is no pool.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "top",
        description="Watch the running pool: tiers, hits, bandwidth, misses, engines, namespaces.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=flags.typed(interval, "a number of seconds"),
        default=INTERVAL_S,
        help=f"between two looks (default: {INTERVAL_S:g})",
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=flags.typed(_count, "a number"),
        help="end after so many (default: piped 1, else never)",
    )
    running.add_socket(parser)
    flags.add_json(parser, "print one JSON object an interval")
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    if not 1 <= (number := int(text)) <= _COUNT_MAX:
        raise ValueError
    return number


def _run(parsed: argparse.Namespace) -> int:
    with running.client_of(parsed) as client:
        view = View(parsed.interval)
        if parsed.json:
            _print_lines(client, view, parsed.count, lambda: print(json.dumps(facts(view))))
        elif not can_be_drawn_on():
            _print_lines(client, view, parsed.count or 1, lambda: _print_frame(view))
        else:
            _draw(client, view, parsed.count)
    return 0


def glyphs() -> Glyphs:
    """The characters that standard output can show."""
    return UNICODE if "utf" in (sys.stdout.encoding or "").lower() else ASCII


def facts(view: View) -> dict[str, Any]:
    """A line of `--json`: the last interval's figures, with the names of docs/terminal.md."""
    now = view.latest()
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "hit_rate": now.hit_rate,
        "load_bytes_s": now.load_bytes_s,
        "store_bytes_s": now.store_bytes_s,
        **asdict(now),
        "runs_out": [each._asdict() for each in view.runs_out()],
    }


def _print_lines(client: Client, view: View, count: int | None, show: Callable[[], object]) -> None:
    """Print `count` intervals, or without end."""
    clock, shown = Clock(), 0
    view.add(running.answered(client, client.stats(running.TIMEOUT_S)))
    while count is None or shown < count:
        clock.sleep(view.interval_s)
        view.add(running.answered(client, client.stats(running.TIMEOUT_S)))
        show()
        sys.stdout.flush()
        shown += 1


def _print_frame(view: View) -> None:
    for row in frame(view, _COLUMNS, None, glyphs()):
        print(plain(row))
    print()


def _draw(client: Client, view: View, count: int | None) -> None:
    """Draw until q is pressed, or for `count` intervals."""
    from forebay.cli.view.screen import Screen  # noqa: PLC0415 - rich, for terminals alone

    clock = Clock()
    due, looks = clock.monotonic(), 0
    with Screen(_STYLES) as screen:
        while count is None or looks <= count:
            if not view.is_paused and clock.monotonic() >= due:
                _take(client, view)
                looks += 1
                due = clock.monotonic() + view.interval_s
            screen.show(lambda width, height: frame(view, width, height, glyphs()))
            wait_s = INTERVAL_S_MAX if view.is_paused else due - clock.monotonic()
            for key in screen.keys(wait_s):
                if key in {"q", "Q"}:
                    return
                due = _pressed(key, view, due, clock.monotonic())


def _take(client: Client, view: View) -> None:
    snapshot = client.stats(_ANSWER_S)
    if isinstance(snapshot, Miss):
        view.note = client.why or UNANSWERED
    else:
        view.add(snapshot)


def _pressed(key: str, view: View, due: float, now: float) -> float:
    """Act on a key; returns when the next look is due."""
    if key in {"p", " "}:
        view.is_paused = not view.is_paused
    elif key == "s":
        view.next_order()
    elif key in {"+", "-"}:
        factor = 1 / _FASTER if key == "+" else _FASTER
        view.interval_s = min(INTERVAL_S_MAX, max(INTERVAL_S_MIN, view.interval_s * factor))
        return min(due, now + view.interval_s)
    return due
