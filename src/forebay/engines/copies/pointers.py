"""Addresses of pages and of their places in slots, for whole jobs at once.

A page is one layer of one block. In a slot the layers of a block lie one after the other; in the KV
cache each layer has rows of its own or, if the engine laid a block's layers side by side, a block
is one page. Layers of one block table that have the same size share a `PageTable`; a job handles
one table after another. No Python code runs per page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from forebay.engines.copies.contract import Piece, WorkerSlab
from forebay.engines.geometry import Geometry, ShardPlaces
from forebay.record.exponents import encoded_bytes

Run: TypeAlias = tuple[int, list[int]]  # slab address of the first block, and the blocks' ids


class Batch(NamedTuple):
    """Pages to copy between the KV cache and the slab: addresses, pair by pair."""

    pages: Any  # int64, in the KV cache
    slots: Any  # int64, in the slab
    page_bytes: int  # in the KV cache
    is_encoded: bool = False  # in the slab
    together: int = 1  # pages of a block that lie side by side in the slab


class TableBlocks(NamedTuple):
    """Blocks of one job in one block table."""

    blocks: Any  # int64, ids
    slots: Any  # int64, address of each block in the slab

    @property
    def total(self) -> int:
        """How many blocks."""
        return len(self.blocks)


@dataclass(frozen=True, slots=True)
class PageTable:
    """Where all pages of a KV cache lie."""

    bases: Any  # int64, per layer: the address of its block 0
    strides: Any  # int64, per layer: bytes from one block to the next
    page_bytes: int  # of each layer of a block
    blocks: int
    slot_start: int = 0  # offset of these layers within a block in a slot
    slot_bytes: int = 0  # size of a block in a slot, all layers; 0: only these layers
    is_encoded: bool = False  # as it lies in the slab

    @classmethod
    def encoded(
        cls, layers: Sequence[tuple[int, int]], page_bytes: int, blocks: int
    ) -> "PageTable":
        """The table for slots in which every page is encoded on its own."""
        bases = np.array([base for base, _ in layers], dtype=np.int64)
        strides = np.array([stride for _, stride in layers], dtype=np.int64)
        return cls(bases, strides, page_bytes, blocks, is_encoded=True)

    @classmethod
    def of(cls, layers: Sequence[tuple[int, int]], page_bytes: int, blocks: int) -> "PageTable":
        """Make a table from each layer's address and stride, in the order of layers in a slot."""
        bases = np.array([base for base, _ in layers], dtype=np.int64)
        strides = np.array([stride for _, stride in layers], dtype=np.int64)
        follows = bases == bases[0] + np.arange(len(layers)) * page_bytes
        if len(layers) > 1 and follows.all() and (strides == strides[0]).all():
            return cls(bases[:1], strides[:1], page_bytes * len(layers), blocks)
        return cls(bases, strides, page_bytes, blocks)

    @classmethod
    def all_of(cls, layers: Sequence[tuple[int, int, int]], blocks: int) -> list["PageTable"]:
        """Tables for layers of any size, from each layer's address, stride and size."""
        whole, start, found = sum(size for _, _, size in layers), 0, []
        for page_bytes, each in groupby(layers, key=lambda layer: layer[2]):
            some = [(base, stride) for base, stride, _ in each]
            made = cls.of(some, page_bytes, blocks)
            found.append(replace(made, slot_start=start, slot_bytes=whole))
            start += page_bytes * len(some)
        ends = [(int(each.bases[0]) + each.page_bytes, each.strides[0]) for each in found]
        is_run = all(len(each.bases) == 1 for each in found) and all(
            end == (int(after.bases[0]), after.strides[0])
            for end, (_, after) in zip(ends, pairwise(found), strict=False)
        )
        return [replace(found[0], page_bytes=whole)] if found[1:] and is_run else found

    @property
    def is_aligned(self) -> bool:
        """Whether a kernel can copy every page in units of 16 bytes."""
        lengths = self.page_bytes | self.slot_start | self.slot_bytes
        return not ((self.bases | self.strides | lengths) & 15).any()

    @property
    def slot_page_bytes(self) -> int:
        """The size of a page in a slot."""
        return encoded_bytes(self.page_bytes) if self.is_encoded else self.page_bytes

    @property
    def block_bytes(self) -> int:
        """The size of a block's layers in a slot."""
        return self.slot_page_bytes * len(self.bases)

    def blocks_of(self, runs: Sequence[Run], memory: Any) -> TableBlocks:
        """The blocks of these runs. A run outside the slab is a bug, and is never copied."""
        counts = np.fromiter((len(ids) for _, ids in runs), np.int64, len(runs))
        total = int(counts.sum())
        every = chain.from_iterable(ids for _, ids in runs)
        blocks = np.fromiter(every, np.int64, total)
        size = self.block_bytes
        starts = (start + self.slot_start for start, _ in runs)
        starts_of = np.repeat(np.fromiter(starts, np.int64, len(runs)), counts)
        inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = starts_of + inside * (self.slot_bytes or size)
        if total:
            assert 0 <= int(blocks.min()) <= int(blocks.max()) < self.blocks, "a block id"
            assert int(offsets.min()) >= 0, "an offset in the slab"
            assert int(offsets.max()) + size <= memory.nbytes, "an offset in the slab"
        return TableBlocks(blocks, memory.ctypes.data + offsets)

    def batch(self, rows: TableBlocks, start: int, stop: int) -> Batch:
        """All pages of blocks [start, stop) of these rows."""
        blocks, slots = rows.blocks[start:stop, None], rows.slots[start:stop, None]
        pages = self.bases + blocks * self.strides
        places = slots + np.arange(len(self.bases)) * self.slot_page_bytes
        layers = len(self.bases)
        return Batch(pages.ravel(), places.ravel(), self.page_bytes, self.is_encoded, layers)


class JobBlocks(NamedTuple):
    """Blocks of one job, by table; numbered through all tables."""

    tables: list[tuple[PageTable, TableBlocks]]
    total: int


@dataclass(frozen=True, slots=True)
class PageTables:
    """All block tables of an engine, in the order of its groups."""

    tables: Sequence[PageTable]
    shape: Geometry
    numbers: Sequence[int] = ()  # of each, the block table's; empty: there is one for each
    # By the block table's number, the same for pieces that are encoded, where any is.
    encoded: Mapping[int, PageTable] = field(default_factory=dict)

    def bytes_of(self, pieces: Sequence[Piece]) -> int:
        """How many bytes of these pieces lie on this worker."""
        groups = self.shape.groups
        return sum(len(piece.blocks) * groups[piece.group].block_bytes for piece in pieces)

    def blocks_of(self, pieces: Sequence[Piece], slab: WorkerSlab) -> JobBlocks:
        """The blocks of these pieces, in every table that has any of them."""
        places = ShardPlaces(self.shape, slab.shard, slab.widest)
        runs: dict[tuple[int, bool], list[Run]] = {}
        for piece in pieces:
            for number, start, ids in places.runs_of(piece):
                runs.setdefault((number, piece.is_encoded), []).append((start, ids))
        numbered = list(zip(self.numbers or range(len(self.tables)), self.tables, strict=True))
        found = []
        for (number, is_encoded), mine in sorted(runs.items()):
            plain = [table for each, table in numbered if each == number]
            # A stage may have no layer of a group; of one that has, nothing is passed over.
            tables = [self.encoded[number]] if is_encoded and plain else plain
            found += [(table, table.blocks_of(mine, slab.memory)) for table in tables]
        return JobBlocks(found, sum(rows.total for _, rows in found))

    def at(self, job: JobBlocks, block: int) -> tuple[PageTable, TableBlocks, int]:
        """The table that a job's block is in, the job's blocks there, the first one's number."""
        before = 0
        for table, rows in job.tables:
            if block < before + rows.total:
                return table, rows, before
            before += rows.total
        raise AssertionError("a block of the job")
