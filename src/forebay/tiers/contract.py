"""The contract of every tier: what it promises, and the outcomes it answers with.

A tier holds records by name. Loading gives exactly what was stored, or a miss; no exception, no
partial bytes in a hit. Storing never waits for space: what does not fit is dropped, with a reason.

There is one rule of order: `RecordName.parent` names the record without which this one is of no
use; it is ROOT if there is none. A record whose parent is not here is an orphan and is not stored;
removing a record removes what continues it; a record without a parent needs nothing. Whoever names
a record decides its parent, by the rule of its group: if all earlier chunks are needed it is the
chunk before, if only the last few are needed it may be ROOT. No tier looks at the group for this. A
key belongs to one record of one group: keys of a chunk's groups differ.

A buffer belongs to the tier from the call until `done` is called, exactly once, on any thread;
until then nobody else may touch it, even if the caller has long stopped waiting. Buffers are
page-aligned and of whole pages (`forebay.sys.memory.allocate`), so that bytes go straight to the
medium.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest
from typing import Final, NamedTuple

from forebay.record.header import DEFAULT_TENANT, Damage, Digest, RecordHeader, RecordName
from forebay.sys.shared import SharedMemory
from forebay.tiers.quotas import Quota

USED_RECORDS_MAX: Final = 4096  # most used records that one host tells others
_WRONG_RECORD: Final = {
    Damage.PLACE,
    Damage.NAMESPACE,
    Damage.TENANT,
    Damage.GROUP,
    Damage.KEY,
}
# The record is sound: the caller is wrong about it (its key is right, and covers both), or
# it cannot be read now.
SOUND: Final = frozenset({Damage.NAMESPACE, Damage.GROUP, Damage.NO_KEY})


class MissReason(StrEnum):
    """Why a load is a miss; also a metric's label."""

    ABSENT = "absent"  # never stored, evicted, or its prefix is gone
    DEADLINE = "deadline"  # not begun or not done in time
    CORRUPT = "corrupt"  # the bytes are damaged; the record is forgotten
    WRONG_RECORD = "wrong_record"  # undamaged bytes of something else; the record is forgotten
    NO_KEY = "no_key"  # encrypted under a key that is not available; the record stays
    IO_ERROR = "io_error"  # the medium failed
    TIER_OFF = "tier_off"  # switched off by its error budget, or closed
    BUDGET = "budget"  # today's requests to a store are used up
    BUSY = "busy"  # more loads are waiting than may wait
    NO_POOL = "no_pool"  # no pool answers, or it went away; joined again when it is back

    @classmethod
    def of(cls, damage: Damage) -> "MissReason":
        """The reason for a miss, given why the bytes are not the wanted record."""
        if damage is Damage.NO_KEY:
            return cls.NO_KEY
        return cls.WRONG_RECORD if damage in _WRONG_RECORD else cls.CORRUPT


class DropReason(StrEnum):
    """Why a store was dropped; also a metric's label."""

    DUPLICATE = "duplicate"  # stored already, or being stored
    ORPHAN = "orphan"  # its parent is not in this tier
    TOO_LARGE = "too_large"  # larger than a region, or than the tier
    NO_SPACE = "no_space"  # the medium is full
    BUSY = "busy"  # more bytes are waiting to be written than may wait
    IO_ERROR = "io_error"  # the medium failed
    TIER_OFF = "tier_off"  # switched off by its error budget, or closed
    QUOTA = "quota"  # its tenant may not hold that much
    FORGOTTEN = "forgotten"  # its tenant was forgotten


class EvictionCause(StrEnum):
    """Why a record left a tier; also a metric's label."""

    SPACE = "space"  # to make room for another record
    SIZE_CLASS = "size_class"  # with its arena, for chunks of another size
    PREFIX = "prefix"  # what it continues is in no tier any more
    RESIZED = "resized"  # the tier's cap was lowered
    CLEARED = "cleared"  # by `forebay clear` or `forget`, or deleted on the medium by others
    DAMAGED = "damaged"  # its bytes are not what they should be


# When the medium began with this, monotonic; None: it never did.
Begun = float | None


@dataclass(frozen=True, slots=True)
class Hit:
    """The payload is in the target buffer, verified."""

    length: int  # payload bytes; the rest of the target is undefined
    header: RecordHeader | None = field(default=None, compare=False)  # as read from the medium
    begun: Begun = field(default=None, compare=False)
    used_at: float | None = field(default=None, compare=False)  # last use before; None: not known


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing was loaded; the target's content is undefined."""

    reason: MissReason
    damage: Damage | None = None  # what verification found, if anything
    begun: Begun = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The record can be loaded from now on."""

    begun: Begun = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing was stored."""

    reason: DropReason
    begun: Begun = field(default=None, compare=False)


LoadOutcome = Hit | Miss
StoreOutcome = Stored | Dropped


@dataclass(frozen=True, slots=True)
class Usage:
    """How much a tier holds."""

    records: int
    payload_bytes: int  # of records that can be loaded
    used_bytes: int  # taken from the medium
    cap_bytes: int  # never exceeded


class StoreUse(NamedTuple):
    """Requests to a store run by others, since the pool began unless said otherwise."""

    requests: tuple[tuple[str, int], ...]  # by kind: put, get, list, delete
    sent_bytes: int
    received_bytes: int
    today: int  # requests of this day (UTC), including those of earlier processes
    budget: int  # requests allowed a day; 0: no limit
    dollars_a_day: float  # estimated cost


@dataclass(frozen=True, slots=True)
class VolumeStatus:
    """One volume of a tier, a directory for example, for people and metrics."""

    path: str  # as the operator named it
    is_on: bool  # False: switched off by its error budget
    errors: int
    read_bytes: int
    written_bytes: int
    allocated_bytes: int
    evictions: int  # regions, or whatever this medium evicts at once
    left_alone: int = 0  # files that are not ours, whose bytes count all the same
    life_written_bytes: int = 0  # written by any pool since the volume was created, if known
    use: StoreUse | None = None  # of a store; None: a medium of this host


class VolumeProbe(NamedTuple):
    """The outcome of writing, reading and verifying a record on one volume."""

    volume: int  # index in `Tier.volumes`
    failure: str = ""  # reason of the miss or dropped store; "": it came back exact


class Prefix(NamedTuple):
    """How much of a chain of keys is in a tier."""

    chunks: int  # from the first key
    is_unknown: bool = False  # it is being found out in the background if the next one is here


class TierSpeed(NamedTuple):
    """A tier's speed, as measured by the tier itself."""

    first_s: float  # time until the first record would arrive, after what is being read
    bytes_a_s: float  # from then on; 0: not known


class UsedRecord(NamedTuple):
    """A record that engines of some host have asked for."""

    namespace: bytes
    tenant: bytes
    group: int
    key: bytes  # short
    uses: int  # recent uses; older ones count less


class WarmStart(NamedTuple):
    """Records that are worth fetching from a tier before they are asked for."""

    records: list[UsedRecord]  # the most used first
    limit_bytes: int  # total payload to fetch at most
    bytes_a_s: int


class Removed(NamedTuple):
    """A record that left a tier."""

    key: bytes  # short
    length: int  # payload bytes
    was_read: bool  # loaded at least once
    cause: EvictionCause = EvictionCause.SPACE
    stored_at: float | None = None  # monotonic; None: not known
    tenant: bytes = DEFAULT_TENANT  # its tenant, if the tier knows


class NamespaceUsage(NamedTuple):
    """How much a tier holds of one namespace."""

    records: int = 0
    payload_bytes: int = 0


class LargestNamespaces(NamedTuple):
    """The largest namespaces of a tier, and how many there are in all."""

    names: list[bytes]  # the largest first
    total: int  # number of namespaces in all


class Forgotten(NamedTuple):
    """What a tier deleted of a forgotten tenant, and why something is left, if so."""

    records: int = 0
    size_bytes: int = 0  # taken from the medium
    failure: str = ""  # why something is left, in one sentence; "": nothing is


class TierListener:
    """What a tier tells the stack it is part of, and asks of it. Any thread may call.

    This base class is for a tier by itself: nobody listens, and no other tier has anything.
    """

    def removed(self, records: list[Removed]) -> None:
        """These records have left the tier; called without any lock of the tier."""

    def learned(self, keys: Sequence[bytes]) -> None:
        """Keys that `prefix` called unknown are known or absent now: call it again."""

    def forgotten(self, tenants: frozenset[bytes]) -> None:
        """A medium that was away says that these tenants were forgotten: do not serve them."""

    def warm_start(self, offered: WarmStart) -> None:
        """Hosts use these records of the tier most: they may be fetched, if there is room."""

    def holds(self, key: bytes) -> bool:  # noqa: ARG002 - nothing is held elsewhere
        """Whether another tier has the chunk with this short key; does not wait.

        The answer may be yes for a chunk that is just leaving: the tier is told `lost` afterwards.
        """
        return False


class Tier(ABC):
    """One medium. Any thread may call its methods.

    A method waits for the medium only if it says so, as `erase`, `resize` and `close` do. Keys are
    full or short, whichever the caller has.
    """

    name: str  # name of the medium and a metric's label, for example "disk"
    comes_back: bool = False  # what was dropped while it was off should be stored later
    quotas_of: str = ""  # the settings' name for tenants' quotas here; "": no quotas

    def takes_stores(self) -> bool:
        """Whether stores are accepted now; anything stored nevertheless is dropped."""
        return True

    def speed(self) -> TierSpeed | None:
        """How fast loads are; None if the tier does not measure it."""
        return None

    def off_reason(self) -> MissReason:
        """The reason for misses while records that are here cannot be loaded."""
        return MissReason.TIER_OFF

    def attach(self, slab: SharedMemory) -> None:  # noqa: B027 - most have no use for it
        """Most buffers will lie in this memory, which may grow; for tiers that share it."""

    @abstractmethod
    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        """How many of these chained keys, counted from the first, can be loaded; does not wait.

        A tier that would have to ask its medium says so, asks in the background, and tells its
        listener when it has `learned` the answer.
        """

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Whether this one record is here; takes no lock, since other tiers ask under theirs."""

    @abstractmethod
    def length_of(self, key: bytes) -> int | None:
        """The payload size of a record that can be loaded now; None if it cannot."""

    @abstractmethod
    def submit_load(
        self,
        name: RecordName,
        target: memoryview,
        done: Callable[[LoadOutcome], None],
        deadline: float,
    ) -> None:
        """Load into `target`; a load not begun at `deadline` (monotonic) is a miss.

        `name.parent` is not compared: a key names its whole prefix.
        """

    @abstractmethod
    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: Callable[[StoreOutcome], None],
        digest: Digest | None = None,
    ) -> None:
        """Store the first `length` bytes of `source`; the parent must be here or being stored.

        `digest` is the hash of the bytes, if it is known, and goes into the record; otherwise they
        are one shard. If the source was changed since, the record is found damaged when it is
        loaded.
        """

    @abstractmethod
    def remove(self, key: bytes) -> None:
        """Forget a record and all that continue it."""

    def used(self, key: bytes, at: float) -> None:  # noqa: B027 - a tier need not remember it
        """A record's chunk left DRAM; `at` is when it was last used there, see `Hit.used_at`."""

    def publish_used(self, records: Sequence[UsedRecord]) -> None:  # noqa: B027 - most are not shared
        """Engines of this host ask for these records most: let other hosts know."""

    def asked(self, keys: Sequence[bytes]) -> None:  # noqa: B027 - it may evict otherwise
        """A request asked for this chain, or its first part: records of it here count as used.

        It makes no difference whether they were loaded from here or were in DRAM.
        """

    @abstractmethod
    def lost(self, key: bytes) -> None:
        """No other tier has this chunk any more: forget records here that only continue it."""

    @abstractmethod
    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """The usage of every namespace that has records here, or lately had."""

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """The usage of each of these namespaces; cheaper than `namespaces` if there are many."""
        found = self.namespaces()
        return [found.get(name, NamespaceUsage()) for name in namespaces]

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """The namespaces with the most bytes; called for every snapshot, on the pool's thread."""
        found = {name: usage for name, usage in self.namespaces().items() if usage.records}
        names = nlargest(limit, found, key=lambda name: found[name].payload_bytes)
        return LargestNamespaces(names, len(found))

    @abstractmethod
    def erase(self, namespace: bytes | None, *, scrub: bool = False) -> int:
        """Delete a namespace's records, or all, for good; returns how many. Waits for the medium.

        Older copies count, too; a record that the medium refuses to delete does not. `scrub`:
        overwrite what is deleted, and flush, if the tier can do so.
        """

    def packs_of_others(self) -> dict[bytes, int]:
        """Packs that other hosts keep here, by namespace: found by lookups, not erased here."""
        return {}

    # Tenants. A tier that keeps nothing after its pool has ended need not remember them.

    def forgotten(self) -> Collection[bytes]:
        """Ids of all tenants that were ever forgotten, whose records are not served."""
        return ()

    def remember_forgotten(self, tenant: bytes) -> str:  # noqa: ARG002 - nothing to remember
        """Never serve a tenant's records again, even after a crash; "" or why that failed.

        Waits for the medium.
        """
        return ""

    def forget(self, tenant: bytes, *, scrub: bool) -> Forgotten:  # noqa: ARG002 - has no tenants
        """Delete all records of a tenant, older copies too, and its key. Waits for the medium.

        `scrub`: overwrite what is deleted, and flush, if the tier can do so.
        """
        return Forgotten(failure="it cannot tell whose its records are")

    def delete_forgotten(self, tenants: frozenset[bytes]) -> None:  # noqa: B027 - it has nothing
        """Delete, without waiting, what is left of tenants that any tier remembers."""

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:  # noqa: B027 - it has none
        """Set what each tenant may hold here, by id; see `forebay.tiers.quotas`."""

    def held_by_tenants(self) -> dict[bytes, int]:
        """The bytes that each tenant holds on the medium, if they are counted."""
        return {}

    @abstractmethod
    def resize(self, path: str, cap_bytes: int) -> bool:
        """Change a volume's cap; False if the tier has no such volume. Waits for the medium.

        DirectoryError if the cap is too small to work with.
        """

    def rotate(self) -> None:  # noqa: B027 - most have no keys of their own
        """Encrypt new records under new keys. Waits for the medium; OSError."""

    def probe(self, done: Callable[[VolumeProbe], None]) -> int:  # noqa: ARG002 - nothing to probe
        """Write, read and verify a record in every volume, as stores and loads do.

        Leaves nothing behind and disturbs no record. `done` is called once per volume, on any
        thread; returns how many there are, 0 if the tier cannot do this.
        """
        return 0

    @abstractmethod
    def usage(self) -> Usage:
        """How much is held now."""

    @abstractmethod
    def volumes(self) -> list[VolumeStatus]:
        """The state of each volume."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, as far as `timeout_s` allows, and close the medium."""
