"""The kernels of the exponent code against its reference, under Triton's interpreter.

`test_exponents.py` runs this file, in a process in which TRITON_INTERPRET is 1.
"""

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.engines.codec.test_exponents import (
    PAGE,
    SMALL,
    of_every_pattern,
    of_normal,
    uniform,
    with_escapes,
)

from forebay.engines.codec import exponents, kernels
from forebay.engines.copies.cuda import CudaDriver
from forebay.record.exponents import COUNT_AT, encoded_bytes


@pytest.mark.parametrize(
    "pages",
    [
        of_every_pattern(),
        of_normal(3, PAGE),
        of_normal(1, 18_432, 5),
        of_normal(2, SMALL),
        of_normal(1, 65_536, 6),
        with_escapes(1, PAGE),
        with_escapes(32, PAGE),
        np.zeros((2, PAGE), np.uint8),
    ],
    ids=["every", "normal", "mla", "small", "large", "an escape", "full", "zeros"],
)
def test_kernels_give_the_bytes_of_the_reference(pages: Any) -> None:
    page_bytes = pages.shape[1]
    expected = exponents.encode(pages)
    assert exponents.fit(expected, page_bytes)
    slots, back = _run(pages, expected.shape)
    assert (slots == expected).all()
    assert (back == pages).all()


def test_kernels_say_what_does_not_fit_and_stay_inside() -> None:
    pages = np.concatenate([with_escapes(33, PAGE), uniform(1, PAGE)])
    slots, _ = _run(pages, (2, encoded_bytes(PAGE)))
    assert (slots == exponents.encode(pages)).all()
    assert not exponents.fit(slots[:1], PAGE)
    assert not exponents.fit(slots[1:], PAGE)


@pytest.mark.parametrize("count", [0, 5, 33, -1, 1 << 30])
def test_a_kernel_decodes_any_bytes_into_the_page_alone(count: int) -> None:
    """Junk tables, counts and positions; what lies around the page is as it was."""
    junk = np.random.default_rng(9).integers(0, 256, (1, encoded_bytes(PAGE))).astype(np.uint8)
    junk[0, COUNT_AT : COUNT_AT + 4] = np.array([count], "<i4").view(np.uint8)
    around = np.full(3 * PAGE, 0xAB, np.uint8)
    place = around[PAGE : 2 * PAGE]
    kernels.decode_pages(_addresses(junk), np.array([place.ctypes.data]), PAGE)
    assert (around[:PAGE] == 0xAB).all()
    assert (around[2 * PAGE :] == 0xAB).all()


def driver() -> CudaDriver:
    """As on a GPU whose kernels reach the host's memory; here they are interpreted."""
    made = CudaDriver("cpu")
    made._has_kernels = True
    return made


@pytest.mark.parametrize("page_bytes", [1024, PAGE])
def test_a_gpu_that_gives_the_right_bytes_encodes(page_bytes: int) -> None:
    assert driver().warm_codec(page_bytes) == ""


@pytest.mark.parametrize("kernel", ["encode_pages", "decode_pages"])
def test_a_gpu_whose_kernel_gives_other_bytes_does_not_encode(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """As a compiler may make it: one bit of the last page."""
    right = getattr(kernels, kernel)

    def wrong(sources: Any, targets: Any, page_bytes: int) -> None:
        right(sources, targets, page_bytes)
        ctypes.c_uint8.from_address(int(targets[-1]) + 700).value ^= 1

    monkeypatch.setattr(kernels, kernel, wrong)
    assert "right bytes" in driver().warm_codec(PAGE)


def _addresses(rows: Any) -> Any:
    return rows.ctypes.data + np.arange(len(rows), dtype=np.int64) * rows.strides[0]


def _run(pages: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Encoded and decoded by kernels, between memory that is not zeros; guards stay."""
    guarded = np.full((shape[0] + 2, shape[1]), 0xCD, np.uint8)
    back = np.full((len(pages) + 2, pages.shape[1]), 0xCD, np.uint8)
    pages = np.ascontiguousarray(pages)
    kernels.encode_pages(_addresses(pages), _addresses(guarded[1:-1]), pages.shape[1], programs=2)
    kernels.decode_pages(_addresses(guarded[1:-1]), _addresses(back[1:-1]), pages.shape[1])
    for each in (guarded, back):
        assert (each[0] == 0xCD).all()
        assert (each[-1] == 0xCD).all()
    return guarded[1:-1], back[1:-1]
