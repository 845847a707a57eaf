"""What a hit is worth: when loading beats recomputing, what a store costs, what pools save."""

from dataclasses import asdict
from pathlib import Path

from forebay.cli import flags
from forebay.cli.flags import Parser
from forebay.cli.plan import plots, tables
from forebay.cli.plan.inputs import (
    REFERENCE,
    Answer,
    Arguments,
    add_assumptions,
    add_plot,
    add_shape,
    assumed,
    clients_under_sla,
    measured_source,
    model_of,
    outlook_of,
    pool_parts_of,
)
from forebay.plan.breakeven import SOURCES, Breakeven, KvSource, breakeven
from forebay.plan.fleet import FleetLoad, PoolParts, ServerSpec, cost
from forebay.plan.remote import StoreLoad, store_plan
from forebay.quantity import format_size, parse_size
from forebay.terms import FREE, S3_STANDARD, parse_terms


def add_breakeven(parser: Parser) -> None:
    add_shape(parser)
    parser.add_argument(
        "--prefill-tps",
        type=flags.RATE,
        required=True,
        metavar="P",
        help="measured prompt tokens/s, of all ranks together",
    )
    parser.add_argument(
        "--tokens", type=flags.COUNT, default=8192, metavar="S", help="prefix (8192)"
    )
    parser.add_argument(
        "--tp", type=flags.COUNT, default=1, metavar="N", help="tensor-parallel ranks (1)"
    )
    parser.add_argument(
        "--tier", action="append", choices=list(SOURCES), help="only these presets (all)"
    )
    parser.add_argument(
        "--bandwidth", action="append", default=[], metavar="NAME=SIZE", help="measured, a second"
    )
    parser.add_argument(
        "--latency-us", type=float, default=100.0, metavar="N", help="of --bandwidth (100)"
    )
    add_plot(parser)


def answer_breakeven(arguments: Arguments) -> Answer:
    """Tokens and bandwidth at which loading beats recomputing, per tier.

    forebay plan breakeven Llama-3.1-8B --prefill-tps 38000
    forebay plan breakeven Llama-3.1-70B --prefill-tps 6700 --tier nvme-gen5 --tier 100gbe
    forebay plan breakeven Qwen/Qwen3-32B --prefill-tps 40k --tp 4 --tokens 32k --plot curves.html
    forebay plan breakeven Qwen3-8B --prefill-tps 20000 --bandwidth raid=26GB --latency-us 150
    """
    measured = [measured_source(text, arguments.latency_us) for text in arguments.bandwidth]
    names = arguments.tier or ([] if measured else list(SOURCES))
    sources = [*(SOURCES[name] for name in names), *measured]
    shape = model_of(arguments).shape
    facts, lines = outlook_of(arguments, shape)

    def at(tokens: int) -> Breakeven:
        return breakeven(shape, arguments.prefill_tps, tokens, sources, arguments.tp)

    found = at(arguments.tokens)
    sections = [tables.breakeven_section(found, lines)]
    if arguments.plot is not None:
        charts = plots.breakeven_charts([at(tokens) for tokens in plots.lengths(found.tokens)])
        plots.write(arguments.plot, f"When loading wins, {shape.name}", charts, sections)
    return {**asdict(found), **facts}, sections


def add_remote(parser: Parser) -> None:
    add_shape(parser)
    parser.add_argument(
        "--prefill-tps",
        type=flags.RATE,
        required=True,
        metavar="P",
        help="measured prompt tokens/s",
    )
    parser.add_argument(
        "--first-ms", type=float, default=50.0, metavar="N", help="until a record comes (50)"
    )
    parser.add_argument(
        "--bandwidth", default="1.25GB", metavar="SIZE", help="of the store, a second (1.25GB)"
    )
    parser.add_argument(
        "--prices",
        default=str(S3_STANDARD),
        metavar="PUT:GET:MONTH[:READ]",
        help="dollars for 1,000 PUTs, 1,000 GETs, a GB-month, a GB read (S3's: %(default)s)",
    )
    add_assumptions(
        parser,
        StoreLoad,
        prompts="a day, of all hosts",
        prompt_tokens="of each, its history included",
        hit_share="of their tokens, from the store",
        sent_share="of their tokens, new there and worth sending",
        days_kept="until a pack is evicted",
        hosts="that share the store",
        chunk_tokens="in a chunk, as the setting has it",
        gpu_dollars_h="of the GPUs that compute a prompt",
    )


def answer_remote(arguments: Arguments) -> Answer:
    """When a hit in a store that hosts share pays, and what the store costs a day.

    forebay plan remote Llama-3.1-70B --prefill-tps 6700 --first-ms 100 --bandwidth 2.5GB
    forebay plan remote Qwen3-8B --prefill-tps 30000 --prices 0:0:0 --first-ms 1 --bandwidth 11GB
    forebay plan remote DeepSeek-V3 --prefill-tps 20000 --prompts 500000 --hit-share 0.3
    """
    load = StoreLoad(**assumed(arguments, StoreLoad))
    bandwidth = parse_size(arguments.bandwidth.removesuffix("/s"))
    store = KvSource("store", bandwidth, 1000 * arguments.first_ms)
    prices = parse_terms({"prices": arguments.prices}).prices or FREE
    shape = model_of(arguments).shape
    found = store_plan(shape, arguments.prefill_tps, store, prices, load)
    facts, lines = outlook_of(arguments, shape)
    facts = {"load": asdict(load), "prices": prices._asdict(), **asdict(found), **facts}
    return facts, [tables.store_section(found, load, prices, lines)]


def add_cost(parser: Parser) -> None:
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULT",
        help=f"an A/B result, or two results, without and with the pool (default: {REFERENCE})",
    )
    parser.add_argument("--clients", type=flags.COUNT, metavar="N", help="to serve under the SLA")
    parser.add_argument(
        "--baseline-servers",
        type=flags.COUNT,
        metavar="N",
        help="what GPU-only takes, if you know it",
    )
    flags.add_sla(parser)
    add_assumptions(
        parser,
        ServerSpec,
        server_gpus="GPUs a server",
        rack_units="of a server",
        power_kw_min="of a server",
        power_kw_max="of a server",
        price="of a server, in dollars",
        pool_price="added to a server for its pool, in dollars (by its parts)",
        cooling_ratio="kW of cooling a kW",
    )
    parts = PoolParts()
    group = parser.add_argument_group("a server's pool, by its parts")
    group.add_argument("--pool-dram", metavar="SIZE", help=f"({format_size(parts.dram_bytes)})")
    group.add_argument("--pool-nvme", metavar="SIZE", help=f"({parts.nvme_bytes / 1e12:g}TB)")
    for flag, price, unit in (
        ("--dram-gib-price", parts.dram_gib_price, "GiB"),
        ("--nvme-tb-price", parts.nvme_tb_price, "TB"),
    ):
        group.add_argument(flag, type=float, metavar="N", help=f"dollars a {unit} ({price:g})")
    add_plot(parser)


def answer_cost(arguments: Arguments) -> Answer:
    """GPU-only against pool for the same load: servers, power, price.

    forebay plan cost --clients 64
    forebay plan cost --clients 64 --baseline-servers 2
    forebay plan cost ab.json --clients 500 --price 320000 --pool-price 20000
    forebay plan cost ab.json --clients 500 --pool-dram 2TiB --pool-nvme 60TB --plot cost.html
    forebay plan cost without.json with.json --clients 500 --tpot-ms 30
    """
    load = FleetLoad(arguments.clients, arguments.baseline_servers)
    server = ServerSpec(**assumed(arguments, ServerSpec), pool=pool_parts_of(arguments))
    sla = flags.read_sla(arguments)
    clients, basis = clients_under_sla(arguments.results, sla)
    found, is_measured = cost(load, *clients, server), bool(arguments.results)
    sections = [tables.cost_section(found, server, basis, is_measured=is_measured)]
    if arguments.plot is not None:
        counts = plots.client_counts(found.clients)
        charts = plots.cost_charts([cost(FleetLoad(n), *clients, server) for n in counts])
        plots.write(arguments.plot, "GPU only against a pool", charts, sections)
    facts = {"is_measured": is_measured, "basis": basis, "server": asdict(server), **asdict(found)}
    return facts, sections
