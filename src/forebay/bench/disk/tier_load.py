"""Keeps the NVMe tier busy, every load verified, with a given number of transfers in flight."""

import os
import queue
import random
import time
from collections import deque
from typing import Final

from forebay.bench.disk.raw import DEPTH_MAX
from forebay.errors import StartupError
from forebay.record.header import ROOT, Digest, RecordName
from forebay.sys import memory
from forebay.tiers.contract import Dropped, Hit, LoadOutcome, Miss, Stored, StoreOutcome, Tier

_NAMESPACE: Final = bytes(32)
_WAIT_S: Final = 60.0  # longer than any transfer takes unless the drive is gone
CHAIN_RECORDS: Final = 64  # a dialog's worth of chunks between two roots
_CHAINS_MIN: Final = 8  # that a tier holds
_Ended = tuple[memoryview, RecordName, LoadOutcome | StoreOutcome]
_KEEP_SHARE: Final = 0.6  # of the tier's records are read: the rest may be evicted meanwhile


class TierLoad:
    """Loads of random records and stores of new ones, as `RawFiles` has reads and writes.

    Used by one thread; the tier stays the caller's.
    """

    def __init__(
        self,
        tier: Tier,
        payload_bytes: int,
        records: int,
        buffers: list[memoryview],
        *,
        digest: Digest | None = None,
    ) -> None:
        """`digest` is that of every buffer, as engines give it to a pool; None: unknown."""
        self._digest = digest
        self._tier = tier
        self._payload_bytes = payload_bytes
        # A chain is dropped with the region of its head, so chains must be short.
        self._chain_records = max(1, min(CHAIN_RECORDS, records // _CHAINS_MIN))
        self._names: deque[RecordName] = deque(maxlen=max(1, int(records * _KEEP_SHARE)))
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._buffers = [buffer[: memory.padded(payload_bytes)] for buffer in buffers]
        self._begun = self._stored = 0  # stores
        self._last_key = ROOT
        self.misses = 0
        self.dropped = 0

    def fill(self, records: int, seconds: float = 60 * _WAIT_S) -> int:
        """Store this many records, or as many as time allows; returns how many."""
        before = self._stored
        self._run(0, DEPTH_MAX, seconds, records)
        return self._stored - before

    def read(self, depth: int, seconds: float) -> float:
        return self._run(depth, 0, seconds)[0]

    def write(self, depth: int, seconds: float) -> float:
        return self._run(0, depth, seconds)[1]

    def both(self, depth: int, seconds: float) -> tuple[float, float]:
        return self._run(depth, depth, seconds)

    def release(self) -> None:
        """Release the buffers; the tier must be closed."""
        for buffer in self._buffers:
            buffer.release()

    def _run(
        self, loads: int, stores: int, seconds: float, times: int = 1 << 60
    ) -> tuple[float, float]:
        """GB/s (10^9) of payload loaded and stored, over this time or this many transfers."""
        loaded = stored = 0
        start = time.monotonic()
        for buffer in self._buffers[:loads]:
            self._load(buffer)
        for buffer in self._buffers[DEPTH_MAX : DEPTH_MAX + stores]:
            self._store(buffer)
        flying = loads + stores
        while flying:
            buffer, name, outcome = self._next_ended()
            match outcome:
                case Hit(length):
                    loaded += length
                case Stored():
                    self._names.append(name)
                    self._stored += 1
                    stored += self._payload_bytes
                case Dropped():
                    self.dropped += 1
                case Miss():
                    self.misses += 1
            times -= 1
            if times < flying or time.monotonic() - start >= seconds:
                flying -= 1
            elif isinstance(outcome, Stored | Dropped):
                self._store(buffer)
            else:
                self._load(buffer)
        elapsed = time.monotonic() - start
        return loaded / elapsed / 1e9, stored / elapsed / 1e9

    def _load(self, buffer: memoryview) -> None:
        name = random.choice(self._names)  # noqa: S311 - a record to read
        until = time.monotonic() + _WAIT_S
        self._tier.submit_load(
            name, buffer, lambda outcome: self._ended.put((buffer, name, outcome)), until
        )

    def _store(self, buffer: memoryview) -> None:
        parent = self._last_key if self._begun % self._chain_records else ROOT
        self._begun, self._last_key = self._begun + 1, os.urandom(32)
        name = RecordName(_NAMESPACE, 0, self._last_key, parent)
        self._tier.submit_store(
            name,
            buffer,
            self._payload_bytes,
            lambda outcome: self._ended.put((buffer, name, outcome)),
            self._digest,
        )

    def _next_ended(self) -> _Ended:
        try:
            return self._ended.get(timeout=_WAIT_S)
        except queue.Empty:
            raise StartupError(
                f"the drive did not finish a transfer in {_WAIT_S:.0f} s; look at the kernel log."
            ) from None
