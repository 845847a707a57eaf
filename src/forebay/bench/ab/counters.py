"""A pool's own counters, read over its socket: evidence of what was stored and loaded."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from forebay.bench.result.format import PoolFigures
from forebay.metrics.labels import OK
from forebay.metrics.reading import count
from forebay.pool.client import Client
from forebay.tiers.contract import Miss

_STATS_S: Final = 10.0
# Our fields, and the pool's counter with its tier and direction.
_NAMES: Final = {
    "stored_chunks": ("operations", "dram", "store"),
    "stored_bytes": ("moved_bytes", "dram", "store"),
    "written_chunks": ("operations", "disk", "store"),
    "written_bytes": ("moved_bytes", "disk", "store"),
    "read_nvme_chunks": ("operations", "disk", "load"),
    "read_nvme_bytes": ("moved_bytes", "disk", "load"),
    "read_dram_chunks": ("operations", "dram", "load"),
    "read_dram_bytes": ("moved_bytes", "dram", "load"),
}


class Counters:
    """A pool's counters, from one call to the next."""

    def __init__(self, watch: Client) -> None:
        self._watch = watch
        self._before: dict[str, int] = {}

    def __call__(self) -> PoolFigures | None:
        """What was counted since the last call, and what is held now; None if the pool is gone."""
        stats: Any = self._watch.stats(_STATS_S)
        if isinstance(stats, Miss):
            return None
        now = {field: _counted(stats, *name) for field, name in _NAMES.items()}
        moved = {field: max(0, count - self._before.get(field, 0)) for field, count in now.items()}
        self._before = now
        used = {tier["name"]: tier["used_bytes"] for tier in stats["tiers"]}
        return PoolFigures(**moved, dram_bytes=used["dram"], nvme_bytes=used.get("disk", 0))


def _counted(stats: dict[str, Any], name: str, tier: str, direction: str) -> int:
    """What succeeded."""
    labels = {"tier": tier, "direction": direction}
    outcome = {"outcome": OK} if name == "operations" else {}
    return count(stats, name, **labels, **outcome)


def together(pools: Iterable[PoolFigures | None]) -> PoolFigures | None:
    """The sums of all, with what the last one held; None where there is no pool."""
    found = [pool for pool in pools if pool is not None]
    if not found:
        return None
    sums = {field: sum(getattr(pool, field) for pool in found) for field in _NAMES}
    return msgspec.structs.replace(found[-1], **sums)
