"""What every tier promises, and the outcomes it answers with.

A tier holds records by name. Loading gives exactly what was stored, or a miss; no exception, no
partial bytes in a hit. Storing never waits for space: what does not fit is dropped, with a reason.

A tier knows one rule of order: `RecordName.parent` names the record without which this one is of no
use, or is ROOT if there is none. A record whose parent is not here is an orphan and is not stored;
removing a record removes what continues it; a record without a parent needs nothing. Which parent
a record has is decided by whoever names it, by the rule of its group: where all earlier chunks are
needed it is the chunk before, where only the last few are it may be ROOT. No tier looks at the
group for this. A key belongs to one record of one group: keys of a chunk's groups differ.

Buffers belong to the tier from the call until `done` is called, exactly once, on any thread; until
then nobody else may touch them, even if the caller has long stopped waiting. They are page-aligned
and of whole pages (`forebay.sys.memory.allocate`), so that bytes go straight to the medium.
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

USED_RECORDS_MAX: Final = 4096  # that one host tells others to be used most
_WRONG_RECORD: Final = {
    Damage.PLACE,
    Damage.NAMESPACE,
    Damage.TENANT,
    Damage.GROUP,
    Damage.KEY,
}
# The record is sound: whoever asks is wrong about it (its key is right, and contains both), or
# cannot read it now.
SOUND: Final = frozenset({Damage.NAMESPACE, Damage.GROUP, Damage.NO_KEY})


class MissReason(StrEnum):
    """Why a load is a miss; also the metric label."""

    ABSENT = "absent"  # never stored, evicted, or its prefix is gone
    DEADLINE = "deadline"  # not begun or not done in time
    CORRUPT = "corrupt"  # the bytes are damaged; the record is forgotten
    WRONG_RECORD = "wrong_record"  # undamaged bytes of something else; the record is forgotten
    NO_KEY = "no_key"  # encrypted under a key that is not at hand; the record stays
    IO_ERROR = "io_error"  # the medium failed
    TIER_OFF = "tier_off"  # switched off by its error budget, or closed
    BUDGET = "budget"  # of requests to a store, for today
    BUSY = "busy"  # more loads are waiting than may wait
    NO_POOL = "no_pool"  # no pool answers, or it went away; joined again when it is back

    @classmethod
    def of(cls, damage: Damage) -> "MissReason":
        """What bytes that are not the record that was asked for make of a load."""
        if damage is Damage.NO_KEY:
            return cls.NO_KEY
        return cls.WRONG_RECORD if damage in _WRONG_RECORD else cls.CORRUPT


class DropReason(StrEnum):
    """Why a store was dropped; also the metric label."""

    DUPLICATE = "duplicate"  # stored already, or being stored
    ORPHAN = "orphan"  # its parent is not in this tier
    TOO_LARGE = "too_large"  # larger than a region, or than the tier
    NO_SPACE = "no_space"  # the medium is full
    BUSY = "busy"  # more bytes are waiting to be written than may wait
    IO_ERROR = "io_error"  # the medium failed
    TIER_OFF = "tier_off"  # switched off by its error budget, or closed
    QUOTA = "quota"  # its tenant may not hold as much as is taken at once
    FORGOTTEN = "forgotten"  # its tenant was forgotten


class EvictionCause(StrEnum):
    """Why a record left a tier; also the metric label."""

    SPACE = "space"  # for one that is worth more, or newer
    SIZE_CLASS = "size_class"  # with its arena, for chunks of another size
    PREFIX = "prefix"  # what it continues is in no tier any more
    RESIZED = "resized"  # the tier's cap was lowered
    CLEARED = "cleared"  # by `forebay clear` or `forget`, or somebody has deleted it on the medium
    DAMAGED = "damaged"  # its bytes are not what they should be


# When the medium began with what an outcome is the end of, monotonic; None: it never did.
Begun = float | None


@dataclass(frozen=True, slots=True)
class Hit:
    """The payload is in the target buffer, verified."""

    length: int  # payload bytes; what lies behind them in the target is undefined
    header: RecordHeader | None = field(default=None, compare=False)  # as it stood on the medium
    begun: Begun = field(default=None, compare=False)
    used_at: float | None = field(default=None, compare=False)  # before this; None: not known


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing was loaded; the target's content is undefined."""

    reason: MissReason
    damage: Damage | None = None  # what verification found, where it found something
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
    """What a tier holds."""

    records: int
    payload_bytes: int  # of records that can be loaded
    used_bytes: int  # taken from the medium
    cap_bytes: int  # never exceeded


class StoreUse(NamedTuple):
    """What a store that others run was asked for, since the pool began unless said otherwise."""

    requests: tuple[tuple[str, int], ...]  # by kind: put, get, list, delete
    sent_bytes: int
    received_bytes: int
    today: int  # requests of this day (UTC), those of earlier processes included
    budget: int  # requests that a day may see; 0: no limit
    dollars_a_day: float  # an estimate


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
    left_alone: int = 0  # files that are there and not ours; their bytes count
    life_written_bytes: int = 0  # by any pool, since the volume was made; as far as is known
    use: StoreUse | None = None  # of a store; None: a medium of this host


class VolumeProbe(NamedTuple):
    """What became of a record that was written, read and verified to prove the way there."""

    volume: int  # in the order of `Tier.volumes`
    failure: str = ""  # a reason, as of a miss or a dropped store; empty: it came back exact


class Prefix(NamedTuple):
    """How much of a chain of keys a tier has."""

    chunks: int  # from the first key
    is_unknown: bool = False  # whether it has the next one is being asked in the background


class TierSpeed(NamedTuple):
    """How fast a tier is, as it has seen itself."""

    first_s: float  # until the first record would be here, behind what is being read
    bytes_a_s: float  # from then on; 0: not known


class UsedRecord(NamedTuple):
    """A record that engines of some host have asked for."""

    namespace: bytes
    tenant: bytes
    group: int
    key: bytes  # short
    uses: int  # lately; older ones count less


class WarmStart(NamedTuple):
    """What a tier may be asked for before anybody wants it."""

    records: list[UsedRecord]  # the most used first
    limit_bytes: int  # payload, in all
    bytes_a_s: int


class Removed(NamedTuple):
    """A record that left a tier."""

    key: bytes  # short
    length: int  # payload bytes
    was_read: bool  # loaded at least once
    cause: EvictionCause = EvictionCause.SPACE
    stored_at: float | None = None  # monotonic; None: not known
    tenant: bytes = DEFAULT_TENANT  # whose it was, where the tier knows


class NamespaceUsage(NamedTuple):
    """What a tier holds of one namespace."""

    records: int = 0
    payload_bytes: int = 0


class LargestNamespaces(NamedTuple):
    """Some namespaces of a tier, and how many there are."""

    names: list[bytes]  # the largest first
    total: int  # namespaces that there are


class Forgotten(NamedTuple):
    """What a tier had of a tenant that was forgotten, and what it could not delete."""

    records: int = 0
    size_bytes: int = 0  # taken from the medium
    failure: str = ""  # in one sentence, why something is left; empty: nothing is


class TierListener:
    """What a tier tells, and asks of, the stack that it is part of. Any thread may call.

    This class is a tier alone: nobody listens and no other tier has anything.
    """

    def removed(self, records: list[Removed]) -> None:
        """These records left the tier; called without a lock of the tier's."""

    def learned(self, keys: Sequence[bytes]) -> None:
        """What `prefix` called unknown is known now: ask it again."""

    def forgotten(self, tenants: frozenset[bytes]) -> None:
        """A medium that was away says that these were forgotten: nothing of them is served."""

    def warm_start(self, offered: WarmStart) -> None:
        """Hosts use this most of what the tier has: it may be fetched, where there is room."""

    def holds(self, key: bytes) -> bool:  # noqa: ARG002 - nothing is held elsewhere
        """Whether another tier has the chunk of this short key; answered without waiting.

        May say yes of what is leaving at this moment: the tier is told `lost` afterwards.
        """
        return False


class Tier(ABC):
    """One medium. Methods may be called from any thread.

    None waits for the medium but `erase`, `resize` and `close`. Keys are full or short, as the
    caller has them.
    """

    name: str  # of the medium; a metric label, for example "disk"
    comes_back: bool = False  # after it was off: what was dropped then is to be stored later
    quotas_of: str = ""  # which of a tenant's quotas hold here, as settings name them; "": none

    def takes_stores(self) -> bool:
        """Whether stores are of any use now; what is stored nevertheless is dropped."""
        return True

    def speed(self) -> TierSpeed | None:
        """How fast loads are; None: whoever waits for them has to see for himself."""
        return None

    def off_reason(self) -> MissReason:
        """Why what is here cannot be loaded now, if it cannot."""
        return MissReason.TIER_OFF

    def attach(self, slab: SharedMemory) -> None:  # noqa: B027 - most have no use for it
        """Most buffers will lie in this memory, which may grow: for who shares it with others."""

    @abstractmethod
    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        """How many of these chained keys can be loaded, counted from the first; from memory.

        A tier that would have to ask its medium says so, asks in the background, and tells its
        listener when it has `learned` the answer.
        """

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Whether this one record is here; takes no lock, since other tiers ask under theirs."""

    @abstractmethod
    def length_of(self, key: bytes) -> int | None:
        """The payload bytes of a record that can be loaded now; None if it cannot."""

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

        `digest` is the hash of the bytes, where it is known already, and goes into the record; else
        they are one shard. A source that has changed since will be found damaged when it is loaded.
        """

    @abstractmethod
    def remove(self, key: bytes) -> None:
        """Forget a record and all that continue it."""

    def used(self, key: bytes, at: float) -> None:  # noqa: B027 - a tier need not remember it
        """A record's chunk left DRAM, where it was last used at this time; see `Hit.used_at`."""

    def publish_used(self, records: Sequence[UsedRecord]) -> None:  # noqa: B027 - most are not shared
        """Engines of this host ask for these most: let other hosts know."""

    def asked(self, keys: Sequence[bytes]) -> None:  # noqa: B027 - it may evict otherwise
        """A request asked for this chain, or for its first part: what is here of it was used.

        Whether it was loaded from here or was in DRAM makes no difference.
        """

    @abstractmethod
    def lost(self, key: bytes) -> None:
        """No other tier has this chunk any more: forget what is here only as its continuation."""

    @abstractmethod
    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """What every namespace has here that has records, or lately had; kept up to date."""

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """What each of these namespaces has here; for a tier of many, cheaper than all."""
        found = self.namespaces()
        return [found.get(name, NamespaceUsage()) for name in namespaces]

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """Those with most bytes; asked for with every snapshot, on the pool's thread."""
        found = {name: usage for name, usage in self.namespaces().items() if usage.records}
        names = nlargest(limit, found, key=lambda name: found[name].payload_bytes)
        return LargestNamespaces(names, len(found))

    @abstractmethod
    def erase(self, namespace: bytes | None, *, scrub: bool = False) -> int:
        """Delete a namespace's records, or all, for good; how many. Waits for the medium.

        Older copies count too; a record that the medium refuses to delete does not. `scrub`: what
        is deleted is written over, and flushed, where the tier can do so.
        """

    def packs_of_others(self) -> dict[bytes, int]:
        """Packs that other hosts keep here, by namespace: theirs to erase, and found until then."""
        return {}

    # Tenants. A tier that keeps nothing after its pool has ended need not remember anything.

    def forgotten(self) -> Collection[bytes]:
        """Ids of tenants whose records are not served any more, since ever."""
        return ()

    def remember_forgotten(self, tenant: bytes) -> str:  # noqa: ARG002 - nothing to remember
        """From now on, and after any crash, serve nothing of a tenant; why that cannot be, if so.

        Waits for the medium.
        """
        return ""

    def forget(self, tenant: bytes, *, scrub: bool) -> Forgotten:  # noqa: ARG002 - has no tenants
        """Delete all records of a tenant, older copies too, and its key. Waits for the medium.

        `scrub`: it is written over, and flushed, where the tier can do so.
        """
        return Forgotten(failure="it cannot tell whose its records are")

    def delete_forgotten(self, tenants: frozenset[bytes]) -> None:  # noqa: B027 - it has nothing
        """Delete, without waiting, what is left of tenants that some tier has forgotten before."""

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:  # noqa: B027 - it has none
        """What each tenant may hold here, by id; see `forebay.tiers.quotas`."""

    def held_by_tenants(self) -> dict[bytes, int]:
        """Bytes that tenants have taken of the medium, where they are counted."""
        return {}

    @abstractmethod
    def resize(self, path: str, cap_bytes: int) -> bool:
        """Change a volume's cap; False if the tier has no such volume. Waits for the medium.

        DirectoryError if the cap is too small to work with.
        """

    def rotate(self) -> None:  # noqa: B027 - most have no keys of their own
        """Encrypt what is stored from now on under new keys. Waits for the medium; OSError."""

    def probe(self, done: Callable[[VolumeProbe], None]) -> int:  # noqa: ARG002 - nothing to probe
        """Write, read and verify a record in every volume, as stores and loads do.

        Leaves nothing behind and disturbs no record. `done` is called once a volume, on any thread;
        how many these are. A tier that cannot do this has none.
        """
        return 0

    @abstractmethod
    def usage(self) -> Usage:
        """What is held now."""

    @abstractmethod
    def volumes(self) -> list[VolumeStatus]:
        """How each volume is doing."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, as far as `timeout_s` allows, and let go of the medium."""
