"""Which records of which group a hit needs, and which are worth storing: pure functions.

The contract. A hit of n chunks needs all n records of group 0. Of a local group, whose layers start
looking at token `reach.start(tokens)`, it needs the blocks from there to the hit's end, and so the
records of the chunks that those blocks lie in. The record of chunk c holds the chunk's blocks that
a hit ending with c needs; a later hit needs no others of them. So a window shorter than a chunk
needs one record a hit, of the window alone; a longer one needs several, of whole chunks.

A record of a local group needs no other record: its parent is ROOT. It is stored only where a hit
may end: with the prompt, with any chunk of the answer, and where a known prefix could not be used
because local records were missing, since other requests will branch off there too. Layers that keep
a state have one block at the end of a chunk; the engine says at which chunks it has kept the state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forebay.engines.copies.contract import Piece
from forebay.engines.geometry import FULL, Geometry, ReachKind

Has = Callable[[int, int], bool]  # whether the pool has a group's record of a chunk


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A prefix that every group can serve: its records, in the order in which they are asked for.

    Positions below `chunks` are chunks of the chain (group 0); local records follow.
    """

    chunks: int = 0
    local: tuple[tuple[int, int], ...] = ()  # (group, chunk)

    @property
    def records(self) -> int:
        """The number of its records, in all groups."""
        return self.chunks + len(self.local)

    def record_at(self, position: int) -> tuple[int, int]:
        """The group and the chunk of the record at a position."""
        return (0, position) if position < self.chunks else self.local[position - self.chunks]


def hit_of(shape: Geometry, chunks: int) -> PrefixHit:
    """A hit of so many chunks."""
    local = [
        (number, chunk)
        for number, group in enumerate(shape.local, 1)
        for chunk in needed_chunks(group, chunks)
    ]
    return PrefixHit(chunks, tuple(local))


def longest_hit(shape: Geometry, known: int, has: Has) -> PrefixHit:
    """The longest hit of at most `known` chunks all of whose local records the pool has."""
    chunks = known
    while chunks:
        hit = hit_of(shape, chunks)
        missing = [chunk for group, chunk in hit.local if not has(group, chunk)]
        if not missing:
            return hit
        chunks = max(missing)  # every longer hit up to this one needs that chunk
    return PrefixHit()


def needed_chunks(group: Geometry, chunks: int) -> range:
    """The chunks whose records of a group a hit of so many chunks needs."""
    tokens = chunks * group.chunk_tokens
    start = group.reach.start(tokens)
    return range(start // group.chunk_tokens, chunks if start < tokens else 0)


def record_blocks(group: Geometry, chunk: int) -> range:
    """The blocks, counted from the request's first, that the record of a chunk holds."""
    first, stop = chunk * group.chunk_blocks, (chunk + 1) * group.chunk_blocks
    if group.reach.kind is FULL.kind:
        return range(first, stop)
    start = group.reach.start(stop * group.block_tokens) // group.block_tokens
    return range(min(stop, max(first, start)), stop)


def needed_blocks(group: Geometry, chunks: int) -> range:
    """The blocks, counted from the request's first, that a hit of so many chunks needs."""
    stop = chunks * group.chunk_blocks
    return range(group.reach.start(stop * group.block_tokens) // group.block_tokens, stop)


def piece_of(
    shape: Geometry,
    record: tuple[int, int],
    tables: Sequence[Sequence[int]],
    wanted: range | None = None,
    *,
    is_encoded: bool = False,
    offset: int = -1,
) -> Piece | None:
    """The wanted blocks of a record, where they lie; None if none of them is wanted.

    `tables` are the request's block tables, by the engine's numbers; `wanted` defaults to all
    blocks. The slot at `offset` may not be known yet.
    """
    number, chunk = record
    group = shape.groups[number]
    blocks = record_blocks(group, chunk)
    start, stop = blocks.start, blocks.stop
    size = stop - start
    first = 0
    if wanted is not None:
        first = max(0, wanted.start - start)
        start, stop = start + first, min(stop, wanted.stop)
    if start >= stop:
        return None
    ids = [*tables[group.tables[0]][start:stop]]
    others: tuple[list[int], ...] = ()
    if len(group.tables) > 1:
        others = tuple([*tables[table][start:stop]] for table in group.tables[1:])
    return Piece(offset, first, ids, number, size, others, is_encoded)


def stored_records(
    shape: Geometry, chunks: range, ends: Sequence[int], computed: int
) -> Iterator[tuple[int, int]]:
    """Local records of these chunks that are worth storing and whose blocks are not freed yet.

    `ends`: where hits may end, in chunks; after the last of them every chunk counts. `computed`:
    tokens that the request had before this step: the engine has freed what lies before their reach.
    """
    for number, group in enumerate(shape.local, 1):
        if group.reach.kind is ReachKind.STATE:
            continue
        held = group.reach.start(computed) // group.block_tokens
        for chunk in chunks:
            is_wanted = chunk + 1 >= max(ends) or any(
                chunk in needed_chunks(group, end) for end in ends
            )
            blocks = record_blocks(group, chunk)
            if is_wanted and blocks and blocks.start >= held:
                yield number, chunk


def kept_states(
    shape: Geometry, handed: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[tuple[int, int], Piece]]:
    """Records of states that an engine has kept: `handed` has table, block and tokens of each.

    Only states at the end of a chunk are of use, and only if all tables of their group have one.
    """
    for number, group in enumerate(shape.local, 1):
        if group.reach.kind is not ReachKind.STATE:
            continue
        kept: dict[int, dict[int, int]] = {}
        for table, block, tokens in handed:
            if block and tokens and not tokens % shape.chunk_tokens:
                kept.setdefault(tokens // shape.chunk_tokens - 1, {})[table] = block
        for chunk, blocks in kept.items():
            if all(table in blocks for table in group.tables):
                first, *others = ([blocks[table]] for table in group.tables)
                yield (number, chunk), Piece(-1, 0, first, number, 1, tuple(others))
