"""Packs of this host in one store: their records, their size, and what is published of them.

A tenant's packs leave as a whole, the oldest first; quotas decide which tenant loses one. A pack's
size counts from before it is put until its deletion is confirmed, so that the cap holds whatever a
store does. For its tenant it counts until it is marked for deletion: nothing is put before the
deletion is done, so a tenant's cap holds at every instant, too.

Owned by the tier's thread; the catalog, and the numbers for people, are read by others.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from forebay.record.header import RecordHeader, RecordName
from forebay.record.region import ContentsEntry, short
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.catalog import NO_PARENT, Catalog, Extent, RecordPlace
from forebay.tiers.contract import EvictionCause
from forebay.tiers.quotas import Quotas
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.packs import (
    PackPlace,
    Sequences,
    pack_bytes,
    pack_name,
)
from forebay.tiers.remote.process.recovery import FoundPack, PacksRead, UnreadPack

_GENERATION_BITS: Final = 63
_DELETED_MAX: Final = 1 << 16
_NOBODY: Final = b""  # no tenant's id


class PackExtent(Extent):
    """A pack as the catalog knows it."""

    __slots__ = ("sequence",)

    def __init__(self, number: int, name: str, size_bytes: int, sequence: int) -> None:
        super().__init__(number, name, size_bytes)
        self.sequence = sequence  # sequence among this host's packs


class OwnPack(NamedTuple):
    """A pack that is in the store."""

    extent: PackExtent
    published: PublishedPack

    @property
    def records(self) -> int:
        """The number of records it was put with."""
        return len(self.published.entries) // published.ENTRY_BYTES


class OwnPacks:
    """All packs of this host."""

    def __init__(self, host: str, catalog: Catalog[PackExtent]) -> None:
        self.catalog = catalog
        self.used_bytes = 0  # size of packs that exist, are being put, or may exist
        self.doomed: dict[str, int] = {}  # name → size of packs to be deleted
        self.unread: dict[int, UnreadPack] = {}  # by sequence; included in `used_bytes`
        self.other_versions: set[int] = set()  # sequences of packs that we cannot read; likewise
        self.evictions = 0
        self.quotas = Quotas()  # counts packs that are not to be deleted, by tenant
        self.is_changed = False  # since `tail` was last asked for
        self._being_put: set[int] = set()  # sequences
        self._deleted: dict[str, None] = {}  # names of the last packs that were deleted
        self._host = host
        self._packs: dict[int, OwnPack] = {}  # by sequence, the oldest first
        self._packs_of: dict[bytes, dict[int, OwnPack]] = {}  # likewise, by tenant
        self._sequences = Sequences()
        self._snapshot = Publication(0)
        self._snapshot_bytes = 0

    def find(self, key: bytes) -> PackPlace | None:
        """Where a record lies; any thread may call."""
        found = self.catalog.find(key)
        if found is None:
            return None
        extent, place = found
        return PackPlace(extent.name, extent.sequence, place.offset, place.length)

    def begin(self, tenant: bytes, size_bytes: int) -> int:
        """A pack of this size is about to be put: returns its sequence; it counts from now on."""
        self.used_bytes += size_bytes
        self.quotas.take(tenant, size_bytes)
        sequence = self._sequences.next()
        self._being_put.add(sequence)
        return sequence

    def failed(self, name: RecordName, sequence: int, size_bytes: int) -> None:
        """A pack could not be put, as far as is known; it counts until it is deleted."""
        self._being_put.discard(sequence)
        self.quotas.give(name.tenant, size_bytes)
        self.doomed[pack_name(name.namespace, self._host, sequence)] = size_bytes

    def put(
        self, headers: list[RecordHeader], sequence: int, offsets: list[int], begun: float
    ) -> list[bool]:
        """A pack was put; for each record, whether it can be loaded from now on."""
        self._being_put.discard(sequence)
        size_bytes = pack_bytes([header.length for header in headers])
        entries = [
            ContentsEntry(
                header.name.key,
                header.name.namespace,
                short(header.name.parent),
                offset,
                header.length,
                header.name.group,
            )
            for header, offset in zip(headers, offsets, strict=True)
        ]
        namespace = headers[0].name.namespace
        extent = self._extent(namespace, sequence, size_bytes, headers[0].name.tenant)
        extent.begun_at = begun
        packed = b"".join(map(published.pack_entry, entries))
        self._add(extent, PublishedPack(namespace, sequence, packed, extent.tenant))
        number = extent.number
        return [
            self.catalog.settle(short(entry.key), RecordPlace(number, entry.offset, entry.length))
            for entry in entries
        ]

    def expect(self, unread: Iterable[UnreadPack]) -> None:
        """Count packs of an earlier process that have yet to be read."""
        for pack in unread:
            self.unread[pack.sequence] = pack
            self.used_bytes += pack.size_bytes

    def restore(self, found: Iterable[FoundPack]) -> None:
        """Take over packs of an earlier process, the oldest first.

        No record continues another here: a record leaves with its pack, not with its prefix, which
        may belong to another host or be in a pack that was not read yet. A record that is here
        already, or is being stored, is one of the two.
        """
        extents: list[tuple[PackExtent, Iterable[ContentsEntry]]] = []
        for pack in found:
            self.used_bytes += pack.size_bytes
            self.quotas.take(pack.tenant, pack.size_bytes)
            extent = self._extent(pack.namespace, pack.sequence, pack.size_bytes, pack.tenant)
            self._add(
                extent, PublishedPack(pack.namespace, pack.sequence, pack.entries, pack.tenant)
            )
            extents.append((extent, _roots(pack)))
        self.catalog.restore(extents)

    def read(self, told: PacksRead) -> None:
        """Take over packs that were read; those erased meanwhile are ignored."""
        self.restore([pack for pack in told.found if self._no_longer_unread(pack.sequence)])
        # Nobody could erase a pack without an owner. A pack that was gone may exist again by now.
        for sequence in self.unread.keys() & {*told.gone, *told.nobodys}:
            self._doom_unread(self.unread.pop(sequence))
        for sequence in self.unread.keys() & {*told.other_versions}:
            del self.unread[sequence]  # a release that can read it may be installed again
            self.other_versions.add(sequence)

    @property
    def is_partly_known(self) -> bool:
        """Whether there are packs whose tenant is not known here."""
        return bool(self.unread or self.other_versions)

    def _no_longer_unread(self, sequence: int) -> bool:
        """Whether it was; what it takes is counted by whoever asks."""
        pack = self.unread.pop(sequence, None)
        self.used_bytes -= 0 if pack is None else pack.size_bytes
        return pack is not None

    def _extent(
        self, namespace: bytes, sequence: int, size_bytes: int, tenant: bytes
    ) -> PackExtent:
        name = pack_name(namespace, self._host, sequence)
        extent = PackExtent(self.catalog.number(), name, size_bytes, sequence)
        extent.tenant = tenant
        return extent

    def _add(self, extent: PackExtent, told: PublishedPack) -> None:
        self.catalog.add_extent(extent)
        pack = OwnPack(extent, told)
        self._packs[told.sequence] = pack
        self._packs_of.setdefault(extent.tenant, {})[told.sequence] = pack
        self.is_changed = True

    def make_room(self, tenant: bytes, size_bytes: int, cap_bytes: int) -> bool:
        """Mark old packs for deletion until this one fits; False if no tenant may lose more."""
        if self.unread and self._is_capped(tenant):  # some of these may belong to the tenant
            return False

        def may_lose(loser: bytes) -> bool:
            return self.quotas.may_lose(loser, self._oldest_bytes(loser), tenant)

        while True:
            if not self.quotas.fits(tenant, size_bytes):
                losers = [tenant]
            elif self._kept_bytes + size_bytes > cap_bytes:  # verify: cap of packs
                losers = list(filter(may_lose, self.quotas.losers(tenant, 0)))
            else:
                return True
            if not self._evict(losers, EvictionCause.SPACE):
                return False

    def trim(self, cap_bytes: int) -> None:
        """Mark packs for deletion that exceed this cap, or a tenant's, after it was lowered."""
        cause = EvictionCause.RESIZED
        for tenant in self.quotas.above_caps():
            while not self.quotas.fits(tenant, 0) and self._evict([tenant], cause):
                pass
        while self._kept_bytes > cap_bytes:
            above = self.quotas.losers(_NOBODY, 0)
            if not self._evict([*above, *sorted(self.quotas.holders())], cause):
                break

    @property
    def _kept_bytes(self) -> int:
        """The size of packs that are not to be deleted."""
        return self.used_bytes - sum(self.doomed.values())

    def _is_capped(self, tenant: bytes) -> bool:
        return self.quotas.quota_of(tenant).cap_bytes is not None

    def _oldest_bytes(self, tenant: bytes) -> int:
        packs = self._packs_of.get(tenant)
        return next(iter(packs.values())).extent.size_bytes if packs else 0

    def _evict(self, losers: Iterable[bytes], cause: EvictionCause) -> bool:
        """Evict the oldest pack of the first of these tenants that has one; False if none has."""
        tenant = next((each for each in losers if self._packs_of.get(each)), None)
        if tenant is None:
            return False
        self.evictions += 1
        self._doom(next(iter(self._packs_of[tenant].values())), cause)
        return True

    def erase(self, namespace: bytes | None = None, tenant: bytes | None = None) -> dict[str, int]:
        """Mark a namespace's or tenant's packs, or all, for deletion: name → records of each.

        The tenant of an unread pack is not known, so it stays when a tenant's packs are erased.
        """
        packs = [
            pack
            for pack in self._packs.values()
            if namespace in (None, pack.published.namespace)
            and tenant in (None, pack.extent.tenant)
        ]
        for pack in packs:
            self._doom(pack, EvictionCause.CLEARED)
        named = {pack.extent.name: pack.records for pack in packs}
        if tenant is None:
            for each in [*self.unread.values()]:
                if namespace in (None, each.namespace):
                    del self.unread[each.sequence]
                    named[self._doom_unread(each)] = 0
        return named

    def erase_forgotten(self, forgotten: Collection[bytes]) -> None:
        """Mark for deletion all packs of tenants that were forgotten before."""
        for tenant in {pack.extent.tenant for pack in self._packs.values()} & set(forgotten):
            self.erase(tenant=tenant)

    def _doom_unread(self, pack: UnreadPack) -> str:
        name = pack_name(pack.namespace, self._host, pack.sequence)
        self.doomed[name] = pack.size_bytes
        return name

    def _doom(self, pack: OwnPack, cause: EvictionCause) -> None:
        self.catalog.drop_extent(pack.extent, cause)
        sequence, tenant = pack.published.sequence, pack.extent.tenant
        del self._packs[sequence], self._packs_of[tenant][sequence]
        if not self._packs_of[tenant]:
            del self._packs_of[tenant]
        self.quotas.give(tenant, pack.extent.size_bytes)
        self.doomed[pack.extent.name] = pack.extent.size_bytes
        self.is_changed = True

    def forget(self, key: bytes, place: PackPlace) -> None:
        """A record is not what was stored; it may have been stored again since."""
        if self.find(key) == place:
            self.catalog.forget(key, cause=EvictionCause.DAMAGED)

    def lose(self, sequence: int) -> None:
        """A pack is not in the store: somebody else has deleted it."""
        pack = self._packs.get(sequence)
        if pack is not None:
            self._doom(pack, EvictionCause.CLEARED)

    def sequences(self) -> set[int]:
        """The sequences of all packs in the store, as far as known."""
        return {*self._packs}

    def audited(self, missing: set[int], *, has_tail: bool, has_snapshot: bool) -> None:
        """Packs, or parts of the index, are missing: deleted by others or by the store itself."""
        for sequence in missing:
            self.lose(sequence)
        if self._snapshot.generation and not has_snapshot:
            self._snapshot, self._snapshot_bytes = Publication(0), 0
            has_tail = False  # the snapshot that it continues is gone
        self.is_changed |= not has_tail

    def deleted(self, name: str) -> None:
        """A pack marked for deletion is gone."""
        self.used_bytes -= self.doomed.pop(name)
        self._deleted[name] = None
        if len(self._deleted) > _DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def came_late(self, listed: Iterable[UnreadPack]) -> int:
        """Count listed packs that are not known here; returns how many there are.

        A store may carry out a put that was given up after the deletion. A pack that was deleted
        before is deleted again; any other one is read.
        """
        count = 0
        for pack in listed:
            name = pack_name(pack.namespace, self._host, pack.sequence)
            known = (self._packs, self.unread, self.other_versions, self._being_put)
            if name in self.doomed or any(pack.sequence in each for each in known):
                continue
            count += 1
            if name in self._deleted:
                self.used_bytes += pack.size_bytes
                self._doom_unread(pack)
            else:
                self.expect([pack])
        return count

    def tail(self) -> Publication:
        """A tail: what has changed since the snapshot."""
        self.is_changed = False
        snapshot = {pack.sequence for pack in self._snapshot.packs}
        fresh = (each.published for each in self._packs.values())
        return Publication(
            secrets.randbits(_GENERATION_BITS),
            self._snapshot.generation,
            self._snapshot_bytes,
            tuple(pack for pack in fresh if pack.sequence not in snapshot),
            tuple(snapshot - self._packs.keys()),
        )

    def snapshot(self) -> Publication:
        """A snapshot: all packs."""
        packs = tuple(each.published for each in self._packs.values())
        return Publication(secrets.randbits(_GENERATION_BITS) | 1, packs=packs)

    def snapshot_put(self, snapshot: Publication, size_bytes: int) -> None:
        """From now on tails continue this snapshot."""
        self._snapshot, self._snapshot_bytes = snapshot, size_bytes


def _roots(pack: FoundPack) -> Iterator[ContentsEntry]:
    """The records of a pack, none of which continues another."""
    for key, page, length in published.entries_in(pack.entries):
        yield ContentsEntry(key, pack.namespace, NO_PARENT, page * PAGE_BYTES, length, 0)
