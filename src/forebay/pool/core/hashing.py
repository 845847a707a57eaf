"""Hashing of slots: before a promise if that is configured, and while the pool is idle.

A slot's expected digest comes from its producer's commit, or from the record that was read into it.
Hashing releases the interpreter lock: 14 GB/s a core were measured for 4 MiB. Nothing is pinned for
it: if the slot belongs to another chunk by then, the result is thrown away. A chunk is the same
object as long as it has its slot.
"""

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from forebay.pool.core.chunks import Chunk
from forebay.pool.core.dram import Dram
from forebay.pool.core.parts import CoreParts
from forebay.record.header import payload_hash

_INTERVAL_S: Final = 0.05  # least time between two steps; a sleeping pool takes four a second
_STEP_BYTES: Final = 4 << 20  # hashed per step: an idle pool does 16 MB/s, 64 GiB in about an hour
_STEP_CHUNKS_MAX: Final = 64
Payload: TypeAlias = tuple[memoryview, int]  # payload, number of shards


def payload_of(dram: Dram, chunk: Chunk) -> Payload:
    """A chunk's payload and shards, to be hashed."""
    return dram.slab.payload(chunk.offset, chunk.length), chunk.shards


class Hasher:
    """Hashes payloads in order, and answers through the pool's completions.

    The callers bound the queue: chunks pinned for a load, and one step of scrubbing.
    """

    def __init__(self, parts: CoreParts) -> None:
        self._complete, self._barrier = parts.complete, parts.barrier
        self._jobs: queue.SimpleQueue[
            tuple[list[Payload], Callable[[list[bytes]], None]] | None
        ] = queue.SimpleQueue()
        self._under_way = 0  # jobs without an answer; counted by the pool's thread alone
        self._thread = threading.Thread(target=self._run, name="forebay-hash", daemon=True)
        self._thread.start()

    def submit(self, payloads: list[Payload], done: Callable[[list[bytes]], None]) -> None:
        """Hash payloads; `done` is called with the digests on the pool's thread.

        If hashing failed, the list of digests is empty.
        """
        self._under_way += 1
        self._jobs.put((payloads, done))

    @property
    def is_idle(self) -> bool:
        """Whether no job waits, runs, or has an unanswered result."""
        return not self._under_way

    def close(self, timeout_s: float) -> None:
        """Finish what waits, as far as the time allows."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            payloads, done = job
            none: list[bytes] = []
            digests = self._barrier.result("hashing", none, _digests, payloads)
            self._complete(partial(self._answer, done, digests))

    def _answer(self, done: Callable[[list[bytes]], None], digests: list[bytes]) -> None:
        """Call `done` with the result; on the pool's thread again."""
        self._under_way -= 1
        done(digests)


def _digests(payloads: list[Payload]) -> list[bytes]:
    return [payload_hash(view, shards) for view, shards in payloads]


class Scrubber:
    """Hashes all chunks, round after round, while the pool is idle. Owned by the pool's thread."""

    def __init__(self, dram: Dram, hasher: Hasher, damaged: Callable[[Chunk], None]) -> None:
        self._dram = dram
        self._hasher = hasher
        self._damaged = damaged
        self._round: list[Chunk] = []
        self._next_at = 0.0
        self.checked = 0

    def step(self, now: float) -> None:
        """Hash a few slots, if it is time."""
        if now < self._next_at or not self._hasher.is_idle:
            return
        self._next_at = now + _INTERVAL_S
        if not self._round:
            self._round = list(self._dram.chunks)
        chunks: list[Chunk] = []
        size = 0
        while self._round and size < _STEP_BYTES and len(chunks) < _STEP_CHUNKS_MAX:
            chunk = self._round.pop()
            if self._is_ready(chunk):
                chunks.append(chunk)
                size += chunk.length
        if chunks:
            self._hash(chunks)

    def _hash(self, chunks: list[Chunk]) -> None:
        payloads = [payload_of(self._dram, chunk) for chunk in chunks]
        self._hasher.submit(payloads, partial(self._checked, chunks))

    def _checked(self, chunks: list[Chunk], digests: list[bytes]) -> None:
        self.checked += len(chunks)
        for chunk, digest in zip(chunks, digests, strict=False):
            is_here = self._is_ready(chunk)  # otherwise its slot may belong to another chunk
            if is_here and digest != chunk.digest:  # verify: scrubbed hash
                self._damaged(chunk)

    def _is_ready(self, chunk: Chunk) -> bool:
        chunks = self._dram.chunks
        return chunks.get(chunk.key) is chunk and chunks.is_ready(chunk.key)
