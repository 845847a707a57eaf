"""`forebay bench ab`: does the pool help this load? The same server without and with it."""

import argparse
import asyncio
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from forebay.bench.ab import comparison, demo_engine
from forebay.bench.ab.comparison import OFF, ON, AbPlan
from forebay.bench.ab.variants import RunningServer, StartedServer, Variant, VllmServer
from forebay.bench.load.workloads import Dialogs, Stateless, Workload
from forebay.bench.report import page as report
from forebay.bench.report.text import ab_text
from forebay.bench.result import files
from forebay.bench.result.compare import compare
from forebay.bench.result.format import LoadResult
from forebay.cli import flags, progress
from forebay.cli.bench import loads
from forebay.cli.bench.serve import complete, target_of
from forebay.cli.engine.demo import cache_directory
from forebay.cli.flags import Commands
from forebay.engines.start import demo_model, vllm
from forebay.errors import SettingsError
from forebay.settings import DiskSetting

# A load that two cores carry in a few minutes, with more history than the engine's cache holds.
_DEMO_CLIENTS: Final = "1,2,4"
_DEMO_DIALOGS: Final = Dialogs(turns=3, first_tokens=720, turn_tokens=40, answer_tokens=16, hold=4)
_DEMO_STATELESS: Final = Stateless(prompt_tokens=400, answer_tokens=16, requests=4)
_DEMO_TPOT_MS: Final = 100.0
_DEMO_KV_BYTES: Final = 128 << 20  # 46 KB a token: 2,900 tokens, not four dialogs
_DEMO_CONTEXT_TOKENS: Final = 2048
_DEMO_DRAM_BYTES: Final = 512 << 20  # less than the dialogs take: some come back from the drive
_DEMO_DISK_BYTES: Final = 4 << 30
_ALONE: Final = "vLLM alone"
_WITH: Final = "vLLM with Forebay"
_EPILOG = """\
examples:
  forebay bench ab
  forebay bench ab Qwen/Qwen3-8B --dram 64GiB --disk /mnt/nvme:1TB --interleave 4 --repeat 2
  forebay bench ab Qwen/Qwen3-8B --also "vLLM's own=--kv-offloading-size 64" --max-model-len 32768
  forebay bench ab --off http://gpu1:8000 --on http://gpu2:8000 --pool /run/forebay/pool.sock

Without MODEL and URLs it takes a small demo model and a load that two cores carry in some minutes.
Every argument that is not listed here goes to vLLM, on every side, and all behind -- do. Each
server that it starts begins with empty caches and a fresh directory inside each --disk DIR, and is
ended. It writes DIR/report.html and DIR/ab.json, and each side's result as soon as it is measured.
docs/bench.md defines every figure. Exit status: 0 measured, 1 measured but requests failed, 2 could
not begin.
"""


def add(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "ab",
        help="a server without and with the pool",
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
    loads.add(parser, None)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    plan = _plan(parsed)
    with progress.shown() as show:
        found = comparison.run(plan, show, lambda name, result: _keep(parsed, name, result))
    ab = msgspec.structs.replace(
        found, off=complete(found.off, parsed), on=complete(found.on, parsed)
    )
    page = report.write(parsed.out, ab)
    if parsed.json:
        print(files.as_text(ab).rstrip())
    else:
        print(ab_text(ab, compare(ab.off, ab.on, ab.sla)))
        print(f"\nThe report: {page}")
    return int(any(step.errors for result in (ab.off, ab.on) for step in result.steps))


def _plan(parsed: argparse.Namespace) -> AbPlan:
    is_demo = parsed.model is None and parsed.off is None and parsed.on is None
    parsed.clients = parsed.clients or loads.clients_of(_DEMO_CLIENTS if is_demo else loads.DOUBLED)
    if is_demo and parsed.tpot_ms is None:
        parsed.tpot_ms = _DEMO_TPOT_MS
    load = loads.plan_of(parsed, _DEMO_DIALOGS if is_demo else None)
    middle = load.clients[len(load.clients) // 2]
    stateless = middle if parsed.stateless is None else parsed.stateless
    boundary = _DEMO_STATELESS if is_demo else _boundary(load.workload)
    return AbPlan(
        load=load,
        variants=_variants(parsed, is_demo=is_demo),
        repeats=parsed.repeat,
        stateless=replace(load, workload=boundary, clients=(stateless,)) if stateless else None,
    )


def _boundary(workload: Workload) -> Workload:
    """With answers as long as the load's, so that only what comes back is another."""
    tokens = workload.options().get("answer_tokens")
    return Stateless(answer_tokens=tokens) if isinstance(tokens, int) else Stateless()


def _variants(parsed: argparse.Namespace, *, is_demo: bool) -> dict[str, Variant]:
    if (parsed.off is None) != (parsed.on is None):
        raise SettingsError("--off and --on are two servers that run; name both.")
    if parsed.off is not None:
        return _running(parsed)
    if parsed.pool is not None:
        raise SettingsError("--pool is for --on; where we start a server we start its pool.")
    engine = _demo_engine(parsed) if is_demo else _engine(parsed)
    disks = tuple(flags.read_settings(parsed).disk)
    if is_demo and not disks:
        disks = (DiskSetting(cache_directory(), _DEMO_DISK_BYTES),)
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
        word = parsed.model or parsed.passed_on[0]
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
        found.append((name.strip(), shlex.split(words)))
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


def _demo_engine(parsed: argparse.Namespace) -> VllmServer:
    vllm.require()
    if not demo_model.is_ready():
        print("forebay: converting the demo model, once", file=sys.stderr)
    model = demo_model.prepare()
    demo_engine.know_weights(model)
    engine = demo_engine.engine_of(model, _DEMO_KV_BYTES, _DEMO_CONTEXT_TOKENS)
    dram = flags.read_settings(parsed).dram if parsed.dram is not None else _DEMO_DRAM_BYTES
    return replace(
        engine,
        arguments=(*engine.arguments, *parsed.passed_on),
        settings=replace(engine.settings, dram=dram),
        timeout_s=parsed.timeout,
    )


def _keep(parsed: argparse.Namespace, name: str, result: LoadResult) -> None:
    """A side's own result: what was measured outlives whatever comes after."""
    safe = "".join(letter if letter.isalnum() else "-" for letter in name)
    files.write(parsed.out / f"{safe}.json", files.as_text(complete(result, parsed)))
