"""Pins of what was promised on connections that are over, and may still be being read.

A process that lives may be copying out of a slot, connection or not. So these chunks keep the pin
that their request had, one for each engine, and count against its share of the load budget.
"""

from collections.abc import Collection, Iterator

from forebay.pool.core.chunks import Chunk
from forebay.pool.core.loading.request import LoadRequest


class OrphanedPins:
    """By engine, until it says that nobody reads them, or all of its processes are gone."""

    def __init__(self) -> None:
        self._by_engine: dict[str, set[Chunk]] = {}

    def __contains__(self, engine: str) -> bool:
        return engine in self._by_engine

    def __iter__(self) -> Iterator[Chunk]:
        for chunks in self._by_engine.values():
            yield from chunks

    def of(self, engine: str) -> Collection[Chunk]:
        """What an engine may still be reading."""
        return self._by_engine.get(engine, ())

    def take_over(self, request: LoadRequest) -> None:
        """Take what a request holds; of a chunk that is here already the request keeps its pin."""
        pinned = self._by_engine.setdefault(request.session.engine, set())
        for position, chunk in list(request.held.items()):
            if chunk not in pinned:
                pinned.add(chunk)
                del request.held[position]

    def end(self, engine: str) -> set[Chunk]:
        """The engine reads them no more; the caller unpins them."""
        return self._by_engine.pop(engine, set())
