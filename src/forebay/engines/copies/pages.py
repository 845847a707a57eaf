"""The engine's KV cache as bytes, and copies between it and slots of the slab.

A record in a slot is block-major: for each of its blocks, for each layer, one page; where its group
has several block tables, one table behind the other.

    slot = [block 0: layer 0 page, layer 1 page, …][block 1: …]…

Pages are opaque bytes; their size and number come from what the engine declares, and tensors that
do not have that geometry are refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from forebay.engines.copies.contract import Bytes, Piece, WorkerSlab
from forebay.engines.geometry import Geometry, ShardPlaces


class Pages:
    """The KV cache of one worker whose memory the CPU can address."""

    def __init__(self, geometry: Geometry, tensors: dict[str, Any], blocks: int) -> None:
        """ValueError if a tensor is not what the engine declared."""
        self.geometry = geometry
        self._tables = [
            [rows.numpy() for rows in table] for table in rows_of_tables(geometry, tensors, blocks)
        ]

    def copy_out(self, piece: Piece, slab: WorkerSlab) -> None:
        """From the KV cache into a slot."""
        for table, blocks, slot in self._slots(piece, slab):
            for number, pages in enumerate(self._tables[table]):
                slot[:, number] = pages[blocks]

    def copy_in(self, piece: Piece, slab: WorkerSlab) -> None:
        """From a slot into the KV cache."""
        for table, blocks, slot in self._slots(piece, slab):
            for number, pages in enumerate(self._tables[table]):
                pages[blocks] = slot[:, number]

    def _slots(self, piece: Piece, slab: WorkerSlab) -> Iterator[tuple[int, list[int], Bytes]]:
        """For each block table: its number, the piece's blocks in it, their place in the slot."""
        places = ShardPlaces(self.geometry, slab.shard, slab.widest)
        page_bytes = self.geometry.groups[piece.group].page_bytes
        for table, start, blocks in places.runs_of(piece):
            layers = len(self._tables[table])
            stop = start + len(blocks) * layers * page_bytes
            yield table, blocks, slab.memory[start:stop].reshape(len(blocks), layers, page_bytes)


def rows_of_tables(geometry: Geometry, tensors: dict[str, Any], blocks: int) -> list[list[Any]]:
    """For each block table of each group, its layers' tensors as `rows_of` gives them."""
    tables: list[list[Any]] = []
    for group in geometry.groups:
        layers = iter(group.layers)
        for count in group.table_layers or (len(group.layers),):
            named = [next(layers) for _ in range(count)]
            tables.append([rows_of(tensors[layer], blocks, group.page_bytes) for layer in named])
    return tables


def rows_of(tensor: Any, blocks: int, page_bytes: int) -> Any:
    """A layer's tensor as bytes, a row a block, whatever the order of dimensions inside it.

    A layer that keeps states has a tensor for each, which lie behind one another in a block.
    ValueError if the tensor is not what the engine declared.
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
