"""A worker's half of an engine's connector: carries out step plans by copies.

A promised load is served from the slab of its generation even if the pool is gone: nobody writes
there any more. The next slab is mapped only when the last of these loads is done; until then stores
are missed and loads of the next slab fail, so that the engine computes instead. The first slab may
be mapped before a step names it (`slab.early`).
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from forebay.engines.boundary import Boundary, BrokenError
from forebay.engines.copies.contract import Copies, LoadPart, Piece, Store
from forebay.engines.copies.host import HostCopies
from forebay.engines.copies.pages import Pages, rows_of_tables
from forebay.engines.geometry import Geometry, Shard
from forebay.engines.slab.early import EarlySlab, PoolPlace, StartPool
from forebay.engines.slab.view import chunk_bytes_of, warn_if_too_small, worker_slab
from forebay.engines.step import StepPlan, WorkerReport
from forebay.pool.client.session import PoolSession, join
from forebay.pool.client.slab import MappedSlab
from forebay.sys.clock import Clock
from forebay.tiers.dram.slab import slot_bytes_for

_JOIN_S: Final = 1.0
ONLY_SHARD: Final = Shard()
_FAILED: Final = object()
_NOT_ENCODED: Final = "compress is off, since %s: chunks are stored as they are."
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
        self._generation = 0  # generation of the slab, which may outlive the session; 0: none
        self._is_detaching = False  # this session's slab is being detached, to map another one
        self._widest: tuple[int, ...] = ()  # `StepPlan.widest` with which that slab was attached
        self._report, self._reach = WorkerReport(), (0, 0)  # the reach that was reported last
        # Parts of each request's load: not on the wire yet; on it, the engine not told yet; and
        # those of which the engine was told, with the step, so that forwards wait for them.
        self._under_way: Counter[str] = Counter()
        self._coming: dict[str, list[LoadPart]] = {}
        self._announced: deque[tuple[int, list[LoadPart]]] = deque()
        self._has_last_part: set[str] = set()  # requests whose last part has come
        self.is_checked = False  # whether the codec is compared with the reference
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._begun: StepPlan | None = None
        self._early: EarlySlab | None = None  # until a step has named a slab

    def register(self, tensors: dict[str, Any], blocks: int) -> None:
        """Take the allocated KV cache; ValueError if it is not what the engine declared.

        After this `encodes` tells what is encoded here, which may be nothing.
        """
        self._copies, self._shape = copies_for(
            self._shape, tensors, blocks, is_checked=self.is_checked
        )

    @property
    def encodes(self) -> tuple[int, ...]:
        """By group, the size of pages that are encoded here; 0: none."""
        return self._shape.encoded_pages

    def prepare(self, start_pool: StartPool | None) -> None:
        """Begin to map and register the slab before the first step; returns at once.

        `start_pool` is called, on another thread, if no pool answers.
        """
        if self._copies is None or self._session is not None or self._early is not None:
            return
        place = PoolPlace(self._socket_path, self._pool_uids, start_pool)
        # How wide other workers' shards are comes with a step; most have the width of this one's.
        view = partial(worker_slab, shape=self._shape, shard=self._shard, widest=())
        slot_bytes = slot_bytes_for(chunk_bytes_of(self._shape, ()))
        self._early = EarlySlab(place, self._copies, view, slot_bytes, self._clock)

    def begin(self, step: StepPlan) -> None:
        """Begin a step before its forward pass: store what it names. Repeated calls do nothing."""
        if step is self._begun:
            return
        self._begun = step
        begun = self._clock.monotonic()
        stores: list[Store] = []
        try:
            self._await_loads(step.reported)
            self._report.step = step.number
            if step.generation:
                self._map(step)
            if self._shard.is_stored:
                stores = self._within_slab(step.stores)
        finally:  # whatever happens, the forward waits for what still reads its blocks
            if self._copies is not None and self._session is not None:
                self._copies.begin(step.number, stores, loads=bool(step.loads), freed=step.freed)
        self.counts["begin_us"] += round((self._clock.monotonic() - begun) * 1e6)

    def load(self, load: LoadPart) -> None:
        """Begin to copy a part that was promised to one request."""
        self._under_way[load.request] += 1
        if load.is_last:
            self._has_last_part.add(load.request)
        copies = self._copies
        if copies is None or not (self._is_mapped(load.generation) and self._reaches(load.pieces)):
            self.fail(load)
        else:
            copies.load(load)

    def fail(self, load: LoadPart) -> None:
        """A part cannot be loaded: the engine computes these blocks itself."""
        self._failed.add(load.request)
        pieces = load.pieces
        self._failed_blocks.update(id_ for each in pieces for ids in each.tables for id_ in ids)
        self._report.over[load.serial] = {self._shard.rank}
        self._note_outcome(load)

    def take_received(self) -> tuple[set[str], set[str]]:
        """Requests whose loads are coming or over since the last call, and those that failed."""
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
        """Blocks that could not be loaded, since the last call."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def take_report(self) -> WorkerReport | None:
        """What was done since the last call, and in which step; None if there is no news."""
        self._poll()
        copies, is_mapped = self._copies, self._is_mapped(self._generation)
        reach = (self._generation, copies.reach_bytes) if copies and is_mapped else (0, 0)
        if reach != self._reach:
            self._report.reach[self._shard.rank] = self._reach = reach
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
        if self._early is not None:
            self._early.end()
        if self._copies is not None:
            self._copies.close()
        if self._early is not None:
            self._early.close()
        self._unmap()

    def _poll(self) -> None:
        """Take over what the copies have finished."""
        if self._copies is None:
            return
        done = self._copies.take_done()
        for store, digest in done.stored:
            self._report.stored[store.serial] = {self._shard.number: digest}
            self.counts["stored.bytes"] += self._bytes_of(store.piece)
        self.counts["store_us"] += round(done.store_s * 1e6)
        self.counts["load_us"] += round(done.load_s * 1e6)
        self.counts["submit_us"] += round(done.submit_s * 1e6)
        for store in done.missed:
            self._missed(store)
        for load in done.failed:
            self.fail(load)
        for load in done.coming:
            self._coming.setdefault(load.request, []).append(load)
            self._note_outcome(load)
        for load in done.loaded:
            self.counts["loaded.bytes"] += sum(map(self._bytes_of, load.pieces))
            self._report.over[load.serial] = {self._shard.rank}

    def _await_loads(self, reported: int) -> None:
        """Make this step's forward wait for loads that the engine knew of when it was built."""
        while self._announced and self._announced[0][0] <= reported:
            _, loads = self._announced.popleft()
            if self._copies is None:
                continue
            wait = partial(self._copies.await_loads, loads)
            if Boundary().call(lambda: _FAILED, wait) is _FAILED:
                raise BrokenError("nobody knows whether a forward has what it is built on")

    def _note_outcome(self, load: LoadPart) -> None:
        """A part is coming or has failed; after a request's last part the engine is told."""
        if load.failed:
            self._failed.add(load.request)
            self._failed_blocks.update(load.failed)
        self._under_way[load.request] -= 1
        if not self._under_way[load.request] and load.request in self._has_last_part:
            del self._under_way[load.request]
            self._has_last_part.remove(load.request)
            self._received.add(load.request)

    def _bytes_of(self, piece: Piece) -> int:
        """The size of this worker's share of a piece."""
        return len(piece.blocks) * self._shape.groups[piece.group].block_bytes

    def _missed(self, store: Store) -> None:
        self._report.stored[store.serial] = {self._shard.number: b""}
        self.counts["stores.missed"] += 1

    def _within_slab(self, stores: Sequence[Store]) -> list[Store]:
        """The stores whose slots are mapped here; the others are missed."""
        mapped = {each for each in {store.generation for store in stores} if self._is_mapped(each)}
        pieces = [store.piece for store in stores if store.generation in mapped]
        all_are_near = not pieces or self._reaches(pieces)
        near = []
        for store in stores:
            is_mapped = store.generation in mapped
            if is_mapped and (all_are_near or self._reaches([store.piece])):
                near.append(store)
            else:
                self._missed(store)
        return near

    def _is_mapped(self, generation: int) -> bool:
        return (
            self._copies is not None
            and self._session is not None
            and self._generation == generation
            and not self._is_detaching
        )

    def _reaches(self, pieces: Sequence[Piece]) -> bool:
        """Whether these pieces lie in the mapped slab; maps a segment that was added meanwhile."""
        session = self._session
        assert session is not None
        assert session.slab is not None
        furthest = max((piece.offset for piece in pieces), default=-1)
        if furthest >= session.slab.size_bytes:
            before = session.slab.size_bytes
            session.take(0.0)  # the pool said so before it named a slot there
            if session.slab is not None and session.slab.size_bytes > before:
                self._attach(session.slab)
        return furthest < session.slab.size_bytes

    def _map(self, step: StepPlan) -> None:
        """Map this step's slab, unless loads still need the older one."""
        if self._copies is None or self._is_mapped(step.generation):
            return
        if self._session is not None:
            if any(load.generation == self._generation for load in step.loads):
                return
            self._is_detaching = True
            if not self._copies.detach():
                return
            self._unmap()
        chunk_bytes = chunk_bytes_of(self._shape, step.widest)
        mapped = None
        if self._early is not None:
            slot_bytes = slot_bytes_for(chunk_bytes)
            mapped = self._early.take(step.generation, slot_bytes)
            if mapped is None and not self._detach_early(self._copies):
                return
        until = self._clock.monotonic() + _JOIN_S
        path, uids = self._socket_path, self._pool_uids
        session = join(path, step.engine, self._clock, until, uids, inherited=mapped)
        if isinstance(session, str):
            _log.warning("the worker cannot join the pool: %s", session)
            return
        self._early = None
        self._session, self._generation = session, session.generation
        self._is_detaching = False
        assert session.slab is not None
        warn_if_too_small(session.slab, chunk_bytes)
        self._widest = step.widest
        self._attach(session.slab)

    def _attach(self, mapped: MappedSlab) -> None:
        """Attach all of the slab that is mapped now to the copies."""
        assert self._copies is not None
        shape, shard = self._shape, self._shard
        self._copies.attach(worker_slab(mapped, self._generation, shape, shard, self._widest))

    def _detach_early(self, copies: Copies) -> bool:
        """Detach and unmap a slab that no step has named; False if it is still in use."""
        assert self._early is not None
        if not copies.detach() or not self._early.close():
            return False
        self._early = None
        return True

    def _unmap(self) -> None:
        if self._session is not None and not self._session.close():
            _log.warning("the old slab is still in use")
        self._session, self._generation = None, 0


def copies_for(
    shape: Geometry, tensors: dict[str, Any], blocks: int, *, is_checked: bool = False
) -> tuple[Copies, Geometry]:
    """The way to copy that fits these tensors; ValueError if they are not as declared.

    Also the shape that is copied: nothing in it is encoded if this device cannot do that.
    """
    encoded_sizes = set(filter(None, shape.encoded_pages))
    if next(iter(tensors.values())).device.type != "cuda":
        if encoded_sizes:
            _log.warning("compress: there is no GPU, so chunks are encoded by the CPU, slowly")
        return HostCopies(Pages(shape, tensors, blocks)), shape
    # Only here is there a GPU to import them for.
    from forebay.engines.codec.checked import CheckedDriver  # noqa: PLC0415
    from forebay.engines.copies.cuda import CudaDriver  # noqa: PLC0415
    from forebay.engines.copies.pointers import PageTable, PageTables  # noqa: PLC0415
    from forebay.engines.copies.streamed import StreamedCopies  # noqa: PLC0415

    tables: list[PageTable] = []
    numbers: list[int] = []
    encoded = {}
    for number, rows in enumerate(rows_of_tables(shape, tensors, blocks)):
        layers = [(row.data_ptr(), row.stride(0), row.shape[1]) for row in rows]
        tables += PageTable.all_of(layers, blocks)
        numbers += [number] * (len(tables) - len(numbers))
        sizes = {row.shape[1] for row in rows}
        if encoded_sizes >= sizes and len(sizes) == 1:
            places = [(base, stride) for base, stride, _ in layers]
            encoded[number] = PageTable.encoded(places, sizes.pop(), blocks)
    device = next(iter(tensors.values())).device
    plain = partial(CudaDriver, device, 0)  # copy engines alone

    def compiled() -> CudaDriver:
        driver = CudaDriver(device)
        for page_bytes in {table.page_bytes for table in tables}:
            driver.warm(page_bytes)
        return driver

    is_aligned = all(table.is_aligned for table in (*tables, *encoded.values()))
    driver = Boundary().call(plain, compiled) if is_aligned else plain()
    why = why_not_encoded(driver.warm_codec, encoded_sizes, is_aligned=is_aligned)
    if why:
        _log.warning(_NOT_ENCODED, why)
        shape, encoded = shape.without_code(), {}
    checked = CheckedDriver(driver) if encoded and is_checked else driver
    return StreamedCopies(checked, PageTables(tables, shape, numbers, encoded)), shape


def why_not_encoded(warm: Callable[[int], str], sizes: Collection[int], *, is_aligned: bool) -> str:
    """In a few words why this device cannot encode pages of these sizes; "" if it can.

    `warm` compiles what one size needs, and returns the reason if that fails.
    """
    if sizes and not is_aligned:
        return "the KV cache is not aligned"
    failed = "its kernels cannot be compiled"
    answers = (Boundary().call(lambda: failed, partial(warm, size)) for size in sizes)
    return next(filter(None, answers), "")
