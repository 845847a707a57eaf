"""Keeps the NVMe tier busy, every load verified, with a given number of transfers in flight."""

import os
import queue
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from forebay.bench.disk.raw import DEPTH_MAX
from forebay.errors import StartupError
from forebay.record.header import ROOT, RecordName
from forebay.sys import memory
from forebay.tiers.contract import Dropped, Hit, LoadOutcome, Miss, Stored, StoreOutcome, Tier

_NAMESPACE: Final = bytes(32)
_WAIT_S: Final = 60.0  # longer than any transfer takes unless the drive is gone
CHAIN_RECORDS: Final = 64  # a dialog's worth of chunks between two roots
_KEEP_SHARE: Final = 0.6  # of the tier's records are read: the rest may be evicted meanwhile


@dataclass(slots=True)
class Transfer:
    """A buffer, and the transfer that has it now."""

    buffer: memoryview
    is_store: bool
    name: RecordName | None = None
    outcome: LoadOutcome | StoreOutcome | None = None


class TierLoad:
    """Loads of random records and stores of new ones, as `RawFiles` has reads and writes.

    Used by one thread; the tier stays the caller's.
    """

    def __init__(
        self, tier: Tier, payload_bytes: int, records: int, buffers: list[memoryview]
    ) -> None:
        self._tier = tier
        self._payload_bytes = payload_bytes
        self._names: deque[RecordName] = deque(maxlen=max(1, int(records * _KEEP_SHARE)))
        self._ended: queue.SimpleQueue[Transfer] = queue.SimpleQueue()
        self._transfers = [
            Transfer(buffer[: memory.padded(payload_bytes)], is_store=number >= DEPTH_MAX)
            for number, buffer in enumerate(buffers)
        ]
        self._begun = self._stored = 0  # stores
        self._last_key = ROOT
        self.misses = 0
        self.dropped = 0

    def fill(self, records: int, seconds: float = 60 * _WAIT_S) -> int:
        """Store this many records, or what there is time for; how many were stored."""
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
        """Let go of the buffers; the tier is closed."""
        for transfer in self._transfers:
            transfer.buffer.release()

    def _run(
        self, loads: int, stores: int, seconds: float, times: int = 1 << 60
    ) -> tuple[float, float]:
        """GB/s (10^9) of payload loaded and stored, for so long or so often."""
        moved = [0, 0]
        start = time.monotonic()
        begun = [*self._transfers[:loads], *self._transfers[DEPTH_MAX : DEPTH_MAX + stores]]
        for transfer in begun:
            self._begin(transfer)
        flying = len(begun)
        while flying:
            transfer = self._next_ended()
            moved[transfer.is_store] += self._account(transfer)
            times -= 1
            if times >= flying and time.monotonic() - start < seconds:
                self._begin(transfer)
            else:
                flying -= 1
        elapsed = time.monotonic() - start
        return moved[0] / elapsed / 1e9, moved[1] / elapsed / 1e9

    def _begin(self, transfer: Transfer) -> None:
        def done(outcome: LoadOutcome | StoreOutcome) -> None:
            transfer.outcome = outcome
            self._ended.put(transfer)

        if transfer.is_store:
            parent = self._last_key if self._begun % CHAIN_RECORDS else ROOT
            self._begun, self._last_key = self._begun + 1, os.urandom(32)
            name = transfer.name = RecordName(_NAMESPACE, 0, self._last_key, parent)
            self._tier.submit_store(name, transfer.buffer, self._payload_bytes, done)
        else:
            name = random.choice(self._names)  # noqa: S311 - a record to read
            self._tier.submit_load(name, transfer.buffer, done, time.monotonic() + _WAIT_S)

    def _account(self, transfer: Transfer) -> int:
        """Payload bytes that really moved."""
        match transfer.outcome:
            case Hit(length):
                return length
            case Stored():
                assert transfer.name is not None
                self._names.append(transfer.name)
                self._stored += 1
                return self._payload_bytes
            case Dropped():
                self.dropped += 1
            case Miss() | None:
                self.misses += 1
        return 0

    def _next_ended(self) -> Transfer:
        try:
            return self._ended.get(timeout=_WAIT_S)
        except queue.Empty:
            raise StartupError(
                f"the drive did not finish a transfer in {_WAIT_S:.0f} s; look at the kernel log."
            ) from None
