"""Puts packs into a store one after the other, deletes old ones, and carries out orders.

Only one call is under way at a time, so no put that began before an order is still unfinished when
the order is handled.
"""

from functools import partial
from typing import Final

from forebay.record.cipher import seal
from forebay.record.header import (
    DEFAULT_TENANT,
    Digest,
    RecordHeader,
    payload_hash,
    record_bytes,
)
from forebay.record.region import short
from forebay.sys.memory import PAGE_BYTES, padded
from forebay.tiers.contract import Begun, Dropped, DropReason, Stored
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.jobs import DeleteOrder, Gathering, RemoteStore
from forebay.tiers.remote.lending import Buffer, Lent
from forebay.tiers.remote.options import pack_cap_bytes
from forebay.tiers.remote.packs import frame, frame_bytes, pack_bytes, pack_name, positions
from forebay.tiers.remote.process.link import Results
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest
from forebay.tiers.remote.store import StoreFailure

_PACKS_MIN: Final = 8  # packs that fit under a tenant's cap, at least


class RemoteWriting:
    """All stores and deletions of one store."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self._gathering = Gathering(parts.options)
        self._orders: list[DeleteOrder] = []
        self._is_busy = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        is_deleting = self._parts.own.doomed and self._may_delete
        return not (self._is_busy or self._gathering or self._orders or is_deleting)

    def add(self, job: RemoteStore, now: float) -> None:
        """Queue a store for its pack."""
        if self._parts.takes_stores(now):
            self._gathering.add(job, now, self._pack_limit_bytes(job.name.tenant))
        else:
            self._drop([job], DropReason.TIER_OFF)

    def _pack_limit_bytes(self, tenant: bytes) -> int:
        """The size at which a pack is full; a tenant with a small cap gets at least eight packs."""
        limit_bytes, cap_bytes = (
            self._parts.options.pack_bytes,
            self._parts.own.quotas.quota_of(tenant).cap_bytes,
        )
        return limit_bytes if cap_bytes is None else min(limit_bytes, cap_bytes // _PACKS_MIN)

    def order(self, order: DeleteOrder) -> None:
        """Queue an order, to be handled next."""
        if order.tenant is not None:
            self._parts.forget(frozenset({order.tenant}))
        self._orders.append(order)

    def step(self, now: float, *, is_closing: bool) -> None:
        """Begin as much as possible now."""
        self._gathering.seal(now, all_of_them=is_closing)
        if not self._parts.takes_loads:
            self.flush()
            return
        if self._parts.is_over_for_stores:
            self._drop(self._gathering.take_all(), DropReason.TIER_OFF)
        if not self._is_busy:
            self._handle_orders()
            self._begin()

    @property
    def _may_delete(self) -> bool:
        """Whether packs may be deleted now; for an order, as long as the store is in use."""
        parts = self._parts
        return parts.takes_loads and (bool(self._orders) or not parts.is_over_for_stores)

    def flush(self) -> None:
        """Answer everything that waits: nothing will be written now."""
        self._drop(self._gathering.take_all(), DropReason.TIER_OFF)
        for order in self._orders:
            order.end()
        self._orders = []

    def _handle_orders(self) -> None:
        """Handle orders; each ends when its packs are deleted."""
        own = self._parts.own
        for order in self._orders:
            if order.names is None and order.is_erasure:
                wanted = (order.namespace, order.tenant)
                self._drop(self._gathering.take_all(*wanted), DropReason.ORPHAN)
                order.is_partial = order.tenant is not None and own.is_partly_known
                # Also packs to be deleted already: nobody knows any more whose they are.
                order.names = dict.fromkeys(own.doomed, 0) | own.erase(*wanted)
            elif order.names is None:
                own.trim(pack_cap_bytes(self._parts.cap_bytes))
                order.names = dict.fromkeys(own.doomed, 0)  # until then the cap is exceeded
            gone = order.names.keys() - own.doomed.keys()
            order.count += sum(order.names.pop(name) for name in gone)
            if not order.names:
                order.end()
        self._orders = [order for order in self._orders if order.names]

    def _begin(self) -> None:
        parts = self._parts
        if not parts.allows():
            return
        parts.own.trim(pack_cap_bytes(parts.cap_bytes))
        jobs = self._gathering.next()
        if jobs is not None and not parts.own.doomed:
            size = pack_bytes([job.length for job in jobs])
            refused = self._refusal(jobs[0].name.tenant, size)
            if refused is not None:
                self._drop(self._gathering.take(), refused)
            elif not parts.own.doomed:
                self._put(self._gathering.take(), size)
                return
        if parts.own.doomed and self._may_delete:
            self._is_busy = True
            name = next(iter(parts.own.doomed))
            until = parts.clock.monotonic() + parts.options.call_s
            parts.call(StoreRequest(0, Action.DELETE, name), until, partial(self._deleted, name))

    def _refusal(self, tenant: bytes, size_bytes: int) -> DropReason | None:
        """Delete old packs until there is room for a new one, or say why there cannot be."""
        own, cap_bytes = self._parts.own, pack_cap_bytes(self._parts.cap_bytes)
        if size_bytes > cap_bytes:  # the cap was lowered meanwhile
            return DropReason.TOO_LARGE
        may_have = own.quotas.ever_fits(tenant, size_bytes)
        if not (may_have and own.make_room(tenant, size_bytes, cap_bytes)):
            return DropReason.QUOTA
        return None

    def _deleted(self, name: str, answer: Answer, _results: Results) -> None:
        self._is_busy = False
        if answer.failure is None:
            self._parts.own.deleted(name)
        else:
            self._parts.failed()

    def _put(self, jobs: list[RemoteStore], size_bytes: int) -> None:
        parts = self._parts
        begun = parts.clock.monotonic()
        sequence = parts.own.begin(jobs[0].name.tenant, size_bytes)
        headers, lent = self._lend_all(jobs, sequence)
        frame(headers, sequence, parts.lending.scratch)
        offsets = [each.offset for each in positions(headers, sequence)]
        buffers: list[Buffer] = [parts.lending.frame(0, PAGE_BYTES)]
        for number, each in enumerate(lent):
            buffers += [parts.lending.frame((1 + number) * PAGE_BYTES, PAGE_BYTES), each.buffer]
        end = (1 + len(jobs)) * PAGE_BYTES
        buffers.append(parts.lending.frame(end, frame_bytes(len(jobs)) - end))
        name = pack_name(jobs[0].name.namespace, parts.host, sequence)
        self._is_busy = True

        def ended(answer: Answer, _results: Results) -> None:
            self._is_busy = False
            for each in lent:
                parts.lending.give_back(each)
            if answer.failure is None:
                settled = parts.own.put(headers, sequence, offsets, begun)
                parts.written_bytes += size_bytes
                self._stored(jobs, settled, begun)
            else:
                parts.own.failed(jobs[0].name, sequence, size_bytes)
                self._failed(jobs, answer.failure, begun)

        request = StoreRequest(0, Action.PUT, name, buffers=buffers)
        parts.call(request, begun + parts.options.put_s, ended)

    def _lend_all(
        self, jobs: list[RemoteStore], sequence: int
    ) -> tuple[list[RecordHeader], list[Lent]]:
        """A pack's records as they are stored: headers, and payloads lent to the child."""
        headers = [_header(job) for job in jobs]
        key = None if self._parts.keys is None else self._parts.keys.current(DEFAULT_TENANT)
        if key is None:
            return headers, [self._lend(job) for job in jobs]
        view = self._parts.lending.sealed(sum(record_bytes(job.length) for job in jobs))
        places, at, sealed, lent = positions(headers, sequence), 0, [], []
        for job, header, place in zip(jobs, headers, places, strict=True):
            record = view[at : at + record_bytes(job.length)]
            sealed.append(seal(header, place.pack(), key, job.source, record))
            start, size = at + PAGE_BYTES, padded(job.length)
            part = self._parts.lending.part_of_sealed(start, size)
            lent.append(Lent(part, view[start : start + size]))
            at += len(record)
        return sealed, lent

    def _lend(self, job: RemoteStore) -> Lent:
        size = padded(job.length)
        job.source[job.length : size] = bytes(size - job.length)  # it may hold other bytes
        return self._parts.lending.lend(job.source[:size], filled=True)

    def _stored(self, jobs: list[RemoteStore], settled: list[bool], begun: float) -> None:
        for job, is_settled in zip(jobs, settled, strict=True):
            self._parts.inbox.store_ended(job)
            job.done(Stored(begun) if is_settled else Dropped(DropReason.ORPHAN, begun))

    def _failed(self, jobs: list[RemoteStore], failure: StoreFailure, begun: float) -> None:
        if failure is StoreFailure.FULL:
            self._drop(jobs, DropReason.NO_SPACE, begun)
            return
        self._parts.failed()
        self._drop(jobs, DropReason.IO_ERROR, begun)

    def _drop(self, jobs: list[RemoteStore], reason: DropReason, begun: Begun = None) -> None:
        for job in jobs:
            self._parts.own.catalog.abandon(short(job.name.key))
            self._parts.inbox.store_ended(job)
            job.done(Dropped(reason, begun))


def _header(job: RemoteStore) -> RecordHeader:
    digest = job.digest or Digest(payload_hash(job.source[: job.length]))
    return RecordHeader(job.name, job.length, digest.payload_hash, shards=digest.shards)
