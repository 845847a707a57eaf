"""Addresses of pages, for whole jobs at once."""

import numpy as np
import pytest

from forebay.engines.copies.contract import Piece
from forebay.engines.copies.pointers import PageTable

pytestmark = pytest.mark.vllm  # the environment that has numpy
PAGE = 100


def test_a_page_a_layer_where_layers_lie_apart() -> None:
    page_table = PageTable.of([(10_000, PAGE), (50_000, PAGE)], PAGE, 16)
    memory = np.zeros(4000, dtype=np.uint8)
    rows = page_table.blocks_of([Piece(400, 1, [7, 3]), Piece(2000, 0, [5])], memory)
    batch = page_table.batch(rows, 0, rows.total)
    base = memory.ctypes.data
    assert batch.pages.tolist() == [10_700, 50_700, 10_300, 50_300, 10_500, 50_500]
    assert (batch.slots - base).tolist() == [600, 700, 800, 900, 2000, 2100]
    assert page_table.batch(rows, 1, 2).pages.tolist() == [10_300, 50_300]


def test_one_page_a_block_where_its_layers_lie_together() -> None:
    layers = [(10_000 + number * PAGE, 3 * PAGE) for number in range(3)]
    page_table = PageTable.of(layers, PAGE, 16)
    assert page_table.page_bytes == page_table.block_bytes == 3 * PAGE
    rows = page_table.blocks_of([Piece(300, 0, [2, 4])], np.zeros(4000, dtype=np.uint8))
    assert page_table.batch(rows, 0, 2).pages.tolist() == [10_600, 11_200]
    apart = PageTable.of(list(reversed(layers)), PAGE, 16)
    assert apart.page_bytes == PAGE, "a slot has them in another order"


@pytest.mark.parametrize("piece", [Piece(0, 0, [16]), Piece(0, 0, [-1]), Piece(3900, 0, [1])])
def test_what_lies_outside_is_never_copied(piece: Piece) -> None:
    page_table = PageTable.of([(10_000, PAGE), (50_000, PAGE)], PAGE, 16)
    with pytest.raises(AssertionError):
        page_table.blocks_of([piece], np.zeros(4000, dtype=np.uint8))


@pytest.mark.parametrize(
    ("base", "stride", "page_bytes", "is_aligned"),
    [(4096, 96, 48, True), (4104, 96, 48, False), (4096, 100, 48, False), (4096, 96, 40, False)],
)
def test_pages_that_no_kernel_can_take_are_known(
    base: int, stride: int, page_bytes: int, is_aligned: bool
) -> None:
    layers = [(base, stride), (base + (1 << 20), stride)]
    assert PageTable.of(layers, page_bytes, blocks=16).is_aligned is is_aligned
