"""`forebay bench serve`: a rising load on a server that runs."""

import argparse
import asyncio
import os
import shlex
from pathlib import Path

import msgspec

from forebay.bench.load import server, steps
from forebay.bench.load.client import Target, endpoint_of
from forebay.bench.load.steps import LoadRun
from forebay.bench.report.sheet import requests_csv
from forebay.bench.report.text import result_text
from forebay.bench.result import files, machine
from forebay.bench.result.format import LoadResult
from forebay.cli import flags, progress
from forebay.cli.bench import loads
from forebay.cli.flags import Commands

_EPILOG = """\
examples:
  forebay bench serve --url http://localhost:8000
  forebay bench serve --url http://localhost:8000 --clients 24,48,72 --interleave 4 --out with.json
  forebay bench serve --url http://gpu1:8000 --workload qa --rate 2 --clients 16,32
  forebay bench serve --url http://gpu1:8000 --workload multi-round-qa --num-users 15 \\
      --num-rounds 20 --qps 0.5 --shared-system-prompt 1000 --user-history-prompt 20k --csv out.csv
  forebay bench serve --url http://gpu1:8000 --workload agent --trace agents.jsonl.xz --think 0.1
  forebay bench serve --url http://gpu1:8000 --workload file --file mine.jsonl --clients 8

Any OpenAI-compatible server that streams. A key is read from OPENAI_API_KEY. docs/bench.md defines
every workload and every figure; compare two results with: forebay bench compare. Exit status: 0
measured, 1 measured but requests failed, 2 could not begin.
"""


def add(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "serve",
        description="Ask a streaming server, with more and more clients, and say what it carries.",
        epilog=_EPILOG,
    )
    parser.add_argument("--url", metavar="URL", required=True, help="http://HOST:PORT[/v1]")
    parser.add_argument(
        "--model", metavar="NAME", type=flags.UTF8, help="(default: the server's first)"
    )
    parser.add_argument(
        "--name",
        metavar="TEXT",
        type=flags.UTF8,
        help="what the report calls it (default: the URL)",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the result, as JSON")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every request, as CSV")
    parser.add_argument(
        "--stop-early", action="store_true", help="end once the SLA has long been broken"
    )
    flags.add_sla(parser)
    loads.add(parser)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    plan = loads.plan_of(parsed, stops_early=parsed.stop_early)
    target = asyncio.run(target_of(parsed, parsed.url, parsed.model))
    run = LoadRun()
    status = 0
    with progress.shown() as show:
        try:
            words = asyncio.run(server.text_of(target))
            asyncio.run(steps.measure(words, target, plan, run, show))
        except KeyboardInterrupt:
            if not run.measured:
                raise
            run.ended = "it was interrupted"
            status = 130
    name = parsed.name or target.endpoint.url
    result = complete(steps.result_of([run], plan, target, name), parsed)
    if parsed.out is not None:
        files.write(parsed.out, files.as_text(result))
    if parsed.csv is not None:
        files.write(parsed.csv, requests_csv(run.measured.values()))
    print(files.as_text(result).rstrip() if parsed.json else result_text(result, plan.bounds))
    return status or int(any(step.errors for step in result.steps))


async def target_of(parsed: argparse.Namespace, url: str, model: str | None) -> Target:
    """The model of the server at a URL; StartupError if there is none."""
    endpoint = endpoint_of(url, os.environ.get("OPENAI_API_KEY", ""))
    return Target(endpoint, model or await server.model_of(endpoint), parsed.timeout, parsed.plain)


def complete(result: LoadResult, parsed: argparse.Namespace) -> LoadResult:
    ours = shlex.join(["forebay", *parsed.words])
    return msgspec.structs.replace(
        result,
        commands=(ours, *result.commands),
        machine=machine.this_machine(),
        versions=machine.these_versions(),
    )
