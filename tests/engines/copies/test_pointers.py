"""Addresses of pages, for whole jobs at once."""

import numpy as np
import pytest

from forebay.engines.copies.contract import Piece, WorkerSlab
from forebay.engines.copies.pointers import PageTable, PageTables
from forebay.engines.geometry import Geometry, Reach, ReachKind

pytestmark = pytest.mark.vllm  # the environment that has numpy
PAGE = 100


def test_a_page_a_layer_where_layers_lie_apart() -> None:
    page_table = PageTable.of([(10_000, PAGE), (50_000, PAGE)], PAGE, 16)
    memory = np.zeros(4000, dtype=np.uint8)
    rows = page_table.blocks_of([(600, [7, 3]), (2000, [5])], memory)
    batch = page_table.batch(rows, 0, rows.total)
    base = memory.ctypes.data
    assert batch.pages.tolist() == [10_700, 50_700, 10_300, 50_300, 10_500, 50_500]
    assert (batch.slots - base).tolist() == [600, 700, 800, 900, 2000, 2100]
    assert page_table.batch(rows, 1, 2).pages.tolist() == [10_300, 50_300]


def test_one_page_a_block_where_its_layers_lie_together() -> None:
    layers = [(10_000 + number * PAGE, 3 * PAGE) for number in range(3)]
    page_table = PageTable.of(layers, PAGE, 16)
    assert page_table.page_bytes == page_table.block_bytes == 3 * PAGE
    rows = page_table.blocks_of([(300, [2, 4])], np.zeros(4000, dtype=np.uint8))
    assert page_table.batch(rows, 0, 2).pages.tolist() == [10_600, 11_200]
    apart = PageTable.of(list(reversed(layers)), PAGE, 16)
    assert apart.page_bytes == PAGE, "a slot has them in another order"


def test_a_group_of_several_tables_lies_table_behind_table() -> None:
    """Group 1 has two tables, of one layer and of two; the record has three blocks of four."""
    window = Reach(ReachKind.WINDOW, 40)
    local = Geometry(("b", "c", "d"), PAGE, 16, 4, reach=window, tables=(1, 2), table_layers=(1, 2))
    shape = Geometry(("a",), PAGE, 16, 4, local=(local,))
    bases = [[(10_000, PAGE)], [(20_000, PAGE)], [(30_000, PAGE), (40_000, PAGE)]]
    tables = PageTables([PageTable.of(layers, PAGE, 16) for layers in bases], shape)
    memory = np.zeros(8000, dtype=np.uint8)
    slab = WorkerSlab(1, memory, 8000, 8000, shard=1, widest=(PAGE, 4 * PAGE))
    pieces = [Piece(0, 1, [9]), Piece(3000, 1, [5, 6], 1, 3, ([7, 8],))]
    job = tables.blocks_of(pieces, slab)
    assert job.total == 5
    assert tables.bytes_of(pieces) == PAGE + 2 * 3 * PAGE
    base, block = memory.ctypes.data, 0
    copied: list[tuple[int, int]] = []
    while block < job.total:
        table, rows, before = tables.at(job, block)
        batch = table.batch(rows, block - before, rows.total)
        copied += zip(batch.pages.tolist(), (batch.slots - base).tolist(), strict=True)
        block = before + rows.total
    shard = 3000 + 3 * 4 * PAGE  # the second one's
    second = shard + 3 * PAGE + 2 * PAGE
    assert copied == [
        (10_900, 4 * PAGE + PAGE),
        (20_500, shard + PAGE),
        (20_600, shard + 2 * PAGE),
        *((30_700, second), (40_700, second + PAGE)),
        *((30_800, second + 2 * PAGE), (40_800, second + 3 * PAGE)),
    ]


@pytest.mark.parametrize("run", [(0, [16]), (0, [-1]), (3900, [1])])
def test_what_lies_outside_is_never_copied(run: tuple[int, list[int]]) -> None:
    page_table = PageTable.of([(10_000, PAGE), (50_000, PAGE)], PAGE, 16)
    with pytest.raises(AssertionError):
        page_table.blocks_of([run], np.zeros(4000, dtype=np.uint8))


@pytest.mark.parametrize(
    ("base", "stride", "page_bytes", "is_aligned"),
    [(4096, 96, 48, True), (4104, 96, 48, False), (4096, 100, 48, False), (4096, 96, 40, False)],
)
def test_pages_that_no_kernel_can_take_are_known(
    base: int, stride: int, page_bytes: int, is_aligned: bool
) -> None:
    layers = [(base, stride), (base + (1 << 20), stride)]
    assert PageTable.of(layers, page_bytes, blocks=16).is_aligned is is_aligned


def test_layers_of_unequal_size_lie_behind_one_another_in_a_slots_block() -> None:
    """Two of 100 bytes, then one of 30: each size has a table of its own."""
    layers = [(10_000, PAGE, PAGE), (20_000, PAGE, PAGE), (30_000, 30, 30)]
    tables = PageTable.all_of(layers, 16)
    assert [table.page_bytes for table in tables] == [PAGE, 30]
    whole = 2 * PAGE + 30
    shape = Geometry(("a", "b", "c"), PAGE, 16, 4, layer_bytes=(PAGE, PAGE, 30))
    assert shape.block_bytes == whole
    memory = np.zeros(4000, dtype=np.uint8)
    slab = WorkerSlab(1, memory, 4000, 4000)
    every = PageTables(tables, shape, [0, 0])
    job = every.blocks_of([Piece(500, 1, [7, 3])], slab)
    assert (job.total, every.bytes_of([Piece(500, 1, [7, 3])])) == (4, 2 * whole)
    first = 500 + whole
    copied: list[tuple[int, int]] = []
    for table, rows in job.tables:
        batch = table.batch(rows, 0, rows.total)
        places = (batch.slots - memory.ctypes.data).tolist()
        copied += zip(batch.pages.tolist(), places, strict=True)
    assert copied == [
        *((10_700, first), (20_700, first + PAGE)),
        *((10_300, first + whole), (20_300, first + whole + PAGE)),
        *((30_210, first + 2 * PAGE), (30_090, first + whole + 2 * PAGE)),
    ]
    with pytest.raises(AssertionError):
        every.blocks_of([Piece(4000 - whole, 1, [0])], slab)


def test_unequal_layers_that_lie_together_in_a_block_are_one_page() -> None:
    stride = 2 * PAGE + 30 + 6  # with padding
    layers = [(10_000, stride, PAGE), (10_100, stride, PAGE), (10_200, stride, 30)]
    (table,) = PageTable.all_of(layers, 16)
    assert table.page_bytes == 2 * PAGE + 30
    rows = table.blocks_of([(300, [2])], np.zeros(4000, dtype=np.uint8))
    assert table.batch(rows, 0, 1).pages.tolist() == [10_000 + 2 * stride]
    assert len(PageTable.all_of([layers[0], (10_101, stride, 30)], 16)) == 2
    assert not PageTable.all_of([], 16), "a stage without layers of a group"


def test_a_kernel_takes_unequal_pages_only_where_all_of_them_are_aligned() -> None:
    layers = [(4096, 96, 48), (1 << 20, 24, 24)]
    assert [table.is_aligned for table in PageTable.all_of(layers, 16)] == [False, False]


def test_a_stage_without_layers_of_a_group_has_nothing_to_encode_of_it() -> None:
    """Its part of the record is nothing, not a failure; a table that is missing is one."""
    page = 4096
    window = Reach(ReachKind.WINDOW, 40)
    local = Geometry((), page, 16, 4, reach=window, tables=(1,), widest_bytes=page, is_encoded=True)
    shape = Geometry(("a",), page, 16, 4, local=(local,), is_encoded=True)
    layers = [(10_000, page)]
    plain = PageTable.of(layers, page, 16)
    memory = np.zeros(64 * page, dtype=np.uint8)
    slab = WorkerSlab(1, memory, memory.nbytes, memory.nbytes)
    pieces = [
        Piece(0, 0, [3], is_encoded=True),
        Piece(8 * page, 0, [5], 1, 1, is_encoded=True),
    ]
    tables = PageTables([plain], shape, [0], {0: PageTable.encoded(layers, page, 16)})
    job = tables.blocks_of(pieces, slab)
    assert [rows.blocks.tolist() for _, rows in job.tables] == [[3]]
    assert job.total == 1
    with pytest.raises(KeyError):
        PageTables([plain], shape, [0]).blocks_of(pieces, slab)
