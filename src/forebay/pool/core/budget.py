"""Bytes that one purpose may hold at once, taken and given back by whoever holds them."""

from collections.abc import Callable


class Budget:
    """A limit that may change while bytes are held; what is held is counted here alone."""

    def __init__(self, limit_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    @property
    def limit_bytes(self) -> int:
        """What may be held."""
        return self._limit_bytes()

    @property
    def used_bytes(self) -> int:
        """What is held."""
        return self._used_bytes

    @property
    def left_bytes(self) -> int:
        """What more may be held; below 0 after the limit was lowered."""
        return self._limit_bytes() - self._used_bytes

    def fits(self, size_bytes: int, also_bytes: int = 0) -> bool:
        """Whether so much more may be held; whoever is alone may hold one thing of any size.

        `also_bytes` count as held though they are not taken.
        """
        used_bytes = self._used_bytes + also_bytes
        return not used_bytes or used_bytes + size_bytes <= self._limit_bytes()

    def take(self, size_bytes: int) -> None:
        """Hold so much more."""
        self._used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Hold so much less."""
        assert size_bytes <= self._used_bytes
        self._used_bytes -= size_bytes
