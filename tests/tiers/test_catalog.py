"""The catalog where no medium is needed to see what it does."""

from forebay.record.region import ContentsEntry, short
from forebay.testing.samples import NAMESPACE
from forebay.tiers.catalog.index import NO_PARENT, Index, RecordPlace

PARENT, CHILD = b"\2" + bytes(31), b"\1" + bytes(31)
LENGTH = 100


def index_with_a_gap() -> Index:
    """A parent that was evicted, and a child that another tier continues."""
    index = Index()
    for key, parent in ((PARENT, None), (CHILD, short(PARENT))):
        assert index.reserve(short(key), parent, NAMESPACE)
    row = index.settle(short(PARENT), RecordPlace(1, 4096, LENGTH))
    assert row is not None
    assert index.settle(short(CHILD), RecordPlace(2, 4096, LENGTH)) is not None
    assert len(index.evict(row, 1, lambda _: True)) == 1
    assert index.records == 1
    return index


def test_a_record_that_is_found_again_fills_its_gap() -> None:
    index = index_with_a_gap()
    place = RecordPlace(3, 8192, LENGTH + 1)
    assert index.prefix([PARENT, CHILD], frozenset()) == 0
    row = index.restore(3, ContentsEntry(PARENT, NAMESPACE, NO_PARENT, 8192, LENGTH + 1, 0))
    assert index.find(short(PARENT)) == place
    assert index.prefix([PARENT, CHILD], frozenset()) == 2
    assert (index.records, index.payload_bytes) == (2, 2 * LENGTH + 1)
    assert row is not None
    assert [each.length for each in index.evict(row, 3, lambda _: False)] == [LENGTH + 1, LENGTH]
    assert (index.records, index.payload_bytes, len(index.namespaces)) == (0, 0, 0)


def test_a_record_that_is_being_stored_is_not_replaced_by_one_that_is_found() -> None:
    index = index_with_a_gap()
    assert index.reserve(short(PARENT), None, NAMESPACE)
    index.restore(3, ContentsEntry(PARENT, NAMESPACE, NO_PARENT, 8192, LENGTH, 0))
    assert index.find(short(PARENT)) is None
    assert index.settle(short(PARENT), RecordPlace(4, 4096, LENGTH)) is not None
    assert index.records == 2
