"""Finds this host's packs: by what the host has published about them, or by reading them.

A pack that the host's own index lists, with its tenant and with the size that the store lists, is
not read: its records are verified when they are loaded, like all. But a host that was killed may
have put packs after its last tail, and an older release's index does not tell a pack's tenant: such
packs are read, some per call, several at the same time. If a call of the store fails, the pack is
read again later.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from forebay.record import region as layout
from forebay.record.header import DEFAULT_TENANT, Damage
from forebay.sys import memory
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.packs import (
    PACKS,
    contents_place,
    entries_of,
    pack_bytes,
    pack_name,
    sequence_of,
)
from forebay.tiers.remote.process.at_once import at_once
from forebay.tiers.remote.store import ObjectStore, StoredObject, StoreFailure

PACK_GETS_MAX: Final = 3  # gets that reading one pack takes
_CONTENTS_BYTES: Final = 64 << 10  # read at a pack's end: room for the tables of most


class UnreadPack(NamedTuple):
    """A pack of this host of which only the store's listing is known."""

    namespace: bytes
    sequence: int
    size_bytes: int


class FoundPack(msgspec.Struct, array_like=True, frozen=True):
    """A pack of this host, with its records."""

    namespace: bytes
    sequence: int
    size_bytes: int
    entries: bytes  # as published; empty if the pack's table is damaged
    tenant: bytes = DEFAULT_TENANT  # whose records they are


class Recovered(msgspec.Struct, array_like=True, frozen=True):
    """All packs of this host, the oldest first."""

    found: list[FoundPack]
    unread: list[UnreadPack]


class PacksRead(msgspec.Struct, array_like=True, frozen=True):
    """What became of some unread packs; any that are in no list could not be read now."""

    found: list[FoundPack]
    gone: list[int]  # sequences of packs that are not there
    nobodys: list[int]  # sequences of packs with a damaged header, whose tenant is not known
    other_versions: list[int] = []  # sequences of packs of another format version


def recover(store: ObjectStore, host: str) -> bytes | StoreFailure:
    """All packs of this host, as `Recovered`, from listings and the host's own index."""
    listed = own_packs(store, host)
    if isinstance(listed, StoreFailure):
        return listed
    index = _index(store, host) if listed else {}
    if isinstance(index, StoreFailure):
        return index
    listed.sort(key=lambda each: (each[2].modified_s, each[1]))
    found, unread = [], []
    for namespace, sequence, each in listed:
        size_bytes = each.size_bytes
        said = index.get((namespace, sequence))
        if said is not None and said.tenant and _bytes_of(said) == size_bytes:
            found.append(FoundPack(namespace, sequence, size_bytes, said.entries, said.tenant))
        else:
            unread.append(UnreadPack(namespace, sequence, size_bytes))
    return msgspec.msgpack.encode(Recovered(found, unread))


def own_packs(
    store: ObjectStore, host: str
) -> list[tuple[bytes, int, StoredObject]] | StoreFailure:
    """Packs of this host in the store: namespace, sequence, and the listing's entry for each."""
    found: list[tuple[bytes, int, StoredObject]] = []
    namespaces = store.listing(PACKS)
    if isinstance(namespaces, StoreFailure):
        return namespaces
    for namespace in filter(None, map(_namespace, namespaces)):
        packs = store.listing(f"{PACKS}/{namespace.hex()}/{host}")
        if isinstance(packs, StoreFailure):
            return packs
        sequences = ((sequence_of(each.name), each) for each in packs)
        found += [(namespace, number, each) for number, each in sequences if number is not None]
    return found


def _namespace(each: StoredObject) -> bytes | None:
    try:
        return bytes.fromhex(each.name.removesuffix("/")) if each.name.endswith("/") else None
    except ValueError:
        return None


def _bytes_of(pack: PublishedPack) -> int:
    """The size of a pack with these records."""
    return pack_bytes([length for _, _, length in published.entries_in(pack.entries)])


def _index(store: ObjectStore, host: str) -> dict[tuple[bytes, int], PublishedPack] | StoreFailure:
    """The packs that this host has published, by namespace and sequence."""
    tail = _publication(store, published.tail_name(host), published.TAIL_BYTES_MAX)
    if isinstance(tail, StoreFailure):
        return tail
    packs = list(tail.packs)
    if tail.snapshot and tail.snapshot_bytes <= published.SNAPSHOT_BYTES_MAX:
        snapshot = _publication(store, published.snapshot_name(host), tail.snapshot_bytes)
        if isinstance(snapshot, StoreFailure):
            return snapshot
        packs += snapshot.packs if snapshot.generation == tail.snapshot else ()
    return {(pack.namespace, pack.sequence): pack for pack in packs}


def _publication(store: ObjectStore, name: str, size_bytes: int) -> Publication | StoreFailure:
    """What an object publishes; empty if it is absent or damaged, or why reading failed."""
    buffer = memory.allocate(size_bytes)[:size_bytes]
    count = store.get(name, 0, [buffer])
    if isinstance(count, StoreFailure):
        return Publication(0) if count is StoreFailure.ABSENT else count
    found = published.unpack(buffer[:count])
    return Publication(0) if isinstance(found, Damage) else found


def read(store: ObjectStore, host: str, packs: Sequence[UnreadPack]) -> bytes:
    """Read packs' records and tenants, as `PacksRead`."""
    told = PacksRead([], [], [])
    outcomes = at_once(lambda pack: _read(store, host, pack), packs)
    for pack, outcome in zip(packs, outcomes, strict=True):
        if isinstance(outcome, FoundPack):
            told.found.append(outcome)
        elif outcome is Damage.NEWER_VERSION:  # verify: not ours to delete
            told.other_versions.append(pack.sequence)
        elif isinstance(outcome, Damage):
            told.nobodys.append(pack.sequence)
        elif outcome is StoreFailure.ABSENT:
            told.gone.append(pack.sequence)
    return msgspec.msgpack.encode(told)


def _read(store: ObjectStore, host: str, pack: UnreadPack) -> FoundPack | StoreFailure | Damage:
    name = pack_name(pack.namespace, host, pack.sequence)
    header = _header(store, name)
    if isinstance(header, StoreFailure | Damage):
        return header
    contents = _contents(store, name, pack.sequence, pack.size_bytes)
    if isinstance(contents, StoreFailure):
        return contents
    entries = b"" if isinstance(contents, Damage) else contents
    packed = b"".join(map(published.pack_entry, entries_of(entries)))
    return FoundPack(*pack, packed, header.tenant)


def _header(store: ObjectStore, name: str) -> layout.RegionHeader | StoreFailure | Damage:
    page = memory.allocate(PAGE_BYTES)
    count = store.get(name, 0, [page])
    if isinstance(count, StoreFailure):
        return count
    return layout.unpack_header(page) if count == PAGE_BYTES else Damage.CUT


def _contents(
    store: ObjectStore, name: str, sequence: int, size_bytes: int
) -> bytes | StoreFailure | Damage:
    """A pack's table of contents."""
    start = max(0, size_bytes - _CONTENTS_BYTES)
    end = memory.allocate(_CONTENTS_BYTES)[: size_bytes - start]
    count = store.get(name, start, [end])
    if isinstance(count, StoreFailure):
        return count
    if count != len(end):
        return Damage.CUT
    footer = contents_place(end[-PAGE_BYTES:], sequence, size_bytes)
    if isinstance(footer, Damage):
        return footer
    used = footer.records * layout.ENTRY_BYTES
    contents = end[max(0, footer.contents_offset - start) :][:used]
    if footer.contents_offset < start:
        contents = memory.allocate(used)[:used]
        count = store.get(name, footer.contents_offset, [contents])
        if isinstance(count, StoreFailure):
            return count
        if count != used:
            return Damage.CUT
    damage = layout.unpack_contents(contents, footer)
    return damage if isinstance(damage, Damage) else bytes(contents)
