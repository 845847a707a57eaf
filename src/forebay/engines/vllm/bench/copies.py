"""`python -m forebay.engines.vllm.bench.copies OUT`: what our copies move between slab and GPU.

No engine: a KV cache of plain tensors, a slab of our own, pages of several sizes scattered over
both. Every byte is compared after the way there and back. Results are written after each part.
"""

import argparse
import contextlib
import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from forebay.engines.copies import cuda
from forebay.engines.copies.contract import FinishedCopies, LoadPart, Piece, Store, WorkerSlab
from forebay.engines.copies.driver import Driver
from forebay.engines.copies.pointers import Batch, PageTable
from forebay.engines.copies.registration import SPAN_BYTES, Registration
from forebay.engines.copies.streamed import StreamedCopies
from forebay.sys.shared import SharedMemory

_ARENA_BYTES: Final = 256 << 20
_WAIT_S: Final = 120.0
_REPEATS: Final = 3
# Page bytes and layers; a chunk has one block of about 2 MiB, as an engine's has.
_SHAPES: Final = ((8 << 10, 256), (16 << 10, 128), (64 << 10, 36), (256 << 10, 9), (4 << 20, 1))


class HostDriver:
    """A Driver without a GPU, to rehearse with: copies at once, in order, in host memory."""

    by = "memmove"

    def _nothing(self, *_: Any, **__: Any) -> None:
        """There is no stream, no event and nothing to register."""

    def _done(self, *_: Any) -> bool:
        return True

    enter_thread = compute = stream = wait = unregister = _nothing
    record = is_done = _done

    def seconds(self, *_: Any) -> float:
        return 0.0

    def register(self, *_: Any) -> str:
        return ""

    def way(self, *_: Any, **__: Any) -> str:
        return self.by

    def pages_a_call(self, page_bytes: int, **_: Any) -> int:
        return max(1, (64 << 20) // page_bytes)

    def copy(self, _stream: Any, batch: Batch, *, inward: bool, **_: Any) -> None:
        for page, slot in zip(batch.pages.tolist(), batch.slots.tolist(), strict=True):
            pair = (page, slot) if inward else (slot, page)
            ctypes.memmove(*pair, batch.page_bytes)


class CopyBench:
    def __init__(self, out: Path, *, is_tiny: bool) -> None:
        self.out = out
        self.device = "cpu" if is_tiny else "cuda"
        self.slab_bytes = (1 if is_tiny else 8) << 30
        self.moved_bytes = 64 << 20 if is_tiny else 2 << 30  # each way, each time
        self.found: dict[str, Any] = {}
        self.shared = SharedMemory(self.slab_bytes)
        memory = np.frombuffer(self.shared.view, dtype=np.uint8)
        self.slab = WorkerSlab(1, memory, _ARENA_BYTES, self.slab_bytes)

    def say(self, name: str, value: Any) -> None:
        """A result, written at once."""
        self.found[name] = value
        self.out.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(value), flush=True)  # noqa: T201 - whoever runs it watches

    def driver(self, gather_below: int | None = None, *, with_operator: bool = True) -> Any:
        if self.device == "cpu":
            return HostDriver()
        return cuda.CudaDriver("cuda:0", gather_below, with_operator=with_operator)


def register(bench: CopyBench, span_bytes: int) -> dict[str, Any]:
    """The whole slab registered in the background, and what a launching thread feels of it."""
    driver = bench.driver()
    changed = threading.Condition()
    calm = launches(bench, lambda: False, 300)
    begun = time.perf_counter()
    slot_bytes = 64 << 10
    with changed:
        registration = Registration(driver, bench.slab, slot_bytes, changed, span_bytes)
    busy = launches(bench, lambda: registration.ready_bytes < bench.slab_bytes, 300)
    while registration.ready_bytes < bench.slab_bytes and not registration.why:
        time.sleep(0.001)
    seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    with changed:
        registration.leave()
    while not registration.has_left():
        time.sleep(0.001)
    return {
        "why": registration.why,
        "span_mib": span_bytes >> 20,
        "register_s_a_gib": seconds / (bench.slab_bytes >> 30),
        "unregister_s_a_gib": (time.perf_counter() - begun) / (bench.slab_bytes >> 30),
        "launch_ms_calm": calm,
        "launch_ms_meanwhile": busy,
    }


def launches(bench: CopyBench, goes_on: Callable[[], bool], least: int) -> dict[str, float]:
    """Milliseconds that a small kernel takes from launch to end, as an engine's step would."""
    if bench.device == "cpu":
        return {}
    small = torch.zeros(1024, device="cuda")
    took: list[float] = []
    until = time.perf_counter() + _WAIT_S
    while (len(took) < least or goes_on()) and time.perf_counter() < until:
        begun = time.perf_counter()
        for _ in range(10):
            small += 1
        torch.cuda.current_stream().synchronize()  # ours alone: copies go on
        took.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.001)
    took.sort()
    picks = {"p50": median(took), "p99": took[len(took) * 99 // 100], "max": took[-1]}
    return {name: round(value, 3) for name, value in picks.items()}


class PageTransfer:
    """Chunks of one shape between a KV cache and the slab."""

    def __init__(self, bench: CopyBench, driver: Driver, page_bytes: int, layers: int) -> None:
        self._bench = bench
        self.block_bytes = page_bytes * layers
        self.chunks = bench.moved_bytes // self.block_bytes
        self._blocks = 2 * self.chunks
        shape = (layers, self._blocks, page_bytes // 8)
        device = bench.device
        self.cache = torch.empty(shape, dtype=torch.int64, device=device).random_()
        bases = [(layer.data_ptr(), page_bytes) for layer in self.cache]
        # A slot a chunk: whole pages of the system, so that spans are.
        self.copies = StreamedCopies(
            driver, PageTable.of(bases, page_bytes, self._blocks), self.block_bytes
        )
        self.copies.attach(bench.slab)
        luck = np.random.default_rng(page_bytes)
        order = luck.permutation(self._blocks).tolist()
        self.out_blocks, self.in_blocks = order[: self.chunks], order[self.chunks :]
        an_arena = _ARENA_BYTES // self.block_bytes
        slots = luck.permutation(bench.slab_bytes // _ARENA_BYTES * an_arena)[: self.chunks]
        self.offsets = (
            slots // an_arena * _ARENA_BYTES + slots % an_arena * self.block_bytes
        ).tolist()

    def reach(self) -> None:
        """Until every slot is registered."""
        registration = self.copies._registration  # noqa: SLF001 - measured from inside
        assert registration is not None
        until = time.perf_counter() + _WAIT_S
        while not registration.are_ready(self.offsets).all() and time.perf_counter() < until:
            assert not registration.why, registration.why
            time.sleep(0.005)

    def run(self, *, out: bool, inward: bool) -> float:
        """Gigabytes a second, as a step would move them, until the last one is done."""
        pairs = zip(self.offsets, self.out_blocks, strict=True)
        stores = [Store(1, Piece(offset, 0, [block])) for offset, block in pairs] if out else []
        pairs = zip(self.offsets, self.in_blocks, strict=True)  # into other blocks
        pieces = [Piece(offset, 0, [block]) for offset, block in pairs]
        begun = time.perf_counter()
        self.copies.begin(1, stores, loads=inward, freed=0)
        if inward:
            self.copies.load(LoadPart("all", 1, pieces, is_last=True))
        left = len(stores) + inward
        while left:
            done: FinishedCopies = self.copies.take_done()
            assert not done.missed, "a store was missed"
            assert not done.failed, "a load failed"
            left -= len(done.stored) + len(done.loaded)
            assert time.perf_counter() - begun < _WAIT_S
            time.sleep(0.0002)
        took = time.perf_counter() - begun
        return (out + inward) * self.chunks * self.block_bytes / took / 1e9

    def is_equal(self) -> bool:
        """Every byte, of what now goes out and comes back into other blocks."""
        self.cache.random_()  # nothing of it was ever in the slab
        self.run(out=True, inward=False)
        self.run(out=False, inward=True)
        return all(
            bool(torch.equal(layer[self.out_blocks], layer[self.in_blocks])) for layer in self.cache
        )

    def close(self) -> None:
        self.copies.close()
        del self.cache
        if self._bench.device != "cpu":
            torch.cuda.empty_cache()


def move(
    bench: CopyBench, page_bytes: int, layers: int, gather_below: int, *, with_operator: bool = True
) -> dict[str, Any]:
    driver = bench.driver(gather_below, with_operator=with_operator)
    moving = PageTransfer(bench, driver, page_bytes, layers)
    try:
        moving.reach()
        moving.run(out=True, inward=True)  # compiles, warms
        ways = {"out": (True, False), "in": (False, True), "both": (True, True)}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(_REPEATS):
            for name, (out, inward) in ways.items():
                rates[name].append(round(moving.run(out=out, inward=inward), 2))
        stop = threading.Event()
        worker = threading.Thread(target=_keep_moving, args=(moving, stop))
        worker.start()
        felt = launches(bench, lambda: False, 200)
        stop.set()
        worker.join(_WAIT_S)
        return {
            "page_kib": page_bytes >> 10,
            "layers": layers,
            "by": driver.way(page_bytes, inward=True),
            "gb_s": rates,
            "launch_ms_meanwhile": felt,
            "bytes_equal": moving.is_equal(),
        }
    finally:
        moving.close()


def _keep_moving(moving: PageTransfer, stop: threading.Event) -> None:
    with contextlib.ExitStack() as stack:
        if torch.cuda.is_available():
            torch.cuda.set_device(0)
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream()))
        while not stop.is_set():
            moving.run(out=True, inward=True)


def raw(bench: CopyBench) -> dict[str, float]:
    """What the wire gives to one large copy of pinned memory."""
    if bench.device == "cpu":
        return {}
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    rates = {}
    for name, (target, source) in {"in": (there, host), "out": (host, there)}.items():
        took = []
        for _ in range(5):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - begun)
        rates[name] = round((1 << 30) / median(took) / 1e9, 2)
    return rates


def cases() -> Iterator[tuple[str, tuple[int, int, int], bool]]:
    """A name; page bytes, layers, and below which size the kernel is used; with vLLM's operator."""
    for page_bytes, layers in _SHAPES:
        name = f"pages_{page_bytes >> 10}k"
        yield f"{name}_dma", (page_bytes, layers, 0), True
        if page_bytes <= 256 << 10:
            yield f"{name}_kernel", (page_bytes, layers, page_bytes + 1), True
    yield "pages_64k_libcuda", (64 << 10, 36, 0), False


def main() -> int:
    """Measure, writing what is known after each part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="without a GPU: a rehearsal")
    wanted = parser.parse_args()
    bench = CopyBench(wanted.out, is_tiny=wanted.tiny)
    device = "none" if wanted.tiny else torch.cuda.get_device_name(0)
    bench.say("machine", {"device": device, "torch": torch.__version__, "by": bench.driver().by})
    bench.say("raw_gb_s", raw(bench))
    bench.say("register_first_touch", register(bench, SPAN_BYTES))
    for span_bytes in (256 << 20, SPAN_BYTES, 16 << 20):
        bench.say(f"register_{span_bytes >> 20}", register(bench, span_bytes))
    for name, case, with_operator in cases():
        bench.say(name, move(bench, *case, with_operator=with_operator))
    pages = [value for name, value in bench.found.items() if name.startswith("pages_")]
    return 0 if all(each["bytes_equal"] for each in pages) else 1


if __name__ == "__main__":
    sys.exit(main())
