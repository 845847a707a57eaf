"""The shape of an engine's KV cache in the pool: groups, records and shards, as declared by it.

A *group* is all layers that look equally far back (`Reach`). Every chunk has a record for group 0,
whose layers look back to the beginning; of other groups, which are *local*, only records that a hit
needs exist (`forebay.engines.groups`). An engine may keep several block tables for one group: in a
record the blocks of one table lie behind those of another, and of each block all layers.

Where several workers serve one model, a record consists of *shards*, which lie side by side in its
slot, padded to the size of the largest. Every worker copies its own; workers whose KV is the same
have one shard together, which one of them stores and all of them load.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forebay.engines.copies.contract import Piece

CHUNK_BYTES: Final = 4 << 20  # what a chunk should have: a good size for a drive and for DMA
CHUNK_TOKENS_MAX: Final = 256


class ReachKind(StrEnum):
    """How the layers of a group look back."""

    FULL = "full"  # to the beginning
    WINDOW = "window"  # over a number of tokens, the present one included
    CHUNKED = "chunked"  # to the last multiple of a number of tokens
    STATE = "state"  # they keep a state instead, which only the engine knows when to store


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back the layers of a group look."""

    kind: ReachKind = ReachKind.FULL
    tokens: int = 0

    def start(self, tokens: int) -> int:
        """The first token without whose KV none can follow so many; never less for more."""
        if self.kind is ReachKind.WINDOW:
            return max(0, tokens - self.tokens + 1)
        if self.kind is ReachKind.CHUNKED:
            return tokens // self.tokens * self.tokens
        return max(0, tokens - 1) if self.kind is ReachKind.STATE else 0


FULL = Reach()


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of every record."""

    rank: int = 0  # of the worker
    number: int = 0  # of the shard, in the order in which they lie in a slot
    is_stored: bool = True  # by this worker; else by another that has the same bytes


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a group's records; group 0's has those of the other groups with it."""

    layers: tuple[str, ...]  # in the order in which they lie in a slot; of one worker
    page_bytes: int  # of one layer of one block
    block_tokens: int
    chunk_blocks: int
    shards: int = 1
    ranks: int = 1  # workers
    widest_bytes: int = 0  # of a block, in the largest shard; 0: they are equal
    reach: Reach = FULL
    tables: tuple[int, ...] = (0,)  # the engine's numbers of the group's block tables
    table_layers: tuple[int, ...] = ()  # how many layers each table has; empty: there is one table
    local: tuple["Geometry", ...] = ()  # groups 1, 2, …; of group 0 only

    @property
    def groups(self) -> tuple["Geometry", ...]:
        """All groups, by number."""
        return (self, *self.local)

    @property
    def table_count(self) -> int:
        """Block tables that the engine has, in all groups."""
        return sum(len(group.tables) for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """All layers of one block, in every table, of one worker."""
        return self.page_bytes * len(self.layers)

    @property
    def table_bytes(self) -> tuple[int, ...]:
        """All layers of one block of each table."""
        return tuple(self.page_bytes * count for count in self.table_layers) or (self.block_bytes,)

    @property
    def shard_block_bytes(self) -> int:
        """A block in every table, as it lies in a shard, with its padding."""
        return self.widest_bytes or self.block_bytes

    @property
    def chunk_bytes(self) -> int:
        """The payload of a record of all blocks of a chunk."""
        return self.record_bytes(self.chunk_blocks)

    @property
    def chunk_tokens(self) -> int:
        """Tokens in a chunk."""
        return self.block_tokens * self.chunk_blocks

    @property
    def longest_bytes(self) -> int:
        """The payload of the largest record that any group may have."""
        return max(group.chunk_bytes for group in self.groups)

    def record_bytes(self, blocks: int) -> int:
        """The payload of a record of so many blocks."""
        return self.shard_block_bytes * blocks * self.shards


@dataclass(frozen=True, slots=True)
class ShardPlaces:
    """Where one worker's part of each record lies in the slab."""

    shape: Geometry  # of this worker
    shard: int = 0  # its number
    widest: tuple[int, ...] = ()  # by group, a block in the largest shard; empty: one shard

    def shard_of(self, piece: Piece) -> tuple[int, int, int]:
        """Offset of a record's shard, the bytes in it, and those with its padding."""
        group = self.shape.groups[piece.group]
        blocks = piece.size or group.chunk_blocks
        size = group.block_bytes * blocks
        padded = self.widest[piece.group] * blocks if self.widest else size
        return piece.offset + self.shard * padded, size, padded

    def runs_of(self, piece: Piece) -> Iterator[tuple[int, int, list[int]]]:
        """For each block table: its number here, where the first of these blocks lies, their ids.

        Tables are numbered through all groups.
        """
        groups = self.shape.groups
        table = sum(len(group.table_bytes) for group in groups[: piece.group])
        group = groups[piece.group]
        start, _, _ = self.shard_of(piece)
        for block_bytes, blocks in zip(group.table_bytes, piece.tables, strict=True):
            yield table, start + piece.first * block_bytes, blocks
            start += block_bytes * (piece.size or group.chunk_blocks)
            table += 1
