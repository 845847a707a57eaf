"""The sections of a report, the same for the terminal and the page."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from forebay.bench.report.counted import outcomes
from forebay.bench.report.formatting import (
    Figure,
    clients_of,
    count_of,
    gain_of,
    mean_of,
    moved,
    p99_of,
    ratio,
    share_of,
    verdict,
)
from forebay.bench.report.latency import goodput, gpu_hours, percentiles
from forebay.bench.result.compare import ComparedStep, Comparison, JudgedResult, compare
from forebay.bench.result.format import AbResult, LoadResult, LoadStep
from forebay.quantity import format_size
from forebay.report.charts import number
from forebay.report.page import Cell, Table
from forebay.report.text import Section

_EQUAL: Final = (
    "Answers are greedy. An engine that batches does not always repeat itself: where several are"
    " computed at once, sums are rounded in another order, and once a dialog differs, all of its"
    " later turns do."
)
_FIGURES: Final = ("requests/s", "TTFT, mean ms", "TPOT, mean ms", "errors")


def headline(found: Comparison) -> list[Figure]:
    """The main figures. Nothing counts as better only because it had fewer clients."""

    def both(figure: Callable[[LoadStep], str]) -> str:
        points = [judged.point for judged in (found.on, found.off)]
        return " against ".join("no step" if each is None else figure(each) for each in points)

    steps = [judged.violation for judged in (found.on, found.off)]
    places = " and ".join("none" if step is None else str(step.clients) for step in steps)
    violations = f"first violation{':' if None in steps else ' at'} {places}"
    figures = found.as_json()
    return [
        Figure(
            ratio(figures["clients_ratio"]),
            "clients within the SLA",
            f"{both(lambda step: str(step.clients))}; {violations}",
            _kind_of_ratio(figures["clients_ratio"]),
        ),
        Figure(
            ratio(figures["req_s_ratio"]),
            "requests per second at the operating points",
            both(lambda step: f"{step.req_s:.2f}"),
            _kind_of_ratio(figures["req_s_ratio"]),
        ),
        *_first_token(found),
    ]


def _kind_of_ratio(value: float | None) -> str:
    return verdict(None if value is None else value - 1)


def _first_token(found: Comparison) -> list[Figure]:
    """Both at one number of clients: the most that both carry within the SLA, or that both had."""
    row = found.same_clients()
    if row is None or row.off is None or row.on is None:
        return []
    times = [step.ttft_ms for step in (row.on, row.off)]
    means = [None if each is None else each.mean for each in times]
    on, off = means
    change = None if on is None or not off else on / off - 1
    return [
        Figure(
            "-" if on is None else f"{number(on)} ms",
            f"to the first token at {clients_of(row.clients)}",
            " against ".join(f"{mean_of(each)} ms" for each in times),
            verdict(change, is_lower_better=True),
        )
    ]


def compared(found: Comparison, names: Sequence[str]) -> Table:
    """Every step of two results side by side; `names` stand above their columns."""
    groups = [("", 1), ("requests per second", 3), ("TTFT, mean ms", 2), ("TPOT, mean ms", 2)]
    groups += [("TPOT, p99 ms", 2), ("errors", 2)]
    head = ["clients", *names, "gain", *[*names] * 4]
    return Table(head, [_compared(found, row) for row in found.rows], (), groups)


def _compared(found: Comparison, row: ComparedStep) -> list[Cell]:
    steps = [(row.off, found.off), (row.on, found.on)]

    def both(figure: Callable[[LoadStep], str]) -> list[Cell]:
        return ["-" if step is None else figure(step) for step, _ in steps]

    return [
        str(row.clients),
        *both(lambda step: f"{step.req_s:.2f}"),
        (gain_of(row.gain), verdict(row.gain)),
        *both(lambda step: mean_of(step.ttft_ms)),
        *((mean_of(step.tpot_ms) if step else "-", _kind(step, judged)) for step, judged in steps),
        *both(lambda step: p99_of(step.tpot_ms)),
        *both(lambda step: str(step.errors)),
    ]


def _kind(step: LoadStep | None, judged: JudgedResult) -> str:
    """Whether it is the operating point, beyond the SLA, or within it."""
    if step is None:
        return "within"
    if step is judged.point:
        return "point"
    is_beyond = judged.violation is not None and step.clients >= judged.violation.clients
    return "beyond" if is_beyond else "within"


def steps_of(result: LoadResult) -> Table:
    """One server under rising load."""
    groups = [("", 3), ("TTFT, ms", 2), ("TPOT, ms", 2), ("end to end ms", 2), ("", 2)]
    head = ["clients", "req/s", "tokens/s", *["mean", "p99"] * 3, "errors", "cached"]
    rows = [
        [
            str(step.clients),
            f"{step.req_s:.2f}",
            number(step.output_tok_s),
            *(
                shown(times)
                for times in (step.ttft_ms, step.tpot_ms, step.e2e_ms)
                for shown in (mean_of, p99_of)
            ),
            str(step.errors),
            share_of(step.cached_tokens, step.prompt_tokens),
        ]
        for step in result.steps
    ]
    return Table(head, rows, (), groups)


def findings(ab: AbResult) -> Iterator[Section]:
    """What was found beside the steps."""
    found = compare(ab.off, ab.on, ab.sla)
    yield from percentiles(found)
    yield from goodput(ab, found)
    yield from gpu_hours(ab, found)
    for other in ab.others:
        yield Section(other.name, "", steps_of(other))
    if ab.equal is not None:
        share = f"{ab.equal.share:.1%} of the answers are equal word for word"
        count = f"({ab.equal.equal} of {ab.equal.answers})"
        yield Section("Answers", f"{share} {count}. {_EQUAL}")
    if ab.pool is not None:
        rows = [[name, f"{chunks:,}", format_size(size)] for name, chunks, size in moved(ab.pool)]
        held = [format_size(size) for size in (ab.pool.dram_bytes, ab.pool.nvme_bytes)]
        text = "What the pool itself counted while the load ran; at the end it held"
        text += f" {held[0]} in DRAM and {held[1]} on NVMe."
        yield Section("Evidence of offload", text, Table(["", "chunks", "bytes"], rows, [0]))
        yield from outcomes(ab.pool)
    if ab.stateless is not None:
        off, on = ab.stateless.off.steps[0], ab.stateless.on.steps[0]
        gain = gain_of(ComparedStep(off.clients, off, on).gain)
        text = f"{clients_of(off.clients)} with requests that share nothing: requests per second"
        text += f" {gain}. There is nothing to save, only to pay."
        rows = [[ab.off.name, *_figures(off)], [ab.on.name, *_figures(on)]]
        table = Table(["", *_FIGURES], rows, [0])
        yield Section("Where it does not help: nothing comes back", text, table)
    remarks = [line for result in (ab.off, ab.on, *ab.others) for line in failures(result)]
    if remarks:
        yield Section("Remarks", lines=remarks)


def details(ab: AbResult) -> Iterator[Section]:
    """Everything else that is known, for the page only."""
    results = (ab.off, ab.on, *ab.others)
    growth = [
        [str(step.clients), *map(format_size, [*sizes, pool.dram_bytes, pool.nvme_bytes])]
        for step in ab.on.steps
        if (pool := step.pool) is not None
        for sizes in [[size for _, _, size in moved(pool)]]
    ]
    if growth:
        head = ["clients", "stored", "written to NVMe", "read from NVMe", "read by engines"]
        head += ["then held in DRAM", "then held on NVMe"]
        yield Section("Offload, step by step", "", Table(head, growth))
    if len(ab.repeats) > 1:
        rows = [
            [str(count), name, str(step.clients), *_figures(step)]
            for count, order in enumerate(ab.repeats, 1)
            for name in order.sides
            for step in order.results[name].steps
        ]
        text = "Figures above are over all runs. Here variants are in the order of measuring."
        table = Table(["run", "variant", "clients", *_FIGURES], rows, [1])
        yield Section("Each run by itself", text, table)
    yield from _servers(results)
    yield from conditions(ab)


def failures(result: LoadResult) -> list[str]:
    """Failures with their counts, and other remarks."""
    lines = []
    told: dict[str, None] = {}  # each reason once
    for step in result.steps:
        if step.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in step.errors_by_kind.items())
            kinds = kinds or "for reasons that the result does not name"
            lines.append(
                f"{result.name}, {clients_of(step.clients)}: {step.errors} failed ({kinds})"
            )
            told.update(dict.fromkeys(step.error_reasons.values()))
    lines += [f"{result.name}: {reason}" for reason in told]
    if result.ended:
        lines.append(f"{result.name} ended early: {result.ended}")
    return lines + [f"{result.name}: {note}" for note in result.notes]


def _figures(step: LoadStep) -> list[str]:
    return [f"{step.req_s:.2f}", mean_of(step.ttft_ms), mean_of(step.tpot_ms), str(step.errors)]


def _servers(results: Sequence[LoadResult]) -> Iterator[Section]:
    rows = [
        [
            result.name,
            str(step.clients),
            share_of(step.cached_tokens, step.prompt_tokens),
            number(server.running_mean),
            number(server.waiting_mean),
            share_of(server.kv_use_max, 1),
            count_of(server.preemptions),
            count_of(server.prefix_hit_tokens),
            count_of(server.external_hit_tokens),
        ]
        for result in results
        for step in result.steps
        if (server := step.server) is not None
    ]
    if rows:
        head = ["", "clients", "prompt tokens cached", "running", "waiting", "KV use, most"]
        head += ["preemptions", "tokens hit in own cache", "tokens hit in a pool"]
        yield Section("What the servers said of themselves", "", Table(head, rows, [0]))


def conditions(ab: AbResult) -> Iterator[Section]:
    """The machine, versions, workload and commands, as far as they are known."""
    facts: list[tuple[str, str]] = []
    if machine := ab.on.machine or ab.off.machine:
        facts = [
            ("processor", f"{machine.cpu}, {machine.cores} cores"),
            ("memory", format_size(machine.memory_bytes)),
            ("GPU", ", ".join(machine.gpus) or "none"),
            ("system", machine.system),
        ]
    facts += sorted((ab.off.versions | ab.on.versions).items())
    facts += [(f"workload: {name}", str(value)) for name, value in ab.on.workload.items()]
    if facts:
        yield Section("Conditions", "", Table(["", ""], facts, [0, 1]))
    for result in (ab.off, ab.on, *ab.others):
        if result.commands:
            yield Section(f"Commands: {result.name}", commands="\n".join(result.commands))
