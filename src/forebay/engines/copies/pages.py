"""The engine's KV cache as bytes, and copies between it and slots of the slab.

A chunk in a slot is block-major: for each of its blocks, for each layer, one page.

    slot = [block 0: layer 0 page, layer 1 page, …][block 1: …]…

Pages are opaque bytes; their size and number come from what the engine declares, and tensors that
do not have that geometry are refused.
"""

from collections.abc import Sequence
from typing import Any

import torch

from forebay.engines.copies.contract import Bytes, Piece
from forebay.engines.geometry import Geometry


class Pages:
    """The KV cache of one worker whose memory the CPU can address."""

    def __init__(self, geometry: Geometry, tensors: dict[str, Any], blocks: int) -> None:
        """ValueError if a tensor is not what the engine declared."""
        self._geometry = geometry
        self._layers = [
            rows_of(tensors[layer], blocks, geometry.page_bytes).numpy()
            for layer in geometry.layers
        ]

    @property
    def block_bytes(self) -> int:
        """Of a block, in all layers."""
        return self._geometry.block_bytes

    def copy_out(self, piece: Piece, slab: Bytes) -> None:
        """From the KV cache into a slot."""
        slot = self._slot(piece, slab)
        for number, pages in enumerate(self._layers):
            slot[:, number] = pages[piece.blocks]

    def copy_in(self, piece: Piece, slab: Bytes) -> None:
        """From a slot into the KV cache."""
        slot = self._slot(piece, slab)
        for number, pages in enumerate(self._layers):
            pages[piece.blocks] = slot[:, number]

    def digest_input(self, blocks: Sequence[int]) -> list[Bytes]:
        """Copies of blocks' pages, layer by layer; for tests that compare bytes."""
        return [pages[list(blocks)].copy() for pages in self._layers]

    def _slot(self, piece: Piece, slab: Bytes) -> Bytes:
        shape = self._geometry
        start = piece.offset + piece.first * shape.block_bytes
        stop = start + len(piece.blocks) * shape.block_bytes
        return slab[start:stop].reshape(len(piece.blocks), len(shape.layers), shape.page_bytes)


def rows_of(tensor: Any, blocks: int, page_bytes: int) -> Any:
    """A layer's tensor as bytes, a row a block, whatever the order of dimensions inside it.

    ValueError if the tensor is not what the engine declared.
    """
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
