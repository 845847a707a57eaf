"""`forebay bench compare`: two results of a load benchmark side by side."""

import argparse
import json
from pathlib import Path

import msgspec

from forebay.bench.report.page import page
from forebay.bench.report.sheet import as_csv
from forebay.bench.report.text import ab_text
from forebay.bench.result import files
from forebay.bench.result.compare import compare
from forebay.cli import flags
from forebay.cli.bench import loads
from forebay.cli.flags import Commands

_EPILOG = """\
examples:
  forebay bench compare without.json with.json
  forebay bench compare without.json with.json --tpot-ms 80 --html report.html
  forebay bench compare ab.json --sla-at p99 --ttft-ms 500 --csv steps.csv
  forebay bench compare ab.json --gpus 8 --gpu-price 3 --json

A result needs no more than {"steps": [{"clients": 16, "req_s": 3.47, "ttft_ms": {"mean": 246},
"tpot_ms": {"mean": 38.8}, "errors": 0}, ...]}; docs/bench-format.md has the format, docs/bench.md
what the figures mean. Exit status: 0 compared, 2 a file cannot be read.
"""


def add(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "compare",
        description="What each of two servers carries under an SLA, and what one gains over the "
        "other.",
        epilog=_EPILOG,
    )
    parser.add_argument("off", metavar="A.json", type=Path, help="without; or a whole A/B result")
    parser.add_argument("on", metavar="B.json", type=Path, nargs="?", help="with")
    flags.add_sla(parser)
    loads.add_prices(parser)
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the report")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="also write every step, as CSV")
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    pair = files.read_pair(parsed.off, parsed.on)
    ab = msgspec.structs.replace(pair, sla=flags.read_sla(parsed, pair.sla))
    ab = loads.priced(ab, parsed)
    found = compare(ab.off, ab.on, ab.sla)
    if parsed.html is not None:
        files.write(parsed.html, page(ab))
    if parsed.csv is not None:
        files.write(parsed.csv, as_csv(ab))
    if parsed.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print(ab_text(ab, found))
    return 0
