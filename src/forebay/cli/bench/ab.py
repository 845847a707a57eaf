"""`forebay bench ab`: does the pool help this load? The same server without and with it."""

import argparse
import asyncio
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from forebay.bench.ab import comparison
from forebay.bench.ab.comparison import OFF, ON, AbPlan
from forebay.bench.ab.variants import RunningServer, StartedServer, Variant, VllmServer
from forebay.bench.load.workloads import Stateless, Workload
from forebay.bench.report import page as report
from forebay.bench.report.text import ab_text
from forebay.bench.result import files
from forebay.bench.result.compare import compare
from forebay.bench.result.format import LoadResult
from forebay.cli import flags, progress
from forebay.cli.bench import loads
from forebay.cli.bench.serve import complete, target_of
from forebay.cli.flags import Commands
from forebay.engines.start import vllm
from forebay.errors import SettingsError

_ALONE: Final = "vLLM alone"
_WITH: Final = "vLLM with Forebay"
_EPILOG = """\
examples:
  forebay bench ab Qwen/Qwen3-8B --dram 64GiB --disk /mnt/nvme:1TB --interleave 4 --repeat 2
  forebay bench ab Qwen/Qwen3-8B --also "vLLM's own=--kv-offloading-size 64" --max-model-len 32768
  forebay bench ab --off http://gpu1:8000 --on http://gpu2:8000 --pool /run/forebay/pool.sock

forebay demo shows the same with a small model of its own, in some minutes on two cores. Every
argument that is not listed here goes to vLLM, on every side, and so does everything after --. Each
server that it starts begins with empty caches and a fresh directory inside each --disk DIR, and is
ended. It writes DIR/report.html, DIR/ab.json and DIR/steps.csv, and each side's result as soon as
it is measured.
docs/bench.md defines every figure. Exit status: 0 measured, 1 measured but requests failed, 2 could
not begin.
"""


def add(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "ab",
        description="Load the same server without and with the pool, and compare what it carries.",
        epilog=_EPILOG,
        usage="forebay bench ab [MODEL | --off URL --on URL] [options] [vLLM arguments]",
    )
    parser.passes_on = True
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a directory or a hub's name")
    sides = parser.add_argument_group("sides")
    sides.add_argument("--off", metavar="URL", help="a server that runs, without")
    sides.add_argument("--on", metavar="URL", help="a server that runs, with")
    sides.add_argument("--pool", metavar="SOCKET", help="the pool of --on, for its counters")
    sides.add_argument(
        "--also",
        metavar="NAME=ARGUMENTS",
        action="append",
        type=flags.UTF8,
        default=[],
        help="one more configuration: vLLM with these arguments and no pool, or a URL",
    )
    sides.add_argument(
        "--repeat", metavar="N", type=loads.count_of(), default=1, help="runs, in turned order (1)"
    )
    sides.add_argument(
        "--stateless",
        metavar="CLIENTS",
        type=loads.count_of(0),
        help="clients of the boundary where nothing comes back; 0: none (the middle of --clients)",
    )
    sides.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("forebay-ab"), help="(forebay-ab)"
    )
    # No --config: vLLM has one of its own.
    flags.add_settings(parser, ["dram", "disk"], has_file=False)
    flags.add_sla(parser)
    loads.add_prices(sides)
    loads.add(parser)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    plan = _plan(parsed)
    if parsed.gpu_price is not None and parsed.gpus is None:
        raise SettingsError("--gpu-price needs --gpus, the number of GPUs of each side.")
    with progress.shown() as show:
        found = comparison.run(plan, show, lambda name, result: _keep(parsed, name, result))
    ab = msgspec.structs.replace(
        found, off=complete(found.off, parsed), on=complete(found.on, parsed)
    )
    ab = loads.priced(ab, parsed)
    page = report.write(parsed.out, ab)
    if parsed.json:
        print(files.as_text(ab).rstrip())
    else:
        print(ab_text(ab, compare(ab.off, ab.on, ab.sla)))
        print(f"\nThe report: {page}")
    return int(any(step.errors for result in (ab.off, ab.on) for step in result.steps))


def _plan(parsed: argparse.Namespace) -> AbPlan:
    load = loads.plan_of(parsed)
    middle = load.clients[len(load.clients) // 2]
    stateless = middle if parsed.stateless is None else parsed.stateless
    boundary = _boundary(load.workload)
    return AbPlan(
        load=load,
        variants=_variants(parsed),
        repeats=parsed.repeat,
        stateless=replace(load, workload=boundary, clients=(stateless,)) if stateless else None,
    )


def _boundary(workload: Workload) -> Workload:
    """The stateless workload, with answers as long as those of the load."""
    options = workload.options()
    tokens = options.get("answer_tokens", options.get("answer_len"))
    return Stateless(answer_tokens=tokens) if isinstance(tokens, int) else Stateless()


def _variants(parsed: argparse.Namespace) -> dict[str, Variant]:
    if (parsed.off is None) != (parsed.on is None):
        raise SettingsError("--off and --on are two servers that run; name both.")
    if parsed.off is not None:
        return _running(parsed)
    if parsed.pool is not None:
        raise SettingsError("--pool is for --on; where we start a server we start its pool.")
    if parsed.model is None:
        raise SettingsError(
            "name a MODEL, or two servers that run as --off and --on; forebay demo needs neither."
        )
    engine, disks = _engine(parsed), flags.read_settings(parsed).disk
    found: dict[str, Variant] = {
        OFF: StartedServer(_ALONE, engine),
        ON: StartedServer(_WITH, engine, has_pool=True, disks=disks),
    }
    for name, words in _also(parsed):
        found[name] = StartedServer(name, engine, arguments=tuple(words))
        if words[0].startswith(("http://", "https://")):
            found[name] = _server(parsed, name, words[0])
    return found


def _running(parsed: argparse.Namespace) -> dict[str, Variant]:
    if parsed.model is not None or parsed.passed_on:
        word = parsed.passed_on[0] if parsed.model is None else parsed.model
        raise SettingsError(f"with --off and --on no server is started; '{word[:40]}' has no use.")
    others = _also(parsed)
    found: dict[str, Variant] = {
        OFF: _server(parsed, "without", parsed.off),
        ON: replace(_server(parsed, "with", parsed.on), socket=parsed.pool),
    }
    return found | {name: _server(parsed, name, words[0]) for name, words in others}


def _server(parsed: argparse.Namespace, name: str, url: str) -> RunningServer:
    return RunningServer(name, asyncio.run(target_of(parsed, url, None)))


def _also(parsed: argparse.Namespace) -> list[tuple[str, list[str]]]:
    found = []
    for text in parsed.also:
        name, equals, words = text.partition("=")
        if not equals or not name.strip() or not words.strip() or name.strip() in {OFF, ON}:
            raise SettingsError(
                f"--also '{text[:60]}': write NAME=ARGUMENTS or NAME=URL, and a name of its own."
            )
        try:
            found.append((name.strip(), shlex.split(words)))
        except ValueError:
            raise SettingsError(f"--also '{text[:60]}': a quotation mark has no end.") from None
    return found


def _engine(parsed: argparse.Namespace) -> VllmServer:
    vllm.require()
    given = {word.partition("=")[0] for word in parsed.passed_on}
    for word in (vllm.TRANSFER_FLAG, "--port", "--host", "--served-model-name"):
        if word in given:
            raise SettingsError(f"forebay bench ab writes {word} itself.")
    return VllmServer(
        model=parsed.model,
        served_name=parsed.model,
        arguments=("--enable-prompt-tokens-details", *parsed.passed_on),
        settings=replace(flags.read_settings(parsed), disk=(), no_pool="fail"),
        timeout_s=parsed.timeout,
    )


def _keep(parsed: argparse.Namespace, name: str, result: LoadResult) -> None:
    """Write one side's result at once, so that it is kept whatever happens later."""
    safe = "".join(letter if letter.isalnum() else "-" for letter in name)
    files.write(parsed.out / f"{safe}.json", files.as_text(complete(result, parsed)))
