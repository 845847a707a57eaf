"""Maintenance of a store by a child, in several calls each: probe, audit and sweep."""

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from forebay.sys import memory
from forebay.sys.clock import Clock
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import HOSTS
from forebay.tiers.remote.packs import PACKS
from forebay.tiers.remote.process.recovery import UnreadPack, own_packs
from forebay.tiers.remote.store import ObjectStore, StoredObject, StoreFailure

SWEPT_MAX: Final = 10_000  # objects that one sweep deletes
_CANARY_BYTES: Final = 64
_Published: TypeAlias = tuple[tuple[str, float], ...]  # objects below `hosts/`, and their times


def probe(store: ObjectStore, host: str) -> StoreFailure | None:
    """Whether a store keeps what it is given, by an object of its own."""
    name, canary = f"{HOSTS}/{host}/canary", secrets.token_bytes(_CANARY_BYTES)
    failure = store.put(name, [memoryview(canary)])
    if failure is not None:
        return failure
    found = memory.allocate(_CANARY_BYTES)[:_CANARY_BYTES]
    count = store.get(name, 0, [found])
    if isinstance(count, StoreFailure):
        return count
    is_same = count == _CANARY_BYTES and bytes(found) == canary
    return None if is_same else StoreFailure.FAILED


class StoreAudit(msgspec.Struct, array_like=True, frozen=True):
    """Which of this host's objects are in a store, as others or the store may have deleted some."""

    has_tail: bool
    has_snapshot: bool
    packs: list[UnreadPack]
    has_forgotten: bool  # the list of forgotten tenants


def audit(store: ObjectStore, host: str) -> bytes | StoreFailure:
    """Check what is there, and return a `StoreAudit`.

    Also reads a few bytes of the index, so that a store that evicts unused objects keeps it.
    """
    listed = own_packs(store, host)
    if isinstance(listed, StoreFailure):
        return listed
    has: list[bool] = []
    for name_of in (published.tail_name, published.snapshot_name, published.forgotten_name):
        name = name_of(host)
        count = store.get(name, 0, [memory.allocate(PAGE_BYTES)[:_CANARY_BYTES]])
        if isinstance(count, StoreFailure) and count is not StoreFailure.ABSENT:
            return count
        has.append(count is not StoreFailure.ABSENT)
    has_tail, has_snapshot, has_forgotten = has
    packs = [UnreadPack(name, sequence, each.size_bytes) for name, sequence, each in listed]
    return msgspec.msgpack.encode(StoreAudit(has_tail, has_snapshot, packs, has_forgotten))


class HostWatch:
    """Since when hosts have published nothing, by this process's own clock. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[_Published, float]] = {}  # by host: as published, since when

    def look(self, hosts: Mapping[str, _Published]) -> None:
        """These hosts exist, and have published this."""
        now, before = self._clock.monotonic(), self._since
        self._since = {
            host: before[host] if host in before and before[host][0] == seen else (seen, now)
            for host, seen in hosts.items()
        }

    def is_silent(self, host: str, watched_s: float) -> bool:
        """Whether a host has published nothing for this long, in which it was watched."""
        return self._clock.monotonic() - self._since[host][1] >= watched_s


def sweep(
    store: ObjectStore, host: str, age_s: float, watched_s: float, watch: HostWatch
) -> int | StoreFailure:
    """Delete what long dead hosts left; returns how many objects.

    Times are compared as the store noted them: of our own tail, and of theirs. Some file systems
    note a client's time, and a client's date may be wrong: so nothing is deleted of a host that we
    have not seen silent for `watched_s` ourselves. What was put in that time stays, whoever put it:
    its host may be about to publish it. If any listing fails nothing is deleted, since a host that
    is not seen would be taken for dead.
    """
    listings = _Listings(store)
    own = [each for each in listings.objects(f"{HOSTS}/{host}") if each.name == "tail"]
    doomed: list[str] = []
    for now in (each.modified_s for each in own):
        left = _left_by_others(listings, host)
        if listings.failure is None:
            watch.look(left.published)
        dead = [
            each
            for each, seen in left.published.items()
            if all(modified_s <= now - age_s for _, modified_s in seen)
            if listings.failure is None and watch.is_silent(each, watched_s)
        ]
        for prefix in (prefix for each in dead for prefix in left.prefixes[each]):
            old = (each for each in listings.objects(prefix) if each.modified_s <= now - age_s)
            doomed += [f"{prefix}/{each.name}" for each in old]
    if listings.failure is not None:
        return listings.failure
    return [store.delete(name) for name in doomed[:SWEPT_MAX]].count(None)


class _Left(NamedTuple):
    """What other hosts keep in a store."""

    published: dict[str, _Published]  # by host
    prefixes: dict[str, list[str]]  # by host, where it keeps things


def _left_by_others(listings: "_Listings", host: str) -> _Left:
    left = _Left({}, {})
    for each in listings.below(HOSTS):
        prefix = f"{HOSTS}/{each}"
        found = ((file.name, file.modified_s) for file in listings.objects(prefix))
        left.published[each], left.prefixes[each] = tuple(sorted(found)), [prefix]
    for namespace in listings.below(PACKS):
        for each in listings.below(f"{PACKS}/{namespace}"):
            left.published.setdefault(each, ())
            left.prefixes.setdefault(each, []).append(f"{PACKS}/{namespace}/{each}")
    for whose in left:
        whose.pop(host, None)
    return left


class _Listings:
    """Listings of a store, and whether one of them failed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.failure: StoreFailure | None = None

    def below(self, prefix: str) -> list[str]:
        """The names of prefixes right below this one."""
        return [each.name[:-1] for each in self._list(prefix) if each.name.endswith("/")]

    def objects(self, prefix: str) -> list[StoredObject]:
        """The objects right below this prefix."""
        return [each for each in self._list(prefix) if not each.name.endswith("/")]

    def _list(self, prefix: str) -> list[StoredObject]:
        found = self._store.listing(prefix)
        if isinstance(found, StoreFailure):
            self.failure = found
            return []
        return found
