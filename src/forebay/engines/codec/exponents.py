"""The exponent code in numpy: the reference that the kernels are held to, and what CPUs use.

Arrays have one row per page. Any bytes are safe to decode: nothing is read or written outside a
page.
"""

from typing import Any, Final

import numpy as np

from forebay.engines.copies.contract import Bytes
from forebay.record.exponents import (
    COUNT_AT,
    ESCAPES_AT,
    POSITION_SHIFT,
    TABLE,
    VALUES_AT,
    encoded_bytes,
    escapes_max,
    mantissas_at,
    nibbles_at,
)

_EXPONENTS: Final = 256


def encode(pages: Bytes) -> Bytes:
    """Encode pages; `fit` tells which of them can be decoded."""
    count, page_bytes = pages.shape
    encoded = np.zeros((count, encoded_bytes(page_bytes)), dtype=np.uint8)
    for page, target in zip(pages, encoded, strict=True):
        _encode_page(np.ascontiguousarray(page).view("<u2"), target)
    return encoded


def fit(encoded: Bytes, page_bytes: int) -> bool:
    """Whether the escapes of all these encoded pages fit, so that they can be decoded."""
    return bool(are_fit(encoded, page_bytes).all())


def are_fit(encoded: Bytes, page_bytes: int) -> Any:
    """As `fit`, for each page."""
    return _words(encoded[:, COUNT_AT:VALUES_AT]) <= escapes_max(page_bytes)


def are_sound(encoded: Bytes, page_bytes: int) -> bool:
    """Whether all pages begin as encoded pages of this size do; checked before a GPU decodes them.

    What is not checked here can do no harm: a kernel ignores an escape beyond its page.
    """
    table = encoded[:, :TABLE]
    values = _words(encoded[:, VALUES_AT : VALUES_AT + 4])
    have_room = fit(encoded, page_bytes)  # verify: escapes within their bound
    are_of_size = bool((values == page_bytes // 2).all())  # verify: pages of this size
    have_tables = bool((table[:, 1:] > table[:, :-1]).all())  # verify: a table
    return have_room and are_of_size and have_tables


def decode(encoded: Bytes, page_bytes: int) -> Bytes | None:
    """The decoded pages; None unless these are undamaged encoded pages of this size."""
    if not are_sound(encoded, page_bytes):
        return None
    pages = np.empty((len(encoded), page_bytes), dtype=np.uint8)
    for source, page in zip(encoded, pages, strict=True):
        if not _decode_page(source, page.view("<u2")):
            return None
    return pages


def sample_page(page_bytes: int) -> Bytes:
    """A page to test an encoder with: 16 exponents, both signs, all mantissas, and escapes.

    Where the page has room, some escapes lie in one group of eight values and others far apart.
    """
    count = page_bytes // 2
    values = (np.arange(count) * 40_503 & 0x87FF).astype("<u2")
    places = [count - 1, 8, 9, 11, *range(2047, count - 1, 2048)]
    places = places[: max(1, min(escapes_max(page_bytes), count // 64))]
    values[places] = np.arange(0x80, 0x80 + len(places)) << 7 | 0x41
    values[-1] = 0x7FC1  # not a number
    return values.view(np.uint8)


def _encode_page(values: Any, target: Bytes) -> None:
    page_bytes = 2 * len(values)
    exponents = ((values >> 7) & 0xFF).astype(np.uint8)
    table = _table_of(exponents)
    index_of = np.full(_EXPONENTS, TABLE, dtype=np.uint8)
    index_of[table] = np.arange(TABLE, dtype=np.uint8)
    index = index_of[exponents]
    escaped = np.flatnonzero(index == TABLE)
    index[escaped] = 0
    target[:TABLE] = table
    header = np.array([len(escaped), len(values)], dtype="<u4")
    target[COUNT_AT : COUNT_AT + 8] = header.view(np.uint8)
    listed = escaped[: escapes_max(page_bytes)]
    entries = (listed << POSITION_SHIFT | exponents[listed]).astype("<u4").view(np.uint8)
    target[ESCAPES_AT : ESCAPES_AT + len(entries)] = entries
    nibbles, mantissas = nibbles_at(page_bytes), mantissas_at(page_bytes)
    target[nibbles:mantissas] = index[::2] | index[1::2] << 4
    target[mantissas:] = ((values >> 8) & 0x80) | (values & 0x7F)


def _table_of(exponents: Any) -> Any:
    """The 16 most frequent exponents (the smaller one of equals), in rising order."""
    counts = np.bincount(exponents, minlength=_EXPONENTS)
    ranked = np.lexsort((np.arange(_EXPONENTS), -counts))
    return np.sort(ranked[:TABLE]).astype(np.uint8)


def _decode_page(source: Bytes, values: Any) -> bool:
    """Decode one page into `values`; False if its escapes are out of order or out of the page."""
    page_bytes = 2 * len(values)
    nibbles, mantissas = nibbles_at(page_bytes), mantissas_at(page_bytes)
    index = np.empty(len(values), dtype=np.uint8)
    index[::2], index[1::2] = source[nibbles:mantissas] & 15, source[nibbles:mantissas] >> 4
    exponents = source[:TABLE][index]
    count = int(_words(source[None, COUNT_AT:VALUES_AT])[0])
    entries = _words(source[ESCAPES_AT : ESCAPES_AT + 4 * count].reshape(-1, 4))
    at = entries >> POSITION_SHIFT
    if count and not (at[-1] < len(values) and (at[1:] > at[:-1]).all()):  # verify: positions
        return False
    exponents[at] = (entries & 0xFF).astype(np.uint8)
    rest = source[mantissas:].astype(np.uint16)
    values[:] = (rest & 0x80) << 8 | exponents.astype(np.uint16) << 7 | (rest & 0x7F)
    return True


def _words(four_bytes: Bytes) -> Any:
    """Each row's four bytes as a little-endian number."""
    return np.ascontiguousarray(four_bytes).view("<u4").ravel()
