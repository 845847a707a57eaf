"""The worker's side: copies between the KV cache and the slab, nothing else.

Stores run before the forward of the step that names them: the blocks may be given to another
request by that very step. Loads run whenever the runner says; their blocks are nobody else's.
A promised load is served from the slab of its generation, even when the pool is gone: nobody
writes there any more. Only when the last of these is done is the next slab mapped.
"""

import logging
from collections import Counter
from typing import Any, Final

import numpy as np

from forebay.engines.vllm.pages import Bytes, Geometry, Pages
from forebay.engines.vllm.step import Load, Report, Step
from forebay.pool.client.link import Link, join
from forebay.sys.clock import Clock

_JOIN_S: Final = 1.0
_log: Final = logging.getLogger("forebay")


class WorkerSide:
    """One worker's copies. Owned by the thread that drives the model."""

    def __init__(self, socket_path: str, shape: Geometry, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._socket_path = socket_path
        self._shape = shape
        self._clock = clock
        self._pages: Pages | None = None
        self._link: Link | None = None
        self._slab: Bytes | None = None
        self._report = Report()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._done: Step | None = None  # the step whose stores are copied

    def register(self, tensors: dict[str, Any], blocks: int) -> None:
        """The KV cache is there."""
        self._pages = Pages(self._shape, tensors, blocks)

    def store(self, step: Step) -> None:
        """Copy out what this step names; once, however often it is called."""
        if step is self._done:
            return
        self._done = step
        if step.generation and (step.stores or step.loads):
            self._map(step)
        for store in step.stores:
            slot = (store.generation, store.piece.offset)
            slab = self._slab_of(store.generation)
            if slab is None or self._pages is None:
                self._report.missed[slot] = 1
                continue
            self._pages.copy_out(store.piece, slab)
            self._report.stored[slot] = 1
            self.counts["stored.bytes"] += self._shape.chunk_bytes

    def load(self, load: Load) -> None:
        """Copy in what was promised to one request."""
        slab = self._slab_of(load.generation)
        if slab is None or self._pages is None:
            self.fail(load)
            return
        for piece in load.pieces:
            self._pages.copy_in(piece, slab)
            self.counts["load.bytes"] += len(piece.blocks) * self._shape.block_bytes
        self._report.copied[load.serial] = 1
        if load.failed:
            self._failed.add(load.request)
            self._failed_blocks.update(load.failed)
        if load.is_last:
            self._received.add(load.request)

    def fail(self, load: Load) -> None:
        """A load cannot be done: the engine computes these blocks itself."""
        self._failed.add(load.request)
        self._failed_blocks.update(block for piece in load.pieces for block in piece.blocks)
        self._failed_blocks.update(load.failed)
        if load.is_last:
            self._received.add(load.request)

    def take_received(self) -> tuple[set[str], set[str]]:
        """Requests whose loads have ended, and those of them that failed."""
        received, failed = self._received, self._failed
        self._received, self._failed = set(), set()
        return received, failed

    def take_failed_blocks(self) -> set[int]:
        """Blocks that could not be loaded."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def take_report(self) -> Report | None:
        """What was stored since the last call."""
        if self._report == Report():
            return None
        report, self._report = self._report, Report()
        return report

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def close(self) -> None:
        """Unmap the slab."""
        self._unmap()

    def _slab_of(self, generation: int) -> Bytes | None:
        if self._link is None or self._link.generation != generation:
            return None
        return self._slab

    def _map(self, step: Step) -> None:
        """Have this step's slab mapped, unless loads of an older one are in it."""
        if self._link is not None and self._link.generation == step.generation:
            return
        if self._link is not None and any(
            load.generation == self._link.generation for load in step.loads
        ):
            return
        self._unmap()
        now = self._clock.monotonic()
        link = join(self._socket_path, step.engine, self._clock, now + _JOIN_S)
        if isinstance(link, str):
            _log.warning("the worker cannot join the pool: %s", link)
            return
        self._link = link
        self._slab = np.frombuffer(link.slab, dtype=np.uint8)

    def _unmap(self) -> None:
        self._slab = None
        if self._link is not None and not self._link.close():
            _log.warning("the old slab is still in use")
        self._link = None
