"""Which records are stored raw without trying to encode them, after others did not fit."""

from typing import Final

_RAW_MAX: Final = 64  # records offered raw before encoding is tried again


class RawBackoff:
    """Decides how many records of a group are offered raw after one that did not fit."""

    __slots__ = ("_left", "_next")

    def __init__(self) -> None:
        self._left = 0  # records still to be offered raw
        self._next = 1  # how many to offer raw when the next one does not fit

    def is_raw(self) -> bool:
        """Whether the next record is to be offered raw. Each call counts as one record."""
        self._left -= 1
        return self._left >= 0

    def tried(self, *, is_fit: bool) -> None:
        """Note that a record was encoded (`is_fit`), or did not fit."""
        self._left = 0 if is_fit else self._next
        self._next = 1 if is_fit else min(_RAW_MAX, 2 * self._next)
