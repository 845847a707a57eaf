"""Addresses of pages and of their places in slots, for whole jobs at once.

A page is one layer of one block. In a slot a block's layers lie behind one another; in the KV cache
each layer has rows of its own, or, where the engine laid a block's layers together, a block is one
page. The layers of one block table that are of one size have a `PageTable`; a job goes through one
after another. No Python runs for each page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from forebay.engines.copies.contract import Piece, WorkerSlab
from forebay.engines.geometry import Geometry, ShardPlaces
from forebay.record.exponents import encoded_bytes

Run: TypeAlias = tuple[int, list[int]]  # where the first of these blocks lies in the slab, and ids


class Batch(NamedTuple):
    """Pages to copy between the KV cache and the slab: addresses, pair by pair."""

    pages: Any  # int64, in the KV cache
    slots: Any  # int64, in the slab
    page_bytes: int  # in the KV cache
    is_encoded: bool = False  # in the slab
    together: int = 1  # so many pages lie one behind the other in the slab: those of a block


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
    slot_start: int = 0  # where these layers begin in a block, as it lies in a slot
    slot_bytes: int = 0  # of all layers of such a block; 0: there are no others
    is_encoded: bool = False  # as it lies in the slab

    @classmethod
    def encoded(
        cls, layers: Sequence[tuple[int, int]], page_bytes: int, blocks: int
    ) -> "PageTable":
        """The pointers for slots in which every page is encoded by itself."""
        bases = np.array([base for base, _ in layers], dtype=np.int64)
        strides = np.array([stride for _, stride in layers], dtype=np.int64)
        return cls(bases, strides, page_bytes, blocks, is_encoded=True)

    @classmethod
    def of(cls, layers: Sequence[tuple[int, int]], page_bytes: int, blocks: int) -> "PageTable":
        """From each layer's address and stride, in the order in which they lie in a slot."""
        bases = np.array([base for base, _ in layers], dtype=np.int64)
        strides = np.array([stride for _, stride in layers], dtype=np.int64)
        follows = bases == bases[0] + np.arange(len(layers)) * page_bytes
        if len(layers) > 1 and follows.all() and (strides == strides[0]).all():
            return cls(bases[:1], strides[:1], page_bytes * len(layers), blocks)
        return cls(bases, strides, page_bytes, blocks)

    @classmethod
    def all_of(cls, layers: Sequence[tuple[int, int, int]], blocks: int) -> list["PageTable"]:
        """From each layer's address, stride and size, for layers of any size; none for none."""
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
        """Whether every page begins where a kernel can take 16 bytes at once."""
        lengths = self.page_bytes | self.slot_start | self.slot_bytes
        return not ((self.bases | self.strides | lengths) & 15).any()

    @property
    def slot_page_bytes(self) -> int:
        """What a page takes in a slot."""
        return encoded_bytes(self.page_bytes) if self.is_encoded else self.page_bytes

    @property
    def block_bytes(self) -> int:
        """All layers of one block, in a slot."""
        return self.slot_page_bytes * len(self.bases)

    def blocks_of(self, runs: Sequence[Run], memory: Any) -> TableBlocks:
        """The blocks of these runs; a run that lies outside is a bug, never a copy."""
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
    """Blocks of one job, table by table; they are counted through all tables."""

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
        """What these pieces have here."""
        groups = self.shape.groups
        return sum(len(piece.blocks) * groups[piece.group].block_bytes for piece in pieces)

    def blocks_of(self, pieces: Sequence[Piece], slab: WorkerSlab) -> JobBlocks:
        """The blocks of these pieces in every table that they have blocks in."""
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
