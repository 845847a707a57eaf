"""The shape of a chunk in an engine's KV cache, as the engine declares it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a chunk's bytes, as the engine declares it."""

    layers: tuple[str, ...]  # in the order in which they lie in a slot
    page_bytes: int  # of one layer of one block
    block_tokens: int
    chunk_blocks: int

    @property
    def block_bytes(self) -> int:
        """All layers of one block."""
        return self.page_bytes * len(self.layers)

    @property
    def chunk_bytes(self) -> int:
        """A chunk's payload."""
        return self.block_bytes * self.chunk_blocks

    @property
    def chunk_tokens(self) -> int:
        """Tokens in a chunk."""
        return self.block_tokens * self.chunk_blocks
