"""Figures as people read them, the same in the terminal and on the page."""

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
