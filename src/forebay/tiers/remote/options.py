"""Options of a remote tier; the defaults suit distant stores."""

from dataclasses import dataclass, replace
from typing import Final, Self

from forebay.record.keyring import Keyring
from forebay.urls import REQUEST_S

MIB: Final = 1 << 20
_INDEX_SHARE: Final = 64  # one part in 64 of the cap is left for the published index


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Seconds are monotonic. A pack, its publication and another host's look take 20 s in all."""

    pack_bytes: int = 32 * MIB  # a pack is put when it has so many bytes,
    pack_age_s: float = 2.0  # or when its first record has waited so long
    pack_records_max: int = 512
    write_queue_bytes: int = 256 * MIB  # waiting stores; more are dropped
    read_depth: int = 8  # reads in flight
    read_queue_max: int = 4096  # waiting loads; more are misses
    # A child is killed when a call takes longer. Each limit exceeds the store's own timeout, and
    # rises with it: see `for_timeout`.
    call_s: float = 10.0  # a read or a deletion
    put_s: float = 30.0  # a put, which may take three requests' time
    maintenance_s: float = 60.0  # calls that read many objects: packs, other hosts, sweeping
    publish_s: float = 5.0  # between two publications, where there is something new
    refresh_s: float = 10.0  # between two looks at what other hosts have published
    audit_s: float = 300.0  # between two audits of this host's objects
    tail_entries_max: int = 8192  # records that a tail may list before a new snapshot is made
    entries_max: int = 4_000_000  # other hosts' records that are known
    forgotten_s: float = 60.0  # how long a missing record is not asked for again
    bad_records_max: int = 8  # damaged records of a host, after which it is not read from
    host_age_s: float = 86_400.0  # a host without a sign of life for so long is dead
    watched_s: float = 21_600.0  # if this host has also seen it silent for so long
    sweep_s: float = 3600.0  # between two looks for such hosts
    errors_max: int = 8  # failures within the window that end its use; half: no stores
    error_window_s: float = 60.0
    probe_interval_s: float = 10.0  # how often a store that is left alone is tried
    open_s: float = 5.0  # how long the start waits for the store
    tick_s: float = 0.05  # how often deadlines are looked at
    keyring: Keyring | None = None  # records are encrypted; None: they are not

    def __post_init__(self) -> None:
        assert self.read_depth > 0
        assert self.pack_records_max > 0

    def for_timeout(self, timeout_s: float) -> Self:
        """The same options for a store of which one request may take so long."""
        factor = max(1.0, timeout_s / REQUEST_S)
        limits = (factor * limit_s for limit_s in (self.call_s, self.put_s, self.maintenance_s))
        call_s, put_s, maintenance_s = limits
        return replace(self, call_s=call_s, put_s=put_s, maintenance_s=maintenance_s)


def pack_cap_bytes(cap_bytes: int) -> int:
    """What packs may take of a cap, which also covers the host's index."""
    return cap_bytes - cap_bytes // _INDEX_SHARE
