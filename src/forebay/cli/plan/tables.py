"""Answers of the planner for people: a title, a table, and the lines beneath that explain it."""

from collections.abc import Callable, Sequence

from forebay.plan.breakeven import Breakeven, SourceBreakeven
from forebay.plan.capacity import Capacity, GpuMachine, KvNeed
from forebay.plan.fleet import Cost, Fleet, GpuNeed, ServerSpec
from forebay.plan.hits import TraceHits
from forebay.plan.pool import Demand, PoolSize
from forebay.plan.remote import StoreLoad, StorePlan
from forebay.plan.ssd import Wear
from forebay.quantity import format_size
from forebay.report.page import Table
from forebay.report.text import Section
from forebay.terms import StorePrices


def size(size_bytes: float) -> str:
    """Memory, in binary units: `193.36 GiB`."""
    return format_size(size_bytes, digits=2)


def drive_size(size_bytes: float) -> str:
    """Storage and bandwidth, in decimal units as on a drive's label: `7.68 TB`."""
    if size_bytes >= 1e12:
        return f"{size_bytes / 1e12:,.2f} TB"
    return f"{size_bytes / 1e9:,.2f} GB"


def kv_section(need: KvNeed, stored_bytes: int, outlook: Sequence[str]) -> Section:
    rows = [("a token", f"{need.token_bytes:,} bytes", f"{need.classic_token_bytes:,} bytes")]
    if need.growing_token_bytes != need.token_bytes:
        rows.append(("a token past the window", f"{need.growing_token_bytes:,} bytes", ""))
    rows.append(("in all", size(need.total_bytes), size(need.classic_total_bytes)))
    if stored_bytes != need.total_bytes:
        rows.append(("in a pool, encoded", size(stored_bytes), ""))
    if need.tp > 1:
        rows.append((f"on each of {need.tp} ranks", size(need.rank_bytes), ""))
    notes = [f"{group.layers} {group.kind} layers: {group.formula}" for group in need.groups]
    if need.classic_total_bytes != need.total_bytes:
        notes.append(f"The classic MHA estimate is {need.classic_factor:.2f} times the true size.")
    notes += outlook
    return _section(
        f"{need.model}: {need.batch:,} x {need.tokens:,} tokens at {need.bits} bit",
        ("KV", "true", "classic MHA estimate"),
        rows,
        notes,
    )


def capacity_section(found: Capacity, machine: GpuMachine) -> Section:
    longest = f"{found.longest_context_tokens:,} tokens"
    notes = [
        (
            f"Assumed: {machine.utilization:g} of {size(machine.gpu_memory_bytes)} a GPU is used,"
            f" {size(machine.reserve_bytes)} of it for activations and graphs;"
            f" {found.replicas} replica(s) on {machine.tp} GPU(s) each;"
            f" the pool is {size(machine.pool_bytes)}."
        ),
        (
            "A running request lies on the GPUs whole: a pool keeps the context of more users, it"
            " does not make one context longer."
        ),
    ]
    if not found.room_bytes:
        notes.append("The weights leave no room for KV: more GPUs, a larger tp or smaller weights.")
    return _section(
        f"{machine.gpus:,} GPU(s) of {size(machine.gpu_memory_bytes)}",
        ("fits", "without a pool", "with a pool"),
        [
            ("weights", size(found.weights_bytes), size(found.weights_bytes)),
            (
                "room for KV",
                size(found.room_bytes),
                size(found.room_bytes + machine.pool_bytes),
            ),
            ("longest context", longest, longest),
            (
                f"users of {found.tokens:,} tokens, running",
                f"{found.users_running:,}",
                f"{found.users_running:,}",
            ),
            (
                f"users of {found.tokens:,} tokens, kept",
                f"{found.users_running:,}",
                f"{found.users_kept:,}",
            ),
        ],
        notes,
    )


def gpus_section(need: GpuNeed, unit: str) -> Section:
    return _section(
        f"{need.gpus:,} GPUs for {need.target_rate:,.6g} {unit}",
        ("", "value"),
        [
            ("target", f"{need.target_rate:,.6g} {unit}"),
            ("measured", f"{need.measured_rate:,.6g} {unit} on {need.measured_gpus:,} GPU(s)"),
            ("utilization", f"{need.utilization:g}"),
            ("required", f"{need.gpus_exact:,.2f}, so {need.gpus:,} GPUs"),
        ],
        [
            (
                "required = target / (measured x utilization) x measured GPUs"
                f" = {need.target_rate:.6g} / ({need.measured_rate:.6g} x {need.utilization:g})"
                f" x {need.measured_gpus}"
            )
        ],
    )


def pool_section(found: PoolSize, demand: Demand, outlook: Sequence[str]) -> Section:
    return _section(
        f"A pool for {demand.users:,} users of {demand.context_tokens:,} tokens",
        ("tier", "contexts kept", "size"),
        [
            ("DRAM", f"{found.contexts_in_dram:,}", size(found.dram_bytes)),
            ("NVMe", f"{found.contexts_in_nvme:,}", size(found.nvme_bytes)),
        ],
        [
            (
                "contexts = users x (1 + time kept / session);"
                f" one context is {size(found.context_bytes)}."
            ),
            (
                f"Assumed: a user stays {demand.session_minutes:g} min, DRAM keeps a context"
                f" {demand.dram_minutes:g} min and NVMe {demand.live_hours:g} h after that,"
                f" headroom {demand.headroom:.0%}."
            ),
            f"As drives are labelled, the NVMe is {drive_size(found.nvme_bytes)}.",
            (
                f"New KV: {found.new_contexts_per_day:,.0f} contexts, at most"
                f" {drive_size(found.writes_per_day_bytes)} a day (plan ssd tells how long drives"
                " last)."
            ),
            *outlook,
        ],
    )


def hits_section(found: TraceHits, title: str, outlook: Sequence[str]) -> Section:
    return _section(
        title,
        ("pool", "LRU", "optimum"),
        [(size(rate.size_bytes), f"{rate.lru:.1%}", f"{rate.optimum:.1%}") for rate in found.rates],
        [
            (
                f"Share of the {found.prompt_tokens:,} prompt tokens of {found.requests:,} requests"
                " that the pool would have held."
            ),
            (
                f"The trace asks for {size(found.distinct_bytes)} of distinct KV, in chunks of"
                f" {size(found.chunk_bytes)}; a larger pool finds nothing more."
            ),
            "optimum = evicting with knowledge of the future, which no policy can beat.",
            *outlook,
        ],
    )


def breakeven_section(found: Breakeven, outlook: Sequence[str]) -> Section:
    rows = []
    for contest in found.contests:
        wins = contest.wins_from_tokens
        rows.append(
            (
                contest.source + (" a GPU" if contest.is_per_gpu and found.tp > 1 else ""),
                f"{drive_size(contest.bytes_s)}/s",
                "never" if wins is None else f"{wins:,} tokens",
                f"{contest.load_ms:,.1f} ms",
                f"{contest.speedup:.2f} \N{MULTIPLICATION SIGN}",
            )
        )
    ranks = f" on {found.tp} GPUs" if found.tp > 1 else ""
    even = f"{drive_size(found.even_bytes_s)}/s"
    links = []
    if found.tp > 1:
        shared = "drives and networks are shared by all of them."
        links = [f"Each of {found.tp} ranks loads what it holds through its own link; {shared}"]
        even += f", or {drive_size(found.even_gpu_bytes_s)}/s to each GPU"
    return _section(
        f"Loading against recomputing at {found.prefill_tps:,.6g} tokens/s{ranks}",
        ("from", "bandwidth", "loading wins from", f"load {found.tokens:,} tokens", "faster by"),
        rows,
        [
            (
                f"Recomputing {found.tokens:,} tokens takes {found.recompute_ms:,.1f} ms; loading"
                f" them wins above {even} (prefill rate x bytes per token)."
            ),
            "load time = latency + bytes / bandwidth; recompute time = tokens / prefill rate.",
            *links,
            *outlook,
        ],
    )


def pays_from(found: SourceBreakeven) -> str:
    """The number of tokens from which a hit pays, in words."""
    wins = found.wins_from_tokens
    return "never on an idle GPU" if wins is None else f"from {wins:,} tokens on"


def store_section(
    found: StorePlan, load: StoreLoad, prices: StorePrices, outlook: Sequence[str]
) -> Section:
    pays, tokens = found.pays, f"{load.prompt_tokens:,}"
    requests = f"{found.puts_a_day:,.0f} PUTs, {found.gets_a_day:,.0f} GETs"
    saved, even = f"${found.saved_dollars_a_day:,.2f}", found.even_share
    share = "never" if even is None else f"where {even:.1%} of tokens or more come from it"
    return _section(
        f"A store with {pays.latency_us / 1000:g} ms to a record and {drive_size(pays.bytes_s)}/s",
        ("", "value"),
        [
            ("a hit pays", pays_from(pays)),
            (f"{tokens} tokens from the store", f"{pays.load_ms:,.1f} ms"),
            (f"{tokens} tokens recomputed", f"{found.recompute_ms:,.1f} ms"),
            ("requests a day", f"{requests}, {found.lists_a_day:,.0f} LISTs"),
            ("read a day", drive_size(found.read_bytes_a_day)),
            ("sent a day", drive_size(found.sent_bytes_a_day)),
            ("kept", drive_size(found.stored_bytes)),
            ("the store costs", f"${found.dollars_a_day:,.2f} a day"),
            ("GPU time saved", f"{found.saved_gpu_hours_a_day:,.1f} h a day, worth {saved}"),
            ("so it pays in dollars", share),
        ],
        [
            (
                f"{load.prompts:,} prompts of {tokens} tokens a day on {load.hosts} hosts;"
                f" {load.hit_share:.0%} of their tokens come from the store, {load.sent_share:.0%}"
                f" are sent there and kept for {load.days_kept:g} days."
            ),
            (
                f"Prices: ${prices.puts:g} for 1,000 PUTs or LISTs, ${prices.gets:g} for 1,000"
                f" GETs, ${prices.gb_month:g} a GB-month, ${prices.read_gb:g} a GB read;"
                f" GPUs ${load.gpu_dollars_h:g} an hour."
            ),
            (
                "A hit that does not pay on an idle GPU is taken on a busy one, where computing it"
                " would hold up other requests."
            ),
            *outlook,
        ],
    )


def wear_section(found: Wear) -> Section:
    def life(dwpd: float | None, years: float | None) -> tuple[str, str]:
        if dwpd is None or years is None:
            return "not published", "not published"
        return f"{dwpd:.2f}", f"{years:,.1f}"

    return _section(
        f"{drive_size(found.writes_per_day_bytes)} a day on {found.drives:,} x {found.drive}",
        ("endurance", "rated DWPD", "years of life"),
        [
            ("random writes", *life(found.random_dwpd, found.random_years)),
            ("sequential writes", *life(found.sequential_dwpd, found.sequential_years)),
        ],
        [
            (
                f"The load is {found.dwpd:.2f} DWPD; a record stays"
                f" {found.residence_days:,.1f} days until its region is used again."
            ),
            "DWPD = writes a day / capacity; years = endurance / (writes a day x 365).",
            f"Rated over {found.warranty_years:g} years. Forebay writes its regions in sequence.",
        ],
    )


def cost_section(found: Cost, server: ServerSpec, basis: str, *, is_measured: bool) -> Section:
    def row(label: str, cell: Callable[[Fleet], str]) -> tuple[str, str, str]:
        return label, cell(found.without), cell(found.pooled)

    pool = server.pool
    parts = (
        f"{size(pool.dram_bytes)} of DRAM at ${pool.dram_gib_price:g} a GiB and"
        f" {drive_size(pool.nvme_bytes)} of NVMe at ${pool.nvme_tb_price:g} a TB"
        if server.pool_price is None
        else "as given"
    )
    notes = [
        f"Clients under the SLA from {basis}.",
        (
            "servers = ceil(clients / clients under the SLA)."
            f" Assumed a server: {server.server_gpus} GPUs, {server.rack_units}U,"
            f" {_power(server.power_kw_min, server.power_kw_max)}, {_price(server.price)},"
            f" {server.cooling_ratio:g} kW of cooling a kW."
        ),
        f"A pool adds {_price(server.pool_dollars)} a server: {parts}.",
    ]
    carried = found.without.servers * found.without.clients_per_server
    if carried < found.clients:
        notes.append(
            f"The GPU-only servers carry {carried:,} clients under the SLA, not {found.clients:,}."
        )
    by = "" if is_measured else ", by the reference table, not by a result of yours"
    return _section(
        f"{found.clients:,} clients{by}",
        ("", "GPU only", "with a pool"),
        [
            row("clients a server", lambda fleet: f"{fleet.clients_per_server:,}"),
            row("servers", lambda fleet: f"{fleet.servers:,}"),
            row("GPUs", lambda fleet: f"{fleet.gpus:,}"),
            row("rack units", lambda fleet: f"{fleet.rack_units:,}U"),
            row("power", lambda fleet: _power(fleet.power_kw_min, fleet.power_kw_max)),
            row("cooling", lambda fleet: _power(fleet.cooling_kw_min, fleet.cooling_kw_max)),
            row("price", lambda fleet: _price(fleet.price)),
            row("of it for pools", lambda fleet: _price(fleet.pool_price)),
        ],
        notes,
    )


def _power(low_kw: float, high_kw: float) -> str:
    if low_kw == high_kw:
        return f"{low_kw:,.6g} kW"
    return f"{low_kw:,.6g} - {high_kw:,.6g} kW"


def _price(dollars: float) -> str:
    if dollars < 100_000:
        return f"${dollars:,.0f}"
    return f"${dollars / 1e6:,.2f}M".replace("0M", "M")


def _section(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> Section:
    return Section(title, table=Table(head, rows, [0]), lines=notes)
