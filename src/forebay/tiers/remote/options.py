"""How a remote tier works, and the limits that hold; the defaults are for stores at a distance."""

from dataclasses import dataclass, replace
from typing import Final, Self

from forebay.record.keyring import Keyring
from forebay.urls import REQUEST_S

MIB: Final = 1 << 20
_INDEX_SHARE: Final = 64  # of the cap, this part is left for the published index


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Seconds are on the monotonic clock. A pack, its publication and a poll take 20 s in all."""

    pack_bytes: int = 32 * MIB  # a pack of so many bytes is put
    pack_age_s: float = 2.0  # and so is one whose first record has waited so long
    pack_records_max: int = 512
    write_queue_bytes: int = 256 * MIB  # stores that wait; more are dropped
    read_depth: int = 8  # reads at once
    read_queue_max: int = 4096  # loads that wait; more are misses
    # A call that takes longer costs the child. Each is longer than the store's own patience, and
    # rises with it: see `for_timeout`.
    call_s: float = 10.0  # a read or a deletion
    put_s: float = 30.0  # a put, which may take three requests' time
    maintenance_s: float = 60.0  # what reads many objects: packs, other hosts, sweeping
    publish_s: float = 5.0  # between two publications, where there is something new
    refresh_s: float = 10.0  # between two looks at what other hosts have published
    audit_s: float = 300.0  # between two looks at what of this host's is still there
    tail_entries_max: int = 8192  # records that a tail may list before there is a new snapshot
    entries_max: int = 4_000_000  # of other hosts' records that are known
    forgotten_s: float = 60.0  # for how long a record that was not to be had is not asked for
    bad_records_max: int = 8  # of one host: then it is not read from
    host_age_s: float = 86_400.0  # without a sign of life for so long, a host's packs are deleted
    watched_s: float = 21_600.0  # and none is that was not seen silent for so long by this one
    sweep_s: float = 3600.0  # between two looks for such hosts
    errors_max: int = 8  # within the window: then the store is left alone; half of it: no stores
    error_window_s: float = 60.0
    probe_interval_s: float = 10.0  # how often a store that is left alone is tried
    open_s: float = 5.0  # how long the start waits for the store
    tick_s: float = 0.05  # how often deadlines are looked at
    keyring: Keyring | None = None  # records are encrypted; None: they are not

    def __post_init__(self) -> None:
        assert self.read_depth > 0
        assert self.pack_records_max > 0

    def for_timeout(self, timeout_s: float) -> Self:
        """The same for a store of which one request may take so long."""
        factor = max(1.0, timeout_s / REQUEST_S)
        limits = (factor * limit_s for limit_s in (self.call_s, self.put_s, self.maintenance_s))
        call_s, put_s, maintenance_s = limits
        return replace(self, call_s=call_s, put_s=put_s, maintenance_s=maintenance_s)


def pack_cap_bytes(cap_bytes: int) -> int:
    """What packs may take of a cap: the index of the same host is under it as well."""
    return cap_bytes - cap_bytes // _INDEX_SHARE
