"""What a chunk costs in the engine's process: calls of Python a chunk, which no machine changes.

A load of a long prompt has hundreds of chunks, and an engine computes nothing while its process is
busy with them. Each bound is a little above what it is.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forebay.engines.copies.contract import Piece, WorkerSlab
from forebay.engines.copies.pointers import PageTable, PageTables
from forebay.engines.geometry import Geometry
from forebay.engines.groups import PrefixHit
from forebay.engines.scheduling.request_load import LoadTarget

pytestmark = pytest.mark.vllm  # the environment that has numpy
CHUNKS, LAYERS, PAGE_BYTES = 200, 36, 4096


def calls_a_chunk(work: Callable[[], object]) -> float:
    """Functions of Python and C that are called; the second time, for some things are kept."""
    count = 0

    def called(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    work()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count / CHUNKS


def shape(*, is_encoded: bool = False) -> Geometry:
    layers = tuple(f"layer {number}" for number in range(LAYERS))
    return Geometry(layers, PAGE_BYTES, 16, chunk_blocks=1, is_encoded=is_encoded)


@pytest.mark.parametrize("is_encoded", [False, True])
def test_pieces_of_a_load(is_encoded: bool) -> None:
    blocks = list(range(CHUNKS))
    target = LoadTarget(shape(is_encoded=is_encoded), PrefixHit(CHUNKS), [blocks], 0, 16 * CHUNKS)
    arrived = [(number, number << 20) for number in range(CHUNKS)]
    assert len([*target.pieces(arrived)]) == CHUNKS
    assert calls_a_chunk(lambda: [*target.pieces(arrived)]) < 10


@pytest.mark.parametrize("is_encoded", [False, True])
def test_addresses_of_a_load(is_encoded: bool) -> None:
    layers = [(number << 30, PAGE_BYTES) for number in range(1, 1 + LAYERS)]
    plain = PageTable.of(layers, PAGE_BYTES, CHUNKS)
    encoded = {0: PageTable.encoded(layers, PAGE_BYTES, CHUNKS)} if is_encoded else {}
    tables = PageTables([plain], shape(is_encoded=is_encoded), [0], encoded)
    memory: Any = np.zeros(CHUNKS << 18, np.uint8)
    slab = WorkerSlab(1, memory, memory.nbytes, memory.nbytes)
    pieces = [
        Piece(number << 18, 0, [number], size=1, is_encoded=is_encoded) for number in range(CHUNKS)
    ]
    assert tables.blocks_of(pieces, slab).total == CHUNKS
    assert calls_a_chunk(lambda: tables.blocks_of(pieces, slab)) < 13
    assert calls_a_chunk(lambda: tables.bytes_of(pieces)) < 3
