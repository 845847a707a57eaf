"""What engines are told of their loads: how much has come, what is promised, what follows it.

A promise carries a proof over the keys of what it hands out, and each later chunk its own key, so
that an engine never takes a slot for another chunk's; see docs/protocol.md.
"""

from collections import Counter
from typing import Final

from forebay.identity.keys import proof_of
from forebay.pool.core.chunks import Chunk
from forebay.pool.core.loading.request import Request
from forebay.pool.messages import Found, Promise, Ready
from forebay.pool.session import Session

TELL_CHUNKS: Final = 16  # come into DRAM before an engine hears of it


class Answers:
    """Words of one pool, and a count of what left with them."""

    def __init__(self, counters: Counter[str], generation: int) -> None:
        self._counters = counters
        self._generation = generation  # of the slab that slots are named in

    def tell(self, request: Request) -> None:
        """Tell an engine, now and then, how much of what it waits for has come into DRAM."""
        ready = request.ready
        if ready >= request.told + TELL_CHUNKS or ready >= request.stop > request.told:
            request.told = ready
            request.session.send(Found(request.number, request.stop, ready))

    def promise(
        self, session: Session, number: int, first: int, held: list[Chunk], total: int
    ) -> None:
        """Hand out what is held, and say how much there will be with it."""
        self._count(held)
        offsets = [chunk.offset for chunk in held]
        lengths = [chunk.length for chunk in held]
        proof = proof_of(chunk.name.key for chunk in held)
        session.send(Promise(number, self._generation, first, total, offsets, lengths, proof))

    def ready(self, request: Request, position: int, chunk: Chunk) -> None:
        """Hand out a chunk that was promised before it was here."""
        self._count([chunk])
        slot = chunk.offset, chunk.length, chunk.name.key
        request.session.send(Ready(request.number, self._generation, position, *slot))

    def lost(self, request: Request, position: int) -> None:
        """A promised chunk, and what follows it, will not come."""
        request.session.send(Ready(request.number, self._generation, position, 0, 0, b""))

    def _count(self, chunks: list[Chunk]) -> None:
        self._counters["loaded.chunks"] += len(chunks)
        self._counters["loaded.bytes"] += sum(chunk.length for chunk in chunks)
