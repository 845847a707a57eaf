"""How a child looks at other hosts: reads what they publish, and what they use most.

Each call of a round asks some hosts, several at the same time: so no call is long, however many
hosts there are, and between two calls the child does other work. Only a complete round has results.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from forebay.record.header import Damage
from forebay.sys import memory
from forebay.tiers.contract import UsedRecord
from forebay.tiers.remote.index import published, table
from forebay.tiers.remote.index.published import ENTRY_BYTES, HOSTS, Publication, PublishedPack
from forebay.tiers.remote.index.used import (
    USED_BYTES_MAX,
    WARM_RECORDS_MAX,
    MergedUses,
    pack_used,
    unpack_used,
    used_name,
)
from forebay.tiers.remote.process.at_once import at_once
from forebay.tiers.remote.store import ObjectStore, StoreFailure

HOSTS_MAX: Final = 1024  # hosts looked at; records of others are not found
KEPT_SPARE: Final = 4096  # entries kept, beyond twice those that may be known


class HostRound:
    """The hosts that are still to be asked in this round."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._left: list[str] = []
        self.is_over = True

    def begin(self) -> list[str] | StoreFailure:
        """Start a new round; returns all its hosts."""
        listed = self._store.listing(HOSTS)
        if isinstance(listed, StoreFailure):
            return listed
        self._left = sorted(each.name.rstrip("/") for each in listed)
        self.is_over = False
        return self._left

    def keep(self, hosts: Sequence[str]) -> None:
        """Ask only these hosts."""
        self._left = list(hosts)

    def take(self, limit: int) -> list[str]:
        """The hosts to ask now; the round is over after the last of them."""
        taken, self._left = self._left[:limit], self._left[limit:]
        self.is_over = not self._left
        return taken


class Refreshed(NamedTuple):
    """What other hosts have published."""

    version: int  # version of the snapshots; rises when one has changed
    tails: bytes  # a table
    snapshots: bytes | None  # a table; None if the caller has this version


class Watcher:
    """Reads what other hosts publish; keeps their snapshots, which change rarely. One thread."""

    def __init__(self, store: ObjectStore, host: str, entries_max: int) -> None:
        self._store, self._host, self._entries_max = store, host, entries_max
        self._round = HostRound(store)
        self._snapshots: dict[str, Publication] = {}
        self._tails: dict[str, Publication] = {}
        self._kept: dict[str, int] = {}  # by host: number of entries kept, and of deleted packs
        self._told: dict[str, Publication] = {}  # the snapshots of the last round
        self._version = secrets.randbelow(1 << 32)  # a later child's are others

    def refresh(self, known: int, limit: int = HOSTS_MAX) -> Refreshed | StoreFailure | None:
        """Look at up to `limit` hosts; at the end of a round returns what all have, before it None.

        Everything is returned if `known` is not the last version.
        """
        if self._round.is_over:
            failure = self._begin()
            if failure is not None:
                return failure
        self._look_at(self._round.take(limit))
        if not self._round.is_over:
            return None
        if self._snapshots != self._told:
            self._version += 1
            self._told = dict(self._snapshots)
        deleted = [sequence for tail in self._tails.values() for sequence in tail.deleted]
        tails = table.build(list(_packs(self._tails, self._entries_max)), deleted)
        if self._version == known:
            return Refreshed(known, tails, None)
        left = max(0, self._entries_max - sum(map(_entries, self._tails.values())))
        snapshots = table.build(list(_packs(self._snapshots, left)), [])
        return Refreshed(self._version, tails, snapshots)

    def _begin(self) -> StoreFailure | None:
        names = self._round.begin()
        if isinstance(names, StoreFailure):
            return names
        hosts = [name for name in names if name != self._host][:HOSTS_MAX]
        for host in {*self._tails} - {*hosts}:
            self._leave(host)
        self._round.keep(hosts)
        return None

    def _look_at(self, hosts: Sequence[str]) -> None:
        """Read what hosts publish now; if that fails, what they published before stays."""
        found: dict[str, Publication] = {}
        for host, tail in zip(hosts, at_once(self._tail, hosts), strict=True):
            if tail is StoreFailure.ABSENT:
                self._leave(host)
            elif isinstance(tail, Publication) and self._has_room(host, tail):
                found[host] = tail
        older = [host for host, tail in found.items() if self._is_new(host, tail)]
        wanted = at_once(lambda host: self._snapshot(host, found[host]), older)
        for host, snapshot in zip(older, wanted, strict=True):
            if snapshot is None:
                del found[host]
            else:
                self._snapshots[host] = snapshot
        for host, tail in found.items():
            self._tails[host] = tail
            if not tail.snapshot:
                self._snapshots.pop(host, None)

    def _tail(self, host: str) -> Publication | StoreFailure | Damage:
        buffer = memory.allocate(published.TAIL_BYTES_MAX)
        count = self._store.get(published.tail_name(host), 0, [buffer])
        return count if isinstance(count, StoreFailure) else published.unpack(buffer[:count])

    def _is_new(self, host: str, tail: Publication) -> bool:
        """Whether a tail continues a snapshot that is not kept here."""
        snapshot = self._snapshots.get(host)
        is_here = snapshot is not None and snapshot.generation == tail.snapshot
        return bool(tail.snapshot) and not is_here

    def _has_room(self, host: str, tail: Publication) -> bool:
        """Whether there is room to keep what a host publishes; if so, it is counted."""
        wanted = _entries(tail) + len(tail.deleted)
        wanted += tail.snapshot_bytes // ENTRY_BYTES if tail.snapshot else 0
        others = sum(self._kept.values()) - self._kept.get(host, 0)
        has_room = others + wanted <= 2 * self._entries_max + KEPT_SPARE
        if has_room:  # verify: memory for what others publish
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
    """The packs of as many hosts as fit the limit of entries."""
    for host, publication in publications.items():
        entries = _entries(publication)
        if entries <= entries_max:  # a host with too many takes no room from others
            entries_max -= entries
            yield host, publication.packs


class UsedByHosts:
    """Finds out what all hosts, including this one, use most. One thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self._round = store, HostRound(store)
        self._uses = MergedUses()
        self._is_heard = self._is_absent = True

    def poll(self, limit: int = HOSTS_MAX) -> bytes | StoreFailure | None:
        """Ask up to `limit` hosts; at the end of a round returns an object of `UsedRecord`s."""
        if self._round.is_over:
            names = self._round.begin()
            if isinstance(names, StoreFailure):
                return names
            self._round.keep(names[:HOSTS_MAX])
            self._uses, self._is_heard, self._is_absent = MergedUses(), False, True
        for told in at_once(self._used, self._round.take(limit)):
            if isinstance(told, StoreFailure):
                self._is_absent = self._is_absent and told is StoreFailure.ABSENT
            elif not isinstance(told, Damage):
                self._is_heard = True
                self._uses.add(told)
        if not self._round.is_over:
            return None
        if not (self._is_heard or self._is_absent):
            return StoreFailure.FAILED
        return pack_used(self._uses.most(), WARM_RECORDS_MAX)

    def _used(self, host: str) -> list[UsedRecord] | StoreFailure | Damage:
        buffer = memory.allocate(USED_BYTES_MAX)[:USED_BYTES_MAX]
        count = self._store.get(used_name(host), 0, [buffer])
        return count if isinstance(count, StoreFailure) else unpack_used(buffer[:count])
