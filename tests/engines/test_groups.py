"""Which records of which group a hit needs, against a count of tokens and blocks one by one."""

import math
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engines.geometry import Geometry, Reach, ReachKind
from forebay.engines.groups import (
    PrefixHit,
    hit_of,
    longest_hit,
    needed_blocks,
    piece_of,
    record_blocks,
    stored_records,
)
from forebay.plan.model.shape import LayerGroup, LayerKind, Shape

PAGE = 64  # bytes
BLOCK_TOKENS = (1, 2, 3, 4, 8)
Records = set[tuple[int, int]]  # (group, chunk)


@st.composite
def shapes(draw: st.DrawFn) -> Geometry:
    """Full attention and up to three local groups, with blocks of unequal sizes."""
    sizes = draw(st.lists(st.sampled_from(BLOCK_TOKENS), min_size=2, max_size=4))
    chunk_tokens = math.lcm(*sizes) * draw(st.integers(1, 3))
    full, *others = sizes
    local = []
    for table, size in enumerate(others, 1):
        kind = draw(st.sampled_from([ReachKind.WINDOW, ReachKind.CHUNKED]))
        reach = Reach(kind, draw(st.integers(1, 3 * chunk_tokens)))
        blocks = chunk_tokens // size
        local.append(Geometry(("l",), PAGE, size, blocks, reach=reach, tables=(table,)))
    return Geometry(("f",), PAGE, full, chunk_tokens // full, local=tuple(local))


def looked_at(reach: Reach, tokens: int) -> set[int]:
    """The tokens before it that the one behind so many tokens attends to."""
    if reach.kind is ReachKind.WINDOW:
        return set(range(max(0, tokens + 1 - reach.tokens), tokens))
    if reach.kind is ReachKind.CHUNKED:
        return {each for each in range(tokens) if each // reach.tokens == tokens // reach.tokens}
    return set(range(tokens))


def oracle_blocks(group: Geometry, chunks: int) -> set[int]:
    """The blocks that a hit of so many chunks needs."""
    tokens = looked_at(group.reach, chunks * group.chunk_tokens)
    return {token // group.block_tokens for token in tokens}


def oracle_hit(shape: Geometry, known: int, there: Records) -> int:
    """The longest hit whose blocks all lie in records that are there."""
    for chunks in range(known, 0, -1):
        if all(
            oracle_blocks(group, chunks)
            <= {
                block
                for number, chunk in there
                if number == at
                for block in record_blocks(group, chunk)
            }
            for at, group in enumerate(shape.local, 1)
        ):
            return chunks
    return 0


@settings(max_examples=300)
@given(shapes(), st.data())
def test_the_longest_hit_is_the_one_that_all_groups_can_serve(
    shape: Geometry, data: st.DataObject
) -> None:
    known = data.draw(st.integers(0, 8))
    every = [(group + 1, chunk) for group in range(len(shape.local)) for chunk in range(known)]
    there = set(every) - data.draw(st.sets(st.sampled_from(every) if every else st.nothing()))
    hit = longest_hit(shape, known, lambda *record: record in there)
    assert hit.chunks == oracle_hit(shape, known, there)
    assert set(hit.local) <= there
    assert hit == (hit_of(shape, hit.chunks) if hit.chunks else PrefixHit())


@settings(max_examples=300)
@given(shapes(), st.integers(1, 8))
def test_a_hit_loads_each_block_that_it_needs_once_and_no_other(
    shape: Geometry, chunks: int
) -> None:
    hit = hit_of(shape, chunks)
    loaded: dict[int, list[int]] = {number: [] for number in range(len(shape.groups))}
    for position in range(hit.records):
        record = hit.record_at(position)
        group = shape.groups[record[0]]
        wanted = needed_blocks(group, chunks)
        tables = [range(1000 * table, 1000 * table + 999) for table in range(len(shape.groups))]
        piece = piece_of(shape, record, tables, wanted)
        assert piece is not None, "what is asked for is needed"
        assert piece.size == len(record_blocks(group, record[1])) >= piece.first + len(piece.blocks)
        loaded[record[0]] += [block - 1000 * record[0] for block in piece.blocks]
    for number, group in enumerate(shape.groups):
        assert loaded[number] == sorted(oracle_blocks(group, chunks))


def steps(data: st.DataObject, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """A request's steps: the tokens before each and after it."""
    while start < stop:
        count = data.draw(st.integers(1, stop - start))
        yield start, start + count
        start += count


@settings(max_examples=300)
@given(shapes(), st.data())
def test_a_hit_of_the_prompt_and_of_the_answer_finds_what_was_stored(
    shape: Geometry, data: st.DataObject
) -> None:
    """And no block of it had been freed when it was offered: the engine keeps what it looks at."""
    size = shape.chunk_tokens
    prompt = data.draw(st.integers(1, 6 * size))
    answer = data.draw(st.integers(0, 2 * size))
    junction = data.draw(st.integers(0, prompt // size))
    ends = (junction, (prompt - 1) // size, prompt // size)
    stored: Records = set()
    offered = 0
    for before, after in steps(data, 0, prompt + answer):
        chunks = range(offered, after // size)
        offered = max(offered, chunks.stop)
        for number, chunk in stored_records(shape, chunks, ends, before):
            group = shape.groups[number]
            held = {token // group.block_tokens for token in looked_at(group.reach, before)}
            new = set(range(before // group.block_tokens, 1 + (after - 1) // group.block_tokens))
            assert set(record_blocks(group, chunk)) <= held | new
            assert (number, chunk) not in stored
            stored.add((number, chunk))
    for end in {*ends, *range(prompt // size, (prompt + answer) // size + 1)} - {0}:
        assert set(hit_of(shape, end).local) <= stored


@given(
    st.integers(1, 8).map(lambda n: 16 * n),
    st.integers(2, 400),
    st.integers(1, 3000),
    st.sampled_from([1, 2, 4]),
)
def test_the_bytes_of_a_window_are_those_that_plan_kv_says(
    chunk_tokens: int, window: int, prompt: int, layers: int
) -> None:
    """Give or take a chunk, and what lies between the last whole chunk and the prompt's end."""
    names = tuple(map(str, range(layers)))
    reach = Reach(ReachKind.WINDOW, window)
    local = Geometry(names, 16 * PAGE, 16, chunk_tokens // 16, reach=reach, tables=(1,))
    shape = Geometry(("f",), 16 * PAGE, 16, chunk_tokens // 16, local=(local,))
    ends = (0, (prompt - 1) // chunk_tokens, prompt // chunk_tokens)
    stored = list(stored_records(shape, range(prompt // chunk_tokens), ends, 0))
    stored_bytes = sum(local.record_bytes(len(record_blocks(local, at))) for _, at in stored)
    planned = Shape("window", (LayerGroup(LayerKind.SLIDING, layers, 1, PAGE, window),), 1, PAGE, 8)
    most_bytes = planned.sequence_bytes(prompt)
    chunk_bytes = local.chunk_bytes + 16 * PAGE * layers  # of blocks that the window begins in
    if prompt % chunk_tokens:
        assert stored_bytes <= most_bytes + chunk_bytes
    else:  # the prompt asked for again ends a chunk earlier than one that goes on
        assert stored_bytes <= most_bytes + 2 * chunk_bytes
    assert stored_bytes >= min(most_bytes, prompt // chunk_tokens * local.chunk_bytes) - chunk_bytes


def test_a_local_attention_that_begins_with_a_hit_needs_nothing_before_it() -> None:
    reach = Reach(ReachKind.CHUNKED, 64)
    local = Geometry(("l",), PAGE, 16, 2, reach=reach, tables=(1,))
    shape = Geometry(("f",), PAGE, 16, 2, local=(local,))
    assert [hit_of(shape, chunks).local for chunks in (1, 2, 3, 4)] == [
        ((1, 0),),
        (),
        ((1, 2),),
        (),
    ]
    assert [len(record_blocks(local, chunk)) for chunk in range(4)] == [2, 0, 2, 0]
