"""Stores of one engine: offered with the step that computes them, copied in the next.

    step N      the chunk's last token is computed; its key is offered to the pool
    step N + 1  the pool has answered with a slot; the workers copy before the forward
    step N + 2  the workers have reported; the slot is committed

Blocks are never held back. A chunk whose request has ended, or was preempted, is whole until the
forward of the very next step; if the pool has not answered by then, it is dropped and counted.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from forebay.engines.copies.contract import Piece, Store
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.request import OFFER_CHUNKS_MAX, TrackedRequest
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Abort, ChunkRun, Commit, Reserve, ReserveAnswer, Reserved
from forebay.record.header import ROOT

Slot: TypeAlias = tuple[int, int]  # generation of the slab, offset in it
_ANSWER_S: Final = 1.0
_COPY_S: Final = 30.0
_AGAIN_S: Final = 0.02  # before a chunk that found no slot is offered again
_AGAIN_CHUNKS: Final = 8  # then so many of its request, and twice as many with each that is taken


@dataclass(slots=True)
class _Offer:
    """One chunk that the pool was asked a slot for."""

    tracked: TrackedRequest
    chunk: int
    piece: Piece  # its offset is filled in by the answer
    is_loose: bool = False  # its blocks are free: now or never
    is_lost: bool = False  # it was never


@dataclass(slots=True)
class _Batch:
    """One message's offers."""

    number: int
    offers: list[_Offer]
    deadline: float  # monotonic; a pool that has not answered by then is not waited for


class EngineStores:
    """Offers, copies and commits. Owned by the scheduler's thread."""

    def __init__(self, pool: PoolSession, shape: Geometry, counts: Counter[str]) -> None:
        self._pool = pool
        self._shape = shape
        self._counts = counts
        self._batches: deque[_Batch] = deque()  # not answered yet
        self._numbers = 0
        self._ready: list[_Offer] = []  # answered with a slot, not told to the workers yet
        self._copying: dict[Slot, float] = {}  # told to the workers → until when
        self._told: dict[str, int] = {}  # a request that lives → the step that last stored of it

    @property
    def has_work(self) -> bool:
        """Whether a later step is needed to finish what was begun."""
        now = time.monotonic()
        waiting = any(
            batch.deadline > now and not all(offer.is_lost for offer in batch.offers)
            for batch in self._batches
        )
        return bool(waiting or self._ready or self._copying)

    @property
    def must_hear(self) -> bool:
        """Whether an answer is wanted before this step, or its chunk is lost."""
        offers = (offer for batch in self._batches for offer in batch.offers)
        return any(offer.is_loose and not offer.is_lost for offer in offers)

    def awaits(self, tracked: TrackedRequest) -> bool:
        """Whether an offer of this request's chunks has not been answered."""
        return any(tracked is offer.tracked for batch in self._batches for offer in batch.offers)

    def completed(self, computed: Iterable[tuple[TrackedRequest, int]]) -> Iterator[TrackedRequest]:
        """Requests with a new whole chunk, given those of a step and the tokens they have then."""
        size, now = self._shape.chunk_tokens, time.monotonic()
        for tracked, tokens in computed:
            if not tracked.wants_store or now < tracked.offer_at:
                continue
            so_far = max(tracked.stored, tracked.offered)
            if tokens // size <= so_far:
                continue
            tracked.extend()
            whole = min(tokens // size, len(tracked.keys))
            if whole <= so_far:
                continue
            if tracked.offer_chunks < OFFER_CHUNKS_MAX and self.awaits(tracked):
                continue  # what follows a chunk that finds no slot finds none either
            tracked.offered = min(whole, so_far + tracked.offer_chunks)
            yield tracked

    def offer(self, completed: Iterable[TrackedRequest]) -> None:
        """Ask slots for what this step computes, in one message."""
        runs: list[ChunkRun] = []
        offers: list[_Offer] = []
        for tracked in completed:
            chunks = range(tracked.stored, tracked.offered)
            keys = tracked.keys
            parent = keys[chunks.start - 1] if chunks.start else ROOT
            joined = b"".join(keys[chunks.start : chunks.stop])
            name = tracked.root.namespace
            runs.append(ChunkRun(name, 0, parent, joined, self._shape.chunk_bytes))
            for chunk in chunks:
                piece = tracked.piece(chunk, -1)
                assert len(piece.blocks) == self._shape.chunk_blocks, "a chunk has all its blocks"
                offers.append(_Offer(tracked, chunk, piece))
            tracked.stored = tracked.offered
        if runs and self._pool.is_joined:
            self._numbers += 1
            deadline = time.monotonic() + _ANSWER_S
            self._batches.append(_Batch(self._numbers, offers, deadline))
            self._pool.post(Reserve(self._numbers, runs))

    def answered(self, message: Reserved) -> None:
        """The pool has answered a batch; batches are answered in order."""
        if not self._batches or self._batches[0].number != message.batch:
            self._pool.abort(message.generation, message.answers)
            return
        for offer, answer in zip(self._batches.popleft().offers, message.answers, strict=False):
            if answer >= 0 or answer == ReserveAnswer.HAVE:
                offer.tracked.offer_chunks = min(OFFER_CHUNKS_MAX, 2 * offer.tracked.offer_chunks)
            if offer.is_lost:
                self._pool.abort(message.generation, [answer])
            elif answer >= 0:
                piece = offer.piece
                offer.piece = Piece(answer, piece.first, piece.blocks)
                self._ready.append(offer)
            elif answer == ReserveAnswer.LATER:
                self._later(offer)
            elif answer == ReserveAnswer.NO and offer.chunk < offer.tracked.stored:
                self._counts["stores.no"] += 1
                offer.tracked.wants_store = False
            # Else it continues a chunk that found no slot, and is offered again with it.

    def ready(self, step: int) -> list[Store]:
        """What the workers have to copy in this step; what can no longer be copied is lost."""
        for batch in self._batches:
            for offer in batch.offers:
                if offer.is_loose and not offer.is_lost:
                    offer.is_lost = True
                    self._counts["stores.too_late"] += 1
        generation = self._pool.generation
        stores = [Store(generation, offer.piece, offer.is_loose) for offer in self._ready]
        until = time.monotonic() + _COPY_S
        self._copying.update({(generation, store.piece.offset): until for store in stores})
        self._give_up(until - _COPY_S)
        self._told.update(
            (offer.tracked.request.request_id, step) for offer in self._ready if not offer.is_loose
        )
        self._ready.clear()
        return stores

    def drop(self, *, all_of_it: bool) -> None:
        """What the workers have not been told, if it is loose or all of it, they never will be.

        All of it: a step could not be built, and whose block is whose is not known any more.
        """
        gone = [offer for offer in self._ready if all_of_it or offer.is_loose]
        self._ready = [offer for offer in self._ready if not (all_of_it or offer.is_loose)]
        self._pool.abort(self._pool.generation, [offer.piece.offset for offer in gone])
        for batch in self._batches:
            for offer in batch.offers:
                offer.is_lost = offer.is_lost or all_of_it or offer.is_loose
        if all_of_it:
            self._told.clear()  # that step's forward waits for everything

    def freed(self, request_id: str) -> int:
        """A request's blocks are free; up to which step they are stored, 0 if they are not."""
        return self._told.pop(request_id, 0)

    def loosen(self, request_id: str) -> None:
        """A request's blocks are free: what is not copied in the next step cannot be copied."""
        for offers in (self._ready, *(batch.offers for batch in self._batches)):
            for offer in offers:
                if offer.tracked.request.request_id == request_id:
                    offer.is_loose = True

    def stored(self, stored: Collection[Slot], missed: Collection[Slot]) -> None:
        """The workers have copied into these slots, and could not copy into those."""
        for slots, message in ((stored, Commit), (missed, Abort)):
            mine = [slot for slot in slots if slot in self._copying]
            for slot in mine:
                del self._copying[slot]
            offsets = [offset for made, offset in mine if made == self._pool.generation]
            if offsets:
                self._pool.post(message(self._pool.generation, offsets))

    def forget(self) -> None:
        """The pool is another one, or none."""
        self._batches.clear()
        self._ready.clear()

    def _later(self, offer: _Offer) -> None:
        """No slot just now: offered again after a while, if the request still runs."""
        self._counts["stores.later"] += 1
        tracked = offer.tracked
        if not offer.is_loose:
            tracked.stored = min(tracked.stored, offer.chunk)
            tracked.offered = min(tracked.offered, offer.chunk)
            tracked.offer_at = time.monotonic() + _AGAIN_S
            tracked.offer_chunks = _AGAIN_CHUNKS

    def _give_up(self, now: float) -> None:
        """No worker has said what became of these copies: whoever made them is long done."""
        lost = [slot for slot, until in self._copying.items() if until <= now]
        for slot in lost:
            del self._copying[slot]
        self._counts["stores.unreported"] += len(lost)
        mine = [offset for generation, offset in lost if generation == self._pool.generation]
        self._pool.abort(self._pool.generation, mine)
