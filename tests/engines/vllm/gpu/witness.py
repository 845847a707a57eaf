"""Run in a worker: the pages of every store before it, and of every load after it, compared.

The witness reads the KV cache in a way of its own, not by what it watches. What one engine has
stored another knows by the file that WITNESSED names. As a control it can make every page wrong
that was loaded, before the engine hears of it.
"""

import ctypes
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.engines.geometry import ShardPlaces
from forebay.engines.vllm.bench.worker import CountsExtension

WITNESSED = "WITNESSED_PAGES"
DIGEST_BYTES = 16


class Witness:
    """Around one worker's copies."""

    def __init__(self, copies: Any) -> None:
        named = os.environ.get(WITNESSED)
        self._file = None if named is None else Path(named).open("a+b", buffering=0)  # noqa: SIM115
        self.stored = set() if self._file is None else _digests_in(Path(self._file.name))
        self.counts = {"stored": 0, "equal": 0, "wrong": 0}
        self.is_spoiling = False
        self._copies = copies
        self._begin, self._take_done = copies.begin, copies.take_done
        copies.begin, copies.take_done = self.begin, self.take_done

    def begin(self, step: int, stores: Any, *, loads: bool, freed: int) -> None:
        _synchronize()  # what was computed is there
        for store in stores:
            for table, block in self._blocks(store.piece):
                self._note(self._digest(table, block))
        self._begin(step, stores, loads=loads, freed=freed)

    def _note(self, digest: bytes) -> None:
        self.counts["stored"] += 1
        if self._file is not None and digest not in self.stored:
            self._file.write(digest)
        self.stored.add(digest)

    def take_done(self) -> Any:
        done = self._take_done()
        if done.coming:  # the engine hears of them a moment before they are there
            self._copies.await_loads(done.coming)
            _synchronize()
        for load in done.coming:
            for piece in load.pieces:
                for table, block in self._blocks(piece):
                    if self.is_spoiling:
                        self._spoil(table, block)
                    is_equal = self._digest(table, block) in self.stored
                    self.counts["equal" if is_equal else "wrong"] += 1
        return done

    def _blocks(self, piece: Any) -> Iterator[tuple[int, int]]:
        """Every block of a piece, with the number of its table."""
        tables = getattr(self._copies, "_page_tables", None)
        shape = tables.shape if tables is not None else self._copies._pages.geometry
        for table, _, blocks in ShardPlaces(shape).runs_of(piece):
            yield from ((table, block) for block in blocks)

    def _digest(self, table: int, block: int) -> bytes:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        page_tables = getattr(self._copies, "_page_tables", None)
        if page_tables is None:
            for pages in self._copies._pages._tables[table]:
                digest.update(pages[block].tobytes())
            return digest.digest()
        page_table = page_tables.tables[table]
        for base, stride in zip(
            page_table.bases.tolist(), page_table.strides.tolist(), strict=True
        ):
            digest.update(_read(base + block * stride, page_table.page_bytes))
        return digest.digest()

    def _spoil(self, table: int, block: int) -> None:
        """Half of each of its pages; numbers of such bytes are large, whatever their format."""
        page_table = self._copies._page_tables.tables[table]
        for base, stride in zip(
            page_table.bases.tolist(), page_table.strides.tolist(), strict=True
        ):
            _write(base + block * stride, b"\x42" * (page_table.page_bytes // 2))


def _digests_in(file: Path) -> set[bytes]:
    kept = file.read_bytes()
    return {kept[at : at + DIGEST_BYTES] for at in range(0, len(kept), DIGEST_BYTES)}


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

        from forebay.engines.copies.pointers import PageTable, PageTables
        from forebay.engines.copies.streamed import StreamedCopies

        side = get_kv_transfer_group()._worker
        tables = []
        for rows in side._copies._pages._tables:
            layers = [(row.ctypes.data, row.strides[0]) for row in rows]
            tables.append(PageTable.of(layers, rows[0].shape[1], len(rows[0])))
        driver = InHost(copy_s=0.01, register_s=0.01)
        side._copies = StreamedCopies(driver, PageTables(tables, side._shape))
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
        """No host memory can be registered (T49); before the first step."""
        from tests.pool_process import wait_until
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        side = get_kv_transfer_group()._worker
        if hasattr(side._copies, "_driver"):
            side._copies._driver.register = lambda *_: "none is left"
        if side._early is not None:  # what it has registered goes as well
            side._early.end()
            wait_until(lambda: side._detach_early(side._copies), "the slab to be left")
        return True
