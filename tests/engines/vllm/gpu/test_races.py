"""T14 on a real GPU: long kernels in the way, and a control without waits that must corrupt."""

import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from forebay.engines.codec.exponents import decode, encode
from forebay.engines.copies.contract import FinishedCopies, LoadPart, Piece, Store, WorkerSlab
from forebay.engines.copies.cuda import CudaDriver
from forebay.engines.copies.pointers import Batch, PageTable, PageTables
from forebay.engines.copies.streamed import StreamedCopies
from forebay.engines.geometry import Geometry, Reach, ReachKind
from forebay.engines.step import EVERYTHING
from forebay.record.exponents import encoded_bytes
from forebay.sys.shared import SharedMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.timeout(120),
]
LAYERS, BLOCKS = 4, 64
LATE = 200_000_000  # cycles: about a tenth of a second
ARENA = 64 << 20


class Unfenced(CudaDriver):
    """The control: nothing waits for anything."""

    def wait(self, stream: Any, event: Any) -> None:
        pass


class Pages(NamedTuple):
    """What is copied: pages of one block table, or of the two of a group with a window."""

    page_bytes: int
    has_window: bool = False
    is_encoded: bool = False

    def blocks(self, offset: int, ids: list[int]) -> Piece:
        """A record of these blocks."""
        if not self.has_window:
            return Piece(offset, 0, ids, is_encoded=self.is_encoded)
        return Piece(offset, 0, ids, group=1, size=len(ids), others=(ids,))

    def tables(self, cache: Any) -> PageTables:
        """For a cache with so many layers."""
        names = tuple(map(str, range(LAYERS)))
        layers = [(layer.data_ptr(), self.page_bytes) for layer in cache]
        if not self.has_window:
            declared = Geometry(names, self.page_bytes, 16, chunk_blocks=2)
            encoded = PageTable.encoded(layers, self.page_bytes, BLOCKS)
            plain = PageTable.of(layers, self.page_bytes, BLOCKS)
            return PageTables([plain], declared, encoded={0: encoded})
        window = Geometry(
            names,
            self.page_bytes,
            16,
            chunk_blocks=2,
            reach=Reach(ReachKind.WINDOW, 32),
            tables=(1, 2),
            table_layers=(LAYERS - 1, 1),
        )
        declared = Geometry(names[:1], self.page_bytes, 16, chunk_blocks=2, local=(window,))
        parts = (layers[:1], layers[:-1], layers[-1:])
        tables = [PageTable.of(part, self.page_bytes, BLOCKS) for part in parts]
        return PageTables(tables, declared)


class Machine:
    """A KV cache on the GPU, a slab of shared memory, and copies between them."""

    def __init__(self, pages: Pages, *, waits: bool, slow_stores: bool = False) -> None:
        self.driver = (CudaDriver if waits else Unfenced)("cuda:0")
        self.steps = 0
        self.pages = pages
        page_bytes = pages.page_bytes
        self.chunk_bytes = page_bytes * LAYERS * 2
        shape = (LAYERS, BLOCKS, page_bytes)
        self.cache = torch.zeros(shape, dtype=torch.uint8, device="cuda")
        self.shared = SharedMemory.of(2 * ARENA)
        self.memory = np.frombuffer(self.shared.view, dtype=np.uint8)
        self.copies = StreamedCopies(self.driver, pages.tables(self.cache))
        self.copies.attach(
            WorkerSlab(1, self.memory, ARENA, 2 * ARENA, slot_bytes=self.chunk_bytes)
        )
        until = time.monotonic() + 30
        while self.copies.reach_bytes < 2 * ARENA * 0.9:
            assert time.monotonic() < until
            time.sleep(0.01)
        self.warm()
        if slow_stores:
            with torch.cuda.stream(self.copies._store_stream):
                torch.cuda._sleep(LATE)

    def warm(self) -> None:
        """What is compiled is compiled now, or it would hide a race."""
        self.fill(9, 0)
        self.step(self.store(30, 9), loads=(self.load(29, 9),))
        self.done(2)
        torch.cuda.synchronize()

    def store(self, chunk: int, number: int, *, is_freed: bool = False) -> Store:
        return Store(1, self._record(chunk, number), is_freed)

    def load(self, chunk: int, number: int) -> LoadPart:
        return LoadPart("r", 1, [self._record(chunk, number)], is_last=True)

    def _record(self, chunk: int, number: int) -> Piece:
        return self.pages.blocks(number * self.chunk_bytes, [2 * chunk + 1, 2 * chunk])

    def step(
        self, *stores: Store, loads: tuple[LoadPart, ...] = (), freed: int = EVERYTHING
    ) -> None:
        self.steps += 1
        self.copies.begin(self.steps, stores, loads=bool(loads), freed=freed)
        for load in loads:
            self.copies.load(load)

    def done(self, count: int) -> FinishedCopies:
        found = FinishedCopies()
        until = time.monotonic() + 20
        while len(found.stored) + len(found.loaded) < count:
            more = self.copies.take_done()
            found.stored += more.stored
            found.loaded += more.loaded
            assert not more.missed
            assert not more.failed
            assert time.monotonic() < until
            time.sleep(0.001)
        return found

    def chunk(self, chunk: int) -> Any:
        return self.cache[:, 2 * chunk : 2 * chunk + 2]

    def _encoded(self, number: int) -> Any:
        size, start = encoded_bytes(self.pages.page_bytes), number * self.chunk_bytes
        return self.memory[start : start + 2 * LAYERS * size].reshape(-1, size)

    def fill(self, number: int, value: int) -> None:
        start, size = number * self.chunk_bytes, self.pages.page_bytes
        if self.pages.is_encoded:
            self._encoded(number)[:] = encode(np.full((1, size), value, np.uint8))
        else:
            self.memory[start : start + self.chunk_bytes] = value

    def stored(self, number: int) -> set[int]:
        start = number * self.chunk_bytes
        if self.pages.is_encoded:
            found = decode(self._encoded(number), self.pages.page_bytes)
            return {-1} if found is None else set(np.unique(found).tolist())
        return set(np.unique(self.memory[start : start + self.chunk_bytes]).tolist())


SIZES = (8 << 10, 64 << 10, 256 << 10)
KINDS = {
    "kernel": Pages(SIZES[0]),
    "loads by kernel": Pages(SIZES[1]),
    "copy engine": Pages(SIZES[2]),
    "mla": Pages(16 * 576 * 2),
    "windows": Pages(SIZES[1], has_window=True),
    "compress": Pages(SIZES[1], is_encoded=True),
    "compress mla": Pages(16 * 576 * 2, is_encoded=True),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def pages(request: pytest.FixtureRequest) -> Pages:
    assert isinstance(request.param, Pages)
    return request.param


@pytest.fixture(params=[True, False], ids=["waits", "control"])
def waits(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield bool(request.param)
    torch.cuda.synchronize()


def test_each_size_of_page_goes_its_own_way() -> None:
    driver = CudaDriver("cuda:0")
    ways = [[driver.way(size, inward=inward) for inward in (True, False)] for size in SIZES]
    assert ways == [["kernel", "kernel"], ["kernel", driver.by], [driver.by, driver.by]]


@pytest.mark.parametrize("count", [1, 2, 3, 61])
def test_pages_go_by_kernel_whatever_their_number(count: int) -> None:
    from forebay.engines.copies import gather

    source = torch.randint(0, 255, (count, 4096), dtype=torch.uint8, device="cuda")
    target = torch.zeros_like(source)
    rows = [np.array([row.data_ptr() for row in each], dtype=np.int64) for each in (source, target)]
    gather.copy_pages(rows[0], rows[1], 4096)
    assert torch.equal(source, target)


def test_where_no_kernel_can_be_launched_a_copy_engine_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from forebay.engines.copies import gather

    source = torch.randint(0, 255, (16, 4096), dtype=torch.uint8, pin_memory=True)
    target = torch.zeros((16, 4096), dtype=torch.uint8, device="cuda")
    rows = [np.array([row.data_ptr() for row in each], dtype=np.int64) for each in (source, target)]
    driver, batch = CudaDriver("cuda:0"), Batch(rows[1], rows[0], 4096)
    stream = driver.stream(is_urgent=True)
    monkeypatch.delattr(gather, "copy_pages")
    with pytest.raises(AttributeError):
        driver.copy(stream, batch, inward=True)
    driver.copy(stream, batch, inward=True, by_engine=True)
    torch.cuda.synchronize()
    assert torch.equal(source, target.cpu())


def test_t14_a_store_reads_what_the_forward_before_it_wrote(pages: Pages, waits: bool) -> None:
    machine = Machine(pages, waits=waits)
    torch.cuda._sleep(LATE)
    machine.chunk(3).fill_(7)
    machine.step(machine.store(3, 0))
    machine.done(1)
    assert (machine.stored(0) == {7}) is waits
    machine.copies.close()


@pytest.mark.parametrize("when", ["freed", "the next step", "later", "beside a later store"])
def test_t14_a_store_reads_before_its_blocks_are_written_again(
    pages: Pages, waits: bool, when: str
) -> None:
    machine = Machine(pages, waits=waits, slow_stores=True)
    machine.chunk(3).fill_(7)
    torch.cuda.current_stream().synchronize()
    machine.step(machine.store(3, 0, is_freed=when == "freed"), freed=0)
    if when == "later":
        machine.step(freed=0)
    stored = machine.steps
    if when == "beside a later store":
        machine.step(machine.store(4, 1), freed=0)
    if when != "freed":
        machine.step(freed=stored)
    machine.chunk(3).fill_(8)
    machine.done(2 if when == "beside a later store" else 1)
    assert (machine.stored(0) == {7}) is waits
    machine.copies.close()


def test_t14_a_load_does_not_disturb_the_forward_before_it(pages: Pages, waits: bool) -> None:
    machine = Machine(pages, waits=waits)
    machine.chunk(3).fill_(7)
    machine.fill(0, 9)
    torch.cuda.current_stream().synchronize()
    torch.cuda._sleep(LATE)
    seen = machine.chunk(3).clone()
    machine.step(loads=(machine.load(3, 0),))
    machine.done(1)
    torch.cuda.synchronize()
    assert bool((seen == 7).all()) is waits
    assert bool((machine.chunk(3) == 9).all())
    machine.copies.close()


def test_t14_a_load_does_not_disturb_a_store(pages: Pages, waits: bool) -> None:
    machine = Machine(pages, waits=waits, slow_stores=True)
    machine.chunk(3).fill_(7)
    machine.fill(5, 9)
    torch.cuda.current_stream().synchronize()
    machine.step(machine.store(3, 0))
    machine.step(loads=(machine.load(3, 5),))
    machine.done(2)
    assert (machine.stored(0) == {7}) is waits
    machine.copies.close()


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "given to others"])
def test_t14_a_forward_waits_for_the_coming_load_that_it_is_built_on(
    pages: Pages, waits: bool, is_used: bool
) -> None:
    machine = Machine(pages, waits=waits)
    machine.fill(0, 9)
    with torch.cuda.stream(machine.copies._load_stream):
        torch.cuda._sleep(LATE)
    load = machine.load(3, 0)
    machine.step(loads=(load,))
    coming: list[LoadPart] = []
    until = time.monotonic() + 20
    while not coming:
        assert time.monotonic() < until
        coming = machine.copies.take_done().coming
    assert coming == [load]
    machine.copies.await_loads(coming)
    seen = machine.chunk(3).clone()
    if not is_used:
        machine.chunk(3).fill_(7)
    machine.done(1)
    torch.cuda.synchronize()
    if is_used:
        assert bool((seen == 9).all()) is waits
    else:
        assert bool((machine.chunk(3) == 7).all()) is waits
    machine.copies.close()


def test_t49_memory_that_cannot_be_registered_is_refused_with_words() -> None:
    driver = CudaDriver("cuda:0")
    shared = SharedMemory.of(ARENA)
    memory = np.frombuffer(shared.view, dtype=np.uint8)
    answers: list[str] = []

    def work() -> None:  # as in the product: CUDA remembers an error for each thread
        driver.enter_thread()
        answers.append(driver.register(memory.ctypes.data, ARENA))
        answers.append(driver.register(memory.ctypes.data, ARENA))
        driver.unregister(memory.ctypes.data)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert answers[0] == ""
    assert "cudaHostRegister" in answers[1], "it is registered already"
    assert torch.zeros(1, device="cuda").add_(1).item() == 1, "nothing else is disturbed"
