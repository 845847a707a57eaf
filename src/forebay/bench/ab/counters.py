"""A pool's own counters, read over its socket: evidence of what was stored and loaded."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from forebay.bench.result.format import PoolFigures
from forebay.metrics.labels import OK
from forebay.metrics.reading import count, series_of
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
    """A pool's counters, from one call to the next. Used by one thread at a time."""

    def __init__(self, watch: Client) -> None:
        self._watch = watch
        self._before: dict[str, Any] = {}

    def __call__(self) -> PoolFigures | None:
        """The counts since the last call, and what is held now; None if the pool is gone."""
        found = self._stats()
        if found is None:
            return None
        since = self._since(found)
        self._before = found
        return since

    def so_far(self) -> PoolFigures | None:
        """The same, but the next call still counts from the last one."""
        found = self._stats()
        return None if found is None else self._since(found)

    def _stats(self) -> dict[str, Any] | None:
        stats: Any = self._watch.stats(_STATS_S)
        return None if isinstance(stats, Miss) else stats

    def _since(self, stats: dict[str, Any]) -> PoolFigures:
        def moved(of: dict[str, Any]) -> dict[str, int]:
            return {field: _counted(of, *name) if of else 0 for field, name in _NAMES.items()}

        used = {tier["name"]: tier["used_bytes"] for tier in stats["tiers"]}
        return PoolFigures(
            **_grown(moved(self._before), moved(stats)),
            outcomes={
                reason: count
                for reason, count in _grown(_outcomes(self._before), _outcomes(stats)).items()
                if count
            },
            dram_bytes=used["dram"],
            nvme_bytes=used.get("disk", 0),
        )


def _counted(stats: dict[str, Any], name: str, tier: str, direction: str) -> int:
    """A counter, or the successful part of `operations`."""
    labels = {"tier": tier, "direction": direction}
    outcome = {"outcome": OK} if name == "operations" else {}
    return count(stats, name, **labels, **outcome)


def _outcomes(stats: dict[str, Any]) -> dict[str, int]:
    """Requests by what became of them, and loads of a tier that failed, by tier and reason."""
    if not stats:
        return {}
    found = {series["outcome"]: int(value) for series, value in series_of(stats, "requests")}
    for series, value in series_of(stats, "operations", direction="load"):
        if series["outcome"] != OK:
            found[f"{series['tier']}: {series['outcome']}"] = int(value)
    return found


def _grown(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {name: max(0, count - before.get(name, 0)) for name, count in now.items()}


def together(pools: Iterable[PoolFigures | None]) -> PoolFigures | None:
    """The sums over all, with what the last one held; None if there is no pool."""
    found = [pool for pool in pools if pool is not None]
    if not found:
        return None
    sums: dict[str, Any] = {field: sum(getattr(pool, field) for pool in found) for field in _NAMES}
    outcomes: Counter[str] = Counter()
    for pool in found:
        outcomes.update(pool.outcomes)
    return msgspec.structs.replace(found[-1], **sums, outcomes=dict(outcomes))
