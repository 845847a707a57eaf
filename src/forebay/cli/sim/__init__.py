"""`forebay sim`: the hit rate of the pool's policy on a trace, against the usual ones."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forebay.bench.result import files
from forebay.cli import flags, progress
from forebay.cli.flags import Commands, Parser
from forebay.cli.sim import ahead, hosts
from forebay.errors import SettingsError
from forebay.quantity import format_size, parse_count, parse_size
from forebay.report.charts import COLOURS, Chart, ChartLine
from forebay.report.page import document, figure, legend
from forebay.sim.hosts import Routing
from forebay.sim.replay import NAMES, SimResult, Sizes, simulate
from forebay.sim.trace import CHUNK_TOKENS, Request, Trace, capped, read_trace, schedule

PLOT_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the capacity, in the plot
_EPILOG = """\
examples:
  forebay sim --trace conversation.jsonl.xz --dram-tokens 2M
  forebay sim --trace conversation.jsonl.xz --dram-tokens 0.5M --disk-tokens 5M --json
  forebay sim --trace agent_sessions.jsonl.xz --users 32 --prompt-max 128k --gap-max 300 \\
      --dram-tokens 0.6M --policy forebay --policy lru --plot curves.html
  forebay sim --trace agent_sessions.jsonl.xz --hosts 1,4,16 --dram-tokens 0.6M --disk-tokens 6M \\
      --store-tokens 12M

Traces: one request a line with timestamp, input_length and hash_ids (what forebay pool --trace
records), or one session a line with blocks of 64 tokens; .xz is read as it is. A hit is the prefix
found in whole chunks of 512 tokens, counted against all prompt tokens. Tokens are written as 600k,
0.6M or 600000. The baselines write every chunk to disk; forebay decides, as the pool does.

With --hosts every host has a pool of these sizes, and sessions are drawn again where the trace has
too few. --store-tokens is what each may keep in a store that all share; docs/scale.md has figures.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "sim",
        description="Replay a trace against the pool's own policy, the usual ones and the optimum.",
        epilog=_EPILOG,
    )
    _add_flags(parser)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--trace", required=True, metavar="FILE", help="what was asked, and when")
    parser.add_argument("--dram-tokens", required=True, metavar="N", help="tokens that DRAM holds")
    parser.add_argument("--disk-tokens", default="0", metavar="N", help="and NVMe (default: 0)")
    parser.add_argument(
        "--users", type=flags.COUNT, default=0, metavar="N", help="sessions at once (default: all)"
    )
    parser.add_argument("--prompt-max", metavar="N", help="leave out sessions with longer prompts")
    parser.add_argument(
        "--gap-max", type=float, metavar="SECONDS", help="longest gap between two turns"
    )
    parser.add_argument("--half", choices=("0", "1"), help="every second session only, 0 or 1")
    parser.add_argument(
        "--policy", action="append", choices=NAMES, metavar="NAME", help=", ".join(NAMES)
    )
    parser.add_argument(
        "--token-bytes", default="128KiB", metavar="SIZE", help="KV of a token (default: 128KiB)"
    )
    parser.add_argument("--disk-writes-a-day", metavar="SIZE", help="budget of writes (forebay)")
    parser.add_argument("--plot", metavar="FILE.html", help="draw hit rate against capacity")
    _add_drive_flags(parser)
    _add_hosts_flags(parser)


def _add_drive_flags(parser: Parser) -> None:
    parser.add_argument(
        "--drive-gbps",
        type=float,
        metavar="GB/s",
        help="let the disk take time, and compare the ways of reading dialogs ahead",
    )
    parser.add_argument(
        "--hint-error",
        type=float,
        metavar="SHARE",
        help="with it: callers say when they return, wrong by so much (0.2: a fifth)",
    )


def _add_hosts_flags(parser: Parser) -> None:
    parser.add_argument("--hosts", metavar="N,…", help="simulate so many hosts, with --users each")
    parser.add_argument(
        "--routing",
        action="append",
        choices=tuple(Routing),
        metavar="NAME",
        help=f"of requests to hosts: {', '.join(Routing)} (default: both)",
    )
    parser.add_argument(
        "--store-tokens", default="0", metavar="N", help="of a host in a shared store (default: 0)"
    )
    parser.add_argument(
        "--sessions", type=flags.COUNT, default=1, metavar="N", help="of each user, with --hosts"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of which sessions")


def _run(parsed: argparse.Namespace) -> int:
    sizes, names = _sizes(parsed), tuple(parsed.policy or NAMES)
    if parsed.users < 0:
        raise SettingsError("--users counts sessions; write a number above 0.")
    if parsed.hint_error is not None and parsed.drive_gbps is None:
        raise SettingsError("--hint-error is of a drive's reads ahead; write --drive-gbps, too.")
    if parsed.hosts:
        return _run_hosts(parsed, sizes)
    if parsed.drive_gbps is not None:
        if parsed.policy or parsed.plot:
            raise SettingsError("--drive-gbps simulates the pool; leave --policy and --plot out.")
        return ahead.run(parsed, list(schedule(_trace(parsed), parsed.users)), sizes)
    with progress.shown() as show:
        show("reading the trace", 0.0)
        requests = list(schedule(_trace(parsed), parsed.users))
        results = _simulate_all(names, requests, [sizes], show)[0]
        if parsed.plot:
            _plot(Path(parsed.plot), names, requests, sizes, show)
    if parsed.json:
        facts = {"requests": len(requests), "policies": [_facts(result) for result in results]}
        print(json.dumps(facts, indent=2))
    else:
        print(_readable(requests, results, sizes))
    return 0


def _run_hosts(parsed: argparse.Namespace, sizes: Sizes) -> int:
    if parsed.sessions < 1:
        raise SettingsError("--sessions counts those of a user; write a number above 0.")
    if parsed.drive_gbps is not None:
        raise SettingsError("--drive-gbps is of one host; leave --hosts out.")
    if parsed.policy or parsed.plot or parsed.disk_writes_a_day:
        raise SettingsError("--hosts simulates the pool; leave --policy, --plot and budgets out.")
    hosts.wanted_hosts(parsed.hosts)  # before the trace is read
    store_chunks = _tokens(parsed.store_tokens) // CHUNK_TOKENS
    cases = hosts.run(parsed, _trace(parsed), sizes, store_chunks)
    print(hosts.as_json(cases) if parsed.json else hosts.as_table(cases))
    return 0


def _trace(parsed: argparse.Namespace) -> Trace:
    longest = _tokens(parsed.prompt_max) if parsed.prompt_max else None
    trace = read_trace(Path(parsed.trace), longest)
    if parsed.gap_max is not None:
        trace = capped(trace, parsed.gap_max)
    return trace.half(int(parsed.half)) if parsed.half else trace


def _sizes(parsed: argparse.Namespace) -> Sizes:
    budget = parsed.disk_writes_a_day
    disk_chunks = _tokens(parsed.disk_tokens) // CHUNK_TOKENS
    sizes = Sizes(
        dram_chunks=_tokens(parsed.dram_tokens) // CHUNK_TOKENS,
        lower_chunks=(disk_chunks,) if disk_chunks else (),
        chunk_bytes=CHUNK_TOKENS * parse_size(parsed.token_bytes),
        budget_bytes_a_day=parse_size(budget) if budget else None,
    )
    if sizes.dram_chunks < 1:
        raise SettingsError(f"--dram-tokens holds no chunk; write {CHUNK_TOKENS} or more.")
    return sizes


def _tokens(text: str) -> int:
    count = parse_count(text)
    if count < 0:
        raise SettingsError(f"'{text[:40]}' is not a number of tokens; write 600k or 0.6M.")
    return count


def _simulate_all(
    names: Sequence[str],
    requests: Sequence[Request],
    all_sizes: Sequence[Sizes],
    show: progress.Show,
) -> list[list[SimResult]]:
    total, done = max(1, len(names) * len(requests) * len(all_sizes)), 0
    rows = []
    for sizes in all_sizes:
        row = []
        for name in names:

            def count(served: int, name: str = name, sizes: Sizes = sizes) -> None:
                nonlocal done
                done += served
                tokens = sizes.dram_chunks * CHUNK_TOKENS
                show(f"{name}, {tokens:,} tokens", min(1.0, done / total))

            row.append(simulate(name, requests, sizes, count))
        rows.append(row)
    return rows


def _plot(
    path: Path,
    names: Sequence[str],
    requests: Sequence[Request],
    sizes: Sizes,
    show: progress.Show,
) -> None:
    ladder = [
        replace(
            sizes,
            dram_chunks=max(1, round(factor * sizes.dram_chunks)),
            lower_chunks=tuple(round(factor * chunks) for chunks in sizes.lower_chunks),
        )
        for factor in PLOT_FACTORS
    ]
    rows = _simulate_all(names, requests, ladder, show)
    capacities = [(each.dram_chunks + sum(each.lower_chunks)) * CHUNK_TOKENS for each in ladder]
    lines = [
        ChartLine(
            f"{name}, {100 * rows[-1][at].hit_rate:.0f} % at most",
            COLOURS[at % len(COLOURS)],
            [
                (size / 1e6, 100 * row[at].hit_rate)
                for size, row in zip(capacities, rows, strict=True)
            ],
        )
        for at, name in enumerate(names)
    ]
    chart = Chart("Hit rate", "% of all prompt tokens", "million tokens", lines)
    body = [legend((line.colour, line.name) for line in lines), figure(chart)]
    subtitle = "Share of all prompt tokens found in DRAM or on disk, by tokens of both"
    page = document("Hit rate against capacity", subtitle, body)
    files.write(path, page)


def _facts(result: SimResult) -> dict[str, Any]:
    return {
        "policy": result.policy,
        "hit_rate": round(result.hit_rate, 4),
        "dram_hit_rate": round(result.dram_tokens / max(1, result.tokens), 4),
        "disk_hit_rate": round(result.lower_tokens / max(1, result.tokens), 4),
        "tokens": result.tokens,
        "recomputed_tokens": result.recomputed_tokens,
        "disk_written_bytes": result.written_bytes,
    }


def _readable(requests: Sequence[Request], results: Sequence[SimResult], sizes: Sizes) -> str:
    dram, disk = sizes.dram_chunks * CHUNK_TOKENS, sum(sizes.lower_chunks) * CHUNK_TOKENS
    lines = [
        f"{len(requests):,} requests, DRAM of {dram:,} tokens, disk of {disk:,}",
        f"{'policy':10}{'hit':>8}{'DRAM':>8}{'disk':>8}{'recomputed tokens':>20}{'written':>12}",
    ]
    for result in results:
        facts = _facts(result)
        rates = "".join(
            f"{100 * facts[name]:7.1f}%" for name in ("hit_rate", "dram_hit_rate", "disk_hit_rate")
        )
        written = format_size(result.written_bytes)
        lines.append(f"{result.policy:10}{rates}{result.recomputed_tokens:20,}{written:>12}")
    return "\n".join(lines)
