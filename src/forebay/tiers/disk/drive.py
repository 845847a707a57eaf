"""One drive: the threads that read and write one directory, and its health.

Reads and writes have threads of their own, so that neither waits for the other in our queues. A
call that hangs keeps its thread and its buffer; that drive alone is then switched off, and what
waits for it is answered.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from forebay.record.cipher import opened, seal
from forebay.record.header import (
    Damage,
    Digest,
    RecordHeader,
    mismatch,
    pack,
    payload_hash,
    record_bytes,
)
from forebay.record.keyring import DataKey, RecordKeys
from forebay.record.region import Position, short, unpack_record
from forebay.sys import memory
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.transfer import read_whole, write_whole, zero_whole
from forebay.sys.world import World
from forebay.tiers.catalog import Catalog, RecordPlace
from forebay.tiers.contract import (
    SOUND,
    Dropped,
    DropReason,
    EvictionCause,
    Hit,
    LoadOutcome,
    Miss,
    MissReason,
    Stored,
    StoreOutcome,
)
from forebay.tiers.disk.erasure import Eraser, wipe_header
from forebay.tiers.disk.health import Health
from forebay.tiers.disk.options import Options
from forebay.tiers.disk.probing import RecordProbe
from forebay.tiers.disk.queue import JobQueue, LoadJob, StoreJob, drop
from forebay.tiers.disk.regions.directory import OpenDirectory, refuse_too_large
from forebay.tiers.disk.regions.forgotten import write_forgotten
from forebay.tiers.disk.regions.region import Region
from forebay.tiers.disk.regions.region_log import FULL_ERRNOS, RegionLog
from forebay.tiers.disk.uses import SideWork
from forebay.tiers.quotas import Quota

_log: Final = logging.getLogger(__name__)


class Drive:
    """Reads and writes records in one directory."""

    def __init__(
        self,
        directory: OpenDirectory,
        region_log: RegionLog,
        catalog: Catalog[Region],
        options: Options,
        world: World,
        *,
        keys: RecordKeys | None = None,
    ) -> None:
        """Without keys, records are stored unencrypted."""
        self.directory = directory
        self.region_log = region_log
        self.health = Health(options)
        self.assigned_bytes = 0  # bytes given to this drive; the tier balances by it
        self.read_bytes = 0
        self.written_bytes = 0
        self._catalog = catalog
        self._options = options
        self._keys = keys
        self._disk, self._clock, self._barrier = world.disk, world.clock, world.barrier
        self._queue = JobQueue(options)
        self._probing = SideWork("probe", self._probe, region_log.uses, world.barrier)
        self._trimming = SideWork("trim", region_log.trim, region_log.uses, world.barrier)
        self._probe_record = RecordProbe(directory.lock)
        self._threads = [
            *self._workers("read", options.read_depth, self._read_forever),
            *self._workers("write", options.write_depth, self._write_forever),
        ]

    def check_cap(self, cap_bytes: int) -> None:
        """A DirectoryError if the cap exceeds the file system; a failing drive raises nothing."""
        with contextlib.suppress(OSError):
            refuse_too_large(self._disk, self.directory, cap_bytes)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit_load(self, job: LoadJob) -> None:
        """Queue a load, or answer it at once."""
        reason = self._queue.put_load(job) if self.health.is_on else MissReason.TIER_OFF
        if reason is not None:
            job.done(Miss(reason))

    def submit_store(self, job: StoreJob) -> None:
        """Queue a store whose key is reserved, or drop it at once."""
        reason = self._queue.put_store(job) if self.health.is_on else DropReason.TIER_OFF
        if reason is not None:
            self._catalog.abandon(short(job.name.key))
            drop(job, reason)

    def probe(self, done: Callable[[str], None]) -> None:
        """Write, read and verify a record in the lock file; tells `done` why that failed, or ""."""
        if not self.health.is_on:
            done(MissReason.TIER_OFF)
        else:
            self._probe_record.begin(self.submit_store, self.submit_load, done)

    def erase(self, namespace: bytes | None, *, scrub: bool) -> int:
        """Wipe a namespace's records, or all, wherever they lie here; returns how many."""
        eraser = Eraser(self.region_log, self._catalog, self._disk, self._failed, scrub)
        return eraser.erase(namespace)

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """Set what tenants may hold in this directory, and their weights; does not wait."""
        self.region_log.set_quotas(quotas)
        self._queue.weigh({tenant: quota.weight for tenant, quota in quotas.items()})

    def remember_forgotten(self, tenants: frozenset[bytes]) -> str:
        """Note on the drive that these tenants are not served; "" or why that failed."""
        try:
            with self.region_log.uses.one():
                write_forgotten(self._disk, self.directory, tenants)
        except OSError as error:
            self._failed()
            return f"{self.directory.path} cannot remember it ({error.strerror or error})"
        self.region_log.store_nothing_of(tenants)
        return ""

    def tick(self, now: float) -> None:
        """Check deadlines, and begin what is due; called every `tick_s`, must not wait."""
        self._barrier.call("a drive's timers", self._tick, now)

    def _tick(self, now: float) -> None:
        self._queue.expire(now)
        for descriptor in self.region_log.take_unread(self._queue.read_descriptors):
            self._disk.close(descriptor)
        oldest = self._queue.oldest()
        if oldest is not None and now - oldest > self._options.hang_s:
            self._switch_off(now, "does not answer")
        if not self.health.is_on:
            self._answer_waiting()
            if self.health.probe_due(now):
                self._probing.begin()
        if self.region_log.is_to_trim:
            self._trimming.begin()

    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, seal regions, close all that no thread can touch any more."""
        if not self.health.is_on:
            self._answer_waiting()
        if not self._queue.drain(timeout_s):
            self._answer_waiting()
            _log.warning("%s: calls in flight did not end in time", self.directory.path)
            return  # hung threads still use the descriptors, which the kernel closes at exit
        for thread in self._threads:
            thread.join(timeout_s)
        if not self.region_log.uses.close(timeout_s):
            _log.warning("%s: an erasure or the like did not end in time", self.directory.path)
            return
        for descriptor in (
            *self.region_log.close(),
            self.directory.lock,
            self.directory.descriptor,
        ):
            self._disk.close(descriptor)

    def _workers(self, kind: str, depth: int, target: Callable[[], None]) -> list[threading.Thread]:
        return [
            threading.Thread(target=target, name=f"forebay-{kind}-{number}", daemon=True)
            for number in range(depth)
        ]

    def _read_forever(self) -> None:
        page = memory.allocate(PAGE_BYTES)
        while (job := self._queue.take_load(self._clock.monotonic)) is not None:
            failed: LoadOutcome = Miss(MissReason.IO_ERROR)
            outcome = self._barrier.result("a read", failed, self._load, job, page)
            self._queue.end_load(job)
            job.done(replace(outcome, begun=job.started))

    def _load(self, job: LoadJob, page: memoryview) -> LoadOutcome:
        if job.started >= job.deadline:
            return Miss(MissReason.DEADLINE)
        length = job.place.length
        buffers = [page, job.target[: memory.padded(length)]]
        try:
            count = read_whole(self._disk, job.region.descriptor, buffers, job.place.offset)
        except OSError:
            self._failed()
            return Miss(MissReason.IO_ERROR)
        found = _verify(page, job, count, self._keys)
        if isinstance(found, Damage):
            if job.region.is_gone:
                return Miss(MissReason.ABSENT)  # zeros, or another file's bytes
            if found not in SOUND:  # verify: a claim costs nobody a record
                key = short(job.name.key)
                self._catalog.forget(key, job.place, EvictionCause.DAMAGED)
            return Miss(MissReason.of(found), found)
        self.read_bytes += length
        used_at = self._catalog.mark_read(short(job.name.key), job.started)
        return Hit(length, found, used_at=used_at)

    def _write_forever(self) -> None:
        buffers = WriteBuffers()
        while (job := self._queue.take_store(self._clock.monotonic)) is not None:
            failed: StoreOutcome = Dropped(DropReason.IO_ERROR)
            outcome = self._barrier.result("a write", failed, self._store, job, buffers)
            self._queue.end_store(job)
            job.done(replace(outcome, begun=job.started))

    def _store(self, job: StoreJob, buffers: "WriteBuffers") -> StoreOutcome:
        key = short(job.name.key)
        data_key = None if self._keys is None else self._keys.current(job.name.tenant)
        if self._keys is not None and data_key is None:  # verify: nothing plain is written
            self._catalog.abandon(key)
            return Dropped(DropReason.IO_ERROR)
        if job.region is not None:
            return self._store_at(job, buffers, job.region, data_key)
        placed = self.region_log.place(job.length, job.name.tenant)
        if isinstance(placed, DropReason):
            self._catalog.abandon(key)
            if placed is DropReason.IO_ERROR:
                self._failed()
            return Dropped(placed)
        region, offset = placed
        is_settled = False
        try:
            header, written = buffers.fill(job, Position(region.generation, offset), data_key)
            refused = self._write(written, region, offset)
            if refused is None:
                refused = self._settle(region, header, offset)
                is_settled = True
        finally:  # whatever fails, for lack of memory for example, both are released
            if not is_settled:
                self._catalog.abandon(key)
            self.region_log.end_use(region, offset)
        return Stored() if refused is None else Dropped(refused)

    def _store_at(
        self, job: StoreJob, buffers: "WriteBuffers", region: Region, data_key: DataKey | None
    ) -> StoreOutcome:
        """Write a record of a probe at a given place, or zeros over it."""
        if job.is_wiping:
            written = [memory.allocate(record_bytes(job.length))]
        else:
            _, written = buffers.fill(job, Position(region.generation, 0), data_key)
        refused = self._write(written, region, 0)
        return Stored() if refused is None else Dropped(refused)

    def _settle(self, region: Region, header: RecordHeader, offset: int) -> DropReason | None:
        """Let a written record be found: by erasures first, so that none can miss it."""
        self.region_log.add_entry(region, header, offset)
        place = RecordPlace(region.number, offset, header.length)
        if self._catalog.settle(short(header.name.key), place):
            return None
        # Its tenant was forgotten meanwhile: a walk must not find it.
        try:
            wipe_header(self._disk, region, offset)
            payload_at = offset + PAGE_BYTES
            zero_whole(self._disk, region.descriptor, payload_at, memory.padded(header.length))
        except OSError:
            self._failed()
        else:
            self.region_log.drop_entries(region, {offset})
        return DropReason.ORPHAN

    def _write(self, buffers: list[memoryview], region: Region, offset: int) -> DropReason | None:
        try:
            write_whole(self._disk, region.descriptor, buffers, offset)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                return DropReason.NO_SPACE
            self._failed()
            return DropReason.IO_ERROR
        self.written_bytes += sum(map(len, buffers))
        return None

    def _failed(self) -> None:
        now = self._clock.monotonic()
        if self.health.failed(now):
            self._switch_off(now, "failed too often", announce=True)

    def _switch_off(self, now: float, why: str, *, announce: bool = False) -> None:
        if self.health.switch_off(now) or announce:
            _log.warning("%s %s and is switched off; it is probed later", self.directory.path, why)

    def _answer_waiting(self) -> None:
        for job in self._queue.flush():
            self._catalog.abandon(short(job.name.key))
            drop(job, DropReason.TIER_OFF)

    def _probe(self) -> None:
        """Try one write and one read of the lock file's first page."""
        try:
            page = memory.allocate(PAGE_BYTES)
            write_whole(self._disk, self.directory.lock, [page], 0)
            read_whole(self._disk, self.directory.lock, [page], 0)
        except OSError:
            pass
        else:
            if self._queue.oldest() is None:
                self.health.switch_on()
                _log.warning("%s answers again and is switched on", self.directory.path)


class WriteBuffers:
    """A writer thread's memory: a page for the header, and room for an encrypted payload."""

    def __init__(self) -> None:
        self._page = memory.allocate(PAGE_BYTES)
        self._sealed = self._page  # grows to the largest record so far

    def fill(
        self, job: StoreJob, position: Position, key: DataKey | None
    ) -> tuple[RecordHeader, list[memoryview]]:
        """Make a record for its place: its header, and the buffers to write, in order.

        The source is not changed, except its padding: others may read it meanwhile.
        """
        length, padded = job.length, memory.padded(job.length)
        digest = job.digest or Digest(payload_hash(job.source[:length]))
        header = RecordHeader(job.name, length, digest.payload_hash, shards=digest.shards)
        if key is None:
            job.source[length:padded] = bytes(padded - length)  # it may hold another record's bytes
            pack(header, self._page, position.pack())
            return header, [self._page, job.source[:padded]]
        size = record_bytes(length)
        if len(self._sealed) < size:
            self._sealed = memory.allocate(size)
        record = self._sealed[:size]
        return seal(header, position.pack(), key, job.source, record), [record]


def _verify(
    page: memoryview, job: LoadJob, count: int, keys: RecordKeys | None
) -> RecordHeader | Damage:
    """The header that was read, if this is the wanted record bit for bit, or why it is not."""
    length = job.place.length
    if count < record_bytes(length):  # verify: whole read
        return Damage.CUT
    found = unpack_record(page, Position(job.region.generation, job.place.offset))
    if isinstance(found, Damage):
        return found
    wrong = mismatch(found, job.name, length)
    if wrong is not None:
        return wrong
    plain = opened(found, page, keys, job.target)
    if isinstance(plain, Damage):
        return plain
    digest = payload_hash(job.target[:length], plain.shards)
    if digest != plain.payload_hash:  # verify: payload hash
        return Damage.PAYLOAD_HASH
    return plain
