"""A pool's own counters, read over its socket: evidence of what was stored and loaded."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from forebay.bench.result.format import PoolFigures
from forebay.pool.client import Client
from forebay.tiers.contract import Miss

_STATS_S: Final = 10.0
# Our fields, and what the pool calls them.
_NAMES: Final = {
    "stored_chunks": "stored.chunks",
    "stored_bytes": "stored.bytes",
    "written_chunks": "disk.written",
    "written_bytes": "disk.written_bytes",
    "read_nvme_chunks": "disk.loaded",
    "read_nvme_bytes": "disk.loaded_bytes",
    "read_dram_chunks": "loaded.chunks",
    "read_dram_bytes": "loaded.bytes",
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
        now = {field: stats["counters"].get(name, 0) for field, name in _NAMES.items()}
        moved = {field: max(0, count - self._before.get(field, 0)) for field, count in now.items()}
        self._before = now
        nvme_bytes = (stats.get("disk") or {}).get("used_bytes", 0)
        return PoolFigures(**moved, dram_bytes=stats["dram"]["taken_bytes"], nvme_bytes=nvme_bytes)


def together(pools: Iterable[PoolFigures | None]) -> PoolFigures | None:
    """The sums of all, with what the last one held; None where there is no pool."""
    found = [pool for pool in pools if pool is not None]
    if not found:
        return None
    sums = {field: sum(getattr(pool, field) for pool in found) for field in _NAMES}
    return msgspec.structs.replace(found[-1], **sums)
