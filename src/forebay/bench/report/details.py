"""The lower half of the page: answers, evidence, stateless load, repeats, servers, conditions."""

import html
from collections.abc import Sequence
from typing import Final

from forebay.bench.report.formatting import clients_of, failures, gain_of, mean_of, moved
from forebay.bench.result.compare import ComparedStep
from forebay.bench.result.format import (
    AbResult,
    LoadResult,
    LoadStep,
    MachineFacts,
    PoolFigures,
    RepeatOrder,
)
from forebay.quantity import format_size
from forebay.report.charts import number
from forebay.report.page import paragraph, table

_EQUAL: Final = (
    "Answers are greedy. An engine that batches does not always repeat itself: where several are"
    " computed at once, sums are rounded in another order, and once a dialog differs, all of its"
    " later turns do."
)
_FIGURES: Final = ("requests/s", "TTFT, mean ms", "TPOT, mean ms", "errors")


def sections(ab: AbResult) -> list[str]:
    """What is known, each under its heading."""
    results = (ab.off, ab.on, *ab.others)
    return [
        *_answers(ab),
        *_offload(ab),
        *_boundary(ab),
        *_repeats(ab.repeats),
        *_remarks(results),
        *_servers(results),
        *conditions(ab),
    ]


def steps_table(result: LoadResult) -> str:
    """One configuration by itself."""
    rows = [[str(step.clients), *_figures(step)] for step in result.steps]
    return f"<h3>{html.escape(result.name)}</h3>" + table(["clients", *_FIGURES], rows)


def _figures(step: LoadStep) -> list[str]:
    return [f"{step.req_s:.2f}", mean_of(step.ttft_ms), mean_of(step.tpot_ms), str(step.errors)]


def _answers(ab: AbResult) -> list[str]:
    if ab.equal is None:
        return []
    share = f"{ab.equal.share:.1%} of the answers are equal word for word"
    count = f"({ab.equal.equal} of {ab.equal.answers})"
    return ["<h2>Answers</h2>", paragraph(f"{share} {count}. {_EQUAL}")]


def _offload(ab: AbResult) -> list[str]:
    if ab.pool is None:
        return []
    rows = [[name, f"{chunks:,}", format_size(size)] for name, chunks, size in moved(ab.pool)]
    held = f"{format_size(ab.pool.dram_bytes)} in DRAM, {format_size(ab.pool.nvme_bytes)} on NVMe"
    growth = [_growth(step.clients, step.pool) for step in ab.on.steps if step.pool is not None]
    parts = [
        "<h2>Evidence of offload</h2>",
        paragraph("What the pool itself counted while the load ran."),
        table(["", "chunks", "bytes"], rows, names=[0]),
        paragraph(f"Held at the end: {held}."),
    ]
    if growth:
        head = ["clients", "stored", "written to NVMe", "read from NVMe", "read by engines"]
        parts.append(table([*head, "then held in DRAM", "then held on NVMe"], growth))
    return parts


def _growth(clients: int, pool: PoolFigures) -> list[str]:
    sizes = (
        pool.stored_bytes,
        pool.written_bytes,
        pool.read_nvme_bytes,
        pool.read_dram_bytes,
        pool.dram_bytes,
        pool.nvme_bytes,
    )
    return [str(clients), *map(format_size, sizes)]


def _boundary(ab: AbResult) -> list[str]:
    if ab.stateless is None:
        return []
    off, on = ab.stateless.off.steps[0], ab.stateless.on.steps[0]
    gain = gain_of(ComparedStep(off.clients, off, on).gain)
    rows = [[ab.off.name, *_figures(off)], [ab.on.name, *_figures(on)]]
    clients = f"{clients_of(off.clients)} with requests that share nothing"
    return [
        "<h2>Where it does not help: nothing comes back</h2>",
        paragraph(f"{clients}: requests a second {gain}. There is nothing to save, only to pay."),
        table(["", *_FIGURES], rows, names=[0]),
    ]


def _repeats(repeats: Sequence[RepeatOrder]) -> list[str]:
    if len(repeats) < 2:
        return []
    rows = [
        [str(count), name, str(step.clients), *_figures(step)]
        for count, order in enumerate(repeats, 1)
        for name in order.sides
        for step in order.results[name].steps
    ]
    return [
        "<h2>Each run by itself</h2>",
        paragraph("Figures above are over all runs. Here variants are in the order of measuring."),
        table(["run", "variant", "clients", *_FIGURES], rows, names=[1]),
    ]


def _remarks(results: Sequence[LoadResult]) -> list[str]:
    lines = [line for result in results for line in failures(result)]
    if not lines:
        return []
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return ["<h2>Remarks</h2>", f"<ul>{items}</ul>"]


def _servers(results: Sequence[LoadResult]) -> list[str]:
    rows = [
        [
            result.name,
            str(step.clients),
            _cached(step),
            number(server.running_mean),
            number(server.waiting_mean),
            "-" if server.kv_use_max is None else f"{server.kv_use_max:.0%}",
            _count(server.preemptions),
            _count(server.prefix_hit_tokens),
            _count(server.external_hit_tokens),
        ]
        for result in results
        for step in result.steps
        if (server := step.server) is not None
    ]
    if not rows:
        return []
    head = ["", "clients", "prompt tokens cached", "running", "waiting", "KV use, most"]
    head += ["preemptions", "tokens hit in own cache", "tokens hit in a pool"]
    return ["<h2>What the servers said of themselves</h2>", table(head, rows, names=[0])]


def conditions(ab: AbResult) -> list[str]:
    """The machine, versions, workload and commands, as far as they are known."""
    facts = [
        *_machine(ab.on.machine or ab.off.machine),
        *sorted((ab.off.versions | ab.on.versions).items()),
        *((f"workload: {name}", str(value)) for name, value in ab.on.workload.items()),
    ]
    parts = [table(["", ""], facts, names=[0, 1])] if facts else []
    for result in (ab.off, ab.on, *ab.others):
        if result.commands:
            text = "\n".join(result.commands)
            parts.append(f"<h3>{html.escape(result.name)}</h3><pre>{html.escape(text)}</pre>")
    return ["<h2>Conditions</h2>", *parts] if parts else []


def _machine(machine: MachineFacts | None) -> list[tuple[str, str]]:
    if machine is None:
        return []
    return [
        ("processor", f"{machine.cpu}, {machine.cores} cores"),
        ("memory", format_size(machine.memory_bytes)),
        ("GPU", ", ".join(machine.gpus) or "none"),
        ("system", machine.system),
    ]


def _cached(step: LoadStep) -> str:
    if step.cached_tokens is None or not step.prompt_tokens:
        return "-"
    return f"{step.cached_tokens / step.prompt_tokens:.0%}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
