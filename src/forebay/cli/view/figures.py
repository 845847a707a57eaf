"""Figures for people, from snapshots of a pool: shares, and rates between two of them.

Pure functions. With one snapshot, amounts and rates are since the pool started; with an older one
as well, since that one. If the pool was restarted in between, they are since its restart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from forebay.metrics.reading import series_of, total

Snapshot = Mapping[str, Any]
ENGINE: Final = "engine"  # source of tokens that were in the engine's own prefix cache
COMPUTED: Final = "computed"
ABSENT: Final = "absent"
_OK: Final = "ok"
_LOADED: Final = "loaded"  # the outcome of a request that is no miss
_HAVE: Final = "have"  # the reason for a store that was not needed
_DUPLICATE: Final = "duplicate"  # the same for a lower tier


@dataclass(frozen=True, slots=True)
class VolumeFigures:
    """One directory."""

    path: str
    is_on: bool
    errors: int


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What a store was asked for."""

    path: str
    requests: Mapping[str, float]  # by kind, in the time for which rates are given
    today: int
    budget: int  # 0: no limit
    dollars_a_day: float  # an estimate


@dataclass(frozen=True, slots=True)
class TierFigures:
    """One tier; rates are in bytes per second."""

    name: str
    used_bytes: int
    cap_bytes: int
    chunks: int
    load_bytes_s: float
    store_bytes_s: float
    queued: int  # operations that wait, or are under way
    volumes: tuple[VolumeFigures, ...]
    age_s: float | None  # median age of chunks when they left it
    gap_s: float | None  # median time since the last use of chunks that were used again
    stores: tuple[StoreFigures, ...] = ()
    node_bytes: tuple[tuple[str, int], ...] = ()  # of memory, by NUMA node

    @property
    def share(self) -> float:
        """The share of its cap that is used."""
        return self.used_bytes / self.cap_bytes if self.cap_bytes else 0.0


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine that has joined."""

    id: str
    model: str
    engine: str
    sharing: str
    why: str
    processes: int
    joined_s: float


@dataclass(frozen=True, slots=True)
class NamespaceFigures:
    """What one configuration of a model holds."""

    namespace: str
    model: str
    bytes: Mapping[str, int]  # by tier
    chunks: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """The bytes in all tiers; what is in two tiers counts twice, as it takes space twice."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """What one tenant has, by tier."""

    tenant: str
    used_bytes: Mapping[str, int]
    floor_bytes: Mapping[str, int] = field(default_factory=dict)
    cap_bytes: Mapping[str, int | None] = field(default_factory=dict)  # None: no cap
    hit_rate: float | None = None  # of the chunks that it looked up; None: it looked up none


@dataclass(frozen=True, slots=True)
class Figures:
    """What a pool holds, and what it did in some seconds."""

    seconds: float  # the time for which amounts and rates are given
    lookups: float
    tokens: Mapping[str, float]  # of prompts, by where they came from
    chunks: Mapping[str, float]  # that were looked up, by the tier that had them
    saved_tokens: float
    saved_gpu_s: float  # an estimate of the engines
    tiers: tuple[TierFigures, ...]
    misses: tuple[tuple[str, float], ...]  # reasons, the most frequent first
    stores_left_out: tuple[tuple[str, float], ...]  # likewise
    evictions: tuple[tuple[str, float], ...]  # by tier and cause, likewise
    errors: tuple[tuple[str, float], ...]  # by kind, likewise
    engines: tuple[EngineFigures, ...]
    namespaces: tuple[NamespaceFigures, ...]  # the largest first
    engines_more: int  # that are not listed
    namespaces_more: int  # likewise
    tenants: tuple[TenantFigures, ...] = ()

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens that came from the pool, without those that engines had.

        If no engine has reported tokens, the share of chunks found; None if none was looked up.
        """
        missing = sum(self.tokens.values()) - self.tokens.get(ENGINE, 0.0)
        if missing:
            return 1 - self.tokens.get(COMPUTED, 0.0) / missing
        looked_up = sum(self.chunks.values())
        return 1 - self.chunks.get(ABSENT, 0.0) / looked_up if looked_up else None

    @property
    def load_bytes_s(self) -> float:
        """The rate of loads by engines; all of them come through the first tier."""
        return self.tiers[0].load_bytes_s if self.tiers else 0.0

    @property
    def store_bytes_s(self) -> float:
        """The rate of stores by engines."""
        return self.tiers[0].store_bytes_s if self.tiers else 0.0


def figures(now: Snapshot, before: Snapshot | None = None) -> Figures:
    """What changed from one snapshot to a later one, or since the pool started."""
    change = Change(now, before)
    return Figures(
        seconds=change.seconds,
        lookups=change.of("lookups"),
        tokens=change.by("request_tokens", "source"),
        chunks=change.by("lookup_chunks", "found"),
        saved_tokens=change.of("saved_tokens"),
        saved_gpu_s=change.of("saved_gpu_seconds_estimate"),
        tiers=tuple(_tier(tier, change) for tier in now["tiers"]),
        misses=_misses(change),
        stores_left_out=_stores_left_out(change),
        evictions=_ranked(change.by("evictions", "tier", "cause").items()),
        errors=_ranked(change.by("errors", "kind").items()),
        engines=tuple(_engine(engine) for engine in now["engines"]),
        namespaces=tuple(_namespace(each) for each in now["namespaces"]),
        engines_more=int(now.get("engines_more") or 0),
        namespaces_more=int(now.get("namespaces_more") or 0),
        tenants=tuple(_tenant(each, change) for each in now.get("tenants", ())),
    )


class Change:
    """The growth of counters since an older snapshot of the same pool."""

    def __init__(self, now: Snapshot, before: Snapshot | None) -> None:
        is_same = before is not None and (
            before["pid"] == now["pid"] and before["uptime_s"] < now["uptime_s"]
        )
        self.now = now
        self.before = before if is_same else None
        begun_s = self.before["uptime_s"] if self.before else 0.0
        self.seconds = max(1e-6, float(now["uptime_s"] - begun_s))

    def of(self, name: str, **labels: str) -> float:
        """How much a counter grew."""
        earlier = total(self.before, name, **labels) if self.before else 0.0
        return max(0.0, total(self.now, name, **labels) - earlier)

    def rate(self, name: str, **labels: str) -> float:
        """How much a counter grew per second."""
        return self.of(name, **labels) / self.seconds

    def by(self, name: str, *labels: str) -> dict[str, float]:
        """How much the series of a counter grew, summed by these labels."""
        grown: Counter[str] = Counter()
        for snapshot, sign in ((self.now, 1), (self.before, -1)):
            for series, value in series_of(snapshot, name) if snapshot else ():
                grown[" ".join(series[label] for label in labels)] += sign * value
        return {name: max(0.0, float(value)) for name, value in grown.items()}

    def median(self, name: str, **labels: str) -> float | None:
        """The median of what was added to a histogram, as the upper bound of its bucket.

        None if nothing was added; the largest bound if the median is beyond it.
        """
        added: Counter[float] = Counter()
        observed = 0
        for snapshot, sign in ((self.now, 1), (self.before, -1)):
            for _, value in series_of(snapshot, name, **labels) if snapshot else ():
                observed += sign * value["count"]
                for bound, up_to in value["buckets"]:
                    added[bound] += sign * up_to
        if observed <= 0:
            return None
        within = (bound for bound in sorted(added) if 2 * added[bound] >= observed)
        return next(within, max(added, default=0.0))


def _misses(change: Change) -> tuple[tuple[str, float], ...]:
    """Requests that loaded nothing, and loads of a tier that failed."""
    found = {**change.by("requests", "outcome"), **_failed(change, "load")}
    found.pop(_LOADED, None)
    return _ranked(found.items())


def _stores_left_out(change: Change) -> tuple[tuple[str, float], ...]:
    found = {**change.by("stores_refused", "reason"), **_failed(change, "store")}
    needless = {reason for reason in found if reason.endswith((_HAVE, _DUPLICATE))}
    return _ranked((reason, count) for reason, count in found.items() if reason not in needless)


def _failed(change: Change, direction: str) -> dict[str, float]:
    """Operations of tiers that failed, by tier and outcome."""
    return {
        f"{series['tier']}: {series['outcome']}": change.of("operations", **series)
        for series, _ in series_of(change.now, "operations", direction=direction)
        if series["outcome"] != _OK
    }


def _ranked(counted: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    kept = [(name.replace("_", " "), count) for name, count in counted if count]
    return tuple(sorted(kept, key=lambda each: (-each[1], each[0])))


def _tier(tier: Mapping[str, Any], change: Change) -> TierFigures:
    name = tier["name"]
    return TierFigures(
        name=name,
        used_bytes=tier["used_bytes"],
        cap_bytes=tier["cap_bytes"],
        chunks=tier["chunks"],
        load_bytes_s=change.rate("moved_bytes", tier=name, direction="load"),
        store_bytes_s=change.rate("moved_bytes", tier=name, direction="store"),
        queued=int(total(change.now, "queue_depth", tier=name)),
        volumes=tuple(
            VolumeFigures(each["path"], each["is_on"], each["errors"]) for each in tier["volumes"]
        ),
        age_s=change.median("age_at_eviction_seconds", tier=name),
        gap_s=change.median("gap_at_reuse_seconds", tier=name),
        stores=tuple(_store(name, each, change) for each in tier["volumes"] if each.get("use")),
        node_bytes=tuple(sorted((tier.get("node_bytes") or {}).items())),
    )


def _store(tier: str, volume: Mapping[str, Any], change: Change) -> StoreFigures:
    use = volume["use"]
    kinds = {
        kind: change.of("remote_requests", tier=tier, request=kind) for kind in use["requests"]
    }
    return StoreFigures(volume["path"], kinds, use["today"], use["budget"], use["dollars_a_day"])


def _engine(engine: Mapping[str, Any]) -> EngineFigures:
    return EngineFigures(**{each.name: engine[each.name] for each in fields(EngineFigures)})


def _namespace(namespace: Mapping[str, Any]) -> NamespaceFigures:
    return NamespaceFigures(
        **{each.name: namespace[each.name] for each in fields(NamespaceFigures)}
    )


def _tenant(row: Mapping[str, Any], change: Change) -> TenantFigures:
    name = row["tenant"]
    tiers = {tier: held for tier, held in row.items() if tier != "tenant"}
    looked_up = change.of("tenant_lookup_chunks", tenant=name)
    known = change.of("tenant_lookup_chunks", tenant=name, found="known")
    return TenantFigures(
        name,
        {tier: held["used_bytes"] for tier, held in tiers.items()},
        {tier: held["floor_bytes"] for tier, held in tiers.items()},
        {tier: held["cap_bytes"] for tier, held in tiers.items()},
        known / looked_up if looked_up else None,
    )
