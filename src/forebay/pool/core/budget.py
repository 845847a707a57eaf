"""Bytes that one purpose may hold at once, and each engine's share of them.

An engine that is alone may hold the whole limit. Of what others hold, three quarters are taken off:
so two engines that both want all have 4/7 of the limit each, three have 4/10, and N have
4 / (3 N + 1); all together hold less than 4/3 of the limit. And whatever the others hold and never
give back, because they are stopped, something is left for whoever comes next.

Engines of one process count as one: a name costs nothing, and must not bring a share.
"""

from collections.abc import Callable, Collection
from typing import Self

NOBODY = ""  # the pool itself, which answers to no share


class Processes:
    """Which engines are of one process, as far as the server could see."""

    def __init__(self) -> None:
        self._process_of: dict[str, str] = {}
        self._engines: dict[str, set[str]] = {}

    def join(self, engine: str, process: str) -> None:
        """An engine is of this process, unless it was of another before; empty: not known."""
        if process and self._process_of.setdefault(engine, process) == process:
            self._engines.setdefault(process, set()).add(engine)

    def leave(self, engine: str) -> None:
        """An engine is gone for good."""
        process = self._process_of.pop(engine, "")
        if process:
            self._engines[process].discard(engine)
            if not self._engines[process]:
                del self._engines[process]

    def engines_with(self, engine: str) -> Collection[str]:
        """An engine and all others of its process."""
        process = self._process_of.get(engine)
        return (engine,) if process is None else self._engines[process]


class Budget:
    """A limit that may change while bytes are held; what is held is counted here alone."""

    def __init__(
        self, limit_bytes: Callable[[], int], processes: Processes, within: Self | None = None
    ) -> None:
        """What is taken here is also taken `within` a wider budget, and must fit both."""
        self._limit_bytes = limit_bytes
        self._processes = processes
        self._within = within
        self._used_bytes = 0
        self._by_engine: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        """What is held, by all."""
        return self._used_bytes

    def used_by(self, engine: str) -> int:
        """What an engine holds."""
        return self._by_engine.get(engine, 0)

    def _used_with(self, engine: str) -> int:
        """What an engine holds, and others of its process."""
        engines = self._processes.engines_with(engine)
        return self.used_by(engine) if len(engines) == 1 else sum(map(self.used_by, engines))

    def share_bytes(self, engine: str) -> int:
        """What an engine may hold in all, beside what others hold."""
        mine_bytes = self._used_with(engine)
        share_bytes = self._limit_bytes() - (self._used_bytes - mine_bytes) * 3 // 4
        if self._within is None:
            return share_bytes
        elsewhere_bytes = self._within._used_with(engine) - mine_bytes  # noqa: SLF001 - its like
        return min(share_bytes, self._within.share_bytes(engine) - elsewhere_bytes)

    def left_bytes(self, engine: str) -> int:
        """What more an engine may hold; below 0 once it holds more than its share."""
        return self.share_bytes(engine) - self._used_with(engine)

    def fits(self, engine: str, size_bytes: int, also_bytes: int = 0) -> bool:
        """Whether an engine may hold so much more; `also_bytes` count as held by it, untaken.

        Where nobody holds anything, one thing of any size fits. And an engine that holds nothing
        may hold one thing that is more than its share, while all hold less than 4/3 of the limit.
        """
        limit_bytes, held_bytes = self._limit_bytes(), self._used_with(engine)
        mine_bytes = held_bytes + also_bytes
        if mine_bytes:
            others_bytes = self._used_bytes - held_bytes
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
