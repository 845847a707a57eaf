"""The exponent code: pages of bfloat16 in three quarters of their size and a little more, exactly.

A bfloat16 has 8 bits of exponent, and KV uses few of the possible values: an encoded page has a
table of 16 exponents, 4 bits per value that point into it, and a list of *escapes* for values whose
exponent is not in the table. The sign and the 7 bits of mantissa are kept as they are. The list has
room for a fixed number of escapes, so the size of an encoded page depends only on the page's size;
a page with more escapes cannot be encoded, and its record is stored raw. This module computes sizes
and offsets only; docs/format.md has the layout, and `forebay.engines.codec` encodes and decodes.
"""

from typing import Final

NAME: Final = "exponents 1"  # part of namespaces; another layout gets another name
TABLE: Final = 16  # exponents that need no escape, in rising order
COUNT_AT: Final = 16  # u32: escapes; more than `escapes_max`: the page is not encoded
VALUES_AT: Final = 20  # u32: values of the page
ESCAPES_AT: Final = 32  # u32 each: position << 8 | exponent, positions rising; then zeros
POSITION_SHIFT: Final = 8
_VALUES_AN_ESCAPE: Final = 192
_VALUES_UNIT: Final = 32  # so that every part is aligned for accesses of 16 bytes
VALUES_MAX: Final = 1 << 22


def can_encode(page_bytes: int) -> bool:
    """Whether pages of this size have an encoded form."""
    values, odd = divmod(page_bytes, 2)
    return 0 < values <= VALUES_MAX and not odd and not values % _VALUES_UNIT


def escapes_max(page_bytes: int) -> int:
    """How many escapes an encoded page has room for: one per 192 values, rounded up to four."""
    return 4 * -(-page_bytes // (2 * 4 * _VALUES_AN_ESCAPE))


def nibbles_at(page_bytes: int) -> int:
    """Where the indexes into the table begin; value 0 has the low half of the first byte."""
    return ESCAPES_AT + 4 * escapes_max(page_bytes)


def mantissas_at(page_bytes: int) -> int:
    """Where signs and mantissas begin: one byte per value, with the sign as its highest bit."""
    return nibbles_at(page_bytes) + page_bytes // 4


def encoded_bytes(page_bytes: int) -> int:
    """The size of an encoded page."""
    return mantissas_at(page_bytes) + page_bytes // 2
