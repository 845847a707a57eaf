"""Which records are offered raw at once, because some before them could not be encoded."""

from typing import Final

_RAW_MAX: Final = 64  # records offered raw before one is to be encoded again


class RawBackoff:
    """How many records of a group are offered raw, after some that could not be encoded."""

    __slots__ = ("_left", "_next")

    def __init__(self) -> None:
        self._left = 0  # to be offered raw
        self._next = 1  # so many, when the next one does not fit

    def is_raw(self) -> bool:
        """Whether the next record is offered raw; it counts."""
        self._left -= 1
        return self._left >= 0

    def tried(self, *, is_fit: bool) -> None:
        """One was encoded, or could not be."""
        self._left = 0 if is_fit else self._next
        self._next = 1 if is_fit else min(_RAW_MAX, 2 * self._next)
