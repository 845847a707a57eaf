"""How long a drive lives under a day's writes, at random and at sequential endurance.

A drive is rated in bytes written over its life (TBW). The usual figure is for small random writes,
which the drive turns into several times as many bytes; Forebay writes whole regions sequentially,
for which some makers publish a second, higher figure.
"""

from dataclasses import dataclass
from typing import Final

from forebay.plan.number import real, whole

DAYS_A_YEAR: Final = 365
TB: Final = 10**12
GB: Final = 10**9
_SIZE_MAX: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class SsdModel:
    """A drive as its data sheet describes it."""

    name: str
    capacity_bytes: int
    random_bytes: int  # endurance: bytes of random 4 KiB writes over its life
    sequential_bytes: int | None = None  # the same for sequential writes, if published
    warranty_years: float = 5.0
    read_bytes_s: int | None = None  # sequential; None if only the drive's wear is wanted
    latency_us: float = 100.0  # typical read

    def __post_init__(self) -> None:
        whole("capacity", self.capacity_bytes, most=_SIZE_MAX)
        whole("tbw_random", self.random_bytes, most=_SIZE_MAX)
        if self.sequential_bytes is not None:
            whole("tbw_sequential", self.sequential_bytes, most=_SIZE_MAX)
        real("warranty_years", self.warranty_years, most=100.0)


def rated_bytes(capacity_bytes: int, dwpd: float, warranty_years: float) -> int:
    """The endurance in bytes of a drive that is rated in drive writes per day."""
    whole("capacity", capacity_bytes, most=_SIZE_MAX)
    real("dwpd", dwpd, most=1e4)
    real("warranty_years", warranty_years, most=100.0)
    return round(capacity_bytes * dwpd * DAYS_A_YEAR * warranty_years)


def _by_dwpd(name: str, terabytes: float, dwpd: float, read_gb_s: float) -> SsdModel:
    capacity_bytes = round(terabytes * TB)
    return SsdModel(
        name,
        capacity_bytes,
        rated_bytes(capacity_bytes, dwpd, 5.0),
        read_bytes_s=round(read_gb_s * GB),
    )


def _micron_9550_max(terabytes: float, random_tb: int, sequential_tb: int) -> SsdModel:
    return SsdModel(
        f"Micron 9550 MAX {terabytes:g} TB (Gen5)",
        round(terabytes * TB),
        random_tb * TB,
        sequential_tb * TB,
        read_bytes_s=14 * GB,
        latency_us=60.0,
    )


# From the makers' data sheets; docs/planning.md has the sources.
DRIVES: Final[dict[str, SsdModel]] = {
    "nvme-gen4": _by_dwpd("Samsung PM9A3 7.68 TB (Gen4)", 7.68, 1.0, 6.5),
    "nvme-gen5": _micron_9550_max(6.4, 35_040, 74_200),
    "nvme-gen5-25tb": _micron_9550_max(25.6, 140_160, 282_600),
    "nvme-122tb": _by_dwpd("Solidigm D5-P5336 122.88 TB (Gen4, QLC)", 122.88, 0.6, 7.4),
    "nvme-245tb": _by_dwpd("Kioxia LC9 245.76 TB (Gen5, QLC)", 245.76, 0.3, 12.0),
}


@dataclass(frozen=True, slots=True)
class Wear:
    """The wear of a set of equal drives under a day's writes."""

    drive: str
    drives: int
    writes_per_day_bytes: int  # over all drives
    dwpd: float  # drive writes per day under this load
    residence_days: float  # until a record is overwritten, if regions are used in turn
    random_dwpd: float  # that the drive is rated for
    random_years: float
    sequential_dwpd: float | None  # None: not published
    sequential_years: float | None
    warranty_years: float


def wear(drive: SsdModel, drives: int, writes_per_day_bytes: int) -> Wear:
    """Drive writes per day and years of life under these writes."""
    whole("drives", drives, most=10**6)
    whole("writes_per_day", writes_per_day_bytes, most=_SIZE_MAX)
    per_drive_bytes = writes_per_day_bytes / drives
    life_days = DAYS_A_YEAR * drive.warranty_years

    def rated_dwpd(endurance_bytes: int) -> float:
        return endurance_bytes / drive.capacity_bytes / life_days

    def years(endurance_bytes: int) -> float:
        return endurance_bytes / per_drive_bytes / DAYS_A_YEAR

    sequential = drive.sequential_bytes
    return Wear(
        drive=drive.name,
        drives=drives,
        writes_per_day_bytes=writes_per_day_bytes,
        dwpd=per_drive_bytes / drive.capacity_bytes,
        residence_days=drive.capacity_bytes / per_drive_bytes,
        random_dwpd=rated_dwpd(drive.random_bytes),
        random_years=years(drive.random_bytes),
        sequential_dwpd=None if sequential is None else rated_dwpd(sequential),
        sequential_years=None if sequential is None else years(sequential),
        warranty_years=drive.warranty_years,
    )
