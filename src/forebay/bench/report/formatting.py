"""Figures as people read them, the same in the terminal and on the page."""

from typing import NamedTuple

from forebay.bench.result.format import PoolFigures
from forebay.plan.measured import TimeStats
from forebay.report.charts import number


def moved(pool: PoolFigures) -> list[tuple[str, int, int]]:
    """What moved between tiers: a name, chunks, bytes."""
    return [
        ("stored in DRAM", pool.stored_chunks, pool.stored_bytes),
        ("written to NVMe", pool.written_chunks, pool.written_bytes),
        ("read from NVMe into DRAM", pool.read_nvme_chunks, pool.read_nvme_bytes),
        ("read from DRAM by engines", pool.read_dram_chunks, pool.read_dram_bytes),
    ]


def clients_of(count: int) -> str:
    """Such as 16 clients."""
    return "1 client" if count == 1 else f"{count} clients"


def ratio(value: float | None) -> str:
    """Such as 4.0 times."""
    return "-" if value is None else f"{value:.1f} \N{MULTIPLICATION SIGN}"


class Figure(NamedTuple):
    """What counts: a value, what it is, what it is made of, and whether it is better or worse."""

    value: str
    name: str
    more: str
    kind: str = ""  # gain, loss, or neither


def verdict(change: float | None, *, is_lower_better: bool = False) -> str:
    """The class of a relative change: `gain` or `loss`, or neither where people read 0 %."""
    if change is None or round(100 * change) == 0:
        return ""
    return "gain" if (change < 0) == is_lower_better else "loss"


def change_of(change: float | None) -> str:
    """Such as -12 %."""
    return gain_of(change)


def rate_of(value: float | None) -> str:
    """Such as 12.27 a second."""
    return "-" if value is None else f"{value:.2f}"


def ms_of(value: TimeStats | None, statistic: str) -> str:
    """One statistic of a time."""
    return "-" if value is None else number(getattr(value, statistic))


def gain_of(gain: float | None) -> str:
    """Such as +54 %."""
    return "-" if gain is None else f"{100 * gain:+.0f} %"


def mean_of(value: TimeStats | None) -> str:
    """A mean in ms, with as many digits as it deserves."""
    return "-" if value is None else number(value.mean)


def p99_of(value: TimeStats | None) -> str:
    """Likewise the time that one request in a hundred exceeds."""
    return "-" if value is None else number(value.p99)


def count_of(value: int | None) -> str:
    """A whole number, or that there is none."""
    return "-" if value is None else f"{value:,}"


def share_of(part: float | None, whole: float | None) -> str:
    """Such as 93%."""
    return "-" if part is None or not whole else f"{part / whole:.0%}"
