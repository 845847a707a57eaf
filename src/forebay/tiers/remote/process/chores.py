"""What a child does that takes several calls of a store: probe, recovery, audit, and others."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from forebay.record import region as layout
from forebay.record.header import DEFAULT_TENANT, Damage
from forebay.sys import memory
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.remote.index import published, table
from forebay.tiers.remote.index.published import ENTRY_BYTES, HOSTS, Publication, PublishedPack
from forebay.tiers.remote.index.used import (
    USED_BYTES_MAX,
    WARM_RECORDS_MAX,
    most_used,
    pack_used,
    unpack_used,
    used_name,
)
from forebay.tiers.remote.packs import PACKS, contents_place, pack_name, sequence_of
from forebay.tiers.remote.store import ObjectStore, StoredObject, StoreFailure

HOSTS_MAX: Final = 1024  # that are looked at; what the others have is not found
SWEPT_MAX: Final = 10_000  # objects that one sweep deletes
_CONTENTS_BYTES: Final = 64 << 10  # read at a pack's end: room for the tables of most
KEPT_SPARE: Final = 4096  # entries that are kept beyond twice those that may be known
_CANARY_BYTES: Final = 64


class FoundPack(msgspec.Struct, array_like=True, frozen=True):
    """A pack of this host, as it was found in the store."""

    namespace: bytes
    sequence: int
    size_bytes: int
    contents: bytes  # packed entries; none if its table cannot be believed
    tenant: bytes = DEFAULT_TENANT  # whose records they are


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


def recover(store: ObjectStore, host: str) -> bytes | StoreFailure:
    """Packs of this host, the oldest first, as `FoundPack`s."""
    listed = _own_packs(store, host)
    if isinstance(listed, StoreFailure):
        return listed
    found: list[tuple[float, FoundPack]] = []
    for namespace, sequence, each in listed:
        name, size = pack_name(namespace, host, sequence), each.size_bytes
        contents = _contents(store, name, sequence, size)
        pack = FoundPack(namespace, sequence, size, contents, _tenant(store, name))
        found.append((each.modified_s, pack))
    found.sort(key=lambda each: (each[0], each[1].sequence))
    return msgspec.msgpack.encode([pack for _, pack in found])


def _own_packs(
    store: ObjectStore, host: str
) -> list[tuple[bytes, int, StoredObject]] | StoreFailure:
    """The packs of this host that a store lists: namespace, sequence, and what it says of each."""
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


class StoreAudit(msgspec.Struct, array_like=True, frozen=True):
    """What a store has of this host's: others may have deleted some of it, or the store itself."""

    has_tail: bool
    has_snapshot: bool
    sequences: list[int]  # of packs
    has_forgotten: bool  # the list of forgotten tenants


def audit(store: ObjectStore, host: str) -> bytes | StoreFailure:
    """Look at what is there, as a `StoreAudit`.

    The index is read, a few bytes of it: a store that evicts what is not in use is to keep it.
    """
    listed = _own_packs(store, host)
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
    sequences = [sequence for _, sequence, _ in listed]
    return msgspec.msgpack.encode(StoreAudit(has_tail, has_snapshot, sequences, has_forgotten))


def _namespace(each: StoredObject) -> bytes | None:
    try:
        return bytes.fromhex(each.name.removesuffix("/")) if each.name.endswith("/") else None
    except ValueError:
        return None


def _tenant(store: ObjectStore, name: str) -> bytes:
    """Whose a pack is; one whose header cannot be read is taken for the default tenant's."""
    page = memory.allocate(PAGE_BYTES)
    found = store.get(name, 0, [page])
    header = layout.unpack_header(page) if found == PAGE_BYTES else Damage.CUT
    return DEFAULT_TENANT if isinstance(header, Damage) else header.tenant


def _contents(store: ObjectStore, name: str, sequence: int, size_bytes: int) -> bytes:
    """A pack's table of contents; nothing if it cannot be believed."""
    start = max(0, size_bytes - _CONTENTS_BYTES)
    end = memory.allocate(_CONTENTS_BYTES)[: size_bytes - start]
    if store.get(name, start, [end]) != len(end):
        return b""
    footer = contents_place(end[-PAGE_BYTES:], sequence, size_bytes)
    if isinstance(footer, Damage):
        return b""
    used = footer.records * layout.ENTRY_BYTES
    contents = end[max(0, footer.contents_offset - start) :][:used]
    if footer.contents_offset < start:
        contents = memory.allocate(used)[:used]
        if store.get(name, footer.contents_offset, [contents]) != used:
            return b""
    is_sound = not isinstance(layout.unpack_contents(contents, footer), Damage)
    return bytes(contents) if is_sound else b""


class Refreshed(NamedTuple):
    """What other hosts have published."""

    version: int  # of the snapshots; rises when one has changed
    tails: bytes  # a table
    snapshots: bytes | None  # likewise; None if whoever asked has this version


class Watcher:
    """Reads what other hosts publish; keeps their snapshots, which change rarely. One thread."""

    def __init__(self, store: ObjectStore, host: str, entries_max: int) -> None:
        self._store, self._host, self._entries_max = store, host, entries_max
        self._snapshots: dict[str, Publication] = {}
        self._tails: dict[str, Publication] = {}
        self._kept: dict[str, int] = {}  # entries of both, and deleted packs, by host
        self._version = secrets.randbelow(1 << 32)  # a later child's are others
        self._tail = memory.allocate(published.TAIL_BYTES_MAX)

    def refresh(self, known: int) -> Refreshed | StoreFailure:
        """Look at every host, all of it anew where `known` is not the version of last time."""
        listed = self._store.listing(HOSTS)
        if isinstance(listed, StoreFailure):
            return listed
        names = [each.name.rstrip("/") for each in listed]
        hosts = sorted(name for name in names if name != self._host)[:HOSTS_MAX]
        before = dict(self._snapshots)
        for host in {*self._tails} - {*hosts}:
            self._leave(host)
        for host in hosts:
            self._look_at(host)
        if self._snapshots != before:
            self._version += 1
        deleted = [sequence for tail in self._tails.values() for sequence in tail.deleted]
        tails = table.build(list(_packs(self._tails, self._entries_max)), deleted)
        if self._version == known:
            return Refreshed(known, tails, None)
        left = max(0, self._entries_max - sum(map(_entries, self._tails.values())))
        snapshots = table.build(list(_packs(self._snapshots, left)), [])
        return Refreshed(self._version, tails, snapshots)

    def _look_at(self, host: str) -> None:
        """Take over what a host says now; what cannot be read leaves what it said before."""
        count = self._store.get(published.tail_name(host), 0, [self._tail])
        if count is StoreFailure.ABSENT:
            self._leave(host)
        if isinstance(count, StoreFailure):
            return
        tail = published.unpack(self._tail[:count])
        if isinstance(tail, Damage):
            return
        if not self._has_room(host, tail):  # verify: memory for what others publish
            return
        snapshot = self._snapshots.get(host)
        if tail.snapshot and (snapshot is None or snapshot.generation != tail.snapshot):
            snapshot = self._snapshot(host, tail)
            if snapshot is None:
                return
            self._snapshots[host] = snapshot
        elif not tail.snapshot:
            self._snapshots.pop(host, None)
        self._tails[host] = tail

    def _has_room(self, host: str, tail: Publication) -> bool:
        """Whether what a host publishes can be kept beside what others do; if so, it counts."""
        wanted = _entries(tail) + len(tail.deleted)
        wanted += tail.snapshot_bytes // ENTRY_BYTES if tail.snapshot else 0
        others = sum(self._kept.values()) - self._kept.get(host, 0)
        has_room = others + wanted <= 2 * self._entries_max + KEPT_SPARE
        if has_room:
            self._kept[host] = wanted
        return has_room

    def _snapshot(self, host: str, tail: Publication) -> Publication | None:
        size = tail.snapshot_bytes
        if size > published.SNAPSHOT_BYTES_MAX:
            return None
        buffer = memory.allocate(size)[:size]
        if self._store.get(published.snapshot_name(host), 0, [buffer]) != size:
            return None
        found = published.unpack(buffer)
        is_named = isinstance(found, Publication) and found.generation == tail.snapshot
        return found if isinstance(found, Publication) and is_named else None

    def _leave(self, host: str) -> None:
        self._tails.pop(host, None)
        self._snapshots.pop(host, None)
        self._kept.pop(host, None)


def _entries(publication: Publication) -> int:
    return sum(len(pack.entries) for pack in publication.packs) // ENTRY_BYTES


def _packs(
    publications: dict[str, Publication], entries_max: int
) -> Iterator[tuple[str, Sequence[PublishedPack]]]:
    """The packs of as many hosts as may be known."""
    for host, publication in publications.items():
        entries = _entries(publication)
        if entries <= entries_max:  # one of too many does not take the place of others
            entries_max -= entries
            yield host, publication.packs


def used_by_hosts(store: ObjectStore) -> bytes | StoreFailure:
    """What hosts use most, this one too, as an object of `UsedRecord`s."""
    listed = store.listing(HOSTS)
    if isinstance(listed, StoreFailure):
        return listed
    buffer, found, failures = memory.allocate(USED_BYTES_MAX), [], []
    for host in sorted(each.name.rstrip("/") for each in listed)[:HOSTS_MAX]:
        count = store.get(used_name(host), 0, [buffer[:USED_BYTES_MAX]])
        if isinstance(count, StoreFailure):
            failures.append(count)
            continue
        records = unpack_used(buffer[:count])
        if not isinstance(records, Damage):
            found.append(records)
    is_absent = all(failure is StoreFailure.ABSENT for failure in failures)
    if not found and not is_absent:
        return StoreFailure.FAILED
    return pack_used(most_used(found), WARM_RECORDS_MAX)


def sweep(store: ObjectStore, host: str, age_s: float) -> int | StoreFailure:
    """Delete what hosts left that are long dead; how many objects.

    Times are compared as the store noted them: of our own tail, and of theirs. What was put since
    then stays, whoever put it: its host may be about to publish it. Where one listing fails nothing
    is deleted, since whoever is not seen would be taken for dead.
    """
    listings = _Listings(store)
    own = [each for each in listings.objects(f"{HOSTS}/{host}") if each.name == "tail"]
    doomed: list[str] = []
    for now in (each.modified_s for each in own):
        prefixes = _left_by_the_dead(listings, now - age_s, host)
        for prefix in prefixes:
            old = (each for each in listings.objects(prefix) if each.modified_s <= now - age_s)
            doomed += [f"{prefix}/{each.name}" for each in old]
    if listings.failure is not None:
        return listings.failure
    return [store.delete(name) for name in doomed[:SWEPT_MAX]].count(None)


def _left_by_the_dead(listings: "_Listings", until_s: float, host: str) -> list[str]:
    """Where hosts keep things of which nothing below `hosts/` is younger than this."""
    dead: list[str] = []
    alive = {host}
    for each in listings.below(HOSTS):
        prefix = f"{HOSTS}/{each}"
        if all(file.modified_s <= until_s for file in listings.objects(prefix)):
            dead.append(prefix)
        else:
            alive.add(each)
    for namespace in listings.below(PACKS):
        prefix = f"{PACKS}/{namespace}"
        dead += [f"{prefix}/{each}" for each in listings.below(prefix) if each not in alive]
    return dead


class _Listings:
    """Listings of a store, and whether one of them failed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.failure: StoreFailure | None = None

    def below(self, prefix: str) -> list[str]:
        """What has more below it."""
        return [each.name[:-1] for each in self._list(prefix) if each.name.endswith("/")]

    def objects(self, prefix: str) -> list[StoredObject]:
        """What has bytes."""
        return [each for each in self._list(prefix) if not each.name.endswith("/")]

    def _list(self, prefix: str) -> list[StoredObject]:
        found = self._store.listing(prefix)
        if isinstance(found, StoreFailure):
            self.failure = found
            return []
        return found
