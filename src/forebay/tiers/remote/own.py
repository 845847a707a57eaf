"""Packs of this host in one store: what they hold, what they may take, what is published.

Packs leave in the order in which they came, whole. What a pack takes counts from before it is put
until its deletion is confirmed, so that the cap holds whatever a store does.

Owned by the tier's thread; the catalog, and the numbers for people, are read by others.
"""

import secrets
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from forebay.record.header import RecordHeader
from forebay.record.region import ContentsEntry, short
from forebay.tiers.contract import EvictionCause
from forebay.tiers.disk.catalog import Catalog
from forebay.tiers.disk.index import NO_PARENT, RecordPlace
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.others import OtherHosts
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.packs import (
    PackPlace,
    Sequences,
    entries_of,
    pack_bytes,
    pack_name,
)
from forebay.tiers.remote.process.chores import FoundPack

_GENERATION_BITS: Final = 63


class OwnPack(NamedTuple):
    """A pack that is in the store."""

    region: Region  # as the catalog knows it
    published: PublishedPack

    @property
    def records(self) -> int:
        """How many records it was put with."""
        return len(self.published.entries) // published.ENTRY_BYTES


class OwnPacks:
    """All packs of this host."""

    def __init__(self, host: str, catalog: Catalog) -> None:
        self.catalog = catalog
        self.used_bytes = 0  # of packs that are there, are being put, or may be there
        self.doomed: dict[str, int] = {}  # name → bytes of what is to be deleted
        self.evictions = 0
        self.is_changed = False  # since `tail` was last asked for
        self._host = host
        self._packs: dict[int, OwnPack] = {}  # by sequence, the oldest first
        self._sequences = Sequences()
        self._snapshot = Publication(0)
        self._snapshot_bytes = 0

    def find(self, key: bytes) -> PackPlace | None:
        """Where a record lies; any thread may ask."""
        found = self.catalog.find(key)
        if found is None:
            return None
        region, place = found
        return PackPlace(region.name, region.generation, place.offset, place.length)

    def begin(self, size_bytes: int) -> int:
        """The sequence of a pack that is about to be put, and counts from now on."""
        self.used_bytes += size_bytes
        return self._sequences.next()

    def failed(self, namespace: bytes, sequence: int, size_bytes: int) -> None:
        """A pack was not put, as far as can be told: it counts until it is deleted."""
        self.doomed[pack_name(namespace, self._host, sequence)] = size_bytes

    def put(
        self, headers: list[RecordHeader], sequence: int, offsets: list[int], begun: float
    ) -> list[bool]:
        """A pack is in the store; for each record, whether it can be loaded from now on."""
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
        region = Region(self.catalog.number(), "", sequence, -1, size_bytes)
        region.begun_at, region.tenant = begun, headers[0].name.tenant
        pack = self._add(namespace, region, entries)
        number = pack.region.number
        return [
            self.catalog.settle(short(entry.key), RecordPlace(number, entry.offset, entry.length))
            for entry in entries
        ]

    def restore(self, found: list[FoundPack], others: OtherHosts) -> int:
        """Take over the packs of an earlier process; how many records have no prefix any more.

        A record may continue one that another host has.
        """
        listed = [(pack, entries_of(pack.contents)) for pack in found]
        keys = {short(entry.key) for _, entries in listed for entry in entries}

        def rooted(entry: ContentsEntry) -> ContentsEntry:
            parent = entry.parent
            is_elsewhere = parent not in keys and others.has(parent)
            return entry._replace(parent=NO_PARENT) if is_elsewhere else entry

        regions: list[tuple[Region, Iterable[ContentsEntry]]] = []
        for pack, entries in listed:
            self.used_bytes += pack.size_bytes
            region = Region(self.catalog.number(), "", pack.sequence, -1, pack.size_bytes)
            region.tenant = pack.tenant
            added = self._add(pack.namespace, region, entries)
            regions.append((added.region, [rooted(entry) for entry in entries]))
        return self.catalog.restore(regions)

    def _add(
        self,
        namespace: bytes,
        region: Region,
        entries: list[ContentsEntry],
    ) -> OwnPack:
        sequence = region.generation
        region.name = pack_name(namespace, self._host, sequence)
        self.catalog.add_region(region)
        packed = b"".join(map(published.pack_entry, entries))
        pack = OwnPack(region, PublishedPack(namespace, sequence, packed))
        self._packs[sequence] = pack
        self.is_changed = True
        return pack

    def evict(self, cause: EvictionCause) -> None:
        """Let the oldest pack go."""
        self.evictions += 1
        self._doom(next(iter(self._packs.values())), cause)

    def erase(self, namespace: bytes | None = None, tenant: bytes | None = None) -> dict[str, int]:
        """Let all packs go, of a namespace, or of a tenant; their names, and records of each."""
        packs = [
            pack
            for pack in self._packs.values()
            if namespace in (None, pack.published.namespace)
            and tenant in (None, pack.region.tenant)
        ]
        for pack in packs:
            self._doom(pack, EvictionCause.CLEARED)
        return {pack.region.name: pack.records for pack in packs}

    def erase_forgotten(self, forgotten: Collection[bytes]) -> None:
        """Let all packs of tenants go that were forgotten before."""
        for tenant in {pack.region.tenant for pack in self._packs.values()} & set(forgotten):
            self.erase(tenant=tenant)

    def held_by_tenants(self) -> dict[bytes, int]:
        """Bytes of packs by tenant; any thread may ask."""
        held: dict[bytes, int] = {}
        for pack in list(self._packs.values()):
            held[pack.region.tenant] = held.get(pack.region.tenant, 0) + pack.region.size_bytes
        return held

    def _doom(self, pack: OwnPack, cause: EvictionCause) -> None:
        self.catalog.drop_region(pack.region, cause)
        del self._packs[pack.published.sequence]
        self.doomed[pack.region.name] = pack.region.size_bytes
        self.is_changed = True

    def forget(self, key: bytes, place: PackPlace) -> None:
        """A record is not what was stored; it may have been stored again meanwhile."""
        if self.find(key) == place:
            self.catalog.forget(key, cause=EvictionCause.DAMAGED)

    def lose(self, sequence: int) -> None:
        """A pack is not in the store: somebody else has deleted it."""
        pack = self._packs.get(sequence)
        if pack is not None:
            self._doom(pack, EvictionCause.CLEARED)

    def sequences(self) -> set[int]:
        """Of all packs that are in the store, as far as is known."""
        return {*self._packs}

    def audited(self, missing: set[int], *, has_tail: bool, has_snapshot: bool) -> None:
        """Somebody else, or the store itself, may have deleted packs, or parts of the index."""
        for sequence in missing:
            self.lose(sequence)
        if self._snapshot.generation and not has_snapshot:
            self._snapshot, self._snapshot_bytes = Publication(0), 0
            has_tail = False  # what it continues is gone
        self.is_changed |= not has_tail

    def deleted(self, name: str) -> None:
        """A doomed pack is gone."""
        self.used_bytes -= self.doomed.pop(name)

    def tail(self) -> Publication:
        """What has changed since the snapshot."""
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
        """Everything."""
        packs = tuple(each.published for each in self._packs.values())
        return Publication(secrets.randbits(_GENERATION_BITS) | 1, packs=packs)

    def snapshot_put(self, snapshot: Publication, size_bytes: int) -> None:
        """Let tails continue this snapshot from now on."""
        self._snapshot, self._snapshot_bytes = snapshot, size_bytes
