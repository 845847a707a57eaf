"""Bytes that one purpose may hold at once, and each engine's share of them.

An engine that is alone may hold the whole limit. Of what others hold, three quarters are taken off:
so two engines that both want all have 4/7 of the limit each, three have 4/10, and N have
4 / (3 N + 1); all together hold less than 4/3 of the limit. And whatever the others hold and never
give back, because they are stopped, something is left for whoever comes next.
"""

from collections.abc import Callable
from typing import Self

NOBODY = ""  # the pool itself, which answers to no share


class Budget:
    """A limit that may change while bytes are held; what is held is counted here alone."""

    def __init__(self, limit_bytes: Callable[[], int], within: Self | None = None) -> None:
        """What is taken here is also taken `within` a wider budget, and must fit both."""
        self._limit_bytes = limit_bytes
        self._within = within
        self._used_bytes = 0
        self._by_engine: dict[str, int] = {}

    @property
    def limit_bytes(self) -> int:
        """What an engine may hold that is alone."""
        return self._limit_bytes()

    @property
    def used_bytes(self) -> int:
        """What is held, by all."""
        return self._used_bytes

    def used_by(self, engine: str) -> int:
        """What an engine holds."""
        return self._by_engine.get(engine, 0)

    def share_bytes(self, engine: str) -> int:
        """What an engine may hold in all, beside what others hold."""
        others_bytes = self._used_bytes - self.used_by(engine)
        share_bytes = self._limit_bytes() - others_bytes * 3 // 4
        if self._within is None:
            return share_bytes
        elsewhere_bytes = self._within.used_by(engine) - self.used_by(engine)
        return min(share_bytes, self._within.share_bytes(engine) - elsewhere_bytes)

    def left_bytes(self, engine: str) -> int:
        """What more an engine may hold; below 0 once it holds more than its share."""
        return self.share_bytes(engine) - self.used_by(engine)

    def fits(self, engine: str, size_bytes: int, also_bytes: int = 0) -> bool:
        """Whether an engine may hold so much more; `also_bytes` count as held by it, untaken.

        Where nobody holds anything, one thing of any size fits. And an engine that holds nothing
        may hold one thing that is more than its share, while all hold less than 4/3 of the limit.
        """
        limit_bytes, mine_bytes = self._limit_bytes(), self.used_by(engine) + also_bytes
        if mine_bytes:
            others_bytes = self._used_bytes - self.used_by(engine)
            share_bytes = limit_bytes - others_bytes * 3 // 4
            is_fit = mine_bytes + size_bytes <= share_bytes  # verify: share
        else:
            all_bytes = self._used_bytes + size_bytes
            is_fit = not self._used_bytes or all_bytes <= limit_bytes * 4 // 3  # verify: newcomer
        return is_fit and (self._within is None or self._within.fits(engine, size_bytes))

    def take(self, engine: str, size_bytes: int) -> None:
        """An engine holds so much more."""
        self._used_bytes += size_bytes
        self._by_engine[engine] = self.used_by(engine) + size_bytes
        if self._within is not None:
            self._within.take(engine, size_bytes)

    def give(self, engine: str, size_bytes: int) -> None:
        """An engine holds so much less."""
        left_bytes = self._by_engine[engine] - size_bytes
        assert left_bytes >= 0
        self._used_bytes -= size_bytes
        if left_bytes:
            self._by_engine[engine] = left_bytes
        else:
            del self._by_engine[engine]
        if self._within is not None:
            self._within.give(engine, size_bytes)
