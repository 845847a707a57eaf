"""Which pages are encoded: those that take less, so that a record's length tells what it is."""

from dataclasses import replace

import pytest

from forebay.engines.geometry import Geometry
from forebay.record.exponents import can_encode


@pytest.mark.parametrize("page_bytes", range(64, 4097, 64))
def test_a_length_tells_whether_a_record_is_encoded(page_bytes: int) -> None:
    """With 192 bytes both would be the same, and what is encoded would be loaded as it is."""
    plain = Geometry(("layer",), page_bytes, 16, 4)
    assert can_encode(page_bytes)
    shape = replace(plain, is_encoded=plain.can_encode)
    assert shape.is_encoded is (page_bytes > 192)
    assert (shape.chunk_bytes < shape.record_bytes(4, is_raw=True)) is shape.is_encoded


def test_a_shape_without_the_code_encodes_no_group() -> None:
    local = Geometry(("b",), 4096, 16, 4, is_encoded=True)
    shape = Geometry(("a",), 8192, 16, 4, local=(local,), is_encoded=True)
    assert shape.encoded_pages == (8192, 4096)
    plain = shape.without_code()
    assert plain.encoded_pages == (0, 0)
    assert plain.chunk_bytes == 4 * 8192
