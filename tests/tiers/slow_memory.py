"""A third tier for tests: records in memory, every answer late, by one thread that does all I/O.

It evicts the oldest record with all that continue it, knows what it stored itself, and has to ask
its medium about everything else: `prefix` says unknown once for each key, and `learned` follows.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from forebay.record.header import Digest, RecordHeader, RecordName, mismatch, payload_hash
from forebay.record.region import short
from forebay.sys.world import World
from forebay.tiers import contract
from forebay.tiers.catalog import Catalog, Extent, RecordPlace
from forebay.tiers.contract import Dropped, DropReason, Hit, Miss, MissReason, Prefix, Stored

DELAY_S = 0.0005
LoadDone = Callable[[contract.LoadOutcome], None]
StoreDone = Callable[[contract.StoreOutcome], None]


class SlowMemoryTier(contract.Tier):
    name = "slow_memory"

    def __init__(
        self, listener: contract.TierListener, *, world: World, cap_bytes: int = 64 << 20
    ) -> None:
        self.records: dict[bytes, tuple[RecordHeader, bytearray]] = {}  # oldest first
        self._catalog: Catalog[Extent] = Catalog(listener)
        self._catalog.add_extent(Extent(1, "memory", cap_bytes))
        self._listener, self._clock = listener, world.clock
        self._cap_bytes, self._is_closed = cap_bytes, False
        self._asked: set[bytes] = set()
        self._moved_bytes, self._evictions = [0, 0], 0  # read, written
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        count = 0 if self._is_closed else self._catalog.prefix(keys)
        if count == len(keys) or self._is_closed or short(keys[count]) in self._asked:
            return Prefix(count)
        self._jobs.put(partial(self._learn, short(keys[count]), keys))
        return Prefix(count, is_unknown=True)

    def _learn(self, key: bytes, keys: Sequence[bytes]) -> None:
        self._asked.add(key)
        self._listener.learned(keys)

    def has(self, key: bytes) -> bool:
        return self._catalog.has(short(key))

    def length_of(self, key: bytes) -> int | None:
        found = self._catalog.find(short(key))
        return None if found is None else found[1].length

    def submit_load(
        self, name: RecordName, target: memoryview, done: LoadDone, deadline: float
    ) -> None:
        if self._is_closed:
            done(Miss(MissReason.TIER_OFF))
        else:
            self._jobs.put(lambda: done(self._load(name, target, deadline)))

    def _load(self, name: RecordName, target: memoryview, deadline: float) -> contract.LoadOutcome:
        if self._clock.monotonic() >= deadline or not self.has(name.key):
            return Miss(MissReason.DEADLINE if self.has(name.key) else MissReason.ABSENT)
        header, payload = self.records[short(name.key)]
        if header.length > target.nbytes:
            return Miss(MissReason.WRONG_RECORD)
        is_wrong = mismatch(header, name, header.length) is not None
        if is_wrong or payload_hash(bytes(payload), header.shards) != header.payload_hash:
            self.remove(name.key)
            return Miss(MissReason.WRONG_RECORD if is_wrong else MissReason.CORRUPT)
        target[: header.length] = payload
        self._catalog.mark_read(short(name.key), self._clock.monotonic())
        self._moved_bytes[0] += header.length
        return Hit(header.length, header)

    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: StoreDone,
        digest: Digest | None = None,
    ) -> None:
        refused = DropReason.TOO_LARGE if length > self._cap_bytes else None
        refused = DropReason.TIER_OFF if self._is_closed else refused
        refused = refused or self._catalog.reserve(name)
        if refused is not None:
            done(Dropped(refused))
        else:
            self._jobs.put(lambda: done(self._store(name, source[:length], digest)))

    def _store(
        self, name: RecordName, source: memoryview, digest: Digest | None
    ) -> contract.StoreOutcome:
        self._evict(self._cap_bytes - source.nbytes)
        made = digest or Digest(payload_hash(source))
        header = RecordHeader(name, source.nbytes, made.payload_hash, shards=made.shards)
        self.records[short(name.key)] = header, bytearray(source)
        if not self._catalog.settle(short(name.key), RecordPlace(1, 0, source.nbytes)):
            del self.records[short(name.key)]
            return Dropped(DropReason.ORPHAN)  # removed meanwhile
        self._moved_bytes[1] += source.nbytes
        return Stored()

    def _evict(self, cap_bytes: int) -> None:
        while self.usage().used_bytes > cap_bytes:
            self._evictions += 1
            self.remove(next(filter(self.has, self.records)))

    def remove(self, key: bytes) -> None:
        self._catalog.forget(short(key))

    def lost(self, key: bytes) -> None:
        self._catalog.lost(short(key))

    def namespaces(self) -> dict[bytes, contract.NamespaceUsage]:
        return self._catalog.namespaces()

    def erase(self, namespace: bytes | None, *, scrub: bool = False) -> int:
        before = self.usage().records
        self._catalog.forget_namespace(namespace)
        return before - self.usage().records

    def forget(self, tenant: bytes, *, scrub: bool) -> contract.Forgotten:
        found: queue.SimpleQueue[contract.Forgotten] = queue.SimpleQueue()
        self._jobs.put(lambda: found.put(self._forget(tenant)))
        return found.get()

    def _forget(self, tenant: bytes) -> contract.Forgotten:
        headers = [header for header, _ in self.records.values() if header.name.tenant == tenant]
        for header in headers:
            self.remove(header.name.key)
            del self.records[short(header.name.key)]
        return contract.Forgotten(len(headers), sum(header.length for header in headers))

    def resize(self, path: str, cap_bytes: int) -> bool:
        if path != "memory":
            return False
        self._cap_bytes = cap_bytes
        self._evict(cap_bytes)
        return True

    def usage(self) -> contract.Usage:
        records, size = self._catalog.counts()
        return contract.Usage(records, size, size, self._cap_bytes)

    def volumes(self) -> list[contract.VolumeStatus]:
        (read, written), used = self._moved_bytes, self.usage().used_bytes
        return [contract.VolumeStatus("memory", True, 0, read, written, used, self._evictions)]

    def close(self, timeout_s: float) -> None:
        was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._jobs.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            time.sleep(DELAY_S)
            job()
