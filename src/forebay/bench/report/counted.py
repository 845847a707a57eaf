"""What a pool counted while a load ran: over time, and why requests loaded nothing."""

from collections.abc import Iterator
from typing import Final

from forebay.bench.result.format import LoadResult, PoolFigures, PoolSample
from forebay.report.charts import COLOURS, Chart, ChartLine
from forebay.report.page import Table
from forebay.report.text import Section

_GB: Final = 1e9
_MOVED: Final = (
    ("stored in DRAM", "stored_bytes"),
    ("written to NVMe", "written_bytes"),
    ("read from NVMe", "read_nvme_bytes"),
    ("read by engines", "read_dram_bytes"),
)
_LOADED: Final = "loaded"
_POINTS_MAX: Final = 240  # of a curve


def over_time(result: LoadResult) -> Iterator[Chart]:
    """Bytes moved since the first step began, all steps in a row."""
    samples = _in_a_row(result)
    if len(samples) < 2:
        return
    kept = samples[:: -(-len(samples) // _POINTS_MAX)]
    if kept[-1] is not samples[-1]:
        kept.append(samples[-1])
    lines = [
        ChartLine(name, colour, [(sample.at_s, getattr(sample, field) / _GB) for sample in kept])
        for (name, field), colour in zip(_MOVED, COLOURS, strict=False)
    ]
    yield Chart(
        "What the pool moved", "GB, since the start", "seconds of load", lines, is_even=True
    )


def _in_a_row(result: LoadResult) -> list[PoolSample]:
    found: list[PoolSample] = []
    base = PoolSample(0.0)
    for step in result.steps:
        found += [_after(base, sample) for sample in step.pool_samples]
        if found:
            base = found[-1]
    return found


def _after(base: PoolSample, sample: PoolSample) -> PoolSample:
    sums = {field: getattr(base, field) + getattr(sample, field) for _, field in _MOVED}
    return PoolSample(round(base.at_s + sample.at_s, 2), **sums)


def outcomes(pool: PoolFigures) -> Iterator[Section]:
    """Requests that loaded, and the others by their reasons."""
    if not pool.outcomes:
        return
    ranked = sorted(pool.outcomes.items(), key=lambda each: (each[0] != _LOADED, -each[1], each[0]))
    text = "Requests by what the pool was to them, and loads of a tier that failed, by the reason."
    text += " docs/why.md explains each."
    rows = [[reason.replace("_", " "), f"{count:,}"] for reason, count in ranked]
    yield Section("Hits, and misses by reason", text, Table(["", "count"], rows, [0]))
