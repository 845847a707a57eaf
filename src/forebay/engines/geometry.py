"""The shape of an engine's KV cache in the pool: groups, records and shards, as declared by it.

A *group* is all layers that look equally far back (`Reach`). Every chunk has a record for group 0,
whose layers look back to the beginning; of other groups, which are *local*, only records that a hit
needs exist (`forebay.engines.groups`). An engine may keep several block tables for one group: in a
record the blocks of one table lie behind those of another, and of each block all layers.

Where several workers serve one model, a record consists of *shards*, which lie side by side in its
slot, each padded to the size of the largest. Every worker copies its own: some of the heads, some
of the layers or, with context parallelism, some of the tokens of every block. Workers with the same
KV share one shard, which one of them stores and all of them load.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from forebay.engines.copies.contract import Piece
from forebay.record.exponents import can_encode, encoded_bytes

_CHUNK_BYTES: Final = 4 << 20  # size that a chunk should have: good for drives and for DMA
_CHUNK_TOKENS_MAX: Final = 256


def chunk_blocks(block_bytes: int, block_tokens: int) -> int:
    """How many blocks a chunk has by default."""
    return max(1, min(_CHUNK_BYTES // block_bytes, _CHUNK_TOKENS_MAX // block_tokens))


class ReachKind(StrEnum):
    """How the layers of a group look back."""

    FULL = "full"  # to the beginning
    WINDOW = "window"  # over a number of tokens, the present one included
    CHUNKED = "chunked"  # to the last multiple of a number of tokens
    STATE = "state"  # recurrent: one state, kept when the engine says so


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back the layers of a group look."""

    kind: ReachKind = ReachKind.FULL
    tokens: int = 0

    def start(self, tokens: int) -> int:
        """The first token that layers still need once `tokens` are computed; never falls."""
        if self.kind is ReachKind.WINDOW:
            return max(0, tokens - self.tokens + 1)
        if self.kind is ReachKind.CHUNKED:
            return tokens // self.tokens * self.tokens
        return max(0, tokens - 1) if self.kind is ReachKind.STATE else 0


FULL = Reach()


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of every record."""

    rank: int = 0  # rank of the worker
    number: int = 0  # number of the shard, in the order of shards in a slot
    is_stored: bool = True  # False: another worker has the same bytes and stores them


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a group's records; the geometry of group 0 holds those of the other groups."""

    layers: tuple[str, ...]  # of one worker, in the order in which they lie in a slot
    page_bytes: int  # one layer of one block; the largest if they differ
    block_tokens: int  # of all ranks together if they split a block's tokens
    chunk_blocks: int
    shards: int = 1
    ranks: int = 1  # workers
    widest_bytes: int = 0  # of a block in the largest shard; 0: all shards are equal
    reach: Reach = FULL
    tables: tuple[int, ...] = (0,)  # the engine's numbers of the group's block tables
    table_layers: tuple[int, ...] = ()  # how many layers each table has; empty: there is one table
    local: tuple["Geometry", ...] = ()  # groups 1, 2, …; of group 0 only
    layer_bytes: tuple[int, ...] = ()  # of each layer of a block; empty: all are equal
    is_encoded: bool = False  # its records are encoded, except those that do not fit
    # Derived from the above once, since they are used for every chunk.
    groups: tuple["Geometry", ...] = field(init=False, repr=False, compare=False)  # by number
    block_bytes: int = field(init=False, repr=False, compare=False)  # of one worker, all tables
    table_bytes: tuple[int, ...] = field(init=False, repr=False, compare=False)  # by table

    def __post_init__(self) -> None:
        block_bytes = sum(self.layer_bytes) or self.page_bytes * len(self.layers)
        by_table = tuple(map(sum, self.table_pages)) if self.table_layers else (block_bytes,)
        object.__setattr__(self, "groups", (self, *self.local))
        object.__setattr__(self, "block_bytes", block_bytes)
        object.__setattr__(self, "table_bytes", by_table)

    @property
    def table_count(self) -> int:
        """The number of the engine's block tables, in all groups."""
        return sum(len(group.tables) for group in self.groups)

    @property
    def table_pages(self) -> tuple[tuple[int, ...], ...]:
        """The bytes of each layer of one block, table by table."""
        sizes = iter(self.layer_bytes or (self.page_bytes,) * len(self.layers))
        counts = self.table_layers or (len(self.layers),)
        return tuple(tuple(islice(sizes, count)) for count in counts)

    @property
    def shard_block_bytes(self) -> int:
        """A block's bytes in a shard, all tables, padding included."""
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
    def engine_block_bytes(self) -> int:
        """The size of the engine's blocks: the largest, since a block belongs to one table."""
        widest = [group.shard_block_bytes for group in self.groups if len(group.tables) == 1]
        others = [group.table_bytes for group in self.groups if len(group.tables) > 1]
        return max([*widest, *chain.from_iterable(others)])

    @property
    def longest_bytes(self) -> int:
        """The payload of the largest record that any group may have."""
        return max(group.chunk_bytes for group in self.groups)

    @property
    def can_encode(self) -> bool:
        """Whether all pages, in every shard, have one size and encoding makes it smaller.

        Then a record's length tells whether it is encoded.
        """
        if self.layer_bytes or not can_encode(self.page_bytes):
            return False
        is_less = encoded_bytes(self.page_bytes) < self.page_bytes
        return is_less and not self.shard_block_bytes % self.page_bytes

    @property
    def encoded_pages(self) -> tuple[int, ...]:
        """By group, the size of its pages if they are encoded, else 0."""
        return tuple(group.page_bytes if group.is_encoded else 0 for group in self.groups)

    def without_code(self) -> "Geometry":
        """The same shape with no group encoded."""
        local = tuple(replace(group, is_encoded=False) for group in self.local)
        return replace(self, is_encoded=False, local=local)

    def record_bytes(self, blocks: int, *, is_raw: bool = False) -> int:
        """The payload of a record of so many blocks; `is_raw`: of one that is not encoded."""
        is_encoded = self.is_encoded and not is_raw
        return self.in_slot(self.shard_block_bytes, is_encoded=is_encoded) * blocks * self.shards

    def in_slot(self, size_bytes: int, *, is_encoded: bool) -> int:
        """The size in a slot of whole pages of a KV cache."""
        if not is_encoded:
            return size_bytes
        return size_bytes // self.page_bytes * encoded_bytes(self.page_bytes)


@dataclass(frozen=True, slots=True)
class ShardPlaces:
    """Where one worker's part of each record lies in the slab."""

    shape: Geometry  # of this worker
    shard: int = 0  # its number
    widest: tuple[int, ...] = ()  # by group, a block in the largest shard; empty: one shard
    _blocks: dict[tuple[int, bool], "_BlockPlaces"] = field(default_factory=dict, compare=False)

    def shard_of(self, piece: Piece) -> tuple[int, int, int]:
        """The offset of this worker's shard of a record, its size, and its size with padding."""
        block = self._block_of(piece)
        blocks = piece.size or block.chunk_blocks
        padded = block.padded_bytes * blocks
        return piece.offset + self.shard * padded, block.size_bytes * blocks, padded

    def runs_of(self, piece: Piece) -> Iterator[tuple[int, int, list[int]]]:
        """For each block table: its number here, where the first of these blocks lies, their ids.

        Tables are numbered through all groups.
        """
        block = self._block_of(piece)
        count = piece.size or block.chunk_blocks
        start = piece.offset + self.shard * block.padded_bytes * count
        runs = zip(block.table_bytes, piece.tables, strict=True)
        for table, (block_bytes, ids) in enumerate(runs, block.first_table):
            yield table, start + piece.first * block_bytes, ids
            start += block_bytes * count

    def _block_of(self, piece: Piece) -> "_BlockPlaces":
        """Where a block lies in a slot; computed once for all pieces of a kind."""
        kind = (piece.group, piece.is_encoded)
        found = self._blocks.get(kind)
        if found is None:
            found = self._blocks[kind] = self._places_of(*kind)
        return found

    def _places_of(self, number: int, is_encoded: bool) -> "_BlockPlaces":
        groups = self.shape.groups
        group = groups[number]
        in_slot = partial(group.in_slot, is_encoded=is_encoded)
        return _BlockPlaces(
            sum(len(each.table_bytes) for each in groups[:number]),
            tuple(map(in_slot, group.table_bytes)),
            in_slot(group.block_bytes),
            in_slot(self.widest[number] if self.widest else group.block_bytes),
            group.chunk_blocks,
        )


class _BlockPlaces(NamedTuple):
    """A block of a group's records, encoded or not, as it lies in a slot."""

    first_table: int  # of its first block table, numbered through all groups
    table_bytes: tuple[int, ...]  # by table
    size_bytes: int  # in all tables
    padded_bytes: int  # in the largest shard
    chunk_blocks: int
