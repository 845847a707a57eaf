"""A tier around another one that encrypts the names of records, so that no medium learns them.

Works with every tier, since names are opaque to all of them. What a medium can still tell: how long
records are, when they were written, and which record continues which.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from forebay.record.header import Digest, RecordName
from forebay.record.keyring import NameCipher
from forebay.sys.shared import SharedMemory
from forebay.tiers.contract import (
    Forgotten,
    Hit,
    LargestNamespaces,
    LoadOutcome,
    MissReason,
    NamespaceUsage,
    Prefix,
    Removed,
    StoreOutcome,
    Tier,
    TierListener,
    TierSpeed,
    Usage,
    UsedRecord,
    VolumeProbe,
    VolumeStatus,
    WarmStart,
)
from forebay.tiers.quotas import Quota


class HiddenNamesTier(Tier):
    """A tier that passes on everything under encrypted names."""

    def __init__(
        self, opener: Callable[[TierListener], Tier], names: NameCipher, listener: TierListener
    ) -> None:
        """Open the other tier, which may raise."""
        self._names = names
        self._tier = opener(_ShownListener(listener, names))
        self.name = self._tier.name
        self.comes_back = self._tier.comes_back
        self.quotas_of = self._tier.quotas_of

    def takes_stores(self) -> bool:
        """See Tier."""
        return self._tier.takes_stores()

    def speed(self) -> TierSpeed | None:
        """See Tier."""
        return self._tier.speed()

    def off_reason(self) -> MissReason:
        """See Tier."""
        return self._tier.off_reason()

    def attach(self, slab: SharedMemory) -> None:
        """See Tier."""
        self._tier.attach(slab)

    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        """See Tier."""
        return self._tier.prefix(self._names.hide_all(keys))

    def has(self, key: bytes) -> bool:
        """See Tier."""
        return self._tier.has(self._names.hide(key))

    def length_of(self, key: bytes) -> int | None:
        """See Tier."""
        return self._tier.length_of(self._names.hide(key))

    def submit_load(
        self,
        name: RecordName,
        target: memoryview,
        done: Callable[[LoadOutcome], None],
        deadline: float,
    ) -> None:
        """See Tier."""
        shown = partial(self._loaded, done)
        self._tier.submit_load(self._hidden(name), target, shown, deadline)

    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: Callable[[StoreOutcome], None],
        digest: Digest | None = None,
    ) -> None:
        """See Tier."""
        self._tier.submit_store(self._hidden(name), source, length, done, digest)

    def remove(self, key: bytes) -> None:
        """See Tier."""
        self._tier.remove(self._names.hide(key))

    def used(self, key: bytes, at: float) -> None:
        """See Tier."""
        self._tier.used(self._names.hide(key), at)

    def asked(self, keys: Sequence[bytes]) -> None:
        """See Tier."""
        self._tier.asked(self._names.hide_all(keys))

    def publish_used(self, records: Sequence[UsedRecord]) -> None:
        """See Tier."""
        self._tier.publish_used([_used(each, self._names.hide) for each in records])

    def lost(self, key: bytes) -> None:
        """See Tier."""
        self._tier.lost(self._names.hide(key))

    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """See Tier."""
        return {self._names.show(name): usage for name, usage in self._tier.namespaces().items()}

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """See Tier."""
        return self._tier.usage_of([self._names.hide(name) for name in namespaces])

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """See Tier."""
        found = self._tier.largest_namespaces(limit)
        return LargestNamespaces([self._names.show(name) for name in found.names], found.total)

    def packs_of_others(self) -> dict[bytes, int]:
        """See Tier."""
        return {self._names.show(name): n for name, n in self._tier.packs_of_others().items()}

    def erase(self, namespace: bytes | None, *, scrub: bool = False) -> int:
        """See Tier."""
        hidden = None if namespace is None else self._names.hide(namespace)
        return self._tier.erase(hidden, scrub=scrub)

    def resize(self, path: str, cap_bytes: int) -> bool:
        """See Tier."""
        return self._tier.resize(path, cap_bytes)

    def rotate(self) -> None:
        """See Tier."""
        self._tier.rotate()

    def forgotten(self) -> frozenset[bytes]:
        """See Tier."""
        return frozenset(map(self._names.show, self._tier.forgotten()))

    def remember_forgotten(self, tenant: bytes) -> str:
        """See Tier."""
        return self._tier.remember_forgotten(self._names.hide(tenant))

    def forget(self, tenant: bytes, *, scrub: bool) -> Forgotten:
        """See Tier."""
        return self._tier.forget(self._names.hide(tenant), scrub=scrub)

    def delete_forgotten(self, tenants: frozenset[bytes]) -> None:
        """See Tier."""
        self._tier.delete_forgotten(frozenset(map(self._names.hide, tenants)))

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """See Tier."""
        self._tier.set_quotas({self._names.hide(name): quota for name, quota in quotas.items()})

    def held_by_tenants(self) -> dict[bytes, int]:
        """See Tier."""
        return {self._names.show(name): n for name, n in self._tier.held_by_tenants().items()}

    def probe(self, done: Callable[[VolumeProbe], None]) -> int:
        """See Tier."""
        return self._tier.probe(done)

    def usage(self) -> Usage:
        """See Tier."""
        return self._tier.usage()

    def volumes(self) -> list[VolumeStatus]:
        """See Tier."""
        return self._tier.volumes()

    def close(self, timeout_s: float) -> None:
        """See Tier."""
        self._tier.close(timeout_s)

    def _hidden(self, name: RecordName) -> RecordName:
        return _renamed(name, self._names.hide)

    def _loaded(self, done: Callable[[LoadOutcome], None], outcome: LoadOutcome) -> None:
        if isinstance(outcome, Hit) and outcome.header is not None:
            header = outcome.header
            shown = replace(header, name=_renamed(header.name, self._names.show))
            outcome = replace(outcome, header=shown)
        done(outcome)


def _renamed(name: RecordName, rename: Callable[[bytes], bytes]) -> RecordName:
    return replace(
        name,
        namespace=rename(name.namespace),
        key=rename(name.key),
        parent=rename(name.parent),
        tenant=rename(name.tenant),
    )


def _used(record: UsedRecord, rename: Callable[[bytes], bytes]) -> UsedRecord:
    namespace, tenant, group, key, uses = record
    return UsedRecord(rename(namespace), rename(tenant), group, rename(key), uses)


class _ShownListener(TierListener):
    """Tells another listener about records by their real names."""

    def __init__(self, listener: TierListener, names: NameCipher) -> None:
        self._listener, self._names = listener, names

    def removed(self, records: list[Removed]) -> None:
        show = self._names.show
        shown = [each._replace(key=show(each.key), tenant=show(each.tenant)) for each in records]
        self._listener.removed(shown)

    def learned(self, keys: Sequence[bytes]) -> None:
        self._listener.learned([self._names.show(key) for key in keys])

    def forgotten(self, tenants: frozenset[bytes]) -> None:
        self._listener.forgotten(frozenset(map(self._names.show, tenants)))

    def warm_start(self, offered: WarmStart) -> None:
        shown = [_used(each, self._names.show) for each in offered.records]
        self._listener.warm_start(offered._replace(records=shown))

    def holds(self, key: bytes) -> bool:
        return self._listener.holds(self._names.show(key))
