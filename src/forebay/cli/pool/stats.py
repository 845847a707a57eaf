"""`forebay stats`: what the pool holds and does."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.quantity import format_size

_EPILOG = """\
examples:
  forebay stats
  forebay stats --json
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "stats",
        help="what the pool holds and does",
        description="Print the running pool's numbers.",
        epilog=_EPILOG,
    )
    running.add_socket(parser)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    with running.client_of(parsed) as client:
        numbers = running.answered(client.stats(running.TIMEOUT_S))
    print(json.dumps(numbers, indent=2) if parsed.json else readable(numbers))
    return 0


def readable(numbers: Mapping[str, Any]) -> str:
    """The numbers for people: one a line, bytes as sizes."""
    lines = [*_lines("", {**numbers, "metrics": {}}), *_series(numbers)]
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _series(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, family in numbers["metrics"].items():
        for labels, value in family["values"]:
            title = ".".join(["metrics", name, *labels.values()])
            yield from _lines(title, value["count"] if isinstance(value, Mapping) else value)


def _lines(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _lines(f"{prefix}.{name}" if prefix else str(name), inner)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _lines(f"{prefix}.{position}", inner)
    elif isinstance(value, int) and not isinstance(value, bool) and prefix.endswith("bytes"):
        yield prefix, format_size(value)
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        yield prefix, f"{value:,}" if is_number else _printable(value)


def _printable(value: object) -> str:
    """A value as text; of a path that is not UTF-8, the odd bytes are escaped."""
    return str(value).encode(errors="backslashreplace").decode()
