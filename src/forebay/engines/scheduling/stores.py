"""Stores of one engine: offered with the step that computes them, copied in the next.

    step N      the chunk's last token is computed; its key is offered to the pool
    step N + 1  the pool has answered with a slot; the workers copy before the forward
    step N + 2  the workers have reported; when all have, the slot is committed

One chunk's store, which only `EngineStores` moves on:

    OFFERED ──slot──► HAS_SLOT ──told to the workers──► COPYING ──reports──► committed or aborted
       │                 └──── its step cannot be built: aborted    └── no report in 30 s: aborted
       ├──have, no, later────► over; after `later` it is offered again
       └──its blocks are free and a step passes, or the cache is reset──► DROPPED: a slot that
          comes goes back at once

A record that does not fit encoded gives its slot back and is offered again raw, if its blocks are
still the request's. The more records in a row do not fit, the more of the following are offered raw
at once: a model whose KV cannot be encoded loses little by trying.

Blocks are never held back. A chunk whose request has ended, or was preempted, is whole until the
forward of the very next step; if the pool has not answered by then, it is dropped and counted. So
is a record of a local group, whose request goes on: the engine may free its blocks in the next step
and give them to another request at once.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Final, TypeAlias

from forebay.engines.codec.backoff import RawBackoff
from forebay.engines.copies.contract import DOES_NOT_FIT, Piece, Store
from forebay.engines.geometry import Geometry
from forebay.engines.groups import stored_records
from forebay.engines.scheduling.request import OFFER_CHUNKS_MAX, TrackedRequest
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import ChunkRun, Commit, Reserve, ReserveAnswer, Reserved
from forebay.record.header import ROOT, joined_hash

_ANSWER_S: Final = 1.0
_COPY_S: Final = 30.0
_AGAIN_S: Final = 0.02  # pause before a chunk that found no slot is offered again
_AGAIN_CHUNKS: Final = 8  # then so many of its request, twice as many after each success


# Namespace, group, the parent's key and those of the chunks.
_Names: TypeAlias = tuple[bytes, int, bytes, bytes]
_SECOND: Final = itemgetter(1)
# A request, one of its records by group and chunk, and where that lies in the KV cache.
LocalRecord: TypeAlias = tuple[TrackedRequest, tuple[int, int], Piece]


class StoreState(Enum):
    """Where one chunk's store is, while it is neither committed nor aborted."""

    OFFERED = auto()  # the pool was asked for a slot, and has not answered
    HAS_SLOT = auto()  # the pool has lent one; the workers were not told yet
    COPYING = auto()  # the workers have been told to copy into it
    DROPPED = auto()  # it cannot be copied any more


# A member that is read through its class costs ten times as much before Python 3.12.
OFFERED, HAS_SLOT, COPYING, DROPPED = StoreState


@dataclass(slots=True)
class _Offer:
    """One chunk that the pool was asked a slot for."""

    tracked: TrackedRequest
    chunk: int
    piece: Piece  # its offset is filled in by the answer
    state: StoreState = OFFERED
    is_freed: bool = False  # its blocks are free: it is copied in the next step or never
    deadline: float = 0.0  # monotonic; of COPYING
    generation: int = 0  # of COPYING: the slab that its slot is in
    digests: dict[int, bytes] = field(default_factory=dict)  # by shard; b"": not copied


@dataclass(slots=True)
class _Batch:
    """The offers of one message."""

    number: int
    offers: list[_Offer]
    deadline: float  # monotonic; a pool that has not answered by then is not waited for


class EngineStores:
    """Offers, copies and commits. Owned by the scheduler's thread."""

    def __init__(self, pool: PoolSession, shape: Geometry, counts: Counter[str]) -> None:
        self._pool = pool
        self._shape = shape
        self._counts = counts
        self._batches: deque[_Batch] = deque()  # not answered yet: all OFFERED or DROPPED
        self._has_freed = False  # an unanswered offer may have freed blocks
        self._numbers = 0  # number of the last batch
        self._with_slot: list[_Offer] = []  # HAS_SLOT
        self._copying: dict[int, _Offer] = {}  # COPYING, by serial
        self._serials = 0  # serial of the last store
        self._backoff: dict[int, RawBackoff] = {}  # by group
        self._stored_in: dict[str, int] = {}  # running request → last step that stored any of it
        # Called with chunks of group 0 that are committed; None: nobody listens.
        self.when_committed: Callable[[list[tuple[TrackedRequest, int]]], None] | None = None

    @property
    def has_work(self) -> bool:
        """Whether a later step is needed to finish what was begun."""
        now = time.monotonic()
        waiting = any(
            batch.deadline > now and any(offer.state is OFFERED for offer in batch.offers)
            for batch in self._batches
        )
        return bool(waiting or self._with_slot or self._copying)

    @property
    def must_wait(self) -> bool:
        """Whether an answer is needed before this step, because blocks of an offer were freed."""
        if self._has_freed:  # seldom; offers may be many
            offers = (offer for batch in self._batches for offer in batch.offers)
            self._has_freed = any(offer.is_freed and offer.state is OFFERED for offer in offers)
        return self._has_freed

    def completed(self, computed: Iterable[tuple[TrackedRequest, int]]) -> Iterator[TrackedRequest]:
        """Requests of a step that have a new whole chunk, given the tokens they have after it."""
        size, now = self._shape.chunk_tokens, time.monotonic()
        for tracked, tokens in computed:
            store = tracked.store
            if not store.is_wanted or now < store.offer_at:
                continue
            so_far = max(store.stored, store.offered)
            if tokens // size <= so_far:
                continue
            tracked.extend()
            # Drafted tokens have no keys: only what is certain is stored.
            whole = min(tokens // size, len(tracked.keys))
            if whole <= so_far:
                continue
            if store.offer_chunks < OFFER_CHUNKS_MAX and self._awaits(tracked):
                continue  # what follows a chunk that finds no slot finds none either
            store.offered = min(whole, so_far + store.offer_chunks)
            yield tracked

    def local_records(
        self, computed: Iterable[tuple[TrackedRequest, int, int]]
    ) -> Iterator[LocalRecord]:
        """Local records that a step completes, given the tokens before and after it."""
        if not self._shape.local:
            return
        for tracked, before, tokens in computed:
            store, whole = tracked.store, tokens // self._shape.chunk_tokens
            if not store.is_wanted or whole <= store.local_offered:
                continue
            tracked.extend()
            chunks = range(store.local_offered, min(whole, len(tracked.keys)))
            store.local_offered = max(chunks.stop, store.local_offered)
            for record in stored_records(self._shape, chunks, tracked.ends, before):
                yield tracked, record, tracked.piece(record)

    def offer(
        self,
        completed: Iterable[TrackedRequest],
        local: Iterable[LocalRecord] = (),
    ) -> None:
        """Ask for slots, in one message, for all that this step computes."""
        runs: list[ChunkRun] = []
        offers: list[_Offer] = []
        for tracked in completed:
            chunks = range(tracked.store.stored, tracked.store.offered)
            keys, root = tracked.keys, tracked.root
            parent = keys[chunks.start - 1] if chunks.start else ROOT
            salt = self._pool.salt_hash(root.salt)
            encoded = [self._is_encoded(0, chunk in tracked.store.raw) for chunk in chunks]
            for is_encoded, numbered in groupby(zip(chunks, encoded, strict=True), _SECOND):
                alike = [chunk for chunk, _ in numbered]
                joined = b"".join(keys[alike[0] : alike[-1] + 1])
                names = (root.namespace, root.group, parent, joined)
                runs.append(self._run(names, 0, self._shape.chunk_blocks, salt, is_encoded))
                parent = keys[alike[-1]]
            for chunk, is_encoded in zip(chunks, encoded, strict=True):
                piece = tracked.piece((0, chunk), is_encoded=is_encoded)
                assert len(piece.blocks) == self._shape.chunk_blocks, "a chunk has all its blocks"
                offers.append(_Offer(tracked, chunk, piece))
            tracked.store.stored = tracked.store.offered
        for tracked, record, piece in local:
            is_whole = all(all(ids) and len(ids) == piece.size for ids in piece.tables)
            if not is_whole:  # verify: the engine has all of its blocks
                continue
            number, chunk = record
            names = (tracked.root.namespace, number, tracked.keys[chunk], tracked.key_of(record))
            salt = self._pool.salt_hash(tracked.root.salt)
            is_encoded = self._is_encoded(number, False)
            runs.append(self._run(names, number, piece.size, salt, is_encoded))
            offers.append(
                _Offer(tracked, chunk, piece._replace(is_encoded=is_encoded), is_freed=True)
            )
            self._has_freed = True
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
            store, is_local = offer.tracked.store, offer.piece.group > 0
            if (answer >= 0 or answer == ReserveAnswer.HAVE) and not is_local:
                store.offer_chunks = min(OFFER_CHUNKS_MAX, 2 * store.offer_chunks)
            if offer.state is DROPPED:
                self._pool.abort(message.generation, [answer])
            elif answer >= 0:
                offer.piece = offer.piece._replace(offset=answer)
                offer.state = HAS_SLOT
                self._with_slot.append(offer)
            elif answer == ReserveAnswer.LATER:
                self._offer_later(offer)
            elif answer == ReserveAnswer.NO and offer.chunk < store.stored and not is_local:
                self._counts["stores.no"] += 1
                store.is_wanted = False
            # Otherwise it continues a chunk that found no slot, and is offered again with that one.

    def next_stores(self, step: int) -> list[Store]:
        """What workers have to copy in this step; drops what can no longer be copied."""
        for batch in self._batches if self.must_wait else ():
            for offer in batch.offers:
                if offer.is_freed and offer.state is OFFERED:
                    offer.state = DROPPED
                    self._counts["stores.too_late"] += 1
        generation, now = self._pool.generation, time.monotonic()
        stores = []
        for offer in self._with_slot:
            offer.state, offer.deadline, offer.generation = COPYING, now + _COPY_S, generation
            self._serials += 1
            self._copying[self._serials] = offer
            stores.append(Store(generation, offer.piece, offer.is_freed, self._serials))
            if not offer.is_freed:
                self._stored_in[offer.tracked.request.request_id] = step
        self._with_slot.clear()
        self._give_up(now)
        return stores

    def drop_freed(self) -> None:
        """Stores could not be told to the workers: drop those whose blocks were freed."""
        self._drop(lambda offer: offer.is_freed)

    def drop_offers(self) -> None:
        """Blocks may change from now on: drop everything that workers were not told to copy.

        A request that goes on offers these chunks again when it computes them again.
        """
        for offers in (self._with_slot, *(batch.offers for batch in self._batches)):
            for offer in offers:
                if offer.state is not DROPPED:
                    offer.tracked.store.lacks(offer.chunk)
        self._drop(lambda _: True)

    def drop_all(self) -> None:
        """A step could not be built, so nobody knows which block is whose: drop everything."""
        self._drop(lambda _: True)
        self._stored_in.clear()  # that step's forward waits for everything

    def take_last_step(self, request_id: str) -> int:
        """A request's blocks were freed: the last step that stored any of them, or 0."""
        return self._stored_in.pop(request_id, 0)

    def blocks_freed(self, request_id: str) -> None:
        """A request's blocks were freed: what the next step does not copy is lost."""
        for offers in (self._with_slot, *(batch.offers for batch in self._batches)):
            for offer in offers:
                if offer.tracked.request.request_id == request_id:
                    offer.is_freed = self._has_freed = True

    def copied(self, stored: Mapping[int, Mapping[int, bytes]]) -> None:
        """Workers are done with these stores: each has its shard and the digest of what it stored.

        A slot that lacks a shard is given back, but not before all workers are done with it.
        """
        filled: dict[int, bytes] = {}  # offset → digest
        unfilled: list[int] = []
        chunks: list[tuple[TrackedRequest, int]] = []
        for serial, digests in stored.items():
            offer = self._copying.get(serial)
            if offer is None:
                continue  # given up
            for shard, digest in digests.items():
                offer.digests[shard] = offer.digests.get(shard, digest) and digest
            if len(offer.digests) < self._shape.shards:  # verify: all shards
                continue
            del self._copying[serial]
            if offer.generation != self._pool.generation:
                continue
            digest = self._digest_of(offer)
            if digest:  # verify: no shard was missed
                filled[offer.piece.offset] = digest
                if offer.piece.group == 0:
                    chunks.append((offer.tracked, offer.chunk))
            else:
                unfilled.append(offer.piece.offset)
        generation = self._pool.generation
        if filled:
            self._pool.post(Commit(generation, list(filled), b"".join(filled.values())))
            if self.when_committed is not None:
                self.when_committed(chunks)
        self._pool.abort(generation, unfilled)

    def session_changed(self) -> None:
        """A pool was joined or lost: only what the workers are copying goes on."""
        self._batches.clear()
        self._with_slot.clear()

    def _awaits(self, tracked: TrackedRequest) -> bool:
        """Whether an offer of this request's chunks is unanswered."""
        return any(tracked is offer.tracked for batch in self._batches for offer in batch.offers)

    def _digest_of(self, offer: _Offer) -> bytes:
        """The digest of a record once all shards are stored; b"" if one is missing or unfit."""
        hashes = [offer.digests[shard] for shard in sorted(offer.digests)]
        if not all(hashes):
            return b""
        is_fit = DOES_NOT_FIT not in hashes
        if offer.piece.is_encoded:
            self._backoff_of(offer.piece.group).tried(is_fit=is_fit)
        if not is_fit:  # verify: every shard fits
            self._offer_raw(offer)
        return joined_hash(hashes) if is_fit else b""

    def _run(
        self, names: _Names, group: int, blocks: int, salt: bytes, is_encoded: bool
    ) -> ChunkRun:
        """Consecutive records of one length, as a message has them."""
        shape = self._shape.groups[group]
        length = shape.record_bytes(blocks, is_raw=not is_encoded)
        return ChunkRun(*names, length, self._shape.shards, salt)

    def _is_encoded(self, group: int, is_raw: bool) -> bool:
        """Whether a group's next record is to be encoded; `is_raw`: it was tried before."""
        shape = self._shape.groups[group]
        return shape.is_encoded and not is_raw and not self._backoff_of(group).is_raw()

    def _backoff_of(self, group: int) -> RawBackoff:
        return self._backoff.setdefault(group, RawBackoff())

    def _offer_raw(self, offer: _Offer) -> None:
        """It does not fit encoded: offer it raw, with what follows, if the request still runs."""
        self._counts["stores.unfit"] += 1
        store = offer.tracked.store
        if offer.piece.group == 0:
            store.raw.add(offer.chunk)
            local = store.local_offered
            store.lacks(offer.chunk)
            store.local_offered = local

    def _offer_later(self, offer: _Offer) -> None:
        """There is no slot now: offer it again after a while, if the request still runs."""
        self._counts["stores.later"] += 1
        store = offer.tracked.store
        if not offer.is_freed:
            store.lacks(offer.chunk)
            store.offer_at = time.monotonic() + _AGAIN_S
            store.offer_chunks = _AGAIN_CHUNKS

    def _drop(self, is_over: Callable[[_Offer], bool]) -> None:
        """Drop the offers that match; what workers are copying goes on."""
        for batch in self._batches:
            for offer in batch.offers:
                if is_over(offer):
                    offer.state = DROPPED
        gone = [offer for offer in self._with_slot if is_over(offer)]
        self._with_slot = [offer for offer in self._with_slot if not is_over(offer)]
        self._pool.abort(self._pool.generation, [offer.piece.offset for offer in gone])

    def _give_up(self, now: float) -> None:
        """Give back the slots of copies that some worker has not reported in time.

        By then no copy can still be running.
        """
        each = self._copying.items()  # the oldest first
        late = [serial for serial, _ in takewhile(lambda item: item[1].deadline <= now, each)]
        lost = [self._copying.pop(serial) for serial in late]
        self._counts["stores.unreported"] += len(lost)
        generation = self._pool.generation
        mine = [offer.piece.offset for offer in lost if offer.generation == generation]
        self._pool.abort(generation, mine)
