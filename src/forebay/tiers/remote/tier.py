"""The remote tier: one store, shared with other hosts, behind the contract of every tier.

One thread owns everything except the index, which any thread may search: nothing here waits for a
store, and no lookup leaves this process. A child process makes the calls of the store. Records that
other hosts have published count as being here; if they were deleted, that is noticed when they are
loaded, as a miss.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from forebay.errors import DirectoryError, StartupError
from forebay.record.forgotten import FORGOTTEN_MAX
from forebay.record.header import ROOT, Digest, RecordName
from forebay.record.keyring import StoreKeys
from forebay.record.region import REGION_BYTES_MAX, short
from forebay.sys import memory, processes
from forebay.sys.processes import Wake
from forebay.sys.shared import SharedMemory
from forebay.sys.world import World
from forebay.tiers.catalog import Catalog
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Forgotten,
    LargestNamespaces,
    LoadOutcome,
    Miss,
    MissReason,
    NamespaceUsage,
    Prefix,
    StoreOutcome,
    Tier,
    TierListener,
    TierSpeed,
    Usage,
    UsedRecord,
    VolumeProbe,
    VolumeStatus,
)
from forebay.tiers.quotas import FLOORS, Quota
from forebay.tiers.remote.accounting.ledger import Ledger
from forebay.tiers.remote.breaker import Breaker
from forebay.tiers.remote.index.others import OtherHosts
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.io.probing import RemoteProbing
from forebay.tiers.remote.io.reading import RemoteReading
from forebay.tiers.remote.io.upkeep import Upkeep
from forebay.tiers.remote.io.writing import RemoteWriting
from forebay.tiers.remote.jobs import DeleteOrder, Inbox, RememberOrder, RemoteLoad, RemoteStore
from forebay.tiers.remote.lending import Lending
from forebay.tiers.remote.options import RemoteOptions, pack_cap_bytes
from forebay.tiers.remote.own import OwnPacks
from forebay.tiers.remote.packs import frame_bytes, pack_bytes
from forebay.tiers.remote.process.link import Link
from forebay.tiers.remote.stores.opening import require_package
from forebay.urls import REMOTE_BYTES_MIN, parse_url

_OTHER_CALLS: Final = 3  # calls that can be under way beside reads: a put, maintenance, a probe
_UNREAD: Final = (
    "packs of an earlier process are still being read, or have another format version, and go when "
    "they are read and are the tenant's"
)
_EXIT_S: Final = 5.0  # how long a killed child may take; one that hangs in the kernel takes longer


class RemoteTier(Tier):
    """Records in one store."""

    comes_back = True
    quotas_of = "remote"

    def __init__(self, parts: RemoteParts, name: str, world: World) -> None:
        """Use `open`."""
        self.name = name
        self.parts = parts
        self._catalog, self._others = parts.own.catalog, parts.others
        self._barrier, self._clock = world.barrier, world.clock
        self._reading, self._writing = RemoteReading(parts), RemoteWriting(parts)
        self.upkeep, self._probing = Upkeep(parts), RemoteProbing(parts)
        self._wake = Wake()
        self._close_at: float | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="forebay-remote", daemon=True)

    @classmethod
    def open(
        cls,
        url: str,
        host: str,
        options: RemoteOptions | None = None,
        world: World | None = None,
        listener: TierListener | None = None,
        *,
        name: str = "remote",
    ) -> Self:
        """Start the tier; if its store does not answer in time, it is used once it does.

        A SettingsError if the URL is no store's; a StartupError if a package, memory or a thread is
        missing.
        """
        world, listener, wanted = world or World(), listener or TierListener(), parse_url(url)
        options = (options or RemoteOptions()).for_timeout(wanted.timeout_s)
        require_package(wanted)
        threads, entries = str(options.read_depth + _OTHER_CALLS), str(options.entries_max)
        link = Link([url, host, threads, entries])
        try:
            scratch_bytes = frame_bytes(options.pack_records_max)
            lending = Lending(link, scratch_bytes, options.read_depth)
            parts = RemoteParts(
                wanted.place,
                host,
                wanted.cap_bytes,
                options,
                world.clock,
                listener,
                link,
                lending,
                Breaker(options, world.clock.monotonic()),
                OwnPacks(host, Catalog(listener)),
                OtherHosts(options),
                Inbox(options),
                Ledger(wanted.prices, wanted.terms.requests_a_day, world.clock.monotonic()),
                None if options.keyring is None else StoreKeys(options.keyring),
                warm=wanted.terms.warm,
            )
            tier = cls(parts, name, world)
            tier._thread.start()
        except (OSError, RuntimeError) as error:
            raise StartupError(f"{wanted.place} cannot be used ({error}).") from None
        tier.upkeep.begun.wait(options.open_s)
        return tier

    def takes_stores(self) -> bool:
        """See Tier."""
        return self.parts.takes_stores(self._clock.monotonic())

    def off_reason(self) -> MissReason:
        """See Tier."""
        return self.parts.off_reason

    def speed(self) -> TierSpeed:
        """See Tier."""
        return self.parts.speed.told(self._clock.monotonic())

    def attach(self, slab: SharedMemory) -> None:
        """See Tier. The child maps it, and nothing is copied."""
        self.parts.lending.attach(slab)

    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        """See Tier."""
        if not self.parts.takes_loads:
            return Prefix(0)
        wanted, at, is_found = [short(key) for key in keys], 0, True
        while is_found:
            before = at
            at += self._catalog.prefix(wanted[at:])
            at = self._others.prefix(wanted, at)
            is_found = before < at
        return Prefix(at)

    def has(self, key: bytes) -> bool:
        """See Tier."""
        return self._catalog.has(short(key)) or self._others.has(key)

    def length_of(self, key: bytes) -> int | None:
        """See Tier."""
        if not self.parts.takes_loads:
            return None
        own = self.parts.own.find(short(key))
        row = None if own is not None else self._others.find(key)
        place = row.place if row is not None else own
        return None if place is None else place.length

    def submit_load(
        self,
        name: RecordName,
        target: memoryview,
        done: Callable[[LoadOutcome], None],
        deadline: float,
    ) -> None:
        """See Tier."""
        assert memory.is_aligned(target)
        own = self.parts.own.find(short(name.key))
        row = None if own is not None else self._others.find(name.key)
        place = row.place if row is not None else own
        if name.tenant in self.parts.forgotten:  # verify: nothing is served of a forgotten tenant
            place = None
        if place is None:
            done(Miss(MissReason.ABSENT))
            return
        if not 0 < memory.padded(place.length) <= target.nbytes:
            done(Miss(MissReason.WRONG_RECORD))  # of another size than was asked for
            return
        refused = self.parts.inbox.put_load(RemoteLoad(name, place, row, target, done, deadline))
        if refused is not None:
            done(Miss(refused))
        self._wake()

    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: Callable[[StoreOutcome], None],
        digest: Digest | None = None,
    ) -> None:
        """See Tier."""
        assert memory.is_aligned(source)
        assert 0 < length <= source.nbytes
        refused = self._refusal(name, length)
        if refused is None:
            refused = self.parts.inbox.put_store(RemoteStore(name, source, length, done, digest))
            if refused is not None:
                self._catalog.abandon(short(name.key))
        if refused is not None:
            done(Dropped(refused))
        self._wake()

    def _refusal(self, name: RecordName, length: int) -> DropReason | None:
        """Announce a record that is about to be stored, or say why it must not be."""
        if name.tenant in self.parts.forgotten:  # verify: nothing of a forgotten tenant is sent
            return DropReason.FORGOTTEN
        pack_max = min(REGION_BYTES_MAX, pack_cap_bytes(self.parts.cap_bytes))
        if pack_bytes([length]) > pack_max:
            return DropReason.TOO_LARGE
        if not self.parts.own.quotas.ever_fits(name.tenant, pack_bytes([length])):
            return DropReason.QUOTA
        if not self.takes_stores():
            return DropReason.TIER_OFF
        if self._others.has(name.key):
            return DropReason.DUPLICATE
        refused = self._catalog.reserve(name)
        if refused is DropReason.ORPHAN and self._others.has(name.parent):
            return self._catalog.reserve(RecordName(name.namespace, name.group, name.key, ROOT))
        return refused

    def remove(self, key: bytes) -> None:
        """See Tier."""
        self._catalog.forget(short(key))
        if self._others.has(key):
            self._others.forget(short(key), self._clock.monotonic())

    def used(self, key: bytes, at: float) -> None:
        """See Tier. Of this host's own records."""
        self._catalog.mark_used(short(key), at)

    def publish_used(self, records: Sequence[UsedRecord]) -> None:
        """See Tier."""
        self.parts.used = records

    def lost(self, key: bytes) -> None:
        """See Tier."""
        self._catalog.lost(short(key))

    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """See Tier. Of this host alone."""
        return self._catalog.namespaces()

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """See Tier. Of this host alone."""
        return self._catalog.usage_of(namespaces)

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """See Tier. Of this host alone."""
        return self._catalog.largest_namespaces(limit)

    def erase(
        self,
        namespace: bytes | None,
        *,
        scrub: bool = False,  # noqa: ARG002 - a store deletes as it does
    ) -> int:
        """See Tier. What other hosts have is theirs to erase."""
        self._catalog.forget_namespace(namespace)
        return self._ordered(DeleteOrder(namespace, is_erasure=True))

    def packs_of_others(self) -> dict[bytes, int]:
        """See Tier."""
        return self._others.packs()

    def forget(self, tenant: bytes, *, scrub: bool) -> Forgotten:  # noqa: ARG002 - likewise
        """See Tier. What other hosts have is theirs to forget."""
        size_bytes = self.held_by_tenants().get(tenant, 0)
        order = DeleteOrder(tenant=tenant, is_erasure=True)
        count = self._ordered(order)
        if order.is_partial:
            return Forgotten(count, failure=_UNREAD)
        if not order.is_whole:
            return Forgotten(count, failure="the store cannot be reached")
        return Forgotten(count, size_bytes)

    def forgotten(self) -> frozenset[bytes]:
        """See Tier. As far as the store has said so by now; the listener is told the rest."""
        return self.parts.remembered

    def remember_forgotten(self, tenant: bytes) -> str:
        """See Tier. In the store, beside what this host publishes."""
        order = RememberOrder(tenant)
        if len(self.parts.remembered) >= FORGOTTEN_MAX:
            return f"{self.parts.path} remembers {FORGOTTEN_MAX} tenants, and no more"
        if self.parts.inbox.put_order(order):
            self._wake()
            order.wait()
        return "" if order.is_kept else f"{self.parts.path} cannot be told to remember it"

    def delete_forgotten(self, tenants: frozenset[bytes]) -> None:
        """See Tier."""
        self.parts.forget(tenants)  # so that packs found later are covered, too
        for tenant in tenants & self.held_by_tenants().keys():
            if self.parts.inbox.put_order(DeleteOrder(tenant=tenant, is_erasure=True)):
                self._wake()

    def held_by_tenants(self) -> dict[bytes, int]:
        """See Tier. Of this host alone."""
        return self.parts.own.quotas.held()

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """See Tier. Of what this host has; the tier's thread deletes what is above a cap."""
        self.parts.own.quotas.replace(quotas)
        self._reading.weigh(quotas)
        self._wake()

    def resize(self, path: str, cap_bytes: int) -> bool:
        """See Tier."""
        if path != self.parts.path:
            return False
        if cap_bytes < REMOTE_BYTES_MIN:
            raise DirectoryError(f"{path} cannot work with so little; write 1MiB or more.")
        if cap_bytes < self.parts.own.quotas.floors_bytes:
            raise DirectoryError(f"{path} cannot be so small: {FLOORS}.")
        self.parts.cap_bytes = cap_bytes
        self._ordered(DeleteOrder(is_erasure=False))
        return True

    def _ordered(self, order: DeleteOrder) -> int:
        if self.parts.inbox.put_order(order):
            self._wake()
            order.wait()
        return order.count

    def probe(self, done: Callable[[VolumeProbe], None]) -> int:
        """See Tier."""

        def told(failure: str) -> None:
            done(VolumeProbe(0, failure))

        refused = self.parts.inbox.put_probe(told)
        if refused is not None:
            told(refused)
        self._wake()
        return 1

    def usage(self) -> Usage:
        """See Tier. Of this host alone."""
        records, payload_bytes = self._catalog.counts()
        return Usage(records, payload_bytes, self.parts.own.used_bytes, self.parts.cap_bytes)

    def volumes(self) -> list[VolumeStatus]:
        """See Tier."""
        parts, used_bytes = self.parts, self.parts.own.used_bytes
        now, day = self._clock.monotonic(), self._clock.day()
        return [
            VolumeStatus(
                parts.path,
                parts.breaker.is_on,
                parts.breaker.errors,
                parts.read_bytes,
                parts.written_bytes,
                used_bytes,
                parts.own.evictions,
                use=parts.ledger.use(used_bytes, now, day),
            )
        ]

    def close(self, timeout_s: float) -> None:
        """See Tier."""
        if self._close_at is not None:
            return
        self._close_at = self._clock.monotonic() + timeout_s
        self._wake()
        self._thread.join(timeout_s + 2 * _EXIT_S)

    def _run(self) -> None:
        while not self._is_over:
            processes.wait_readable(
                [self._wake.descriptor, *self.parts.link.descriptors()], self.parts.options.tick_s
            )
            self._wake.clear()
            self._barrier.call("a remote store", self._round)
        self._barrier.call("closing a remote store", self._end)

    def _round(self) -> None:
        parts, is_closing = self.parts, self._close_at is not None
        now = self._clock.monotonic()
        parts.link.receive()
        if parts.link.is_late(now):
            parts.trip("does not answer in time")
            parts.link.kill()
        self._reap()
        self._take_in(now)
        self._reading.step(now)
        self._probing.step()
        self._writing.step(now, is_closing=is_closing)
        self.upkeep.step(now, is_closing=is_closing)
        works = (self._reading, self._writing, self.upkeep, self._probing)
        is_idle = all(work.is_idle for work in works)
        self._is_over = is_closing and (is_idle or now >= (self._close_at or 0.0))

    def _take_in(self, now: float) -> None:
        """Queue what other threads have left."""
        loads, stores, orders = self.parts.inbox.take()
        for load in loads:
            self._reading.add(load)
        for store in stores:
            self._writing.add(store, now)
        for order in orders:
            if isinstance(order, RememberOrder):
                self.upkeep.remember(order)
            else:
                self._writing.order(order)

    def _reap(self) -> None:
        if self.parts.link.has_exited:
            self.parts.trip("has lost its process")
            self.parts.link.reap()
            self.upkeep.child_ended()

    def _end(self) -> None:
        """Answer everything that waits, and end the child; its calls are answered at its exit."""
        parts = self.parts
        parts.inbox.close()
        parts.breaker.trip(self._clock.monotonic())
        parts.link.kill()
        for _ in range(int(_EXIT_S / parts.options.tick_s)):
            if not parts.link.is_running:
                break
            processes.wait_readable(parts.link.descriptors(), parts.options.tick_s)
            self._reap()
        self._take_in(self._clock.monotonic())
        self._reading.flush()
        self._writing.flush()
        self.upkeep.flush()
        self._probing.step()
        if not parts.link.is_running:
            parts.lending.close()
        self._wake.close()
