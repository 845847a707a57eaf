"""Figures as people read them, the same in the terminal and on the page."""

from typing import Final

from forebay.bench.result.compare import Comparison, JudgedResult, sla_of
from forebay.bench.result.format import LoadResult, PoolFigures, SlaBounds, TimeStats
from forebay.quantity import format_size
from forebay.report.charts import number

_TIMES: Final = "\N{MULTIPLICATION SIGN}"


def sla_words(bounds: SlaBounds) -> str:
    """The SLA in a phrase."""
    return str(sla_of(bounds))


def points(found: Comparison) -> list[str]:
    """The headline: clients, requests a second and TTFT at the operating points."""
    off, on = found.off, found.on
    lines = [f"Within {sla_words(found.bounds)}:"]
    if off.point is None or on.point is None:
        lines += [f"  {_alone(judged)}" for judged in (off, on)]
        return lines
    rates = f"{on.point.req_s:.2f} against {off.point.req_s:.2f} requests/s at the operating points"
    clients = f"{clients_of(on.point.clients)} against {off.point.clients}"
    lines.append(f"  {clients}, {ratio(found.clients_ratio)}; {violations(found)}")
    lines.append(f"  {rates}, {ratio(found.req_s_ratio)}")
    if off.point.ttft_ms is not None and on.point.ttft_ms is not None:
        lines.append(
            f"  {mean_of(on.point.ttft_ms)} against {mean_of(off.point.ttft_ms)} ms to the first"
            f" token there"
        )
    return lines


def violations(found: Comparison) -> str:
    """Where each variant first broke the SLA, the second one first as in the headline."""
    steps = [judged.violation for judged in (found.on, found.off)]
    places = " and ".join("none" if step is None else str(step.clients) for step in steps)
    return f"first violation{':' if None in steps else ' at'} {places}"


def moved_lines(pool: PoolFigures) -> list[str]:
    """What a pool stored and gave back."""
    rows = [(name, f"{chunks:,} chunks, {format_size(size)}") for name, chunks, size in moved(pool)]
    lines = [f"{name:<26} {value}" for name, value in rows]
    held = f"{format_size(pool.dram_bytes)} in DRAM, {format_size(pool.nvme_bytes)} on NVMe"
    return [*lines, f"{'held at the end':<26} {held}"]


def moved(pool: PoolFigures) -> list[tuple[str, int, int]]:
    """What moved between tiers: a name, chunks, bytes."""
    return [
        ("stored in DRAM", pool.stored_chunks, pool.stored_bytes),
        ("written to NVMe", pool.written_chunks, pool.written_bytes),
        ("read from NVMe into DRAM", pool.read_nvme_chunks, pool.read_nvme_bytes),
        ("read from DRAM by engines", pool.read_dram_chunks, pool.read_dram_bytes),
    ]


def failures(result: LoadResult) -> list[str]:
    """What went wrong, counted and named, and what else is to be known."""
    lines = []
    told: dict[str, None] = {}  # each reason once
    for step in result.steps:
        if step.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in step.errors_by_kind.items())
            lines.append(
                f"{result.name}, {clients_of(step.clients)}: {step.errors} failed ({kinds})"
            )
            told.update(dict.fromkeys(step.error_reasons.values()))
    lines += [f"{result.name}: {reason}" for reason in told]
    if result.ended:
        lines.append(f"{result.name} ended early: {result.ended}")
    return lines + [f"{result.name}: {note}" for note in result.notes]


def clients_of(count: int) -> str:
    """Such as 16 clients."""
    return "1 client" if count == 1 else f"{count} clients"


def ratio(value: float | None) -> str:
    """Such as 4.0 times."""
    return "-" if value is None else f"{value:.1f} {_TIMES}"


def gain_of(gain: float | None) -> str:
    """Such as +54 %."""
    return "-" if gain is None else f"{100 * gain:+.0f} %"


def mean_of(value: TimeStats | None) -> str:
    """A mean in ms, with as many digits as it deserves."""
    return "-" if value is None else number(value.mean)


def times(value: TimeStats | None) -> str:
    """Mean and p99, as two columns."""
    return f"{mean_of(value):>8} {number(None if value is None else value.p99):>8}"


def _alone(judged: JudgedResult) -> str:
    if judged.point is None:
        return f"{judged.name}: no step"
    return f"{judged.name}: {clients_of(judged.point.clients)}, {judged.point.req_s:.2f} requests/s"
