"""Namespaces by number, with the usage of each: part of a tier's index.

A number belongs to a namespace as long as anything refers to it, and may be reused afterwards, so
that namespaces that came and went cost nothing. The last `LEFT_MAX` names are kept, since copies
that an index has forgotten may have to be erased. `largest` looks at `SCANNED_MAX` namespaces per
call and remembers the largest it saw: if there are more, it finds the largest within several calls.
Not thread-safe.
"""

from collections.abc import Iterable
from heapq import nlargest
from typing import Final

from forebay.tiers.contract import NamespaceUsage

SCANNED_MAX: Final = 4096  # looked at by one call of `largest`: less than a millisecond
LEFT_MAX: Final = 4096  # names of namespaces that nothing refers to any more
_NOTHING: Final = NamespaceUsage()


class NamespaceTable:
    """The namespaces of one index, which changes the columns (by number) itself."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.references: list[int] = []  # rows of the index that have this number
        self.records: list[int] = []  # records that count
        self.payload_bytes: list[int] = []  # payload bytes of these
        self._names: list[bytes] = []
        self._free: list[int] = []
        self._left: dict[bytes, None] = {}  # the oldest first
        self._largest: list[int] = []  # result of the last `largest`
        self._scanned = 0  # numbers below it were looked at by then

    def __len__(self) -> int:
        return len(self.numbers)

    def refer(self, name: bytes) -> int:
        """One more row refers to this namespace; returns its number."""
        number = self.numbers.get(name)
        if number is None:
            number = self._new(name)
        self.references[number] += 1
        return number

    def release(self, number: int) -> None:
        """One row fewer refers to this namespace."""
        self.references[number] -= 1
        if not self.references[number]:
            assert not self.records[number]
            assert not self.payload_bytes[number]
            name, self._names[number] = self._names[number], b""
            del self.numbers[name]
            self._free.append(number)
            self._left[name] = None
            if len(self._left) > LEFT_MAX:
                del self._left[next(iter(self._left))]

    def usage(self) -> dict[bytes, NamespaceUsage]:
        """The usage of every namespace, also of those that have nothing any more."""
        names = [*self.numbers, *self._left]
        return dict(zip(names, self.usage_of(names), strict=True))

    def usage_of(self, names: Iterable[bytes]) -> list[NamespaceUsage]:
        """The usage of each of these namespaces."""
        found = [self.numbers.get(name) for name in names]
        return [
            _NOTHING
            if number is None
            else NamespaceUsage(self.records[number], self.payload_bytes[number])
            for number in found
        ]

    def largest(self, limit: int) -> list[bytes]:
        """The namespaces with the most bytes, the largest first."""
        end = self._scanned + SCANNED_MAX
        seen = {*self._largest, *range(self._scanned, min(end, len(self._names)))}
        self._scanned = end if end < len(self._names) else 0
        having = [number for number in seen if self.records[number]]
        self._largest = nlargest(limit, having, key=self.payload_bytes.__getitem__)
        return [self._names[number] for number in self._largest]

    def _new(self, name: bytes) -> int:
        if self._free:
            number = self._free.pop()
            self._names[number] = name
        else:
            number = len(self._names)
            self._names.append(name)
            for column in (self.references, self.records, self.payload_bytes):
                column.append(0)
        self.numbers[name] = number
        self._left.pop(name, None)
        return number
