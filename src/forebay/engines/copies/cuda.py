"""CUDA behind the seam: torch's streams and events, batched copies, registered memory.

A batch goes to the copy engines in one call: by vLLM's operator if it is loaded, else by the
driver's `cuMemcpyBatchAsync` (CUDA 12.8), else by one call per page. All three release the
interpreter lock while they run. Small pages are copied by a kernel instead, in loads up to a larger
page size than in stores: while a load of 64 KiB pages is being submitted to copy engines (10 ms), a
kernel launch of the model's thread takes 2.5 ms. Encoded pages are decoded by a kernel on their way
in; on their way out pages are encoded in GPU memory first.
"""

import ctypes
import errno
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from forebay.engines.copies.driver import Event, Stream
from forebay.engines.copies.pointers import Batch
from forebay.record.exponents import encoded_bytes
from forebay.sys.memory import populate_taken

# Measured, see docs/benchmarks.md: below the first, copy engines give less than half the wire;
# below the second, dialogs go faster with loads by kernel, and no faster with stores by it too.
GATHER_STORES_BELOW: Final = 28 << 10
GATHER_LOADS_BELOW: Final = 128 << 10
# A microsecond of submission a page, in which every launch has to wait; and behind each call the
# thread waits for the interpreter, a millisecond beside a busy model. Somebody waits for a load.
_LOADED_A_CALL: Final = 4096
_STORED_A_CALL: Final = 1024
_GATHER_BYTES: Final = 256 << 20  # per launch: five milliseconds of the wire
_ENCODED_BYTES: Final = 128 << 20  # of pages that are encoded at once, beside the KV cache
_NO_SCRATCH: Final = (
    f"the GPU has no {_ENCODED_BYTES >> 20} MiB left to encode in; a smaller"
    " gpu_memory_utilization leaves more"
)
_AT_HOST_ADDRESS: Final = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_URGENT: Final = -1
_log: Final = logging.getLogger("forebay")

Submit = Callable[[Any, Any, Any, Stream, bool], None]  # sources, targets, sizes, stream, inward


class CudaDriver:
    """See Driver."""

    def __init__(
        self, device: Any, gather_below: int | None = None, *, with_operator: bool = True
    ) -> None:
        """`gather_below`: pages so small go by a kernel, in and out; None: as was measured."""
        self._device = torch.device(device)
        self._submit, self.by = _batch_copy(with_operator=with_operator)
        self._sizes: dict[int, Any] = {}
        self._scratch: Any = None  # where one stream encodes its stores
        self._libcuda = _libcuda()
        self._gather_loads_below = GATHER_LOADS_BELOW if gather_below is None else gather_below
        self._gather_stores_below = GATHER_STORES_BELOW if gather_below is None else gather_below
        self._has_kernels = _kernels_reach_the_host(self._libcuda, self._device)
        if not self._has_kernels:
            self._gather_loads_below = self._gather_stores_below = 0

    def warm(self, page_bytes: int) -> None:
        """Compile the kernels for pages of this size before anyone waits for them."""
        if self._is_gathered(page_bytes, inward=True):
            from forebay.engines.copies import gather  # noqa: PLC0415

            both = torch.empty((2, page_bytes), dtype=torch.uint8, device=self._device)
            pair = np.array([[row.data_ptr()] * 2 for row in both], dtype=np.int64)
            gather.copy_pages(pair[0], pair[1], page_bytes)

    def warm_codec(self, page_bytes: int) -> str:
        """As `warm`, for encoded pages; returns in a few words why they cannot be encoded, or "".

        One page is encoded and decoded as a check: the compiled kernel is not taken on trust.
        """
        if not self._has_kernels:
            return "there is no Triton, or its kernels do not reach host memory"
        from forebay.engines.codec import kernels  # noqa: PLC0415 - compiles
        from forebay.engines.codec.exponents import encode, sample_page  # noqa: PLC0415

        try:
            self._scratch = torch.empty(_ENCODED_BYTES, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            return _NO_SCRATCH
        sample = sample_page(page_bytes)
        expected = encode(sample[None])[0]
        pages = torch.zeros((3, page_bytes), dtype=torch.uint8, device=self._device)
        pages[0] = torch.from_numpy(sample)
        at = np.array([row.data_ptr() for row in pages], dtype=np.int64)
        kernels.encode_pages(at[:1], at[1:2], page_bytes)
        kernels.decode_pages(at[1:2], at[2:], page_bytes)
        _, slot, decoded = pages.cpu().numpy()
        is_exact = (slot[: len(expected)] == expected).all() and (decoded == sample).all()
        return "" if is_exact else "its kernels do not give the right bytes on this GPU"

    def enter_thread(self) -> None:
        """See Driver."""
        torch.cuda.set_device(self._device)
        if self._libcuda is not None:
            # The engine may be capturing a graph: its capture must not forbid our calls.
            mode = ctypes.c_int(_RELAXED)
            self._libcuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def compute(self) -> Stream:
        """See Driver."""
        return torch.cuda.current_stream(self._device)

    def stream(self, *, is_urgent: bool) -> Stream:
        """See Driver."""
        return torch.cuda.Stream(self._device, priority=_URGENT if is_urgent else 0)

    def record(self, stream: Stream) -> Event:
        """See Driver."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """See Driver."""
        stream.wait_event(event)

    def is_done(self, event: Event) -> bool:
        """See Driver."""
        return bool(event.query())

    def seconds(self, begin: Event, end: Event) -> float:
        """See Driver."""
        return float(begin.elapsed_time(end)) / 1000

    def copy(self, stream: Stream, batch: Batch, *, inward: bool, by_engine: bool = False) -> None:
        """See Driver."""
        sources, targets = batch.pages, batch.slots
        if inward:
            sources, targets = targets, sources
        with torch.cuda.stream(stream):
            if batch.is_encoded:
                self._copy_encoded(stream, batch, inward=inward, by_kernel=not by_engine)
            elif self._is_gathered(batch.page_bytes, inward=inward) and not by_engine:
                from forebay.engines.copies import gather  # noqa: PLC0415 - compiles

                gather.copy_pages(sources, targets, batch.page_bytes)
            else:
                sizes = self._sizes_of(batch.page_bytes, len(sources))
                self._submit(sources, targets, sizes, stream, inward)

    def way(self, page_bytes: int, *, inward: bool) -> str:
        """The name of the way in which pages of this size are copied."""
        return "kernel" if self._is_gathered(page_bytes, inward=inward) else self.by

    def pages_a_call(self, page_bytes: int, *, inward: bool, is_encoded: bool = False) -> int:
        """See Driver."""
        if is_encoded and not inward:
            return max(1, _ENCODED_BYTES // page_bytes)
        if is_encoded or self._is_gathered(page_bytes, inward=inward):
            return max(1, _GATHER_BYTES // page_bytes)
        return _LOADED_A_CALL if inward else _STORED_A_CALL

    def register(self, address: int, length: int) -> str:
        """See Driver."""
        # Pages that are mapped are pinned within milliseconds; mapping takes no lock of CUDA's.
        failed = populate_taken(address, length)
        if failed is not None and failed.errno != errno.EINVAL:
            return f"no memory behind the slab: {failed.strerror}"
        code = torch.cuda.cudart().cudaHostRegister(address, length, 0)
        return "" if int(code) == 0 else f"cudaHostRegister answers {int(code)}"

    def unregister(self, address: int) -> None:
        """See Driver."""
        code = torch.cuda.cudart().cudaHostUnregister(address)
        if int(code):
            _log.warning("cudaHostUnregister answers %d", int(code))

    def _copy_encoded(self, stream: Stream, batch: Batch, *, inward: bool, by_kernel: bool) -> None:
        if not inward:
            self._copy_encoding(stream, batch)
        elif by_kernel:
            from forebay.engines.codec import kernels  # noqa: PLC0415 - compiles

            kernels.decode_pages(batch.slots, batch.pages, batch.page_bytes)
        else:
            self._copy_decoded(stream, batch)

    def _copy_encoding(self, stream: Stream, batch: Batch) -> None:
        """Encode into GPU memory with all multiprocessors, then copy out with copy engines.

        A kernel that wrote to the slab itself would keep multiprocessors from the forward pass for
        as long as the wire takes.
        """
        from forebay.engines.codec import kernels  # noqa: PLC0415 - compiles

        size, count, together = encoded_bytes(batch.page_bytes), len(batch.pages), batch.together
        # The next batch of this stream reuses the memory after this one's copy.
        place = self._scratch
        if place is None or len(place) < count * size:
            place = torch.empty(count * size, dtype=torch.uint8, device=self._device)
        rows = place.data_ptr() + np.arange(count, dtype=np.int64) * size
        kernels.encode_pages(batch.pages, rows, batch.page_bytes, programs=count)
        blocks, slots = rows[::together].copy(), batch.slots[::together].copy()
        sizes = self._sizes_of(size * together, len(blocks))
        self._submit(blocks, slots, sizes, stream, False)

    def _copy_decoded(self, stream: Stream, batch: Batch) -> None:
        """Decode on the CPU, then copy in with copy engines."""
        from forebay.engines.codec.slots import decode_at  # noqa: PLC0415

        pages = torch.from_numpy(decode_at(batch.slots, batch.page_bytes)).pin_memory()
        sources = pages.data_ptr() + np.arange(len(pages), dtype=np.int64) * batch.page_bytes
        sizes = self._sizes_of(batch.page_bytes, len(pages))
        self._submit(sources, batch.pages, sizes, stream, True)
        stream.synchronize()  # before these pages are freed

    def _is_gathered(self, page_bytes: int, *, inward: bool) -> bool:
        below = self._gather_loads_below if inward else self._gather_stores_below
        return page_bytes < below and page_bytes % 16 == 0

    def _sizes_of(self, page_bytes: int, count: int) -> Any:
        sizes = self._sizes.get(page_bytes)
        if sizes is None or len(sizes) < count:
            sizes = np.full(max(count, _LOADED_A_CALL), page_bytes, dtype=np.int64)
            self._sizes[page_bytes] = sizes
        return sizes[:count]


def _kernels_reach_the_host(libcuda: Any, device: Any) -> bool:
    """Whether kernels can run, and registered memory has the same address on the device."""
    if libcuda is None or importlib.util.find_spec("triton") is None:
        return False
    torch.cuda.init()
    number, answer = ctypes.c_int(), ctypes.c_int()
    index = torch.cuda.current_device() if device.index is None else device.index
    failed = libcuda.cuDeviceGet(ctypes.byref(number), index)
    failed |= libcuda.cuDeviceGetAttribute(ctypes.byref(answer), _AT_HOST_ADDRESS, number)
    return not failed and bool(answer.value)


def _batch_copy(*, with_operator: bool) -> tuple[Submit, str]:
    """The best available way to submit a batch, and its name."""
    operator = getattr(getattr(torch.ops, "_C_cache_ops", None), "swap_blocks_batch", None)
    if operator is not None and with_operator:
        return _by_operator(operator), "vLLM's operator"
    libcuda = _libcuda()
    if libcuda is not None and hasattr(libcuda, "cuMemcpyBatchAsync"):
        return _by_libcuda(libcuda.cuMemcpyBatchAsync), "cuMemcpyBatchAsync"
    return _one_by_one(libcuda), "cuMemcpyAsync"


def _by_operator(operator: Any) -> Submit:
    def submit(sources: Any, targets: Any, sizes: Any, stream: Stream, inward: bool) -> None:
        del stream  # the current one
        # What lies in the slab was written before we were told of it, so it may be read early; what
        # lies in the KV cache only in its turn.
        operator(*map(torch.from_numpy, (sources, targets, sizes)), inward)

    return submit


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: how all copies of a batch are made."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


_IN_STREAM_ORDER: Final = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_IN_ANY_ORDER: Final = 3  # CU_MEMCPY_SRC_ACCESS_ORDER_ANY


def _by_libcuda(call: Any) -> Submit:
    call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
    call.argtypes += [ctypes.c_void_p] * 2 + [ctypes.c_size_t] + [ctypes.c_void_p] * 2

    def submit(sources: Any, targets: Any, sizes: Any, stream: Stream, inward: bool) -> None:
        attributes = _Attributes(_IN_ANY_ORDER if inward else _IN_STREAM_ORDER)
        first = ctypes.c_size_t(0)
        failed = ctypes.c_size_t(0)
        pointers = (targets.ctypes.data, sources.ctypes.data, sizes.ctypes.data)
        kind = (ctypes.addressof(attributes), ctypes.addressof(first), 1)
        where = (ctypes.addressof(failed), stream.cuda_stream)
        code = call(*pointers, len(sources), *kind, *where)
        if code:
            raise RuntimeError(f"cuMemcpyBatchAsync answers {code}")

    return submit


def _one_by_one(libcuda: Any) -> Submit:
    def submit(sources: Any, targets: Any, sizes: Any, stream: Stream, inward: bool) -> None:
        del inward
        call = libcuda.cuMemcpyAsync
        call.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        for source, target, size in zip(
            sources.tolist(), targets.tolist(), sizes.tolist(), strict=True
        ):
            code = call(target, source, size, stream.cuda_stream)
            if code:
                raise RuntimeError(f"cuMemcpyAsync answers {code}")

    return submit


def _libcuda() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
