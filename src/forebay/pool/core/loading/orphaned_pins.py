"""Pins of promised chunks whose connection is over, but which may still be being read.

A process that lives may be copying out of a slot, whether its connection lives or not. So these
chunks keep their request's pin, one per engine, and count against the engine's share of the load
budget.
"""

from collections.abc import Collection, Iterator

from forebay.pool.core.chunks import Chunk
from forebay.pool.core.loading.request import LoadRequest


class OrphanedPins:
    """By engine, until it says that nobody reads them, or all of its processes have exited."""

    def __init__(self) -> None:
        self._by_engine: dict[str, set[Chunk]] = {}

    def __contains__(self, engine: str) -> bool:
        return engine in self._by_engine

    def __iter__(self) -> Iterator[Chunk]:
        for chunks in self._by_engine.values():
            yield from chunks

    def of(self, engine: str) -> Collection[Chunk]:
        """The chunks that an engine may still be reading."""
        return self._by_engine.get(engine, ())

    def take_over(self, request: LoadRequest) -> None:
        """Take over the pins of a request, except of chunks that are pinned here already."""
        pinned = self._by_engine.setdefault(request.session.engine, set())
        for position, chunk in list(request.held.items()):
            if chunk not in pinned:
                pinned.add(chunk)
                del request.held[position]

    def end(self, engine: str) -> set[Chunk]:
        """An engine does not read its chunks any more; the caller has to unpin them."""
        return self._by_engine.pop(engine, set())
