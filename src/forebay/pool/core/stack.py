"""The tiers below DRAM, in order: the only place that knows which tier comes first.

Everything that the pool wants from a lower tier goes through here: where chunks are, loads (from
the nearest tier that has the record, and from the next one if that fails), stores, erasure, caps
and status. The pool and its policy know tiers by numbers, 0 for the nearest.

A record is never left with a hole before it. When a tier evicts a record that others continue, it
asks whether another tier has it (`holds`: answered here, on any thread, without a lock). When the
last copy of a chunk is gone, the pool calls `lost`, and each tier forgets what depends on it alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from forebay.errors import StartupError
from forebay.pool.core.chunks import ChunkTable
from forebay.record.header import NAMESPACE_BYTES, Digest, RecordName
from forebay.sys.shared import SharedMemory
from forebay.tiers.contract import (
    Forgotten,
    LoadOutcome,
    Miss,
    MissReason,
    NamespaceUsage,
    Removed,
    StoreOutcome,
    Tier,
    TierListener,
    TierSpeed,
    Usage,
    UsedRecord,
    VolumeStatus,
    WarmStart,
)
from forebay.tiers.quotas import Quota

FAR_RUNS_MAX: Final = 16  # runs of one chain; what follows the last counts as on drives
TierOpener = Callable[[TierListener], Tier]


class TierOperation(NamedTuple):
    """A load from one tier, or a store in it, with its outcome."""

    tier: int
    outcome: LoadOutcome | StoreOutcome
    submitted: float  # monotonic
    ended: float

    @property
    def waited_s(self) -> float | None:
        """How long it waited before the medium began; None if the medium never began."""
        begun = self.outcome.begun
        return None if begun is None else max(0.0, begun - self.submitted)

    @property
    def took_s(self) -> float:
        """How long the medium took, or how long the tier took to refuse it."""
        begun = self.outcome.begun
        return max(0.0, self.ended - (self.submitted if begun is None else begun))


class FarRun(NamedTuple):
    """Consecutive chunks of a chain in one tier that tells its speed."""

    first: int
    chunks: int
    speed: TierSpeed


class KnownPrefix(NamedTuple):
    """How much of a chain of keys is in the tiers."""

    chunks: int  # from the first key
    is_unknown: bool  # a tier is finding out in the background if it has the next one
    by_tier: list[int]  # chunks in each lower tier; the others are in DRAM
    far: list[FarRun]  # runs in tiers that tell their speed, in order


LoadDone = Callable[[list[TierOperation]], None]  # one per tier tried; the last one counts
StoreDone = Callable[[TierOperation], None]


class TierNews(NamedTuple):
    """Callbacks for what tiers tell, by the tier's number; called on the tiers' threads."""

    removed: Callable[[int, list[Removed]], None]
    learned: Callable[[Sequence[bytes]], None]
    forgotten: Callable[[frozenset[bytes]], None]
    warm_start: Callable[[int, WarmStart], None]


class TierStatus(NamedTuple):
    """One lower tier, for people and metrics."""

    name: str
    usage: Usage
    volumes: list[VolumeStatus]


class TierStack:
    """The lower tiers of one pool. The pool's thread calls its methods, any thread `holds`."""

    def __init__(
        self,
        chunks: ChunkTable,
        openers: Sequence[TierOpener],
        news: TierNews,
        now: Callable[[], float],
    ) -> None:
        """Open the tiers, the nearest first; a StartupError if one cannot be opened.

        `now` is called on any thread.
        """
        self._chunks, self._now = chunks, now
        self._tiers: list[Tier] = []
        try:
            for number, opener in enumerate(openers):
                self._tiers.append(opener(_Listener(self, number, news)))
        except StartupError:
            self.close(0.0)
            raise

    def __len__(self) -> int:
        return len(self._tiers)

    def attach(self, slab: SharedMemory) -> None:
        """Tell the tiers in which memory DRAM's chunks lie."""
        for tier in self._tiers:
            tier.attach(slab)

    def name_of(self, tier: int) -> str:
        """A tier's name in metrics."""
        return self._tiers[tier].name

    def tiers(self) -> list[tuple[str, Tier]]:
        """Every tier with its name, the nearest first."""
        return [(tier.name, tier) for tier in self._tiers]

    def takes_stores(self, tier: int) -> bool:
        """Whether a tier accepts stores now."""
        return self._tiers[tier].takes_stores()

    def comes_back(self, tier: int) -> bool:
        """Whether what a tier dropped while it was off should be stored later."""
        return self._tiers[tier].comes_back

    def prefix(self, keys: list[bytes], ready: int) -> KnownPrefix:
        """How many keys, counted from the first, are in any tier; the first `ready` are in DRAM."""
        keys = self._chunks.before_condemned(keys)  # a copy below has to wait for this slot
        at = ready
        is_unknown = False
        by_tier = [0] * len(self._tiers)
        far: list[FarRun] = []
        while at < len(keys) and not is_unknown:
            if self._chunks.is_coming_or_ready(keys[at]):
                if not self._chunks.is_ready(keys[at]):
                    sources = (tier for tier in self._tiers if tier.has(keys[at]))
                    _add_far(far, at, 1, next(sources, None))
                at += 1
                continue
            before, rest = at, keys[at:]
            for number, tier in enumerate(self._tiers):
                found = tier.prefix(rest)
                at += found.chunks
                by_tier[number] += found.chunks
                is_unknown = is_unknown or found.is_unknown
                if found.chunks:
                    _add_far(far, before, found.chunks, tier)
                    break
            if at == before:
                break
            is_unknown = False  # another tier has it
        return KnownPrefix(at, is_unknown, by_tier, far)

    def why_off(self, key: bytes) -> MissReason | None:
        """Why a chunk in a lower tier cannot be loaded now; None if it can, or is not there."""
        if self.length_of(key) is not None:
            return None
        return next((tier.off_reason() for tier in self._tiers if tier.has(key)), None)

    def tiers_of(self, key: bytes) -> frozenset[int]:
        """The lower tiers that have a chunk."""
        return frozenset(number for number, tier in enumerate(self._tiers) if tier.has(key))

    def has(self, key: bytes) -> bool:
        """Whether a lower tier has a chunk."""
        return any(tier.has(key) for tier in self._tiers)

    def holds(self, key: bytes, other_than: int) -> bool:
        """Whether DRAM or a tier other than this one has a chunk; any thread may call."""
        if self._chunks.is_ready(key):
            return True
        others = (tier for number, tier in enumerate(self._tiers) if number != other_than)
        return any(tier.has(key) for tier in others)

    def length_of(self, key: bytes) -> int | None:
        """The payload size of a chunk that can be loaded from a lower tier; None if none can."""
        lengths = (tier.length_of(key) for tier in self._tiers)
        return next((length for length in lengths if length is not None), None)

    def load(self, name: RecordName, target: memoryview, done: LoadDone, deadline: float) -> int:
        """Load from the nearest tier that can, on a miss from the next one; returns the nearest."""
        tiers, now = enumerate(self._tiers), self._now
        sources = [number for number, tier in tiers if tier.length_of(name.key) is not None]
        operations: list[TierOperation] = []

        def load_from(position: int) -> None:
            source, submitted = sources[position], now()

            def ended(outcome: LoadOutcome) -> None:
                operations.append(TierOperation(source, outcome, submitted, now()))
                if isinstance(outcome, Miss) and position + 1 < len(sources):
                    load_from(position + 1)
                else:
                    done(operations)

            self._tiers[source].submit_load(name, target, ended, deadline)

        if sources:
            load_from(0)
            return sources[0]
        done([TierOperation(0, Miss(MissReason.ABSENT), now(), now())])
        return 0

    def store(
        self,
        tier: int,
        name: RecordName,
        source: memoryview,
        length: int,
        *,
        done: StoreDone,
        digest: Digest | None,
    ) -> None:
        """Store in one tier."""
        submitted = self._now()

        def ended(outcome: StoreOutcome) -> None:
            done(TierOperation(tier, outcome, submitted, self._now()))

        self._tiers[tier].submit_store(name, source, length, ended, digest)

    def used(self, key: bytes, at: float) -> None:
        """A chunk that lower tiers have leaves DRAM; `at` is when it was last used there."""
        for tier in self._tiers:
            tier.used(key, at)

    def publish_used(self, tier: int, records: Sequence[UsedRecord]) -> None:
        """Tell a tier which of its records this host's engines ask for most."""
        self._tiers[tier].publish_used(records)

    def asked(self, keys: Sequence[bytes]) -> None:
        """A request asked for these chunks, wherever they are, so that tiers keep them longer."""
        for tier in self._tiers:
            tier.asked(keys)

    def lost(self, key: bytes) -> None:
        """No tier has a chunk any more: all tiers forget what depends on it alone."""
        for tier in self._tiers:
            tier.lost(key)

    def forgotten(self) -> set[bytes]:
        """Ids of tenants that any tier remembers as forgotten."""
        return {tenant for tier in self._tiers for tenant in tier.forgotten()}

    def delete_forgotten(self, tenants: frozenset[bytes]) -> None:
        """Have every tier delete what an earlier pool had not deleted yet; does not wait."""
        for tier in self._tiers:
            tier.delete_forgotten(tenants)

    def set_quotas(self, quotas_of: Callable[[str], Mapping[bytes, Quota]]) -> None:
        """Set what each tenant, by id, may hold of each medium that has quotas."""
        for tier in self._tiers:
            if tier.quotas_of:
                tier.set_quotas(quotas_of(tier.quotas_of))

    def quota_caps(self) -> dict[str, int]:
        """The caps that floors have to fit in: each medium's; of several stores the smallest."""
        caps: dict[str, int] = {}
        for tier in self._tiers:
            if tier.quotas_of:
                cap_bytes = tier.usage().cap_bytes
                caps[tier.quotas_of] = min(caps.get(tier.quotas_of, cap_bytes), cap_bytes)
        return caps

    def held_by_tenants(self) -> list[tuple[str, dict[bytes, int]]]:
        """Each tier's name, and the bytes that each tenant holds there, if it counts them."""
        return [(tier.name, tier.held_by_tenants()) for tier in self._tiers]

    def remember_forgotten(self, tenant: bytes) -> str:
        """Note durably that a tenant's records must not be served; "" or why that failed.

        Drives remember it for stores, too, which may be away; if there are none, each store has to.
        Stores that can are told in any case, since drives are replaced. Waits for the media: never
        call it on the pool's thread.
        """
        drives = [tier for tier in self._tiers if not tier.comes_back]
        for number, tier in enumerate([*drives, *(t for t in self._tiers if t.comes_back)]):
            failure = tier.remember_forgotten(tenant)
            if failure and (not drives or tier in drives):
                return f"{failure}; the next start may forget it" if number else failure
        return ""

    def forget(self, tenant: bytes, *, scrub: bool) -> list[tuple[str, Forgotten]]:
        """Delete all records of a tenant; what that was, by tier. Waits for the media."""
        return [(tier.name, tier.forget(tenant, scrub=scrub)) for tier in self._tiers]

    def erase(self, digits: str, *, scrub: bool = False) -> tuple[int, Counter[bytes]]:
        """Delete the namespaces whose lower-case hex digits begin so, or all (""), for good.

        Returns how many records that were, and the payload bytes of each namespace. Waits for the
        media: never call it on the pool's thread.
        """
        count, sizes = 0, Counter[bytes]()
        for tier in self._tiers:
            found = [each for each in tier.namespaces().items() if each[0].hex().startswith(digits)]
            if len(digits) == 2 * NAMESPACE_BYTES and not found:  # copies that no index knows
                found = [(bytes.fromhex(digits), NamespaceUsage())]
            names = [name for name, _ in found] if digits else [None]
            count += sum(tier.erase(name, scrub=scrub) for name in names)
            left = tier.namespaces()
            for name, usage in found:
                left_bytes = left.get(name, NamespaceUsage()).payload_bytes
                sizes[name] += max(0, usage.payload_bytes - left_bytes)
        return count, +sizes

    def packs_of_others(self, digits: str) -> int:
        """Packs of other hosts, in namespaces whose hex digits begin so, which `erase` leaves."""
        found = (count for tier in self._tiers for count in tier.packs_of_others().items())
        return sum(count for name, count in found if name.hex().startswith(digits))

    def rotate(self) -> None:
        """Encrypt new records under new keys. Waits, and may raise OSError."""
        for tier in self._tiers:
            tier.rotate()

    def resize(self, path: str, cap_bytes: int) -> bool:
        """Change a volume's cap; False if no tier has it. Waits and raises as `Tier.resize`."""
        return any(tier.resize(path, cap_bytes) for tier in self._tiers)

    def status(self) -> list[TierStatus]:
        """Every lower tier, the nearest first."""
        return [TierStatus(tier.name, tier.usage(), tier.volumes()) for tier in self._tiers]

    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, as far as the time allows, and close the media."""
        for tier in self._tiers:
            tier.close(timeout_s)


def _add_far(far: list[FarRun], first: int, chunks: int, tier: Tier | None) -> None:
    """Add chunks of a tier to the runs, if the tier tells its speed."""
    if far and far[-1].first + far[-1].chunks == first and tier is not None and tier.comes_back:
        far[-1] = far[-1]._replace(chunks=far[-1].chunks + chunks)
        return
    speed = tier.speed() if tier is not None and len(far) < FAR_RUNS_MAX else None
    if speed is not None:
        far.append(FarRun(first, chunks, speed))


class _Listener(TierListener):
    """Receives one tier's news, and answers its questions."""

    def __init__(self, stack: TierStack, number: int, news: TierNews) -> None:
        self._news = news
        self._removed = partial(news.removed, number)
        self._warm_start = partial(news.warm_start, number)
        self._holds = partial(stack.holds, other_than=number)

    def removed(self, records: list[Removed]) -> None:
        self._removed(records)

    def learned(self, keys: Sequence[bytes]) -> None:
        self._news.learned(keys)

    def forgotten(self, tenants: frozenset[bytes]) -> None:
        self._news.forgotten(tenants)

    def warm_start(self, offered: WarmStart) -> None:
        self._warm_start(offered)

    def holds(self, key: bytes) -> bool:
        return self._holds(key)
