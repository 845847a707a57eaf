"""DRAM: which chunks get a slot, which leave to make room, and the life of a slot's content.

Only this class changes a chunk's state, pins and tiers, and only it takes from and gives to the
budgets; `chunks` draws the states. Loads and stores have a budget each, half of DRAM for an engine
that is alone, so that neither can starve the other in a small slab. An engine has a share of what
all hold at once (see `budget`), so that none can starve the others by holding on to what it has. A
slot is found by allocation, then by evicting what the policy values least, then by taking a whole
arena from another size class. Nothing here waits: what is not available now is refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.labels import DRAM, Direction
from forebay.pool.core.budget import NOBODY, Budget, Processes
from forebay.pool.core.chunks import Chunk, ChunkTable, SlotState
from forebay.pool.core.recent.lost_keys import LostKeys
from forebay.pool.core.stack import TierStack
from forebay.pool.core.tenants.policies import Policies
from forebay.pool.policy.contract import Policy
from forebay.record.header import ROOT, RecordHeader, RecordName
from forebay.record.region import short
from forebay.sys.memory import padded, zero
from forebay.tiers.contract import EvictionCause, Removed
from forebay.tiers.dram.slab import Arena, Slab, slot_bytes_for
from forebay.tiers.quotas import Quotas

_WIPED_BYTES_MAX: Final = 64 << 20  # wiped by one call
_STORED: Final = (DRAM, Direction.STORE)
_TRIES_MAX: Final = 64  # victims asked of the policy for one slot; more would be a bug


class Newcomer(NamedTuple):
    """What an engine offers: the first chunk of a run that needs a slot, and its parent."""

    key: bytes
    parent: bytes | None


class NoSlot(Enum):
    """Why no slot is given."""

    NOW = "now"  # everything is in use now; ask again later
    DECLINED = "declined"  # the policy prefers to keep what is here


class Dram:
    """The slab and what is in it. Owned by the pool's thread."""

    def __init__(
        self,
        slab: Slab,
        chunks: ChunkTable,
        stack: TierStack,
        policies: Policies,
        *,
        metrics: PoolMetrics,
        now: Callable[[], float],
    ) -> None:
        self.slab = slab
        self.chunks = chunks
        self.policies = policies
        self.quotas = Quotas()  # counts slots in any state
        self.lost_keys = LostKeys()
        processes = self.processes = Processes()
        # Bytes held by engines: in all; for loads (pinned or LOADING); for stores (unsettled).
        held = Budget(lambda: slab.cap_bytes * 3 // 4, processes)
        self.load_budget = Budget(self.half_bytes, processes, held)
        self.store_budget = Budget(self.half_bytes, processes, held)
        self._stack = stack
        self._metrics = metrics
        self.pinned_chunks = 0
        self._now = now
        # Chunks cleared or damaged while in use, with the cause to drop them for later.
        self._condemned: dict[Chunk, EvictionCause] = {}

    def half_bytes(self) -> int:
        """What an engine that is alone may hold for loads, and again for stores."""
        return self.slab.cap_bytes // 2

    # The life of a slot: filled by an engine.

    def begin_fill(
        self, engine: str, name: RecordName, length: int, newcomer: Newcomer
    ) -> Chunk | NoSlot:
        """A slot for an engine to write into; the chunk's parent stays in the meantime."""
        parent = self._guard(name)
        offset = self._take(name.tenant, length, newcomer)
        if isinstance(offset, NoSlot):
            if parent is not None:
                self.unpin(parent)
            return offset
        chunk = self._add(name, SlotState.FILLING, offset, length)
        chunk.engine, chunk.guarded_parent = engine, parent
        self.store_budget.take(engine, chunk.slot_bytes)
        return chunk

    def commit(self, chunk: Chunk, digest: bytes) -> bool:
        """An engine has filled a slot; False if it was cleared, or the chunk's parent is gone."""
        self._end_fill(chunk)
        self._metrics.tiers.seconds.observe(self._now() - chunk.since, _STORED)
        chunk.digest = digest
        if chunk in self._condemned or not self.is_known(chunk.name.parent):
            self._condemned.pop(chunk, None)
            self.drop(chunk)
            return False
        self._set_ready(chunk)
        return True

    def abandon(self, chunk: Chunk) -> None:
        """An engine will not fill a slot: drop its chunk, and what was stored to continue it."""
        self._end_fill(chunk)
        self.drop(chunk)
        self._drop_descendants(chunk.key)

    def _end_fill(self, chunk: Chunk) -> None:
        assert chunk.state is SlotState.FILLING
        self.store_budget.give(chunk.engine, chunk.slot_bytes)
        parent, chunk.guarded_parent = chunk.guarded_parent, None
        if parent is not None:
            self.unpin(parent)

    def _guard(self, name: RecordName) -> Chunk | None:
        """Pin the parent while its child is filled, if no lower tier has the parent."""
        parent = self.chunks.get(short(name.parent)) if name.parent != ROOT else None
        if parent is None or parent.state is not SlotState.READY or parent.tiers:
            return None
        self.pin(parent)
        return parent

    # The life of a slot: loaded from a lower tier.

    def begin_load(
        self, engine: str, name: RecordName, length: int, *, only_free: bool = False
    ) -> Chunk | None:
        """A slot for a lower tier to write into, charged to an engine; None if there is none now.

        `only_free`: evict nothing for it.
        """
        slot_bytes = slot_bytes_for(length)
        if only_free:  # verify: what nobody asked for evicts nothing
            offset = self._free_slot(name.tenant, slot_bytes)
        else:
            taken = self._take(name.tenant, length)
            offset = None if isinstance(taken, NoSlot) else taken
        if offset is None:
            return None
        chunk = self._add(name, SlotState.LOADING, offset, length)
        chunk.tiers = self._stack.tiers_of(chunk.key)
        chunk.engine = engine
        self.load_budget.take(engine, chunk.slot_bytes)
        return chunk

    def end_load(self, chunk: Chunk, header: RecordHeader | None) -> None:
        """A lower tier has read this verified record into a slot; None: it could not.

        A chunk that was cleared in the meantime is dropped, as in `commit`.
        """
        assert chunk.state is SlotState.LOADING
        self.load_budget.give(chunk.engine, chunk.slot_bytes)
        is_condemned = self._condemned.pop(chunk, None) is not None
        if is_condemned:
            zero(self.slab.payload(chunk.offset, chunk.slot_bytes))
        if header is None or is_condemned:
            self.drop(chunk)
            return
        self.chunks.rename(chunk, header.name)
        chunk.digest, chunk.shards = header.payload_hash, header.shards
        self._set_ready(chunk)

    def charge_load(self, chunk: Chunk, engine: str) -> None:
        """Charge a slot that is being loaded to another engine, or to NOBODY."""
        assert chunk.state is SlotState.LOADING
        self.load_budget.give(chunk.engine, chunk.slot_bytes)
        chunk.engine = engine
        self.load_budget.take(engine, chunk.slot_bytes)

    # The life of a slot: pinned, and written to lower tiers.

    def pin(self, *chunks: Chunk) -> None:
        """Keep ready chunks, all of one tenant, in DRAM."""
        for chunk in chunks:
            if not chunk.pins:
                self.pinned_chunks += 1
            chunk.pins += 1
        if chunks:
            self._policy(chunks[0]).pin(*[chunk.key for chunk in chunks])

    def unpin(self, chunk: Chunk) -> None:
        """Remove one pin."""
        assert chunk.pins > 0
        chunk.pins -= 1
        self.pinned_chunks -= not chunk.pins
        self._policy(chunk).unpin(chunk.key)

    def pin_for_load(self, engine: str, *chunks: Chunk) -> None:
        """Pin ready chunks for a load that an engine asked for.

        Each counts once in the budget, for the first of the engines that load it.
        """
        taken_bytes = 0
        for chunk in chunks:
            pins = chunk.load_pins
            if not pins:
                taken_bytes += chunk.slot_bytes
            pins[engine] = pins.get(engine, 0) + 1
        if taken_bytes:
            self.load_budget.take(engine, taken_bytes)
        self.pin(*chunks)

    def unpin_for_load(self, engine: str, *chunks: Chunk) -> None:
        """Remove one load pin of an engine; the next engine that loads a chunk is charged."""
        given_bytes = 0
        for chunk in chunks:
            pins = chunk.load_pins
            if pins[engine] > 1:
                pins[engine] -= 1
            elif len(pins) == 1:  # mostly
                pins.clear()
                given_bytes += chunk.slot_bytes
            else:
                is_charged = next(iter(pins)) == engine
                del pins[engine]
                if is_charged:
                    given_bytes += chunk.slot_bytes
                    self.load_budget.take(next(iter(pins)), chunk.slot_bytes)
            self.unpin(chunk)
        if given_bytes:
            self.load_budget.give(engine, given_bytes)

    def begin_write(self, chunk: Chunk, tier: int) -> None:
        """A lower tier begins to read the slot."""
        self._move(chunk, chunk.tiers, chunk.writing_to | {tier})
        self._policy(chunk).pin(chunk.key)

    def end_write(self, chunk: Chunk, tier: int, *, is_stored: bool) -> None:
        """A lower tier is done reading the slot; `is_stored`: it has the chunk now."""
        # The record may have left again before we hear that it was stored.
        is_stored = is_stored and tier in self._stack.tiers_of(chunk.key)
        tiers = chunk.tiers | {tier} if is_stored else chunk.tiers
        self._move(chunk, tiers, chunk.writing_to - {tier})
        policy = self._policy(chunk)
        policy.unpin(chunk.key)
        if is_stored:
            policy.in_tiers(chunk.key, tiers)
        else:
            policy.write_failed(chunk.key, tier)

    # Chunks in other tiers.

    def has(self, key: bytes) -> bool:
        """Whether a chunk with this short key is in any tier, or on its way into DRAM."""
        is_here = self.chunks.get(key) is not None and not self.chunks.is_condemned(key)
        return is_here or self._stack.has(key)

    def is_known(self, parent: bytes) -> bool:
        """Whether a record with this parent (full key, or ROOT) can be found."""
        return parent == ROOT or self.has(short(parent))

    def tier_removed(self, tier: int, records: list[Removed]) -> None:
        """Records left a lower tier: drop what continues them, if no other tier has them."""
        for record in records:
            chunk = self.chunks.get(record.key)
            if chunk is not None and tier in chunk.tiers:
                self._move(chunk, chunk.tiers - {tier}, chunk.writing_to)
                self._policy(chunk).in_tiers(chunk.key, chunk.tiers)
        for record in records:
            if not self.has(record.key):
                # Another tier may have had it then, and have lost it since.
                self._stack.lost(record.key)
                self.lost_keys.left(record.key, record.cause)
                if self.chunks.has_children(record.key):
                    self._drop_descendants(record.key)
        now = self._now()
        self.policies.evicted(tier, records, now)
        name = self._stack.name_of(tier)
        for record in records:
            self._metrics.evictions.left(name, record.cause, record.stored_at, now)

    def handed_out(self, chunks: Sequence[Chunk]) -> None:
        """These READY chunks were handed to an engine, so they count as used."""
        now = self._now()
        gap = self._metrics.evictions.gap
        for used_at, count in Counter(chunk.used_at for chunk in chunks).items():
            if used_at is not None:  # else it was just loaded; the lower tier knows its last use
                gap.observe(now - used_at, (DRAM,), count)
            else:
                self._count_prefetched(chunks)
        for chunk in chunks:
            chunk.used_at = now

    def _count_prefetched(self, chunks: Sequence[Chunk]) -> None:
        """Count the chunks among these that were prefetched, at their first use."""
        for chunk in chunks:
            if chunk.prefetched_from >= 0:
                tier, chunk.prefetched_from = self._stack.name_of(chunk.prefetched_from), -1
                self._metrics.prefetch.used(tier, chunk.length)

    # Leaving DRAM.

    def drop(self, chunk: Chunk, cause: EvictionCause = EvictionCause.PREFIX) -> None:
        """Forget a chunk that nobody uses and free its slot; only a READY one counts as evicted."""
        assert not chunk.pins
        assert not chunk.writing_to
        if chunk.state is SlotState.READY:
            self._policy(chunk).removed(chunk.key)
            self._metrics.evictions.left(DRAM, cause, chunk.since, self._now())
            if chunk.prefetched_from >= 0:
                tier = self._stack.name_of(chunk.prefetched_from)
                self._metrics.prefetch.wasted(tier, chunk.length)
            if not chunk.tiers:
                self.lost_keys.left(chunk.key, cause)
        self.chunks.remove(chunk)
        self.slab.give(chunk.offset)
        self.quotas.give(chunk.name.tenant, chunk.slot_bytes)
        if not chunk.tiers:
            self._stack.lost(chunk.key)
        elif chunk.used_at is not None:
            self._stack.used(chunk.key, chunk.used_at)

    def drop_damaged(self, chunk: Chunk) -> None:
        """Drop a chunk whose slot is damaged; copies in lower tiers are verified when loaded."""
        self.condemn([chunk], EvictionCause.DAMAGED)

    def condemn(self, chunks: Iterable[Chunk], cause: EvictionCause = EvictionCause.CLEARED) -> int:
        """Drop these chunks, those in use once nobody uses them; returns how many are in use.

        Until then nobody finds them, and a request for them is told that they are gone.
        """
        condemned = set(chunks)
        for chunk in condemned:
            self._condemned.setdefault(chunk, cause)
        for chunk in condemned:
            self._drop_if_unused(chunk, wipe=False)
        kept = condemned & self._condemned.keys()
        for chunk in kept:
            self.chunks.set_condemned(chunk)
            self.lost_keys.left(chunk.key, self._condemned[chunk])
        return len(kept)

    def is_condemned(self, chunk: Chunk) -> bool:
        """Whether a chunk was cleared, or found damaged, while it was in use."""
        return chunk in self._condemned

    def drop_condemned(self) -> None:
        """Drop condemned chunks that are no longer in use, and wipe their slots."""
        wiped_bytes = 0
        for chunk in list(self._condemned):
            wiped_bytes += self._drop_if_unused(chunk, wipe=True)
            if wiped_bytes >= _WIPED_BYTES_MAX:
                break  # the rest follows with the next tick

    def used_bytes(self, offset: int) -> int:
        """How many bytes of a taken slot belong to its chunk; all of them if that is not known."""
        chunk = self.chunks.at(offset)
        if chunk is None:
            return self.slab.slot_bytes_at(offset)
        return chunk.length if chunk.state is SlotState.READY else padded(chunk.length)

    def _drop_if_unused(self, chunk: Chunk, *, wipe: bool) -> int:
        """Drop a condemned chunk if it is still here and not in use; returns the bytes wiped."""
        is_here = self.chunks.get(chunk.key) is chunk
        if is_here and chunk.is_busy:
            return 0
        cause = self._condemned.pop(chunk)
        if not is_here:
            return 0
        if wipe:
            zero(self.slab.payload(chunk.offset, chunk.slot_bytes))
        self.drop(chunk, cause)
        # What continues a cleared chunk was cleared as well.
        if cause is EvictionCause.DAMAGED and not chunk.tiers:
            self._drop_descendants(chunk.key)
        return chunk.slot_bytes if wipe else 0

    def shrink(self) -> None:
        """Evict unused chunks until the slab, and each tenant, is within its cap."""
        while self.slab.excess() and (arena := self._emptiest()) is not None:
            self._empty(arena, EvictionCause.RESIZED)
        for tenant in self.quotas.above_caps():
            for _ in range(_TRIES_MAX):  # the rest follows with the next tick
                if self.quotas.fits(tenant, 0) or not self._evict_one(tenant, 0):
                    break

    @property
    def must_write(self) -> bool:
        """Whether so much waits to be written that recently used chunks are written, too."""
        return 4 * self.policies.queued_bytes > self.slab.cap_bytes

    def _drop_descendants(self, key: bytes) -> None:
        """Drop unused chunks that continue a key which is in no tier any more."""
        for child in reversed(self.chunks.descendants(key)):
            if not child.is_busy:
                self.drop(child)

    def evict(self, key: bytes, cause: EvictionCause) -> bool:
        """Evict a chunk that its policy has named; False if it is in use."""
        chunk = self.chunks.get(key)
        if chunk is None or chunk.is_busy:
            return False
        self.drop(chunk, cause)
        return True

    # Finding a slot.

    def has_free_slot(self, tenant: bytes, slot_bytes: int) -> bool:
        """Whether a free slot of this size exists that the tenant may have."""
        offset = self._free_slot(tenant, slot_bytes)
        if offset is not None:
            self.slab.give(offset)
        return offset is not None

    def _add(self, name: RecordName, state: SlotState, offset: int, length: int) -> Chunk:
        chunk = Chunk(name, state, offset, length)
        chunk.slot_bytes, chunk.since = self.slab.slot_bytes_at(offset), self._now()
        self.chunks.add(chunk)
        self.quotas.take(name.tenant, chunk.slot_bytes)
        return chunk

    def _set_ready(self, chunk: Chunk) -> None:
        now = self._now()
        # A loaded chunk counts as used when it is handed out, not when it is loaded.
        chunk.used_at = None if chunk.state is SlotState.LOADING else now
        chunk.since = now
        self.chunks.set_ready(chunk)
        self.lost_keys.forget(chunk.key)
        above = chunk.parent or chunk.beside  # the policy values it like its chain
        policy = self._policy(chunk)
        policy.stored(chunk.key, above, chunk.slot_bytes, now)
        chunk.tiers = self._stack.tiers_of(chunk.key)
        if chunk.tiers:
            policy.in_tiers(chunk.key, chunk.tiers)

    def _policy(self, chunk: Chunk) -> Policy:
        return self.policies.of(chunk.name.tenant)

    def _move(self, chunk: Chunk, tiers: frozenset[int], writing_to: frozenset[int]) -> None:
        """Set which tiers have a ready chunk or are writing it, and update the store budget."""
        was_unsettled = chunk.is_unsettled
        chunk.tiers, chunk.writing_to = tiers, writing_to
        if chunk.is_unsettled and not was_unsettled:
            self.store_budget.take(NOBODY, chunk.slot_bytes)
        elif was_unsettled and not chunk.is_unsettled:
            self.store_budget.give(NOBODY, chunk.slot_bytes)

    def _take(self, tenant: bytes, length: int, newcomer: Newcomer | None = None) -> int | NoSlot:
        """A slot for a payload of this length, evicting if necessary: its offset, or why not."""
        slot_bytes = slot_bytes_for(length)
        if not self.quotas.ever_fits(tenant, slot_bytes):  # verify: cap below a slot
            return NoSlot.DECLINED
        offset = self._free_slot(tenant, slot_bytes)
        if offset is None and newcomer is not None:
            loses_own = self.quotas.losers(tenant, slot_bytes)[:1] == [tenant]
            if loses_own and self._declines(tenant, newcomer, slot_bytes):
                return NoSlot.DECLINED
        for _ in range(_TRIES_MAX):
            if offset is not None or not self._evict_one(tenant, slot_bytes):
                break
            offset = self._free_slot(tenant, slot_bytes)
        if offset is None and self._can_take_arena(tenant, slot_bytes):
            self._take_arena(tenant, slot_bytes)
            offset = self._free_slot(tenant, slot_bytes)
        return NoSlot.NOW if offset is None else offset

    def _can_take_arena(self, tenant: bytes, slot_bytes: int) -> bool:
        is_within = self.quotas.fits(tenant, slot_bytes)  # verify: tenant's cap, of a new arena
        return is_within and not self._awaits_writes(slot_bytes, tenant)

    def _free_slot(self, tenant: bytes, slot_bytes: int) -> int | None:
        """A free slot, if the tenant may have one more."""
        is_within = self.quotas.fits(tenant, slot_bytes)  # verify: tenant's cap, of a free slot
        return self.slab.take(slot_bytes) if is_within else None

    def _declines(self, tenant: bytes, newcomer: Newcomer, slot_bytes: int) -> bool:
        policy = self.policies.of(tenant)
        return policy.declines(newcomer.key, newcomer.parent, self._now(), slot_bytes)

    def _evict_one(self, tenant: bytes, slot_bytes: int) -> bool:
        """Free a slot of the tenant that has to give way."""
        losers, sizes = self.quotas.losers(tenant, slot_bytes), [slot_bytes]
        if not self.quotas.fits(tenant, slot_bytes):  # it is at its cap: any of its slots will do
            others = {arena.slot_bytes for arena in self.slab.arenas()} - {slot_bytes}
            sizes += sorted(others)
        return any(self._evict_of(loser, size) for loser in losers for size in sizes)

    def _evict_of(self, loser: bytes, slot_bytes: int) -> bool:
        spare = len(self._stack) > 0
        key = self.policies.of(loser).victim(self._now(), slot_bytes, spare_unwritten=spare)
        chunk = None if key is None else self.chunks.get(key)
        if chunk is None:
            return False
        if chunk.is_busy:  # verify: busy victim
            return False
        self.drop(chunk, EvictionCause.SPACE)
        return True

    def _take_arena(self, tenant: bytes, slot_bytes: int) -> None:
        """Take an arena from another size class, if one is unused."""
        arena = self._emptiest(other_than=slot_bytes, wanted_by=tenant)
        if arena is not None:
            self._empty(arena, EvictionCause.SIZE_CLASS)
            self._metrics.evictions.arenas_taken.add()

    def _awaits_writes(self, slot_bytes: int, tenant: bytes) -> bool:
        """Whether a chunk of this size can leave as soon as a lower tier has it.

        Then the engine is told to come again, rather than taking another size class's arena.
        """
        if not len(self._stack):
            return False
        arenas = [arena for arena in self.slab.arenas() if arena.slot_bytes == slot_bytes]
        chunks = (self.chunks.at(offset) for arena in arenas for offset in arena.taken)
        return any(
            chunk is not None
            and (bool(chunk.writing_to) or not (chunk.tiers or chunk.is_busy))
            and not self.chunks.has_children(chunk.key)
            and self.quotas.may_lose(chunk.name.tenant, slot_bytes, tenant)
            for chunk in chunks
        )

    def _emptiest(self, other_than: int = 0, wanted_by: bytes | None = None) -> Arena | None:
        """The unused arena that holds least, without breaking another tenant's floor.

        With `wanted_by` None, for a smaller DRAM, floors do not count.
        """
        arenas = [arena for arena in self.slab.arenas() if arena.slot_bytes != other_than]
        for arena in sorted(arenas, key=lambda arena: len(arena.taken) * arena.slot_bytes):
            if self._is_unused(arena, wanted_by):
                return arena
        return None

    def _is_unused(self, arena: Arena, wanted_by: bytes | None) -> bool:
        """Whether nobody uses the chunks in an arena, nor those that would go with them."""
        found = [self.chunks.at(offset) for offset in arena.taken]
        chunks = [chunk for chunk in found if chunk is not None]
        if len(chunks) < len(found) or any(chunk.is_busy for chunk in chunks):
            return False
        doomed = self.chunks.descendants(*[chunk.key for chunk in chunks if not chunk.tiers])
        if any(child.is_busy for child in doomed):
            return False
        if wanted_by is None:
            return True
        lost = Counter[bytes]()
        for chunk in {*chunks, *doomed}:
            lost[chunk.name.tenant] += chunk.slot_bytes
        return all(self.quotas.may_lose(each, size, wanted_by) for each, size in lost.items())

    def _empty(self, arena: Arena, cause: EvictionCause) -> None:
        for offset in list(arena.taken):
            chunk = self.chunks.at(offset)
            if chunk is None:
                continue  # dropped together with its parent
            doomed = [] if chunk.tiers else self.chunks.descendants(chunk.key)
            for child in reversed(doomed):
                self.drop(child)
            self.drop(chunk, cause)
