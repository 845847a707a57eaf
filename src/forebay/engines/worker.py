"""A worker's half of an engine's connector: what a step plan says, done by copies.

A promised load is served from the slab of its generation, even when the pool is gone: nobody writes
there any more. Only when the last of these is done is the next slab mapped; until then stores are
missed and loads of the next one fail, which the engine answers by computing.
"""

import logging
from collections import Counter, deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from forebay.engines.boundary import Boundary
from forebay.engines.copies.contract import Copies, LoadPart, Piece, Store, WorkerSlab
from forebay.engines.copies.host import HostCopies
from forebay.engines.copies.pages import Pages, rows_of
from forebay.engines.geometry import Geometry, Shard
from forebay.engines.step import StepPlan, WorkerReport
from forebay.pool.client.session import PoolSession, join
from forebay.quantity import format_size
from forebay.sys.clock import Clock
from forebay.tiers.dram.slab import cap_bytes_for, slot_bytes_for

_JOIN_S: Final = 1.0
ONLY_SHARD: Final = Shard()
_log: Final = logging.getLogger("forebay")


class WorkerConnector:
    """One worker's copies. Owned by the thread that drives the model."""

    def __init__(
        self,
        socket_path: str,
        shape: Geometry,
        clock: Clock,
        pool_uids: Collection[int] = (),
        shard: Shard = ONLY_SHARD,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._taken_counts: Counter[str] = Counter()  # counts as of the last `take_counts`
        self._socket_path, self._pool_uids = socket_path, pool_uids
        self._shape, self._shard = shape, shard
        self._clock = clock
        self._copies: Copies | None = None
        self._session: PoolSession | None = None
        self._generation = 0  # of its slab, which may outlive the session; 0: none
        self._is_leaving = False  # the slab of this session, for another one
        self._report = WorkerReport()
        # Parts of each request's load: not on the wire yet; on it, the engine not told yet; and
        # those of which the engine was told, with the step, so that forwards wait for them.
        self._under_way: Counter[str] = Counter()
        self._coming: dict[str, list[LoadPart]] = {}
        self._announced: deque[tuple[int, list[LoadPart]]] = deque()
        self._has_last_part: set[str] = set()  # requests for which nothing more will come
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._begun: StepPlan | None = None

    def register(self, tensors: dict[str, Any], blocks: int) -> None:
        """The KV cache is there; ValueError if it is not what the engine declared."""
        self._copies = copies_for(self._shape, tensors, blocks)

    def begin(self, step: StepPlan) -> None:
        """Before the forward: store what this step names; once, however often it is called."""
        if step is self._begun:
            return
        self._begun = step
        begun = self._clock.monotonic()
        self._await_loads(step.reported)
        self._report.step = step.number
        if step.generation:
            self._map(step)
        stores = []
        for store in step.stores if self._shard.is_stored else ():
            if self._is_mapped(store.generation) and self._reaches([store.piece]):
                stores.append(store)
            else:
                self._missed(store)
        if self._copies is not None and self._session is not None:
            self._copies.begin(step.number, stores, loads=bool(step.loads), freed=step.freed)
        self.counts["begin_us"] += round((self._clock.monotonic() - begun) * 1e6)

    def load(self, load: LoadPart) -> None:
        """Copy in what was promised to one request."""
        self._under_way[load.request] += 1
        if load.is_last:
            self._has_last_part.add(load.request)
        copies = self._copies
        if copies is None or not (self._is_mapped(load.generation) and self._reaches(load.pieces)):
            self.fail(load)
        else:
            copies.load(load)

    def fail(self, load: LoadPart) -> None:
        """A load cannot be done: the engine computes these blocks itself."""
        self._failed.add(load.request)
        self._failed_blocks.update(block for piece in load.pieces for block in piece.blocks)
        self._report.over[load.serial] = {self._shard.rank}
        self._settle(load)

    def take_received(self) -> tuple[set[str], set[str]]:
        """Requests whose loads are coming or have ended, and those of them that failed."""
        self._poll()
        received, self._received = self._received, set()
        number = self._begun.number if self._begun is not None else 0
        coming = [load for request in received for load in self._coming.pop(request, [])]
        if coming:
            self._announced.append((number, coming))
        failed = self._failed & received
        self._failed -= failed
        return received, failed

    def take_failed_blocks(self) -> set[int]:
        """Blocks that could not be loaded."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def take_report(self) -> WorkerReport | None:
        """What was done since the last call, and in which step."""
        self._poll()
        if self._report == WorkerReport():
            return None
        report, self._report = self._report, WorkerReport()
        return report

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last call."""
        news = {name: n - self._taken_counts[name] for name, n in self.counts.items()}
        self._taken_counts.update(news)
        return {name: n for name, n in news.items() if n}

    def close(self) -> None:
        """Let go of the slab."""
        if self._copies is not None:
            self._copies.close()
        self._unmap()

    def _poll(self) -> None:
        """See what the copies have done."""
        if self._copies is None:
            return
        done = self._copies.take_done()
        for store, digest in done.stored:
            self._report.stored[store.serial] = {self._shard.number: digest}
            self.counts["stored.bytes"] += len(store.piece.blocks) * self._shape.block_bytes
        self.counts["store_us"] += round(done.store_s * 1e6)
        self.counts["load_us"] += round(done.load_s * 1e6)
        self.counts["submit_us"] += round(done.submit_s * 1e6)
        for store in done.missed:
            self._missed(store)
        for load in done.failed:
            self.fail(load)
        for load in done.coming:
            self._coming.setdefault(load.request, []).append(load)
            self._settle(load)
        for load in done.loaded:
            blocks = sum(len(piece.blocks) for piece in load.pieces)
            self.counts["loaded.bytes"] += blocks * self._shape.block_bytes
            self._report.over[load.serial] = {self._shard.rank}

    def _await_loads(self, reported: int) -> None:
        """A step built after the engine was told of loads may use them: its forward waits."""
        while self._announced and self._announced[0][0] <= reported:
            _, loads = self._announced.popleft()
            if self._copies is not None:
                self._copies.await_loads(loads)

    def _settle(self, load: LoadPart) -> None:
        """A part is coming, or has failed; with a request's last one the engine is told of it."""
        if load.failed:
            self._failed.add(load.request)
            self._failed_blocks.update(load.failed)
        self._under_way[load.request] -= 1
        if not self._under_way[load.request] and load.request in self._has_last_part:
            del self._under_way[load.request]
            self._has_last_part.remove(load.request)
            self._received.add(load.request)

    def _missed(self, store: Store) -> None:
        self._report.stored[store.serial] = {self._shard.number: b""}
        self.counts["stores.missed"] += 1

    def _is_mapped(self, generation: int) -> bool:
        return (
            self._copies is not None
            and self._session is not None
            and self._generation == generation
            and not self._is_leaving
        )

    def _reaches(self, pieces: Sequence[Piece]) -> bool:
        """Whether these lie in the slab as it is mapped here; a segment may have been added."""
        session = self._session
        assert session is not None
        assert session.slab is not None
        furthest = max((piece.offset for piece in pieces), default=-1)
        if furthest >= session.slab.size_bytes:
            session.take(0.0)  # the pool said so before it named a slot there
        return furthest < session.slab.size_bytes

    def _map(self, step: StepPlan) -> None:
        """Have this step's slab mapped, unless loads of an older one are in it."""
        if self._copies is None or self._is_mapped(step.generation):
            return
        if self._session is not None:
            if any(load.generation == self._generation for load in step.loads):
                return
            self._is_leaving = True
            if not self._copies.detach():
                return
            self._unmap()
        now = self._clock.monotonic()
        until = now + _JOIN_S
        session = join(self._socket_path, step.engine, self._clock, until, self._pool_uids)
        if isinstance(session, str):
            _log.warning("the worker cannot join the pool: %s", session)
            return
        self._session, self._generation = session, session.generation
        self._is_leaving = False
        slab = session.slab
        assert slab is not None
        chunk_bytes = step.shard_bytes * self._shape.shards or self._shape.chunk_bytes
        slot_bytes = slot_bytes_for(chunk_bytes)
        if slot_bytes > slab.arena_bytes:
            _log.warning(
                "the pool's DRAM is too small for this model: a chunk has %s, so nothing is stored;"
                " start the pool with --dram %s or more",
                format_size(chunk_bytes),
                format_size(cap_bytes_for(slot_bytes)).replace(" ", ""),
            )
        memory = np.frombuffer(slab.memory, dtype=np.uint8)
        self._copies.attach(
            WorkerSlab(
                self._generation,
                memory,
                slab.arena_bytes,
                slab.size_bytes,
                slab.given_back,
                slot_bytes,
                self._shard.number * step.shard_bytes,
                step.shard_bytes,
            )
        )

    def _unmap(self) -> None:
        if self._session is not None and not self._session.close():
            _log.warning("the old slab is still in use")
        self._session, self._generation = None, 0


def copies_for(shape: Geometry, tensors: dict[str, Any], blocks: int) -> Copies:
    """The copies that fit where these tensors lie; ValueError if they are not as declared."""
    if next(iter(tensors.values())).device.type != "cuda":
        return HostCopies(Pages(shape, tensors, blocks))
    # Only here is there a GPU to import them for.
    from forebay.engines.copies.cuda import CudaDriver  # noqa: PLC0415
    from forebay.engines.copies.pointers import PageTable  # noqa: PLC0415
    from forebay.engines.copies.streamed import StreamedCopies  # noqa: PLC0415

    rows = [rows_of(tensors[layer], blocks, shape.page_bytes) for layer in shape.layers]
    layers = [(row.data_ptr(), row.stride(0)) for row in rows]
    page_table = PageTable.of(layers, shape.page_bytes, blocks)
    plain = partial(CudaDriver, rows[0].device, 0)  # copy engines alone

    def compiled() -> CudaDriver:
        driver = CudaDriver(rows[0].device)
        driver.warm(page_table.page_bytes)
        return driver

    driver = Boundary().call(plain, compiled) if page_table.is_aligned else plain()
    return StreamedCopies(driver, page_table)
