"""The exponent code's kernels on a GPU, between its memory and registered host memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from forebay.engines.codec import exponents
from forebay.engines.copies.cuda import CudaDriver
from forebay.engines.copies.pointers import Batch
from forebay.record.exponents import COUNT_AT, encoded_bytes
from forebay.sys.shared import SharedMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.timeout(300),
]
SIZES = (12_288, 16 * 576 * 2, 65_536)
SLAB_BYTES = 64 << 20


@pytest.fixture(scope="module")
def slab() -> Iterator[Any]:
    """Registered host memory."""
    driver, shared = CudaDriver("cuda:0"), SharedMemory.of(SLAB_BYTES)
    memory = np.frombuffer(shared.view, dtype=np.uint8)
    assert driver.register(memory.ctypes.data, SLAB_BYTES) == ""
    yield memory
    torch.cuda.synchronize()
    driver.unregister(memory.ctypes.data)


def pages_of(page_bytes: int) -> Any:
    """All 65,536 patterns, normal numbers, zeros, and pages of a few escapes and of too many."""
    values, drawn = page_bytes // 2, np.random.default_rng(page_bytes)
    normal = (drawn.normal(size=(8, values)).astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    every = np.arange(1 << 16, dtype=np.uint16)
    sorted_ = every[np.argsort((every >> 7) & 0xFF, kind="stable")].reshape(16, -1)
    patterns = np.stack([np.resize(row, values) for row in sorted_])
    patterns[3, 7::500] ^= 0x4000  # other exponents
    spread = drawn.integers(0, 1 << 16, (2, values)).astype("<u2")
    zeros = np.zeros((1, values), "<u2")
    return np.concatenate([patterns, normal, zeros, spread]).view(np.uint8)


def copied(slab: Any, pages: Any, page_bytes: int) -> tuple[Any, Any, Batch]:
    """On the GPU, the slots that they are encoded into, and the batch of both."""
    size, there = encoded_bytes(page_bytes), torch.from_numpy(pages).to("cuda")
    slots = slab[: len(pages) * size].reshape(len(pages), size)
    rows = np.array([row.data_ptr() for row in there], dtype=np.int64)
    places = slots.ctypes.data + np.arange(len(pages), dtype=np.int64) * size
    return there, slots, Batch(rows, places, page_bytes, is_encoded=True)


@pytest.mark.parametrize("page_bytes", SIZES)
def test_the_bytes_are_those_of_the_reference_and_come_back(slab: Any, page_bytes: int) -> None:
    pages = pages_of(page_bytes)
    there, slots, batch = copied(slab, pages, page_bytes)
    slab[:] = 0xCD
    driver = CudaDriver("cuda:0")
    stream = driver.stream(is_urgent=True)
    torch.cuda.synchronize()
    driver.copy(stream, batch, inward=False)
    stream.synchronize()
    expected = exponents.encode(pages)
    assert (slots == expected).all()
    assert (slab[slots.size :] == 0xCD).all()
    fitting = [n for n, row in enumerate(expected) if exponents.fit(row[None], page_bytes)]
    assert len(fitting) == len(pages) - 2, "all but those of uniform exponents"
    there.zero_()
    torch.cuda.synchronize()
    chosen = Batch(batch.pages[fitting], batch.slots[fitting], page_bytes, is_encoded=True)
    driver.copy(stream, chosen, inward=True)
    stream.synchronize()
    assert (there.cpu().numpy()[fitting] == pages[fitting]).all()
    there.zero_()
    torch.cuda.synchronize()
    driver.copy(stream, chosen, inward=True, by_engine=True)
    stream.synchronize()
    assert (there.cpu().numpy()[fitting] == pages[fitting]).all(), "decoded by the processor"


@pytest.mark.parametrize("count", [0, 5, 1000, -1, 1 << 30])
def test_any_bytes_are_decoded_into_their_page_alone(slab: Any, count: int) -> None:
    page_bytes = SIZES[0]
    around, slots, batch = copied(slab, np.full((3, page_bytes), 0xAB, np.uint8), page_bytes)
    slots[:] = np.random.default_rng(1).integers(0, 256, slots.shape)
    slots[1, COUNT_AT : COUNT_AT + 4] = np.array([count], "<i4").view(np.uint8)
    driver = CudaDriver("cuda:0")
    stream = driver.stream(is_urgent=True)
    torch.cuda.synchronize()
    only = Batch(batch.pages[1:2], batch.slots[1:2], page_bytes, is_encoded=True)
    driver.copy(stream, only, inward=True)
    stream.synchronize()
    assert (around.cpu().numpy()[[0, 2]] == 0xAB).all()


def test_a_gpu_without_memory_for_it_does_not_encode_and_says_so() -> None:
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction((64 << 20) / torch.cuda.mem_get_info()[1])
        assert "MiB left to encode in" in CudaDriver("cuda:0").warm_codec(SIZES[0])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert CudaDriver("cuda:0").warm_codec(SIZES[0]) == ""
