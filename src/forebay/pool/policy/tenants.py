"""Whose a chunk is, and the bytes of DRAM that nobody else may take from them.

A tenant is a namespace, or all that begin alike: what a pool can tell apart. The salts by which an
engine keeps its users apart are inside the keys, and a pool does not see them.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NOBODY: Final = 0  # the tenant of all who have no floor


class Floor(NamedTuple):
    """What one tenant always keeps of DRAM, once it has that much."""

    namespace: bytes  # its first bytes
    size_bytes: int


class Tenants:
    """Numbers for those who have a floor, from 1 on; the first floor that fits counts."""

    def __init__(self, floors: Iterable[Floor] = ()) -> None:
        self._floors = tuple(floors)
        self._numbers: dict[bytes, int] = {}

    @property
    def floors(self) -> Mapping[int, int]:
        """Bytes by tenant."""
        return {number: floor.size_bytes for number, floor in enumerate(self._floors, start=1)}

    def number_of(self, namespace: bytes) -> int:
        """The tenant of a namespace."""
        number = self._numbers.get(namespace)
        if number is None:
            fits = (namespace.startswith(floor.namespace) for floor in self._floors)
            number = next((at for at, fit in enumerate(fits, start=1) if fit), NOBODY)
            self._numbers[namespace] = number
        return number
