"""Addresses of pages and of their places in slots, for whole jobs at once.

A page is one layer of one block. In a slot a block's layers lie behind one another; in the KV cache
each layer has rows of its own, or, where the engine laid a block's layers together, a block is one
page. The layers of one block table have a `PageTable`; a job goes through one table after another.
No Python runs for each page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from forebay.engines.copies.contract import Piece, WorkerSlab
from forebay.engines.geometry import Geometry, ShardPlaces

Run: TypeAlias = tuple[int, list[int]]  # where the first of these blocks lies in the slab, and ids


class Batch(NamedTuple):
    """Pages to copy between the KV cache and the slab: addresses, pair by pair."""

    pages: Any  # int64, in the KV cache
    slots: Any  # int64, in the slab
    page_bytes: int


class TableBlocks(NamedTuple):
    """Blocks of one job in one block table."""

    blocks: Any  # int64, ids
    slots: Any  # int64, addresses of their first byte in the slab

    @property
    def total(self) -> int:
        """How many blocks."""
        return len(self.blocks)


@dataclass(frozen=True, slots=True)
class PageTable:
    """Where all pages of a KV cache lie."""

    bases: Any  # int64, a layer: the address of its block 0
    strides: Any  # int64, a layer: bytes from one block to the next
    page_bytes: int  # of each layer of a block
    blocks: int

    @classmethod
    def of(cls, layers: Sequence[tuple[int, int]], page_bytes: int, blocks: int) -> "PageTable":
        """From each layer's address and stride, in the order in which they lie in a slot."""
        bases = np.array([base for base, _ in layers], dtype=np.int64)
        strides = np.array([stride for _, stride in layers], dtype=np.int64)
        follows = bases == bases[0] + np.arange(len(layers)) * page_bytes
        if len(layers) > 1 and follows.all() and (strides == strides[0]).all():
            return cls(bases[:1], strides[:1], page_bytes * len(layers), blocks)
        return cls(bases, strides, page_bytes, blocks)

    @property
    def is_aligned(self) -> bool:
        """Whether every page begins where a kernel can take 16 bytes at once."""
        return not ((self.bases | self.strides | self.page_bytes) & 15).any()

    @property
    def block_bytes(self) -> int:
        """All layers of one block."""
        return self.page_bytes * len(self.bases)

    def blocks_of(self, runs: Sequence[Run], memory: Any) -> TableBlocks:
        """The blocks of these runs; a run that lies outside is a bug, never a copy."""
        counts = np.fromiter((len(ids) for _, ids in runs), np.int64, len(runs))
        total = int(counts.sum())
        every = chain.from_iterable(ids for _, ids in runs)
        blocks = np.fromiter(every, np.int64, total)
        size = self.block_bytes
        starts = (start for start, _ in runs)
        starts_of = np.repeat(np.fromiter(starts, np.int64, len(runs)), counts)
        inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = starts_of + inside * size
        if total:
            assert 0 <= int(blocks.min()) <= int(blocks.max()) < self.blocks, "a block id"
            assert int(offsets.min()) >= 0, "an offset in the slab"
            assert int(offsets.max()) + size <= memory.nbytes, "an offset in the slab"
        return TableBlocks(blocks, memory.ctypes.data + offsets)

    def batch(self, rows: TableBlocks, start: int, stop: int) -> Batch:
        """All pages of blocks [start, stop) of these rows."""
        blocks, slots = rows.blocks[start:stop, None], rows.slots[start:stop, None]
        pages = self.bases + blocks * self.strides
        places = slots + np.arange(len(self.bases)) * self.page_bytes
        return Batch(pages.ravel(), places.ravel(), self.page_bytes)


class JobBlocks(NamedTuple):
    """Blocks of one job, table by table; they are counted through all tables."""

    tables: list[tuple[PageTable, TableBlocks]]
    total: int


@dataclass(frozen=True, slots=True)
class PageTables:
    """All block tables of an engine, in the order of its groups."""

    tables: Sequence[PageTable]
    shape: Geometry

    def bytes_of(self, pieces: Sequence[Piece]) -> int:
        """What these pieces have here."""
        groups = self.shape.groups
        return sum(len(piece.blocks) * groups[piece.group].block_bytes for piece in pieces)

    def blocks_of(self, pieces: Sequence[Piece], slab: WorkerSlab) -> JobBlocks:
        """The blocks of these pieces in every table that they have blocks in."""
        places = ShardPlaces(self.shape, slab.shard, slab.widest)
        runs: dict[int, list[Run]] = {}
        for piece in pieces:
            for table, start, ids in places.runs_of(piece):
                runs.setdefault(table, []).append((start, ids))
        found = [
            (self.tables[table], self.tables[table].blocks_of(mine, slab.memory))
            for table, mine in sorted(runs.items())
        ]
        return JobBlocks(found, sum(rows.total for _, rows in found))

    def at(self, job: JobBlocks, block: int) -> tuple[PageTable, TableBlocks, int]:
        """The table that a job's block is in, the job's blocks there, the first one's number."""
        before = 0
        for table, rows in job.tables:
            if block < before + rows.total:
                return table, rows, before
            before += rows.total
        raise AssertionError("a block of the job")
