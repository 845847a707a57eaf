"""Pages of SGLang's host memory as buffers, and records copied into them.

A page is copied once: from these buffers into the pool's memory, or back. SGLang gives the
addresses and lengths of a page's pieces, such as its K and its V; a record is these pieces one
after the other. Assumed: until the call that brought them returns, the addresses stay valid and
nobody else writes there. Every page must have the pieces that were declared when the host memory
was registered; if one does not, nothing of the call is copied.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageShape:
    """What every page of an engine consists of."""

    tokens: int
    pieces: tuple[int, ...]  # size of each piece, in the order of a record

    @property
    def record_bytes(self) -> int:
        """The size of a page as it is stored."""
        return sum(self.pieces)

    def buffers(
        self, addresses: Sequence[int], sizes: Sequence[int], pages: int
    ) -> list[list[memoryview]] | None:
        """The pieces of so many pages, writable; None if they are not as declared."""
        are_alike = tuple(sizes) == self.pieces * pages  # verify: a page's pieces
        if not are_alike or len(addresses) != len(sizes) or 0 in addresses:
            return None
        count = len(self.pieces)
        views = [_memory(at, size) for at, size in zip(addresses, sizes, strict=True)]
        return [views[at : at + count] for at in range(0, len(views), count)]


def copy_record(record: memoryview, pieces: Sequence[memoryview]) -> bool:
    """Copy a record into a page's pieces; False, without touching them, if it does not fit."""
    if len(record) != sum(map(len, pieces)):  # verify: a record's length
        return False
    at = 0
    for piece in pieces:
        piece[:] = record[at : at + len(piece)]
        at += len(piece)
    return True


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
