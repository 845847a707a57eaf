"""`forebay sim --drive-gbps`: what reading dialogs ahead is worth over a drive that takes time."""

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from forebay.cli import progress
from forebay.errors import SettingsError
from forebay.quantity import format_size
from forebay.settings import PrefetchMode
from forebay.sim.replay import Sizes
from forebay.sim.timed import TimedResult, simulate_timed, with_hints
from forebay.sim.trace import Request

HINT_ERROR_MAX: Final = 10.0


def run(parsed: argparse.Namespace, requests: Sequence[Request], sizes: Sizes) -> int:
    """Print what each mode of reading ahead finds in DRAM."""
    if not 0 < parsed.drive_gbps < float("inf"):
        raise SettingsError("--drive-gbps is a speed; write a number above 0.")
    if not sizes.lower_chunks:
        raise SettingsError("--drive-gbps simulates a drive; write --disk-tokens, too.")
    if parsed.hint_error is not None:
        if not 0 <= parsed.hint_error <= HINT_ERROR_MAX:
            raise SettingsError("--hint-error is a part of what is said; write 0.2 for a fifth.")
        requests = with_hints(requests, parsed.hint_error)
    results = []
    with progress.shown() as show:
        for number, prefetch in enumerate(PrefetchMode):
            show(f"prefetch {prefetch}", number / len(PrefetchMode))
            speed = parsed.drive_gbps * 1e9
            results.append(simulate_timed(requests, sizes, speed, prefetch))
    facts = [_facts(result, sizes) for result in results]
    print(json.dumps({"prefetch": facts}, indent=2) if parsed.json else _table(facts))
    return 0


def _facts(result: TimedResult, sizes: Sizes) -> dict[str, Any]:
    return {
        "prefetch": str(result.prefetch),
        "dram_share_of_found": round(result.dram_share, 4),
        "chunks_read_ahead": result.reads.made,
        "wasted_share": round(result.reads.wasted_share, 4),
        "disk_written_bytes": result.written * sizes.chunk_bytes,
    }


def _table(facts: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'prefetch':10}{'found in DRAM':>14}{'read ahead':>12}{'wasted':>8}{'written':>12}"]
    for row in facts:
        share, wasted = 100 * row["dram_share_of_found"], 100 * row["wasted_share"]
        written = format_size(row["disk_written_bytes"])
        made = row["chunks_read_ahead"]
        lines.append(f"{row['prefetch']:10}{share:13.1f}%{made:12,}{wasted:7.1f}%{written:>12}")
    return "\n".join(lines)
