"""The engine's KV cache as bytes, and copies between it and slots of the slab.

A record in a slot is block-major: for each block, for each layer, one page. Where a group has
several block tables, the blocks of one table lie after those of another.

    slot = [block 0: layer 0 page, layer 1 page, …][block 1: …]…

Layers may differ in size. Unless they are encoded, pages are opaque bytes. Their size and number
come from what the engine declares; tensors of another geometry are refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from forebay.engines.codec.exponents import decode, encode
from forebay.engines.copies.contract import Bytes, Piece, WorkerSlab
from forebay.engines.geometry import Geometry, ShardPlaces


class Pages:
    """The KV cache of one worker whose memory the CPU can address."""

    def __init__(self, geometry: Geometry, tensors: dict[str, Any], blocks: int) -> None:
        """ValueError if a tensor differs from what the engine declared."""
        self.geometry = geometry
        self._tables = [
            [rows.numpy() for rows in table] for table in rows_of_tables(geometry, tensors, blocks)
        ]

    def copy_out(self, piece: Piece, slab: WorkerSlab) -> None:
        """Copy a piece from the KV cache into its slot."""
        for table, blocks, slot in self._slots(piece, slab):
            start = 0
            for pages in self._tables[table]:
                taken = encode(pages[blocks]) if piece.is_encoded else pages[blocks]
                slot[:, start : start + taken.shape[1]] = taken
                start += taken.shape[1]

    def copy_in(self, piece: Piece, slab: WorkerSlab) -> bool:
        """Copy a piece from its slot into the KV cache; False if the slot cannot be decoded."""
        group = self.geometry.groups[piece.group]
        for table, blocks, slot in self._slots(piece, slab):
            start = 0
            for pages in self._tables[table]:
                width = pages.shape[1]
                if piece.is_encoded:
                    width = group.in_slot(width, is_encoded=True)
                taken = slot[:, start : start + width]
                found = decode(taken, group.page_bytes) if piece.is_encoded else taken
                if found is None:  # verify: it can be decoded
                    return False
                pages[blocks] = found
                start += width
        return True

    def _slots(self, piece: Piece, slab: WorkerSlab) -> Iterator[tuple[int, list[int], Bytes]]:
        """For each block table: its number, the piece's blocks in it, and its rows of the slot."""
        places = ShardPlaces(self.geometry, slab.shard, slab.widest)
        group = self.geometry.groups[piece.group]
        for table, start, blocks in places.runs_of(piece):
            whole = sum(pages.shape[1] for pages in self._tables[table])
            block_bytes = group.in_slot(whole, is_encoded=piece.is_encoded)
            stop = start + len(blocks) * block_bytes
            yield table, blocks, slab.memory[start:stop].reshape(len(blocks), block_bytes)


def rows_of_tables(geometry: Geometry, tensors: dict[str, Any], blocks: int) -> list[list[Any]]:
    """For each block table of each group, its layers' tensors as `rows_of` gives them."""
    tables: list[list[Any]] = []
    for group in geometry.groups:
        layers = iter(group.layers)
        for sizes in group.table_pages:
            named = zip(sizes, layers, strict=False)
            tables += [[rows_of(tensors[layer], blocks, size) for size, layer in named]]
    return tables


def rows_of(tensor: Any, blocks: int, page_bytes: int) -> Any:
    """A layer's tensor as bytes, one row per block, whatever the order of its dimensions.

    A layer that keeps states has one tensor for each; they lie one after the other in a block.
    ValueError if the tensor differs from what the engine declared.
    """
    if isinstance(tensor, list | tuple):
        return _rows_of_states(tensor, blocks, page_bytes)
    kernel_blocks = tensor.shape[0]
    row_bytes = tensor.stride(0) * tensor.element_size()
    inner = [
        (stride, size) for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    ]
    dense = 1
    for stride, size in sorted(inner):
        if size > 1 and stride != dense:
            raise ValueError("a layer's block is not one run of bytes")
        dense *= size
    parts, rest = divmod(kernel_blocks, blocks)
    if rest or not parts or dense * tensor.element_size() * parts != page_bytes:
        raise ValueError("a layer's block has another size than the engine declared")
    if parts > 1 and dense * tensor.element_size() != row_bytes:
        raise ValueError("the parts of a block do not lie behind one another")
    start = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    shape, strides = (blocks, page_bytes), (row_bytes * parts, 1)
    return flat.set_(tensor.untyped_storage(), start, shape, strides)


def _rows_of_states(states: Sequence[Any], blocks: int, page_bytes: int) -> Any:
    sizes = [state[0].numel() * state.element_size() for state in states]
    rows = [rows_of(state, blocks, size) for state, size in zip(states, sizes, strict=True)]
    ends = [row.data_ptr() + size for row, size in zip(rows, sizes, strict=True)]
    is_run = [row.data_ptr() for row in rows[1:]] == ends[:-1] and sum(sizes) == page_bytes
    if not is_run or any(row.stride(0) != rows[0].stride(0) for row in rows):
        raise ValueError("a layer's states are not one run of bytes")
    first = rows[0]
    return first.as_strided((blocks, page_bytes), (first.stride(0), 1))
