"""A limit on the bytes held for one purpose, and each engine's share of it.

An engine that is alone may hold the whole limit. If others hold something, three quarters of that
are subtracted: two engines that both want everything get 4/7 of the limit each, three get 4/10, and
N get 4 / (3 N + 1); all together hold less than 4/3 of the limit. So even if the others are stopped
and never give back what they hold, something is left for the next one.

Engines of one process count as one: a name costs nothing, so it must not bring a share.
"""

from collections.abc import Callable, Collection
from typing import Self

NOBODY = ""  # the pool itself, which has no share


class Processes:
    """Which engines belong to the same process, as far as the server can see."""

    def __init__(self) -> None:
        self._process_of: dict[str, str] = {}
        self._engines: dict[str, set[str]] = {}

    def join(self, engine: str, process: str) -> None:
        """An engine joined from this process ("": not known); its first process counts."""
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
    """A limit that may change while bytes are held; the only place that counts these bytes."""

    def __init__(
        self, limit_bytes: Callable[[], int], processes: Processes, within: Self | None = None
    ) -> None:
        """What is taken here is also taken from `within`, a wider budget, and must fit in both."""
        self._limit_bytes = limit_bytes
        self._processes = processes
        self._within = within
        self._used_bytes = 0
        self._by_engine: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        """The bytes held by all engines."""
        return self._used_bytes

    def used_by(self, engine: str) -> int:
        """What an engine holds."""
        return self._by_engine.get(engine, 0)

    def _used_with(self, engine: str) -> int:
        """The bytes held by an engine and others of its process."""
        engines = self._processes.engines_with(engine)
        return self.used_by(engine) if len(engines) == 1 else sum(map(self.used_by, engines))

    def share_bytes(self, engine: str) -> int:
        """The bytes that an engine may hold in all, given what others hold."""
        mine_bytes = self._used_with(engine)
        share_bytes = self._limit_bytes() - (self._used_bytes - mine_bytes) * 3 // 4
        if self._within is None:
            return share_bytes
        elsewhere_bytes = self._within._used_with(engine) - mine_bytes  # noqa: SLF001 - its like
        return min(share_bytes, self._within.share_bytes(engine) - elsewhere_bytes)

    def left_bytes(self, engine: str) -> int:
        """How many more bytes an engine may hold; negative if it holds more than its share."""
        return self.share_bytes(engine) - self._used_with(engine)

    def fits(self, engine: str, size_bytes: int, also_bytes: int = 0) -> bool:
        """Whether an engine may hold so much more; `also_bytes` count as held, though not taken.

        If nobody holds anything, a single item of any size fits. An engine that holds nothing may
        take one item larger than its share, as long as all hold less than 4/3 of the limit.
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
        """An engine takes so many bytes."""
        self._used_bytes += size_bytes
        self._by_engine[engine] = self.used_by(engine) + size_bytes
        if self._within is not None:
            self._within.take(engine, size_bytes)

    def give(self, engine: str, size_bytes: int) -> None:
        """An engine gives back so many bytes."""
        left_bytes = self._by_engine[engine] - size_bytes
        assert left_bytes >= 0
        self._used_bytes -= size_bytes
        if left_bytes:
            self._by_engine[engine] = left_bytes
        else:
            del self._by_engine[engine]
        if self._within is not None:
            self._within.give(engine, size_bytes)
