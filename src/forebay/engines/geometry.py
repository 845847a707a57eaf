"""The shape of a chunk in an engine's KV cache, as the engine declares it.

Where several workers serve one model, a chunk consists of shards, which lie side by side in its
slot, padded to the size of the largest. Every worker copies its own; workers whose KV is the same
have one shard together, which one of them stores and all of them load.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of every chunk."""

    rank: int = 0  # of the worker
    number: int = 0  # of the shard, in the order in which they lie in a slot
    is_stored: bool = True  # by this worker; else by another that has the same bytes


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a chunk's bytes, as the engine declares it."""

    layers: tuple[str, ...]  # in the order in which they lie in a slot; of one worker
    page_bytes: int  # of one layer of one block
    block_tokens: int
    chunk_blocks: int
    shards: int = 1
    ranks: int = 1  # workers
    widest_bytes: int = 0  # of a block, in the largest shard; 0: they are equal

    @property
    def block_bytes(self) -> int:
        """All layers of one block, of one worker."""
        return self.page_bytes * len(self.layers)

    @property
    def shard_bytes(self) -> int:
        """A shard, with its padding."""
        return (self.widest_bytes or self.block_bytes) * self.chunk_blocks

    @property
    def chunk_bytes(self) -> int:
        """A chunk's payload."""
        return self.shard_bytes * self.shards

    @property
    def chunk_tokens(self) -> int:
        """Tokens in a chunk."""
        return self.block_tokens * self.chunk_blocks
