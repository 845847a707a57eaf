"""Options of the NVMe tier, for operators and tests, with every limit of the tier."""

from dataclasses import dataclass

from forebay.record.keyring import Keyring

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Directory:
    """One directory on one drive."""

    path: str
    cap_bytes: int  # what `du` may show at most, at any instant


@dataclass(frozen=True, slots=True)
class Options:
    """Limits, each with its unit; the defaults suit NVMe drives and records of a few MiB."""

    region_bytes: int = 256 * MIB  # smaller under a small cap: at least 8 regions a directory
    read_depth: int = 8  # reads in flight a directory
    write_depth: int = 4  # writes in flight a directory; one while there are reads
    read_queue_max: int = 4096  # loads waiting a directory; more are misses
    write_queue_bytes: int = 256 * MIB  # stores waiting a directory; more are dropped
    errors_max: int = 8  # failures within the window that switch the directory off
    error_window_s: float = 60.0
    hang_s: float = 10.0  # a call in flight this long switches the directory off
    probe_interval_s: float = 10.0  # how often a directory that is off is tried again
    tick_s: float = 0.05  # how often deadlines are looked at
    keyring: Keyring | None = None  # keys for encryption; None: records are not encrypted
    full_pause_s: float = 1.0  # pause after the file system was full

    def __post_init__(self) -> None:
        assert self.read_depth > 0
        assert self.write_depth > 0
        assert self.region_bytes > 0
