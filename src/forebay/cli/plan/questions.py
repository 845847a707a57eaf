"""`forebay plan`: what to buy, from model shapes and measured results.

Seven questions, each answered with a table or with `--json`; the help of each is the docstring of
its answer. Nothing is computed here: arguments become values of `forebay.plan`, its answers become
tables.
"""

import json
import math
from dataclasses import asdict
from inspect import cleandoc
from pathlib import Path
from textwrap import indent

from forebay.bench.result.files import read
from forebay.bench.result.format import AbResult
from forebay.cli import flags
from forebay.cli.flags import Commands, Parser
from forebay.cli.plan import plots, tables, worth
from forebay.cli.plan.inputs import (
    Answer,
    Arguments,
    add_assumptions,
    add_compress,
    add_plot,
    add_shape,
    assumed,
    drive_of,
    machine_of,
    model_of,
    outlook_of,
    stored_shape,
)
from forebay.errors import SettingsError
from forebay.plan.capacity import GpuMachine, capacity, kv_need
from forebay.plan.fleet import gpus_required
from forebay.plan.hits import trace_hits
from forebay.plan.measured import operating_point
from forebay.plan.model.shape import ENCODED_SHARE
from forebay.plan.number import whole
from forebay.plan.pool import Demand, pool_size
from forebay.plan.ssd import DRIVES, wear
from forebay.quantity import parse_size
from forebay.report.text import sections_text
from forebay.sim.trace import read_trace, schedule

_EPILOG = """\
examples:
  forebay plan kv Qwen2.5-32B --tokens 32768
  forebay plan pool Llama-3.1-70B --users 200 --context 16000
  forebay plan breakeven Llama-3.1-8B --prefill-tps 38000

Each question has its own help and examples: forebay plan QUESTION --help. Exit status: 0 answered,
2 what was given is missing something or cannot be meant.
"""


def add(commands: Commands) -> None:
    """Add `plan` and its seven questions."""
    parser = commands.add_parser(
        "plan",
        description="What must I buy? Arithmetic on model shapes and measured results.",
        epilog=_EPILOG,
    )
    questions = parser.add_subparsers(title="questions", metavar="QUESTION", required=True)
    for name, add_options, answer in (
        ("kv", _add_kv, _kv),
        ("gpus", _add_gpus, _gpus),
        ("pool", _add_pool, _pool),
        ("breakeven", worth.add_breakeven, worth.answer_breakeven),
        ("remote", worth.add_remote, worth.answer_remote),
        ("ssd", _add_ssd, _ssd),
        ("cost", worth.add_cost, worth.answer_cost),
    ):
        summary, _, examples = cleandoc(answer.__doc__ or "").partition("\n\n")
        question = questions.add_parser(
            name,
            help=summary.removesuffix("."),
            description=summary,
            epilog="examples:\n" + indent(examples, "  "),
        )
        add_options(question)
        flags.add_json(question)
        question.set_defaults(run=_run, answer=answer)


def _run(arguments: Arguments) -> int:
    facts, sections = arguments.answer(arguments)
    text = "\n".join(sections_text(sections)).lstrip("\n")
    print(json.dumps(facts, indent=2) if arguments.json else text)
    return 0


def _add_kv(parser: Parser) -> None:
    add_shape(parser)
    parser.add_argument("--batch", type=flags.COUNT, default=1, metavar="B", help="sequences (1)")
    parser.add_argument(
        "--tokens", type=flags.COUNT, default=8192, metavar="S", help="of each (8192)"
    )
    parser.add_argument(
        "--tp", type=flags.COUNT, metavar="N", help="tensor-parallel ranks (1, or --gpus)"
    )
    parser.add_argument("--gpu-memory", metavar="SIZE", help="of one GPU: also say what fits")
    parser.add_argument("--gpus", type=flags.COUNT, metavar="N", help="how many of them (1)")
    parser.add_argument("--weights", metavar="SIZE", help="of the model (default: its files)")
    add_compress(parser)
    parser.add_argument("--pool", default="1TiB", metavar="SIZE", help="DRAM and NVMe (1TiB)")
    parser.add_argument("--reserve", default="2GiB", metavar="SIZE", help="a GPU, no KV (2GiB)")
    add_assumptions(parser, GpuMachine, utilization="share of GPU memory the engine uses")


def _kv(arguments: Arguments) -> Answer:
    """Bytes of KV for a model: a token, in all, and what fits on GPUs.

    forebay plan kv Qwen2.5-32B --tokens 792000
    forebay plan kv DeepSeek-V3 --batch 64 --tokens 8192 --tp 8 --kv-dtype fp8
    forebay plan kv --layers 32 --heads 8 --head-dim 128 --bits 16 --tokens 4096
    forebay plan kv Llama-3.1-70B --tokens 32768 --gpu-memory 141GB --gpus 8 --pool 4TiB
    """
    model = model_of(arguments)
    machine = machine_of(arguments, model)
    tp = 1 if arguments.tp is None else arguments.tp
    need = kv_need(model.shape, arguments.batch, arguments.tokens, machine.tp if machine else tp)
    pooled = stored_shape(arguments, model.shape)
    found = capacity(model.shape, machine, arguments.tokens, pooled) if machine else None
    facts_of_table, lines = outlook_of(arguments, model.shape)
    stored_bytes = arguments.batch * pooled.sequence_bytes(arguments.tokens)
    facts = {**asdict(need), "stored_bytes": stored_bytes, **facts_of_table}
    sections = [tables.kv_section(need, stored_bytes, lines)]
    if machine and found:
        facts |= {"machine": asdict(machine), "capacity": asdict(found)}
        sections.append(tables.capacity_section(found, machine))
    return facts, sections


def _add_gpus(parser: Parser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--target-tps", type=flags.RATE, metavar="T", help="output tokens per second"
    )
    target.add_argument("--target-req-s", type=flags.RATE, metavar="R", help="requests per second")
    measured = parser.add_mutually_exclusive_group(required=True)
    measured.add_argument(
        "--measured-tps", type=flags.RATE, metavar="M", help="output tokens per second"
    )
    measured.add_argument("--bench", type=Path, metavar="FILE", help="a benchmark result (JSON)")
    parser.add_argument(
        "--measured-gpus", type=flags.COUNT, required=True, metavar="G", help="it ran on"
    )
    parser.add_argument(
        "--utilization", type=float, default=0.8, metavar="U", help="share of the peak (0.8)"
    )
    flags.add_sla(parser)


def _gpus(arguments: Arguments) -> Answer:
    """GPUs for a target rate, from a measured one.

    forebay plan gpus --target-tps 100000 --measured-tps 12000 --measured-gpus 8 --utilization 0.8
    forebay plan gpus --target-req-s 40 --bench result.json --measured-gpus 8
    """
    tokens = arguments.target_tps is not None
    unit = "tokens/s" if tokens else "requests/s"
    if arguments.bench is None:
        if not tokens:
            raise SettingsError("bench is missing; --target-req-s needs --bench.")
        rate = arguments.measured_tps
    else:
        source = str(arguments.bench)
        result = read(arguments.bench)
        if isinstance(result, AbResult):
            raise SettingsError(f"bench: {source} holds two results; name one of them.")
        step = operating_point(source, result.steps, flags.read_sla(arguments))
        rate = step.output_tok_s if tokens else step.req_s
        if rate is None:
            raise SettingsError(f"output_tok_s is missing in {source}; give --target-req-s.")
    target = arguments.target_tps if tokens else arguments.target_req_s
    need = gpus_required(target, rate, arguments.measured_gpus, arguments.utilization)
    return {"unit": unit, **asdict(need)}, [tables.gpus_section(need, unit)]


def _add_pool(parser: Parser) -> None:
    add_shape(parser)
    add_compress(parser)
    parser.add_argument("--users", type=flags.COUNT, metavar="U", help="active at once")
    parser.add_argument("--context", type=flags.COUNT, metavar="S", help="tokens of each")
    add_assumptions(
        parser,
        Demand,
        live_hours="NVMe keeps a context for this long after its user left",
        session_minutes="how long a user stays",
        dram_minutes="DRAM keeps a context so long after its user left",
        headroom="share added for peaks",
    )
    group = parser.add_argument_group("from a trace, the hit rate at each size")
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="requests (JSON lines, plain or .xz); --users limits the sessions at once",
    )
    group.add_argument("--sizes", metavar="SIZE,...", help="of the pool (shares of the trace)")
    add_plot(group)


def _pool(arguments: Arguments) -> Answer:
    """DRAM and NVMe for users x context x how long a context should live.

    forebay plan pool Llama-3.1-70B --users 200 --context 16000 --live-hours 24
    forebay plan pool Qwen3-8B --users 1000 --context 4000 --session-minutes 15 --live-hours 8
    forebay plan pool Qwen3-8B --trace conversation.jsonl.xz --sizes 64GiB,512GiB,4TiB
    """
    if arguments.trace is not None:
        return _trace(arguments)
    for name in ("users", "context"):
        if getattr(arguments, name) is None:
            raise SettingsError(f"{name} is missing; give --users and --context, or --trace.")
    for name in ("sizes", "plot"):
        if getattr(arguments, name) is not None:
            raise SettingsError(f"trace is missing; --{name} needs --trace.")
    demand = Demand(arguments.users, arguments.context, **assumed(arguments, Demand))
    shape = stored_shape(arguments, model_of(arguments).shape)
    found, (facts, lines) = pool_size(shape, demand), outlook_of(arguments, shape)
    facts = {"demand": asdict(demand), **asdict(found), **facts}
    return facts, [tables.pool_section(found, demand, lines)]


def _trace(arguments: Arguments) -> Answer:
    if arguments.context is not None:
        raise SettingsError("context is in the trace; leave --context out.")
    users = 0 if arguments.users is None else whole("users", arguments.users)
    sizes_bytes = [parse_size(text) for text in (arguments.sizes or "").split(",") if text]
    shape = stored_shape(arguments, model_of(arguments).shape)
    requests = list(schedule(read_trace(arguments.trace), users))
    found = trace_hits(shape, requests, sizes_bytes)
    facts, lines = outlook_of(arguments, shape)
    title = f"{arguments.trace.name} with {shape.name}"
    sections = [tables.hits_section(found, title, lines)]
    if arguments.plot is not None:
        plots.write(arguments.plot, title, plots.hits_charts(found), sections)
    facts = {"model": shape.name, "trace": str(arguments.trace), **asdict(found), **facts}
    return facts, sections


def _add_ssd(parser: Parser) -> None:
    parser.add_argument("--writes-per-day", required=True, metavar="SIZE", help="over all drives")
    add_compress(parser)
    parser.add_argument(
        "--drives", type=flags.COUNT, default=1, metavar="N", help="that share them (1)"
    )
    drives = ", ".join(f"{key} = {drive.name}" for key, drive in DRIVES.items())
    parser.add_argument("--drive", choices=list(DRIVES), help=f"a preset: {drives}")
    group = parser.add_argument_group("another drive")
    group.add_argument("--capacity", metavar="SIZE", help="of one drive")
    group.add_argument("--dwpd", type=float, metavar="X", help="rated drive writes a day (random)")
    group.add_argument("--tbw-random", metavar="SIZE", help="rated bytes written, instead of DWPD")
    group.add_argument("--tbw-sequential", metavar="SIZE", help="the same, sequential")
    group.add_argument("--warranty-years", type=float, metavar="N", help="of the rating (5)")


def _ssd(arguments: Arguments) -> Answer:
    """DWPD and years of life for a day's writes.

    forebay plan ssd --writes-per-day 60TB --drive nvme-gen5 --drives 4
    forebay plan ssd --writes-per-day 10TB --capacity 7.68TB --dwpd 1
    forebay plan ssd --writes-per-day 10TB --capacity 6.4TB --tbw-random 35040TB
    """
    writes_per_day_bytes = parse_size(arguments.writes_per_day)
    if arguments.compress:
        writes_per_day_bytes = math.ceil(writes_per_day_bytes * ENCODED_SHARE)
    found = wear(drive_of(arguments), arguments.drives, writes_per_day_bytes)
    return asdict(found), [tables.wear_section(found)]
