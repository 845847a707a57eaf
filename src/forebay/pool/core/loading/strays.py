"""What was promised on connections that are over, and may still be being read.

A process that lives may be copying out of a slot, connection or not. So these chunks keep the pin
that their request had, one for each engine, and count against the load budget.
"""

from collections.abc import Iterator

from forebay.pool.core.chunks import Chunk
from forebay.pool.core.loading.request import Request


class Strays:
    """By engine, until it says that nobody reads them, or all of its processes are gone."""

    def __init__(self) -> None:
        self._of: dict[str, set[Chunk]] = {}

    def __contains__(self, engine: str) -> bool:
        return engine in self._of

    def __iter__(self) -> Iterator[Chunk]:
        for chunks in self._of.values():
            yield from chunks

    def take_over(self, request: Request) -> None:
        """What a request holds, and its pins; where there is one already, the request keeps its."""
        strays = self._of.setdefault(request.session.engine, set())
        for position, chunk in list(request.held.items()):
            if chunk not in strays:
                strays.add(chunk)
                del request.held[position]

    def end(self, engine: str) -> set[Chunk]:
        """Nobody reads them any more: the caller unpins what was this engine's."""
        return self._of.pop(engine, set())
