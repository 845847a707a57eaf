"""Run in a worker: the pages of every store before it, and of every load after it, compared.

The witness reads the KV cache in a way of its own, not by what it watches. As a control it can make
every page wrong that was loaded, before the engine hears of it.
"""

import ctypes
import hashlib
from typing import Any

from forebay.engines.vllm.bench.worker import CountsExtension


class Witness:
    """Around one worker's copies."""

    def __init__(self, copies: Any) -> None:
        self.stored: set[bytes] = set()
        self.counts = {"stored": 0, "equal": 0, "wrong": 0}
        self.is_spoiling = False
        self._copies = copies
        self._begin, self._take_done = copies.begin, copies.take_done
        copies.begin, copies.take_done = self.begin, self.take_done

    def begin(self, step: int, stores: Any, *, loads: bool, freed: int) -> None:
        _synchronize()  # what was computed is there
        for store in stores:
            for block in store.piece.blocks:
                self.stored.add(self._digest(block))
                self.counts["stored"] += 1
        self._begin(step, stores, loads=loads, freed=freed)

    def take_done(self) -> Any:
        done = self._take_done()
        if done.coming:  # the engine hears of them a moment before they are there
            self._copies.await_loads(done.coming)
            _synchronize()
        for load in done.coming:
            for piece in load.pieces:
                for block in piece.blocks:
                    if self.is_spoiling:
                        self._spoil(block)
                    is_equal = self._digest(block) in self.stored
                    self.counts["equal" if is_equal else "wrong"] += 1
        return done

    def _digest(self, block: int) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        page_table = getattr(self._copies, "_page_table", None)
        if page_table is None:
            for page in self._copies._pages.digest_input([block]):
                digest.update(page.tobytes())
            return digest.digest()
        for base, stride in zip(
            page_table.bases.tolist(), page_table.strides.tolist(), strict=True
        ):
            digest.update(_read(base + block * stride, page_table.page_bytes))
        return digest.digest()

    def _spoil(self, block: int) -> None:
        """Half of each of its pages; numbers of such bytes are large, whatever their format."""
        page_table = self._copies._page_table
        for base, stride in zip(
            page_table.bases.tolist(), page_table.strides.tolist(), strict=True
        ):
            _write(base + block * stride, b"\x42" * (page_table.page_bytes // 2))


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _write(address: int, data: bytes) -> None:
    import torch

    if not torch.cuda.is_available():
        ctypes.memmove(address, data, len(data))
        return
    libcuda = ctypes.CDLL("libcuda.so.1")
    code = libcuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
    assert code == 0, code


def _read(address: int, size: int) -> bytes:
    import torch

    if not torch.cuda.is_available():
        return ctypes.string_at(address, size)
    page = ctypes.create_string_buffer(size)
    libcuda = ctypes.CDLL("libcuda.so.1")
    code = libcuda.cuMemcpyDtoH_v2(page, ctypes.c_uint64(address), ctypes.c_size_t(size))
    assert code == 0, code
    return page.raw


class WitnessExtension(CountsExtension):
    """Methods of a worker, called by their names."""

    forebay_witness: Witness

    def watch(self) -> bool:
        """From now on."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.forebay_witness = Witness(get_kv_transfer_group()._worker._copies)
        return True

    def late(self) -> bool:
        """Without a GPU: copy as on one, late and on threads; this thread runs the forward."""
        from tests.engines.copies.simulated import InHost
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        from forebay.engines.copies.pointers import PageTable
        from forebay.engines.copies.streamed import StreamedCopies

        side = get_kv_transfer_group()._worker
        rows = side._copies._pages._layers
        layers = [(row.ctypes.data, row.strides[0]) for row in rows]
        page_table = PageTable.of(layers, side._shape.page_bytes, len(rows[0]))
        driver = InHost(copy_s=0.01, register_s=0.01)
        side._copies = StreamedCopies(driver, page_table)
        return True

    def verdict(self) -> dict[str, int]:
        """So far."""
        counts: dict[str, int] = self.forebay_witness.counts
        return counts

    def spoil(self) -> bool:
        """From now on."""
        self.forebay_witness.is_spoiling = True
        return True

    def refuse(self) -> bool:
        """From now on no host memory can be registered (T49); before the first step."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        copies = get_kv_transfer_group()._worker._copies
        if hasattr(copies, "_driver"):
            copies._driver.register = lambda *_: "none is left"
        return True
