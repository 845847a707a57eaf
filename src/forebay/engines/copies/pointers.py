"""Addresses of pages and of their places in slots, for whole jobs at once.

A page is one layer of one block. In a slot a block's layers lie behind one another; in the KV cache
each layer has rows of its own, or, where the engine laid a block's layers together, a block is one
page. No Python runs for each page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from forebay.engines.copies.contract import Piece


class Batch(NamedTuple):
    """Pages to copy between the KV cache and the slab: addresses, pair by pair."""

    pages: Any  # int64, in the KV cache
    slots: Any  # int64, in the slab
    page_bytes: int


class JobBlocks(NamedTuple):
    """Blocks of one job."""

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

    def blocks_of(self, pieces: Sequence[Piece], memory: Any) -> JobBlocks:
        """The blocks of these pieces; a piece that lies outside is a bug, never a copy."""
        counts = np.fromiter((len(piece.blocks) for piece in pieces), np.int64, len(pieces))
        total = int(counts.sum())
        every = chain.from_iterable(piece.blocks for piece in pieces)
        blocks = np.fromiter(every, np.int64, total)
        size = self.block_bytes
        starts = (piece.offset + piece.first * size for piece in pieces)
        starts_of = np.repeat(np.fromiter(starts, np.int64, len(pieces)), counts)
        inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = starts_of + inside * size
        if total:
            assert 0 <= int(blocks.min()) <= int(blocks.max()) < self.blocks, "a block id"
            assert int(offsets.min()) >= 0, "an offset in the slab"
            assert int(offsets.max()) + size <= memory.nbytes, "an offset in the slab"
        return JobBlocks(blocks, memory.ctypes.data + offsets)

    def batch(self, rows: JobBlocks, start: int, stop: int) -> Batch:
        """All pages of blocks [start, stop) of these rows."""
        blocks, slots = rows.blocks[start:stop, None], rows.slots[start:stop, None]
        pages = self.bases + blocks * self.strides
        places = slots + np.arange(len(self.bases)) * self.page_bytes
        return Batch(pages.ravel(), places.ravel(), self.page_bytes)
