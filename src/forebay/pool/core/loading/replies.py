"""Tells engines about their loads: what is promised, and what follows a promise.

A promise carries a proof over the keys of what it hands out, and each later chunk its own key, so
that an engine never mistakes one chunk's slot for another's; see docs/protocol.md.
"""

from collections.abc import Sequence

from forebay.identity.keys import proof_of
from forebay.identity.tenants import masked
from forebay.metrics.labels import Direction
from forebay.pool.core.chunks import Chunk
from forebay.pool.core.loading.request import LoadRequest
from forebay.pool.core.parts import CoreParts
from forebay.pool.messages import Promise, Ready
from forebay.pool.session import Session


class Replies:
    """Sends promises, and counts the chunks in them."""

    def __init__(self, parts: CoreParts) -> None:
        self._dram, self._metrics = parts.dram, parts.metrics
        self._tenants = parts.tenants
        self._generation = parts.generation  # of the slab that offsets refer to

    def promise(
        self, session: Session, number: int, first: int, held: list[Chunk], total: int
    ) -> None:
        """Hand out what is held, and say how many chunks are promised in all (`total`)."""
        self._count(held)
        offsets = [chunk.offset for chunk in held]
        lengths = [chunk.length for chunk in held]
        proof = proof_of([self._key(chunk) for chunk in held])
        sources = [chunk.take_source() for chunk in held]
        slots = offsets, lengths, proof, sources if any(sources) else []
        session.send(Promise(number, self._generation, first, total, *slots))

    def ready(self, request: LoadRequest, position: int, chunk: Chunk) -> None:
        """Hand out a chunk that came after it was promised."""
        self._count([chunk])
        slot = chunk.offset, chunk.length, self._key(chunk), chunk.take_source()
        request.session.send(Ready(request.number, self._generation, position, *slot))

    def failed(self, request: LoadRequest, position: int) -> None:
        """A promised chunk, and what follows it, will not come."""
        request.session.send(Ready(request.number, self._generation, position, 0, 0, b""))

    def _key(self, chunk: Chunk) -> bytes:
        """A chunk's key without its tenant's mask."""
        return masked(chunk.name.key, self._tenants.mask(chunk.name.tenant))

    def _count(self, chunks: Sequence[Chunk]) -> None:
        if chunks:
            lengths = [chunk.length for chunk in chunks]
            self._metrics.tiers.copied(Direction.LOAD, lengths)
            name = self._tenants.name_of(chunks[0].name.tenant)
            self._metrics.tenants.moved(name, Direction.LOAD, sum(lengths))
            self._dram.handed_out(chunks)
