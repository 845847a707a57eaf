"""The state of the core for `forebay stats` and metrics, from figures that are kept up to date.

Nothing here walks over all chunks or namespaces: a snapshot costs the same for ten as for a
million. Lists are bounded: tiers and volumes by the settings, namespaces by `NAMESPACES_MAX`, the
largest; of thousands of namespaces these are found within a few snapshots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Final, NamedTuple

from forebay.metrics.kinds import OTHER, Labels
from forebay.metrics.labels import (
    DRAM,
    NAMESPACE_DIGITS,
    NAMESPACES_MAX,
    Direction,
    ErrorKind,
)
from forebay.metrics.tenants import TenantUsage
from forebay.pool.core.accounting.day import DayWindow
from forebay.pool.core.chunks import ChunkTable
from forebay.pool.core.loading.loads import Loads
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.recent.models import ModelNames
from forebay.pool.core.stack import TierStatus
from forebay.pool.core.storing.stores import Stores
from forebay.pool.core.storing.write_behind import WriteBehind
from forebay.tiers.contract import NamespaceUsage, StoreUse, Tier

_TICK_S: Final = 60.0


class _Namespaces(NamedTuple):
    """The namespaces in a snapshot."""

    rows: list[dict[str, Any]]  # the largest first
    more: int  # number of other namespaces; a lower bound if tiers have different ones


@dataclass(frozen=True, slots=True)
class TierLife:
    """The endurance of a tier; 0: no limit, or not known."""

    budget_bytes_a_day: int = 0
    rated_life_bytes: int = 0


class Status:
    """Takes snapshots of the pool's figures. Owned by the pool's thread."""

    def __init__(
        self,
        parts: CoreParts,
        loads: Loads,
        stores: Stores,
        write_behind: WriteBehind,
        lives: tuple[TierLife, ...],
    ) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._barrier, self._tenants = parts.clock, parts.barrier, parts.tenants
        self._loads, self._stores, self._write_behind = loads, stores, write_behind
        self._lives = lives  # by lower tier; further tiers have no known endurance
        self._days = [DayWindow() for _ in range(len(parts.stack))]
        self._written = [0] * len(parts.stack)  # bytes at the last look, by tier
        self._tick_at = 0.0
        self.models = ModelNames()
        self._started = parts.clock.monotonic()

    def tick(self, now: float) -> None:
        """Note, now and then, how much has been written so far."""
        if now >= self._tick_at:
            self._remember_written(now)

    def _remember_written(self, now: float) -> None:
        self._tick_at = now + _TICK_S
        for number, tier in enumerate(self._stack.status()):
            written = sum(volume.written_bytes for volume in tier.volumes)
            self._days[number].add(written - self._written[number], now)
            self._written[number] = written

    def snapshot(self, requests_kept: int) -> dict[str, Any]:
        """The sections of `forebay stats` that are the core's, and every metric."""
        now = self._clock.monotonic()
        self._remember_written(now)
        lower = self._stack.status()
        namespaces = self._namespaces()
        self._take_held(lower)
        self._take_volumes(lower, now)
        self._take_queues()
        rest = [self._others(namespaces.rows, lower)] if namespaces.more else []
        self._take_namespaces([*namespaces.rows, *rest])
        uptime_s = now - self._started
        active = len(self._loads.requests)
        self._metrics.loads.active.set(active)
        self._metrics.server.uptime.set(uptime_s)
        self._metrics.server.errors.set_total(self._barrier.caught, (ErrorKind.BUG,))
        return {
            "uptime_s": round(uptime_s, 3),
            "metrics": self._metrics.snapshot(),
            "tiers": [self._dram_tier(), *map(_lower_tier, lower)],
            "namespaces": namespaces.rows,
            "namespaces_more": namespaces.more,
            "tenants": self._take_tenants(),
            "requests": {"active": active, "kept": requests_kept},
        }

    def _take_held(self, lower: list[TierStatus]) -> None:
        held, dram = self._metrics.held, self._dram
        rows = [(DRAM, self._usage_of_dram())]
        rows += [
            (
                tier.name,
                (
                    tier.usage.cap_bytes,
                    tier.usage.used_bytes,
                    tier.usage.payload_bytes,
                    tier.usage.records,
                ),
            )
            for tier in lower
        ]
        families = (held.cap, held.used, held.payload, held.chunks)
        for name, figures in rows:
            for family, figure in zip(families, figures, strict=True):
                family.set(figure, (name,))
        held.pinned.set(dram.load_budget.used_bytes)
        held.pinned_chunks.set(dram.pinned_chunks)
        held.retained.set(self._loads.retained_bytes)
        held.filling.set(dram.store_budget.used_bytes)
        self._metrics.stores.leased_slots.set(self._stores.filling)

    def _usage_of_dram(self) -> tuple[int, int, int, int]:
        """DRAM's cap, bytes taken, payload bytes and chunks."""
        dram = self._dram
        payload = dram.chunks.payload_bytes
        return dram.slab.cap_bytes, dram.slab.taken_bytes, payload, len(dram.chunks)

    def _dram_tier(self) -> dict[str, Any]:
        cap_bytes, used_bytes, payload_bytes, chunks = self._usage_of_dram()
        return {
            "name": DRAM,
            "cap_bytes": cap_bytes,
            "used_bytes": used_bytes,
            "payload_bytes": payload_bytes,
            "chunks": chunks,
            "allocated_bytes": self._dram.slab.allocated_bytes,
            "node_bytes": {str(node): n for node, n in sorted(self._dram.slab.node_bytes.items())},
            "volumes": [],
        }

    def _take_volumes(self, lower: list[TierStatus], now: float) -> None:
        volumes = self._metrics.volumes
        for number, tier in enumerate(lower):
            for place, volume in enumerate(tier.volumes):
                labels = (tier.name, str(place))
                volumes.on.set(int(volume.is_on), labels)
                volumes.errors.set_total(volume.errors, labels)
                volumes.read.set_total(volume.read_bytes, labels)
                volumes.written.set_total(volume.written_bytes, labels)
                volumes.life_written.set(volume.life_written_bytes, labels)
                if volume.use is not None:
                    self._metrics.store_use.take(tier.name, volume.use)
            life = self._lives[number] if number < len(self._lives) else TierLife()
            if life.budget_bytes_a_day:
                volumes.budget.set(life.budget_bytes_a_day, (tier.name,))
            volumes.budget_used.set(self._days[number].total(now), (tier.name,))
            if life.rated_life_bytes:
                volumes.rated_life.set(life.rated_life_bytes, (tier.name,))

    def _take_queues(self) -> None:
        depth = self._metrics.tiers.depth
        asks, reads = self._loads.queue_depths()
        depth.set(asks, (DRAM, Direction.LOAD))
        for tier in range(len(self._stack)):
            name = self._stack.name_of(tier)
            depth.set(reads[tier], (name, Direction.LOAD))
            depth.set(self._write_behind.in_flight_at(tier), (name, Direction.STORE))

    def _namespaces(self) -> _Namespaces:
        """What the largest namespaces have in each tier, and the sum of the others."""
        books: list[tuple[str, ChunkTable | Tier]] = [(DRAM, self._dram.chunks)]
        books += self._stack.tiers()
        found = [book.largest_namespaces(NAMESPACES_MAX) for _, book in books]
        names = list(dict.fromkeys(name for each in found for name in each.names))
        usage = {tier: book.usage_of(names) for tier, book in books}
        sizes = [
            sum(of.payload_bytes for of in tiers) for tiers in zip(*usage.values(), strict=True)
        ]
        order = nlargest(NAMESPACES_MAX, range(len(names)), key=sizes.__getitem__)
        rows = [self._row(names[at], {tier: of[at] for tier, of in usage.items()}) for at in order]
        listed = [sum(1 for row in rows if row["chunks"][tier]) for tier, _ in books]
        more = max(each.total - told for each, told in zip(found, listed, strict=True))
        return _Namespaces(rows, max(0, more))

    def _others(self, rows: list[dict[str, Any]], lower: list[TierStatus]) -> dict[str, Any]:
        """What the tiers have of all other namespaces, as one row."""
        _, _, payload_bytes, chunks = self._usage_of_dram()
        totals = {DRAM: NamespaceUsage(chunks, payload_bytes)}
        for tier in lower:
            totals[tier.name] = NamespaceUsage(tier.usage.records, tier.usage.payload_bytes)
        # A tier's threads go on meanwhile: what has come since is in no row yet.
        left = {
            tier: NamespaceUsage(
                max(0, total.records - sum(row["chunks"][tier] for row in rows)),
                max(0, total.payload_bytes - sum(row["bytes"][tier] for row in rows)),
            )
            for tier, total in totals.items()
        }
        return _row(OTHER, "", left)

    def _row(self, namespace: bytes, usage: Mapping[str, NamespaceUsage]) -> dict[str, Any]:
        digits = namespace.hex()[:NAMESPACE_DIGITS]
        return _row(digits, self.models.get(namespace), usage)

    def _take_tenants(self) -> list[dict[str, Any]]:
        """What each tenant holds, is guaranteed and may have; what belongs to nobody comes last."""
        dram, tenants = self._dram.quotas, list(self._tenants)
        used = {DRAM: {tenant: dram.used_bytes(tenant) for tenant in dram.holders()}}
        quotas = {DRAM: self._tenants.quotas(DRAM)}
        for name, tier in self._stack.tiers():
            if tier.quotas_of:
                used[name], quotas[name] = (
                    tier.held_by_tenants(),
                    self._tenants.quotas(tier.quotas_of),
                )
        held: dict[tuple[str, str], TenantUsage] = {}
        for name, by_id in used.items():
            for tenant in tenants:
                quota = quotas[name][tenant.id]
                usage = TenantUsage(by_id.get(tenant.id, 0), quota.floor_bytes, quota.cap_bytes)
                held[name, tenant.name] = usage
            named = {tenant.id for tenant in tenants}
            if others := sum(size for each, size in by_id.items() if each not in named):
                held[name, OTHER] = TenantUsage(others)
        self._metrics.tenants.held(held)
        rows: dict[str, dict[str, Any]] = {}
        for (name, owner), usage in held.items():
            rows.setdefault(owner, {"tenant": owner})[name] = usage._asdict()
        return list(rows.values())

    def _take_namespaces(self, rows: list[dict[str, Any]]) -> None:
        sizes: dict[Labels, float] = {}
        counts: dict[Labels, float] = {}
        for row in rows:
            for tier in self._metrics.tier_names:
                labels = (tier, row["namespace"], row["model"])
                # If two namespaces have the same digits, both count.
                sizes[labels] = sizes.get(labels, 0) + row["bytes"][tier]
                counts[labels] = counts.get(labels, 0) + row["chunks"][tier]
        self._metrics.held.namespace_bytes.replace(sizes)
        self._metrics.held.namespace_chunks.replace(counts)


def _row(name: str, model: str, usage: Mapping[str, NamespaceUsage]) -> dict[str, Any]:
    return {
        "namespace": name,
        "model": model,
        "chunks": {tier: of.records for tier, of in usage.items()},
        "bytes": {tier: of.payload_bytes for tier, of in usage.items()},
    }


def _lower_tier(tier: TierStatus) -> dict[str, Any]:
    usage = tier.usage
    return {
        "name": tier.name,
        "cap_bytes": usage.cap_bytes,
        "used_bytes": usage.used_bytes,
        "payload_bytes": usage.payload_bytes,
        "chunks": usage.records,
        "volumes": [
            {
                "path": volume.path,
                "is_on": volume.is_on,
                "errors": volume.errors,
                "read_bytes": volume.read_bytes,
                "written_bytes": volume.written_bytes,
                "allocated_bytes": volume.allocated_bytes,
                "evictions": volume.evictions,
                "left_alone": volume.left_alone,
                "life_written_bytes": volume.life_written_bytes,
                "use": None if volume.use is None else _use(volume.use),
            }
            for volume in tier.volumes
        ],
    }


def _use(use: StoreUse) -> dict[str, Any]:
    return {**use._asdict(), "requests": dict(use.requests)}
