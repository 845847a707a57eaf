"""`python -m forebay.bench.gpu ROW … --out DIR`: rows of the table, each on its own.

It ends within nine minutes and writes what it has after every repeat; run again, it goes on. Rows
that want the same engines share them. What a row puts on the drive is gone when it ends, by itself,
by its time or by SIGTERM. `--scale tiny` rehearses on any machine that has vLLM.
"""

import argparse
import asyncio
import ctypes
import signal
import sys
import time
from pathlib import Path

from forebay.bench.gpu.results import RowResults
from forebay.bench.gpu.rows.catalog import ROWS
from forebay.bench.gpu.run import ROW_S, RowRun
from forebay.bench.gpu.variants import SCALES
from forebay.errors import ForebayError, StartupError
from forebay.sys.scratch import scratch


def main() -> int:
    parser = argparse.ArgumentParser(prog="forebay.bench.gpu", description=__doc__)
    parser.add_argument("rows", nargs="+", choices=sorted(ROWS), metavar="ROW")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="where JSON goes")
    parser.add_argument("--dir", default="/tmp", help="where chunks go")  # noqa: S108
    parser.add_argument(
        "--weights", default="", metavar="DIR", help="a model with weights; else made up"
    )
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--repeats", type=int, default=0, help="at most; 0: as the row has them")
    parser.add_argument("--seconds", type=float, default=ROW_S, help="when it ends")
    wanted = parser.parse_args()
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} {what}", flush=True)  # noqa: T201 - it is watched

    try:
        if wanted.scale == "full":
            _require_driver()
        with scratch(wanted.dir) as place:
            try:
                run = RowRun(place, begun + wanted.seconds, say, wanted.repeats)
                return asyncio.run(_run(run, wanted))
            finally:
                _keep_logs(place, wanted.out, "-".join(wanted.rows))
    except ForebayError as error:
        say(f"forebay: {error}")
        return 2
    except asyncio.CancelledError:
        return 143


def _require_driver() -> None:
    """Engines of full size would take minutes to find out that there is no GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise StartupError(
            "there is no NVIDIA driver here; `--scale tiny` rehearses a row without one."
        ) from None


async def _run(run: RowRun, wanted: argparse.Namespace) -> int:
    """Row after row; one that cannot be run is no reason to leave out the next."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    scale, status = SCALES[wanted.scale], 0
    if wanted.weights:
        scale = scale.with_weights(wanted.weights)
    try:
        for row in wanted.rows:
            run.say(f"row {row}")
            name = f"{row}-weights" if wanted.weights else row
            results = RowResults(wanted.out / f"{name}.json", name, wanted.scale)
            run.begin_row(scale, results)
            try:
                async with asyncio.timeout(run.until - time.monotonic()):
                    await ROWS[row](run)
            except (TimeoutError, ForebayError) as error:
                is_late = isinstance(error, TimeoutError)
                run.say(f"{row}: {'the time is up; run it again' if is_late else error}")
                status = 1 if is_late else 2
                await run.clear_stage()
            finally:
                run.clear_drive()
            run.say(f"{row}: {results.found.get('ratios', {})}")
    finally:
        await run.clear_stage()
    return status


def _keep_logs(place: Path, out: Path, name: str) -> None:
    """Keep the end of every engine's log beside the results."""
    ends = []
    for log in sorted(place.glob("*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        ends.append(f"==== {log.name}\n{text[-20_000:]}")
    if ends:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.log").write_text("\n".join(ends), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
