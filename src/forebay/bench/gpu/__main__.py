"""`python -m forebay.bench.gpu ROW --out DIR`: one row of the table, on its own.

It ends within nine minutes and writes what it has after every repeat; run again, it goes on.
`--scale tiny` rehearses it on any machine that has vLLM.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from forebay.bench.gpu.results import Results
from forebay.bench.gpu.rows import ROWS
from forebay.bench.gpu.run import ROW_S, Run
from forebay.bench.gpu.sides import SCALES
from forebay.errors import ForebayError
from forebay.sys.scratch import scratch


def main() -> int:
    """Run one row."""
    parser = argparse.ArgumentParser(prog="forebay.bench.gpu", description=__doc__)
    parser.add_argument("row", choices=sorted(ROWS))
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="where JSON goes")
    parser.add_argument("--dir", default="/tmp", help="where chunks go")  # noqa: S108
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--seconds", type=float, default=ROW_S, help="when it ends")
    wanted = parser.parse_args()
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} {what}", flush=True)  # noqa: T201 - it is watched

    results = Results(wanted.out / f"{wanted.row}.json", wanted.row, wanted.scale)
    try:
        with scratch(wanted.dir) as place:
            until = begun + wanted.seconds
            run = Run(SCALES[wanted.scale], results, place, until, say)
            try:
                asyncio.run(ROWS[wanted.row](run))
            finally:
                _keep_logs(place, wanted.out, wanted.row)
    except ForebayError as error:
        say(f"forebay: {error}")
        return 2
    say(f"done: {results.found.get('ratios', {})}")
    return 0


def _keep_logs(place: Path, out: Path, row: str) -> None:
    """The ends of the engines' logs, for whoever wonders."""
    ends = []
    for log in sorted(place.glob("*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        ends.append(f"==== {log.name}\n{text[-20_000:]}")
    if ends:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{row}.log").write_text("\n".join(ends), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
