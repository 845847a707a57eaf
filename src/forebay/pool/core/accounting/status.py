"""The state of a pool's core for `forebay stats` and metrics: read from figures that are kept.

Nothing here walks over chunks: a snapshot costs the same for ten chunks as for a million. What is
listed is bounded: tiers and volumes by the settings, namespaces by `NAMESPACES_MAX`.
"""

from collections import defaultdict
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Final

from forebay.metrics.kinds import OTHER, Labels
from forebay.metrics.labels import (
    DISK,
    DRAM,
    NAMESPACE_DIGITS,
    NAMESPACES_MAX,
    Direction,
    ErrorKind,
)
from forebay.metrics.tenants import TenantUsage
from forebay.pool.core.accounting.day import DayWindow
from forebay.pool.core.loading.acquisition import Acquisition
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.stack import TierStatus
from forebay.pool.core.storing.stores import Stores
from forebay.pool.core.storing.write_behind import WriteBehind
from forebay.tiers.contract import NamespaceUsage

_TICK_S: Final = 60.0
_MODELS_MAX: Final = 1024  # namespaces whose model is remembered
_NOTHING: Final = NamespaceUsage()


@dataclass(frozen=True, slots=True)
class TierLife:
    """How much may be written to a tier; 0: no limit, or not known."""

    budget_bytes_a_day: int = 0
    rated_life_bytes: int = 0


class Status:
    """Takes the pool's figures. Owned by the pool's thread."""

    def __init__(
        self,
        parts: CoreParts,
        acquisition: Acquisition,
        stores: Stores,
        write_behind: WriteBehind,
        lives: tuple[TierLife, ...],
    ) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics
        self._clock, self._barrier, self._tenants = parts.clock, parts.barrier, parts.tenants
        self._acquisition, self._stores, self._write_behind = acquisition, stores, write_behind
        self._lives = lives  # by lower tier; of those behind the last nothing is known
        self._days = [DayWindow() for _ in range(len(parts.stack))]
        self._written = [0] * len(parts.stack)  # when last looked at, by tier
        self._tick_at = 0.0
        self._models: dict[str, str] = {}  # namespace → model
        self._started = parts.clock.monotonic()

    def name_namespace(self, namespace: bytes, model: str) -> None:
        """An engine says what model a namespace is of; the last one to say so is believed."""
        digits = namespace.hex()[:NAMESPACE_DIGITS]
        if digits in self._models or len(self._models) < _MODELS_MAX:
            self._models[digits] = model

    def tick(self, now: float) -> None:
        """Remember, now and then, what has been written until now."""
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
        self._take_namespaces(namespaces)
        uptime_s = now - self._started
        active = len(self._acquisition.requests)
        self._metrics.loads.active.set(active)
        self._metrics.server.uptime.set(uptime_s)
        self._metrics.server.errors.set_total(self._barrier.caught, (ErrorKind.BUG,))
        return {
            "uptime_s": round(uptime_s, 3),
            "metrics": self._metrics.snapshot(),
            "tiers": [self._dram_tier(), *map(_lower_tier, lower)],
            "namespaces": namespaces[:NAMESPACES_MAX],
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
        held.retained.set(self._acquisition.retained_bytes)
        held.filling.set(dram.store_budget.used_bytes)
        self._metrics.stores.leased_slots.set(self._stores.filling)

    def _usage_of_dram(self) -> tuple[int, int, int, int]:
        """Cap, bytes taken, payload, chunks."""
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
            life = self._lives[number] if number < len(self._lives) else TierLife()
            if life.budget_bytes_a_day:
                volumes.budget.set(life.budget_bytes_a_day, (tier.name,))
            volumes.budget_used.set(self._days[number].total(now), (tier.name,))
            if life.rated_life_bytes:
                volumes.rated_life.set(life.rated_life_bytes, (tier.name,))

    def _take_queues(self) -> None:
        depth = self._metrics.tiers.depth
        asks, reads = self._acquisition.queue_depths()
        depth.set(asks, (DRAM, Direction.LOAD))
        for tier in range(len(self._stack)):
            name = self._stack.name_of(tier)
            depth.set(reads[tier], (name, Direction.LOAD))
            depth.set(self._write_behind.in_flight_at(tier), (name, Direction.STORE))

    def _namespaces(self) -> list[dict[str, Any]]:
        """What each namespace has in each tier, the largest first; and the sum of the others."""
        usage: defaultdict[bytes, dict[str, NamespaceUsage]] = defaultdict(dict)
        for tier, found in [(DRAM, self._dram.chunks.namespaces()), *self._stack.namespaces()]:
            for namespace, of_it in found.items():
                if of_it.records:
                    usage[namespace][tier] = of_it
        sizes = {name: sum(u.payload_bytes for u in of.values()) for name, of in usage.items()}
        largest = nlargest(NAMESPACES_MAX, sizes, key=sizes.__getitem__)
        listed = [self._row(name.hex()[:NAMESPACE_DIGITS], [usage.pop(name)]) for name in largest]
        return [*listed, self._row(OTHER, list(usage.values()))] if usage else listed

    def _row(self, name: str, found: list[dict[str, NamespaceUsage]]) -> dict[str, Any]:
        tiers = self._metrics.tier_names
        sums = {tier: [each.get(tier, _NOTHING) for each in found] for tier in tiers}
        return {
            "namespace": name,
            "model": self._models.get(name, ""),
            "chunks": {tier: sum(each.records for each in sums[tier]) for tier in tiers},
            "bytes": {tier: sum(each.payload_bytes for each in sums[tier]) for tier in tiers},
        }

    def _take_tenants(self) -> list[dict[str, Any]]:
        """What each tenant has, is guaranteed and may have; what is nobody's comes last."""
        dram, tenants = self._dram.quotas, list(self._tenants)
        used = {DRAM: {tenant: dram.used_bytes(tenant) for tenant in dram.holders()}}
        used |= {tier: held for tier, held in self._stack.held_by_tenants() if tier == DISK}
        quotas = {DRAM: self._tenants.dram_quotas(), DISK: self._tenants.disk_quotas()}
        held: dict[tuple[str, str], TenantUsage] = {}
        for tier, by_id in used.items():
            for tenant in tenants:
                quota = quotas[tier][tenant.id]
                usage = TenantUsage(by_id.get(tenant.id, 0), quota.floor_bytes, quota.cap_bytes)
                held[tier, tenant.name] = usage
            named = {tenant.id for tenant in tenants}
            if others := sum(size for each, size in by_id.items() if each not in named):
                held[tier, OTHER] = TenantUsage(others)
        self._metrics.tenants.held(held)
        rows: dict[str, dict[str, Any]] = {}
        for (tier, name), usage in held.items():
            rows.setdefault(name, {"tenant": name})[tier] = usage._asdict()
        return list(rows.values())

    def _take_namespaces(self, rows: list[dict[str, Any]]) -> None:
        sizes: dict[Labels, float] = {}
        counts: dict[Labels, float] = {}
        for row in rows:
            for tier in self._metrics.tier_names:
                labels = (tier, row["namespace"], row["model"])
                # Of two namespaces with equal digits, both count.
                sizes[labels] = sizes.get(labels, 0) + row["bytes"][tier]
                counts[labels] = counts.get(labels, 0) + row["chunks"][tier]
        self._metrics.held.namespace_bytes.replace(sizes)
        self._metrics.held.namespace_chunks.replace(counts)


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
            }
            for volume in tier.volumes
        ],
    }
