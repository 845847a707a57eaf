"""Metrics by tenant: what each holds, moves and finds; label values are names in the settings."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from forebay.metrics.kinds import Unit
from forebay.metrics.labels import ABSENT, Direction
from forebay.metrics.registry import Registry

KNOWN: Final = "known"


class TenantUsage(NamedTuple):
    """What a tenant has of a tier."""

    used_bytes: int
    floor_bytes: int = 0
    cap_bytes: int | None = None  # None: no cap


class TenantMetrics:
    """Lookups, traffic and usage by tenant."""

    def __init__(self, registry: Registry) -> None:
        size = Unit.BYTES
        self.lookup_chunks = registry.counter(
            "tenant_lookup_chunks",
            "Chunks that a tenant's requests looked up: known to some tier, or absent.",
            ("tenant", "found"),
        )
        self.moved_bytes = registry.counter(
            "tenant_moved_bytes",
            "Payload bytes handed to and committed by engines, by tenant.",
            ("tenant", "direction"),
            size,
        )
        names = ("tier", "tenant")
        self.used = registry.gauge(
            "tenant_used_bytes", "Bytes of a tier that a tenant has taken.", names, size
        )
        self.floor = registry.gauge(
            "tenant_floor_bytes", "Bytes of a tier that a tenant is guaranteed.", names, size
        )
        self.cap = registry.gauge(
            "tenant_cap_bytes", "Bytes of a tier that a tenant may take; absent: all.", names, size
        )

    def looked_up(self, tenant: str, chunks: int, known: int) -> None:
        """A lookup of a tenant was answered."""
        self.lookup_chunks.add(known, (tenant, KNOWN))
        self.lookup_chunks.add(chunks - known, (tenant, ABSENT))

    def moved(self, tenant: str, direction: Direction, size_bytes: int) -> None:
        """Bytes of a tenant went to engines, or came from them."""
        self.moved_bytes.add(size_bytes, (tenant, direction))

    def held(self, rows: Mapping[tuple[str, str], TenantUsage]) -> None:
        """Set usage, floor and cap, by tier and tenant."""
        self.used.replace({labels: row.used_bytes for labels, row in rows.items()})
        self.floor.replace({labels: row.floor_bytes for labels, row in rows.items()})
        caps = {labels: row.cap_bytes for labels, row in rows.items()}
        self.cap.replace({labels: cap for labels, cap in caps.items() if cap is not None})
