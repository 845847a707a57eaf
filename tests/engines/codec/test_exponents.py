"""The exponent code: exact for every pattern, of one size, and safe whatever it is given.

The kernels run under Triton's interpreter (`interpreted_kernels.py`); tests/engines/vllm/gpu has
them on a GPU.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engines.codec import exponents
from forebay.record.exponents import (
    COUNT_AT,
    ESCAPES_AT,
    VALUES_MAX,
    can_encode,
    encoded_bytes,
    escapes_max,
    mantissas_at,
    nibbles_at,
)
from forebay.record.header import payload_hash

pytestmark = pytest.mark.vllm  # the environment that has numpy
GOLDEN = Path(__file__).parents[2] / "golden" / "exponents-1.json"
SMALL = 64  # the smallest page, of 32 values
PAGE = 12_288  # of the demo model
EVERY = np.arange(1 << 16, dtype=np.uint16)


def of_normal(count: int, page_bytes: int, seed: int = 0) -> Any:
    """Pages of normal numbers, as KV nearly is."""
    drawn = np.random.default_rng(seed).normal(size=(count, page_bytes // 2)).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def of_every_pattern() -> Any:
    """Pages that have all 65,536 patterns: each has 16 exponents, of both signs."""
    by_exponent = EVERY[np.argsort((EVERY >> 7) & 0xFF, kind="stable")]
    return by_exponent.reshape(16, -1).view(np.uint8)


def uniform(count: int, page_bytes: int) -> Any:
    """Pages whose exponents are evenly spread: they have no encoded form."""
    drawn = np.random.default_rng(1).integers(0, 1 << 16, (count, page_bytes // 2))
    return drawn.astype(np.uint16).view(np.uint8)


def with_escapes(count: int, page_bytes: int) -> Any:
    """One page of 16 exponents and so many values of others, NaNs and infinities among them."""
    values = np.resize(of_every_pattern().view(np.uint16)[7], page_bytes // 2)
    places = np.random.default_rng(count).choice(len(values), count, replace=False)
    values[places] = np.resize(np.uint16([0x7FC1, 0xFF80, 0x8000, 0x0000, 0xFFFF]), count)
    return values[None].view(np.uint8)


def test_all_patterns_come_back() -> None:
    pages = of_every_pattern()
    encoded = exponents.encode(pages)
    assert exponents.fit(encoded, pages.shape[1])
    decoded = exponents.decode(encoded, pages.shape[1])
    assert decoded is not None
    assert set(decoded.view(np.uint16).ravel().tolist()) == set(EVERY.tolist())
    assert (decoded == pages).all()


@pytest.mark.parametrize("escapes", [0, 1, 31, 32])
def test_values_out_of_the_table_come_back(escapes: int) -> None:
    pages = with_escapes(escapes, PAGE)
    encoded = exponents.encode(pages)
    assert encoded[0, COUNT_AT : COUNT_AT + 4].view("<u4")[0] == escapes
    assert (exponents.decode(encoded, PAGE) == pages).all()


def test_a_page_of_too_many_escapes_does_not_fit_and_is_not_decoded() -> None:
    assert escapes_max(PAGE) == 32
    encoded = exponents.encode(with_escapes(33, PAGE))
    assert encoded.shape == (1, encoded_bytes(PAGE))
    assert not exponents.fit(encoded, PAGE)
    assert exponents.decode(encoded, PAGE) is None
    assert not exponents.fit(exponents.encode(uniform(3, PAGE)), PAGE)


@given(
    st.integers(1, 20).map(lambda units: 64 * units),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_any_page_is_exact_or_does_not_fit(page_bytes: int, data: st.DataObject) -> None:
    pages = np.frombuffer(data.draw(st.binary(min_size=page_bytes, max_size=page_bytes)), np.uint8)
    encoded = exponents.encode(pages[None])
    decoded = exponents.decode(encoded, page_bytes)
    if exponents.fit(encoded, page_bytes):
        assert (decoded == pages).all()
    else:
        assert decoded is None


def test_an_encoded_page_has_a_size_and_parts_that_a_kernel_can_take() -> None:
    for page_bytes in (SMALL, PAGE, 18_432, 65_536, 2 * VALUES_MAX):
        assert can_encode(page_bytes)
        parts = nibbles_at(page_bytes), mantissas_at(page_bytes), encoded_bytes(page_bytes)
        assert not any(part % 16 for part in parts)
    assert not any(map(can_encode, (0, 63, 66, 96, 2 * VALUES_MAX + 64)))
    assert PAGE / encoded_bytes(PAGE) > 1.30
    assert 65_536 / encoded_bytes(65_536) > 1.31


@pytest.mark.parametrize("page_bytes", [1024, PAGE, 65_536])
def test_the_page_that_a_gpu_is_tried_with_has_everything(page_bytes: int) -> None:
    page = exponents.sample_page(page_bytes)
    values = page.view("<u2")
    assert {*range(16), 0xFF} <= set(((values >> 7) & 0xFF).tolist())
    assert set((values >> 15).tolist()) == {0, 1}
    encoded = exponents.encode(page[None])
    escapes = encoded[0, COUNT_AT : COUNT_AT + 4].view("<u4")[0]
    assert 1 <= escapes <= escapes_max(page_bytes)
    if page_bytes >= 1 << 14:
        assert escapes > 4, "in one group of eight, and in each run of the kernel's loop"
    assert (exponents.decode(encoded, page_bytes) == page).all()


def _broken(at: int, value: bytes) -> Callable[[Any], None]:
    def do(page: Any) -> None:
        page[at : at + len(value)] = np.frombuffer(value, np.uint8)

    return do


@pytest.mark.parametrize(
    "damage",
    [
        _broken(0, b"\xff"),  # the table does not rise
        _broken(5, b"\0"),
        _broken(COUNT_AT, b"\x21\0\0\0"),  # more escapes than there is room for
        _broken(COUNT_AT, b"\xff\xff\xff\xff"),
        _broken(COUNT_AT + 4, b"\1\0\0\0"),  # a page of another size
        _broken(ESCAPES_AT, b"\xff\xff\xff\xff"),  # a position behind the page
        _broken(ESCAPES_AT + 4 * 15, b"\0\0\x18\0"),  # the last one: position 6144
        _broken(ESCAPES_AT + 4, b"\0\0\0\0"),  # positions do not rise
    ],
)
def test_damage_is_a_miss(damage: Callable[[Any], None]) -> None:
    encoded = exponents.encode(with_escapes(16, PAGE))
    assert exponents.decode(encoded, PAGE) is not None
    damage(encoded[0])
    assert exponents.decode(encoded, PAGE) is None


@given(st.binary(min_size=encoded_bytes(SMALL), max_size=encoded_bytes(SMALL)))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_safe_to_decode(junk: bytes) -> None:
    exponents.decode(np.frombuffer(junk, np.uint8)[None], SMALL)


def golden_pages() -> Any:
    return np.concatenate([with_escapes(5, PAGE), of_normal(1, PAGE, 3)])


def test_bytes_that_were_written_before() -> None:
    told = json.loads(GOLDEN.read_text())
    encoded = exponents.encode(golden_pages())
    assert encoded[0, : ESCAPES_AT + 24].tobytes().hex() == told["begins"]
    assert [payload_hash(row.data).hex() for row in encoded] == told["hashes"]


def test_the_kernels_give_the_same_bytes_under_the_interpreter() -> None:
    """In a process of its own: at import it is settled whether kernels are interpreted."""
    cases = str(Path(__file__).parent / "interpreted_kernels.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        cases,
    ]
    variables = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stdout


def test_kernels_compile_for_an_h200() -> None:
    """Without a GPU: what the interpreter takes, the compiler may refuse."""
    program = Path(__file__).parent / "compiled.py"
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run(
        [sys.executable, str(program)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["_encode_pages", "_decode_pages"]
