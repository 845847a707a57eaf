"""The catalogue: every metric of a pool, defined once; docs/metrics.md is generated from it.

Owned by the pool's thread. Families are grouped by the code that fills them; gauges are set when a
snapshot is taken, from figures that are kept up to date: no snapshot walks over chunks.
"""

from collections import Counter as CountOf
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from forebay.metrics import labels
from forebay.metrics.kinds import Definition, Unit
from forebay.metrics.labels import (
    ABSENT,
    DRAM,
    LOAD_OUTCOMES,
    OK,
    STORE_OUTCOMES,
    Direction,
    ErrorKind,
    RefusalReason,
)
from forebay.metrics.registry import AGES, SECONDS, SIZES, Registry
from forebay.metrics.requests import RequestMetrics
from forebay.metrics.tenants import TenantMetrics
from forebay.tiers.contract import EvictionCause, StoreUse

_TIER = ("tier",)
_WAY = ("tier", "direction")
_VOLUME = ("tier", "volume")


class Ended(NamedTuple):
    """How long an operation took."""

    size_bytes: int
    waited_s: float | None  # for the medium; None: the medium never started it
    took_s: float


class LoadMetrics:
    """Lookups and promises."""

    def __init__(self, registry: Registry, tiers: Sequence[str]) -> None:
        self.lookups = registry.counter("lookups", "Lookups that were answered.")
        self.lookup_chunks = registry.counter(
            "lookup_chunks",
            "Chunks that were looked up, by the nearest tier that had them without a hole before;"
            " absent: none.",
            ("found",),
        )
        self.lookup_chunks.preset([(found,) for found in (*tiers, ABSENT)])
        self.lookup_seconds = registry.histogram(
            "lookup_seconds", "Time that the pool took to answer a lookup.", SECONDS
        )
        self.lookups_not_followed = registry.counter(
            "lookups_not_followed",
            "Lookups that were answered and for which nothing was retained or read ahead: their"
            " process has too many requests.",
        )
        self.promises = registry.counter("promises", "Asks that were answered with a promise.")
        self.promised_chunks = registry.counter("promised_chunks", "Chunks of these promises.")
        self.promises_cut = registry.counter(
            "promises_cut", "Promises of less than was asked for, because the deadline had come."
        )
        self.promise_seconds = registry.histogram(
            "promise_seconds", "Time from an ask to its promise.", SECONDS
        )
        self.active = registry.gauge(
            "requests_active", "Requests that were looked up and are not over."
        )

    def promised(self, chunks: int, waited_s: float) -> None:
        """An ask was answered with a promise."""
        self.promises.add()
        self.promised_chunks.add(chunks)
        self.promise_seconds.observe(waited_s)


class StoreMetrics:
    """Slots that engines were lent, and chunks that got none."""

    def __init__(self, registry: Registry) -> None:
        self.leases = registry.counter("leases", "Slots that were lent to engines to be filled.")
        self.leased_slots = registry.gauge("leased_slots", "Slots that engines may write into now.")
        self.refused = registry.counter(
            "stores_refused", "Chunks that engines offered and that got no slot.", ("reason",)
        )
        self.refused.preset([(reason,) for reason in RefusalReason])


class TierMetrics:
    """What moves into and out of the tiers; DRAM's operations are the engines' copies."""

    def __init__(self, registry: Registry, tiers: Sequence[str]) -> None:
        ways = [(tier, way) for tier in tiers for way in Direction]
        self.operations = registry.counter(
            "operations",
            "Chunks that were to be loaded from or stored in a tier, by what came of it; of DRAM,"
            " those handed to and committed by engines.",
            (*_WAY, "outcome"),
        )
        self.operations.preset(
            [(tier, Direction.LOAD, each) for tier, each in product(tiers, LOAD_OUTCOMES)]
            + [(tier, Direction.STORE, each) for tier, each in product(tiers, STORE_OUTCOMES)]
        )
        self.moved = registry.counter(
            "moved_bytes", "Payload bytes of operations that succeeded.", _WAY, Unit.BYTES
        )
        self.moved.preset(ways)
        self.seconds = registry.histogram(
            "operation_seconds",
            "Time of an operation without its wait in the queue; of DRAM, from hand-out to release"
            " and from lease to commit, a chunk.",
            SECONDS,
            _WAY,
        )
        self.sizes = registry.histogram(
            "operation_bytes", "Payload of operations that succeeded.", SIZES, _WAY
        )
        self.waits = registry.histogram(
            "queue_wait_seconds", "Time that operations waited for the medium.", SECONDS, _WAY
        )
        for family in (self.seconds, self.sizes):
            family.preset(ways)
        self.waits.preset([way for way in ways if way[0] != DRAM])
        self.depth = registry.gauge(
            "queue_depth",
            "Operations that wait for a tier or are under way; of DRAM, asks without a promise.",
            _WAY,
        )

    def record(self, way: tuple[str, Direction], outcome: str, ended: Ended) -> None:
        """An operation of a lower tier has ended."""
        self.operations.add(1, (*way, outcome))
        self.seconds.observe(ended.took_s, way)
        if ended.waited_s is not None:
            self.waits.observe(ended.waited_s, way)
        if outcome == OK:
            self.moved.add(ended.size_bytes, way)
            self.sizes.observe(ended.size_bytes, way)

    def copied(self, direction: Direction, lengths: Sequence[int]) -> None:
        """Engines have loaded from DRAM, or committed to it, chunks of these lengths."""
        way = (DRAM, direction)
        self.operations.add(len(lengths), (*way, OK))
        self.moved.add(sum(lengths), way)
        for length, count in CountOf(lengths).items():
            self.sizes.observe(length, way, count)


class EvictionMetrics:
    """What leaves the tiers, how long chunks stay there, and when they are used again."""

    def __init__(self, registry: Registry, tiers: Sequence[str]) -> None:
        self.evictions = registry.counter(
            "evictions", "Chunks that left a tier.", ("tier", "cause")
        )
        self.evictions.preset(product(tiers, EvictionCause))
        self.age = registry.histogram(
            "age_at_eviction_seconds",
            "Time since a chunk had come into the tier, when it left; of a drive, since its region"
            " was begun.",
            AGES,
            _TIER,
        )
        self.gap = registry.histogram(
            "gap_at_reuse_seconds",
            "Time since a chunk was last used, or stored, when it was handed out again, by the tier"
            " that had it.",
            AGES,
            _TIER,
        )
        self.arenas_taken = registry.counter(
            "arenas_taken", "Arenas of DRAM that were emptied for chunks of another size."
        )
        for family in (self.age, self.gap):
            family.preset([(tier,) for tier in tiers])

    def left(self, tier: str, cause: EvictionCause, since: float | None, now: float) -> None:
        """A chunk has left a tier, where it had been since `since`, if that is known."""
        self.evictions.add(1, (tier, cause))
        if since is not None:
            self.age.observe(now - since, (tier,))


class HeldMetrics:
    """What the tiers hold, and for whom."""

    def __init__(self, registry: Registry) -> None:
        gauge, size = registry.gauge, Unit.BYTES
        self.used = gauge("used_bytes", "Bytes that a tier has taken of its medium.", _TIER, size)
        self.cap = gauge("cap_bytes", "Bytes that a tier may take.", _TIER, size)
        self.payload = gauge("payload_bytes", "Payload of a tier's chunks.", _TIER, size)
        self.chunks = gauge("chunks", "Chunks in a tier.", _TIER)
        self.pinned = gauge(
            "pinned_bytes", "DRAM that is promised to engines or being loaded.", (), size
        )
        self.pinned_chunks = gauge("pinned_chunks", "Chunks in DRAM that may not leave now.")
        self.retained = gauge(
            "retained_bytes", "DRAM kept for requests that looked up and have not asked.", (), size
        )
        self.filling = gauge(
            "filling_bytes",
            "DRAM that engines fill, or that is being written to its first lower tier.",
            (),
            size,
        )
        names = ("tier", "namespace", "model")
        self.namespace_bytes = gauge(
            "namespace_bytes", "Payload of a namespace's chunks.", names, size
        )
        self.namespace_chunks = gauge("namespace_chunks", "Chunks of a namespace.", names)


class VolumeMetrics:
    """Each volume of a tier, and the wear of its drive."""

    def __init__(self, registry: Registry) -> None:
        size = Unit.BYTES
        self.on = registry.gauge(
            "volume_on", "1: a volume is used; 0: its error budget has switched it off.", _VOLUME
        )
        self.errors = registry.counter("volume_errors", "Calls that a volume failed.", _VOLUME)
        self.read = registry.counter("read_bytes", "Payload read from a volume.", _VOLUME, size)
        self.written = registry.counter(
            "written_bytes", "Bytes of records written to a volume.", _VOLUME, size
        )
        self.budget = registry.gauge(
            "write_budget_bytes", "Bytes that may be written a day; absent: no limit.", _TIER, size
        )
        self.budget_used = registry.gauge(
            "write_budget_used_bytes", "Of these, written in the last 24 hours.", _TIER, size
        )
        self.life_written = registry.gauge(
            "life_written_bytes",
            "Bytes of regions begun in a volume since the directory was made, by any pool.",
            _VOLUME,
            size,
        )
        self.rated_life = registry.gauge(
            "rated_life_bytes",
            "Bytes that the drives are rated for, as the setting disk_rated_life says; absent: not"
            " known.",
            _TIER,
            size,
        )


class PrefetchMetrics:
    """What was fetched from stores and drives before anybody asked for it."""

    def __init__(self, registry: Registry) -> None:
        size = Unit.BYTES
        self._chunks = registry.counter(
            "prefetched_chunks",
            "Chunks fetched before anybody asked: from stores at the start, from drives of dialogs"
            " that are likely to return.",
            _TIER,
        )
        self._bytes = registry.counter("prefetched_bytes", "Their payload.", _TIER, size)
        self._used_chunks = registry.counter(
            "prefetched_used_chunks", "Of these, chunks that an engine has been handed.", _TIER
        )
        self._used_bytes = registry.counter("prefetched_used_bytes", "Their payload.", _TIER, size)
        self._wasted_chunks = registry.counter(
            "prefetched_wasted_chunks", "Of these, chunks that left before anybody asked.", _TIER
        )
        self._wasted_bytes = registry.counter(
            "prefetched_wasted_bytes", "Their payload.", _TIER, size
        )

    def fetched(self, tier: str, size_bytes: int) -> None:
        """A chunk was prefetched from this tier."""
        self._chunks.add(1, (tier,))
        self._bytes.add(size_bytes, (tier,))

    def wasted(self, tier: str, size_bytes: int) -> None:
        """A prefetched chunk left DRAM before any engine was handed it."""
        self._wasted_chunks.add(1, (tier,))
        self._wasted_bytes.add(size_bytes, (tier,))

    def used(self, tier: str, size_bytes: int) -> None:
        """An engine was handed a prefetched chunk for the first time."""
        self._used_chunks.add(1, (tier,))
        self._used_bytes.add(size_bytes, (tier,))


class StoreUseMetrics:
    """Requests to stores, and what they cost."""

    def __init__(self, registry: Registry) -> None:
        size = Unit.BYTES
        self.requests = registry.counter(
            "remote_requests", "Requests to a store.", ("tier", "request")
        )
        self.sent = registry.counter(
            "remote_sent_bytes", "Bytes sent to a store, its index included.", _TIER, size
        )
        self.received = registry.counter(
            "remote_received_bytes", "Bytes read from a store, its index included.", _TIER, size
        )
        self.today = registry.gauge(
            "remote_requests_today",
            "Requests of this day (UTC) that count against the budget; of a killed pool, rather"
            " more than it made.",
            _TIER,
        )
        self.budget = registry.gauge(
            "remote_request_budget", "Requests that a day may see; absent: no limit.", _TIER
        )
        self.dollars = registry.gauge(
            "remote_dollars_a_day_estimate",
            "What a store costs a day, by the prices that its URL gives or that are known: requests"
            " and reads of the last 24 hours, or at their rate so far, and what this host keeps.",
            _TIER,
        )

    def take(self, tier: str, use: StoreUse) -> None:
        """Take over a store's figures as they are now."""
        for kind, count in use.requests:
            self.requests.set_total(count, (tier, kind))
        self.sent.set_total(use.sent_bytes, (tier,))
        self.received.set_total(use.received_bytes, (tier,))
        self.today.set(use.today, (tier,))
        if use.budget:
            self.budget.set(use.budget, (tier,))
        self.dollars.set(use.dollars_a_day, (tier,))


class ServerMetrics:
    """The pool's process, its connections and its errors."""

    def __init__(self, registry: Registry) -> None:
        self.uptime = registry.gauge(
            "uptime_seconds", "Time since the pool began.", (), Unit.SECONDS
        )
        self.engines = registry.gauge(
            "engines", "Engines that have joined, by what they say of sharing.", ("sharing",)
        )
        self.connections = registry.gauge("connections", "Connections that are open.")
        self.accepted = registry.counter("connections_accepted", "Connections that were accepted.")
        self.errors = registry.counter("errors", "What went wrong, by kind.", ("kind",))
        self.errors.preset([(kind,) for kind in ErrorKind])
        # `observe` sets its series, those of the last check.
        self.healthy = registry.gauge(
            "healthy",
            "1: a record came back exact from a volume, or the socket answered, at the last check"
            " of health; 0: it did not. Checked every half minute while somebody scrapes.",
            _VOLUME,
        )
        self.scrapes = registry.counter("scrapes", "Answers at the HTTP port's /metrics.")


class PoolMetrics:
    """All metrics of a pool."""

    def __init__(self, lower_tiers: Sequence[str] = ()) -> None:
        """`lower_tiers` are the names of the tiers below DRAM, the nearest first."""
        self.tier_names = (DRAM, *lower_tiers)
        registry = self._registry = Registry()
        self.requests = RequestMetrics(registry, self.tier_names)
        self.loads = LoadMetrics(registry, self.tier_names)
        self.stores = StoreMetrics(registry)
        self.tiers = TierMetrics(registry, self.tier_names)
        self.evictions = EvictionMetrics(registry, self.tier_names)
        self.held = HeldMetrics(registry)
        self.volumes = VolumeMetrics(registry)
        self.store_use = StoreUseMetrics(registry)
        self.prefetch = PrefetchMetrics(registry)
        self.tenants = TenantMetrics(registry)
        self.server = ServerMetrics(registry)

    def definitions(self) -> list[Definition]:
        """Every metric, in the order of the docs."""
        return self._registry.definitions()

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Every metric by name, with its current values."""
        return self._registry.snapshot()

    def error(self, kind: ErrorKind, by: int = 1) -> None:
        """Count errors of a kind."""
        self.server.errors.add(by, (kind,))


def label_values(metric: str, label: str) -> tuple[str, ...]:
    """The values that a metric's label can have, or a description of them, for the docs."""
    return labels.VALUES.get(f"{metric}.{label}") or labels.VALUES[label]
