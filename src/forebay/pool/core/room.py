"""Room in DRAM: who gets a slot, and who leaves for it.

Loads and stores have budgets of their own, so that neither can starve the other in a small slab.
A slot is found by allocation, then by evicting what the policy values least, then by taking a
whole arena from another class. Nothing here waits: what cannot be had now is None.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from forebay.pool.core.chunks import Chunk, Chunks, State
from forebay.pool.policy.contract import Place, Policy
from forebay.pool.policy.tenants import Tenants
from forebay.tiers.dram.slab import Arena, Slab, slot_bytes_for

_TRIES_MAX = 64  # victims asked for one slot; a policy that offers more than that is wrong
DECLINED = -1  # no offset
Newcomer = tuple[bytes, bytes | None]  # the first chunk that a run brings, and the one before it


class Room:
    """The slab and what is in it."""

    def __init__(
        self,
        slab: Slab,
        policy: Policy,
        counters: Counter[str],
        now: Callable[[], float],
        tenants: Tenants,
    ) -> None:
        self.slab = slab
        self.chunks = Chunks()
        self.policy = policy
        self.pinned_bytes = 0  # by asks and loads: the load budget
        self.unsettled_bytes = 0  # being filled or written to disk
        self.writes_behind = False  # whether there is a disk, worth waiting for before evicting
        self.lost: Callable[[bytes], None] | None = None  # told of what DRAM alone had
        self.loads_wait: Callable[[], bool] = lambda: False  # whether somebody wants to load more
        self._counters = counters
        self._now = now
        self._tenants = tenants
        self._places: dict[tuple[int, int], Place] = {}
        self._condemned: set[Chunk] = set()  # cleared while in use: dropped when they are not

    @property
    def load_budget_bytes(self) -> int:
        """What asks and loads may hold at once."""
        return self.slab.cap_bytes // 2

    @property
    def store_budget_bytes(self) -> int:
        """What engines' stores may hold at once."""
        return self.slab.cap_bytes // 2

    @property
    def storing_bytes(self) -> int:
        """What they hold: slots being filled or written to disk.

        A burst may leave all of DRAM waiting for the disk. But where loads want room, what waits
        counts too: they cannot have it before it is written, and half of DRAM is theirs.
        """
        waits = self.writes_behind and self.loads_wait()
        return self.unsettled_bytes + (self.policy.queued_bytes if waits else 0)

    @property
    def must_write(self) -> bool:
        """Whether so much waits for the disk that it had better be written, hot or not."""
        return 4 * self.policy.queued_bytes > self.slab.cap_bytes

    def take(self, length: int, newcomer: Newcomer | None = None) -> int | None:
        """A slot for a payload of this length, evicting if need be; its offset.

        DECLINED where the policy would rather keep what it has than this newcomer.
        """
        slot_bytes = slot_bytes_for(length)
        offset = self.slab.take(slot_bytes)
        if offset is None and newcomer is not None:
            key, parent = newcomer
            if self.policy.declines(key, parent, self._now(), slot_bytes):
                self._counters["stores.declined"] += 1
                return DECLINED
        for _ in range(_TRIES_MAX):
            if offset is not None or not self._evict_one(slot_bytes):
                break
            offset = self.slab.take(slot_bytes)
        if offset is None and not self._awaits_writes(slot_bytes) and self._take_arena(slot_bytes):
            offset = self.slab.take(slot_bytes)
        return offset

    def place_of(self, chunk: Chunk) -> Place:
        """What the policy knows of a chunk's slot."""
        size, tenant = chunk.slot_bytes, self._tenants.number_of(chunk.name.namespace)
        place = self._places.get((size, tenant))
        if place is None:
            place = self._places[size, tenant] = Place(size, size_class=size, tenant=tenant)
        return place

    def drop(self, chunk: Chunk) -> None:
        """Forget a chunk that nobody uses, and free its slot."""
        assert not chunk.pins
        assert not chunk.writing
        if chunk.state is State.READY:
            self.policy.removed(chunk.key)
        self.chunks.remove(chunk)
        self.slab.give(chunk.offset)
        if not chunk.on_disk:
            self.tell_lost(chunk.key)

    def tell_lost(self, key: bytes) -> None:
        """Tell the disk that DRAM does not have this chunk, on which some of its records hang."""
        if self.lost is not None:
            self.lost(key)

    def pin(self, *chunks: Chunk) -> None:
        """Keep ready chunks where they are."""
        for chunk in chunks:
            chunk.pins += 1
        self.policy.pin(*[chunk.key for chunk in chunks])

    def unpin(self, chunk: Chunk) -> None:
        """One pin less."""
        assert chunk.pins > 0
        chunk.pins -= 1
        self.policy.unpin(chunk.key)

    def drop_tree(self, key: bytes) -> None:
        """Drop what continues a key that is in no tier any more, as far as nobody uses it."""
        self.drop_idle(child for child in reversed(self.chunks.descendants(key)))

    def drop_idle(self, chunks: Iterable[Chunk]) -> int:
        """Drop those of these chunks that nobody uses; how many are left."""
        left = 0
        for chunk in chunks:
            if chunk.is_busy:
                left += 1
            else:
                self.drop(chunk)
        return left

    def condemn(self, chunks: Iterable[Chunk]) -> int:
        """Drop these chunks, those in use as soon as nobody uses them; how many these are."""
        condemned = set(chunks)
        self._condemned |= condemned
        self.sweep()
        return len(condemned & self._condemned)

    def sweep(self) -> None:
        """Drop what was condemned and is not in use any more."""
        for chunk in list(self._condemned):
            is_here = self.chunks.get(chunk.key) is chunk
            if is_here and chunk.is_busy:
                continue
            self._condemned.remove(chunk)
            if is_here:
                self.drop(chunk)

    def shrink(self) -> None:
        """Empty arenas until the slab is under its cap, as far as nobody uses them."""
        while self.slab.excess() and (arena := self._emptiest()) is not None:
            self._empty(arena)

    def _evict_one(self, slot_bytes: int) -> bool:
        key = self.policy.victim(self._now(), slot_bytes, spare_unwritten=self.writes_behind)
        chunk = None if key is None else self.chunks.get(key)
        if chunk is None or chunk.is_busy:
            return False
        self._counters["dram.evicted"] += 1
        self.drop(chunk)
        return True

    def _take_arena(self, slot_bytes: int) -> bool:
        """Take an arena from another class: nothing of this one can leave."""
        arena = self._emptiest(other_than=slot_bytes)
        if arena is None:
            return False
        self._empty(arena)
        self._counters["dram.arenas_taken"] += 1
        return True

    def _awaits_writes(self, slot_bytes: int) -> bool:
        """Whether something of this class can leave as soon as it is on disk.

        Then whoever wants a slot comes again: others' chunks are not lost for a moment's hurry.
        """
        if not self.writes_behind:
            return False
        arenas = [arena for arena in self.slab.arenas() if arena.slot_bytes == slot_bytes]
        chunks = (self.chunks.at(offset) for arena in arenas for offset in arena.taken)
        return any(
            chunk is not None
            and (chunk.writing or not (chunk.on_disk or chunk.is_busy))
            and not self.chunks.has_children(chunk.key)
            for chunk in chunks
        )

    def _emptiest(self, other_than: int = 0) -> Arena | None:
        """The arena that loses least, of those that nobody uses."""
        arenas = [arena for arena in self.slab.arenas() if arena.slot_bytes != other_than]
        for arena in sorted(arenas, key=lambda arena: len(arena.taken) * arena.slot_bytes):
            if self._is_unused(arena) and not (other_than and self._breaks_floor(arena)):
                return arena
        return None

    def _breaks_floor(self, arena: Arena) -> bool:
        """Whether a tenant would have less than its floor without what lies in an arena."""
        floors = self._tenants.floors
        if not floors:
            return False
        left_bytes: Counter[int] = Counter()
        touched: set[int] = set()
        for chunk in self.chunks:
            tenant = self._tenants.number_of(chunk.name.namespace)
            if chunk.offset in arena.taken:
                touched.add(tenant)
            else:
                left_bytes[tenant] += chunk.slot_bytes
        return any(left_bytes[tenant] < floors.get(tenant, 0) for tenant in touched)

    def _is_unused(self, arena: Arena) -> bool:
        """Whether nobody uses what lies in an arena, nor what would go with it."""
        chunks = [self.chunks.at(offset) for offset in arena.taken]
        if any(chunk is None or chunk.is_busy for chunk in chunks):
            return False
        alone = [chunk.key for chunk in chunks if chunk is not None and not chunk.on_disk]
        return not any(child.is_busy for child in self.chunks.descendants(*alone))

    def _empty(self, arena: Arena) -> None:
        for offset in list(arena.taken):
            chunk = self.chunks.at(offset)
            if chunk is None:
                continue  # it went with its parent
            doomed = [] if chunk.on_disk else self.chunks.descendants(chunk.key)
            for child in reversed(doomed):
                self.drop(child)
            self.drop(chunk)
