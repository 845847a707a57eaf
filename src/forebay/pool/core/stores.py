"""From reserve to disk: slots for engines, commits, and writing behind.

A slot given to an engine is that engine's until it commits, aborts, or all of its processes are
gone: a process that lives may still write there. Nothing waits: an engine that finds no slot is
told to come again, and what the policy offers for the disk is written while there is room.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from forebay.pool.core.checker import Checker, Complete
from forebay.pool.core.chunks import Chunk, State
from forebay.pool.core.room import DECLINED, Newcomer, Room
from forebay.pool.messages import Abort, Answer, Commit, Committed, Reserve, Reserved, Run
from forebay.pool.session import Session, Work
from forebay.record.header import (
    KEY_BYTES,
    NAMESPACE_BYTES,
    PAYLOAD_BYTES_MAX,
    ROOT,
    RecordName,
)
from forebay.record.region import short
from forebay.sys.clock import Clock
from forebay.tiers.contract import Dropped, DropReason, Removed, StoreOutcome
from forebay.tiers.disk import DiskTier
from forebay.tiers.dram.slab import slot_bytes_for

WRITES_MAX: Final = 16  # in flight or queued at the disk; the rest waits in DRAM
_AT_ONCE: Final = 16  # chunks a turn, half a millisecond where room is made


class Stores:
    """Everything on its way into the pool. Owned by the pool's thread."""

    def __init__(
        self,
        room: Room,
        disk: DiskTier | None,
        counters: Counter[str],
        clock: Clock,
        complete: Complete,
        *,
        generation: int,
    ) -> None:
        self._room = room
        self._disk = disk
        self._counters = counters
        self._clock = clock
        self._complete = complete
        self._checker = Checker(complete)
        self._generation = generation
        self.writing = 0  # to disk, in flight
        self._filling: dict[str, dict[int, Chunk]] = {}  # engine → slots it may write into

    @property
    def checker(self) -> Checker:
        """The thread that hashes slots."""
        return self._checker

    def reserve(self, session: Session, message: Reserve) -> Work:
        """Answer for every chunk: a slot, have it, no, or later; a few chunks with every turn."""
        answers: list[int] = []
        tried, is_answered = 0, False
        try:
            for run in message.runs:
                for _ in self._reserve_run(session.engine, run, answers):
                    tried += 1
                    if not tried % _AT_ONCE:
                        yield
            session.send(Reserved(message.batch, self._generation, answers))
            is_answered = True
        finally:
            if not is_answered:  # nobody has heard of these slots
                self._take_back(session.engine, answers)

    def commit(self, session: Session, message: Commit) -> None:
        """Let chunks be found whose slots an engine has filled."""
        committed: list[Chunk] = []
        if message.generation == self._generation:
            mine = self._filling.get(session.engine, {})
            for offset in message.offsets:
                chunk = mine.pop(offset, None)
                if chunk is not None and self._commit(chunk):
                    committed.append(chunk)
        self._counters["stored.commits"] += len(committed)
        session.send(Committed(len(committed)))
        # Whoever writes or checks them later need not compute it again.
        self._hash(committed)

    def abort(self, session: Session, message: Abort) -> None:
        """Take slots back that an engine will not fill."""
        if message.generation == self._generation:
            self._take_back(session.engine, message.offsets)

    def exited(self, engine: str) -> None:
        """Nobody is left who could write into this engine's slots."""
        for chunk in self._filling.pop(engine, {}).values():
            self._abandon(chunk)

    def lends(self, engine: str) -> bool:
        """Whether an engine may write into a slot."""
        return bool(self._filling.get(engine))

    @property
    def filling(self) -> int:
        """Slots that engines may write into."""
        return sum(map(len, self._filling.values()))

    def write_behind(self, *, idle: bool = False) -> None:
        """Hand to the disk what the policy offers, while there is room."""
        disk = self._disk
        while disk is not None and self.writing < WRITES_MAX:
            hot = idle or self._room.must_write
            key = self._room.policy.next_write(self._clock.monotonic(), idle=hot)
            if key is None:
                return
            chunk = self._room.chunks.get(key)
            if chunk is None or chunk.state is not State.READY or chunk.writing:
                self._room.policy.write_failed(key)
                continue
            chunk.writing = True
            self.writing += 1
            self._room.policy.pin(key)
            self._room.unsettled_bytes += chunk.slot_bytes
            source = self._room.slab.view(chunk.offset, chunk.length)
            done = partial(self._written_on_thread, chunk)
            disk.submit_store(chunk.name, source, chunk.length, done, chunk.digest)

    def disk_removed(self, removed: list[Removed]) -> None:
        """Records left the disk: what continues them in DRAM alone would have a hole before it."""
        policy, chunks = self._room.policy, self._room.chunks
        for record in removed:
            chunk = chunks.get(record.key)
            if chunk is not None:
                chunk.on_disk = False
                policy.on_disk(record.key, present=False)
        for record in removed:
            if chunks.get(record.key) is None:
                # DRAM had it when its record left, and let it go before we heard of that.
                self._room.tell_lost(record.key)
                if chunks.has_children(record.key):
                    self._room.drop_tree(record.key)
        size = sum(record.length for record in removed)
        read = sum(record.length for record in removed if record.was_read)
        policy.region_evicted(size, read, self._clock.monotonic())

    def close(self, timeout_s: float) -> None:
        """Stop the hashing thread."""
        self._checker.close(timeout_s)

    def _take_back(self, engine: str, offsets: list[int]) -> None:
        for offset in offsets:
            chunk = self._filling.get(engine, {}).pop(offset, None)
            if chunk is not None:
                self._abandon(chunk)

    def _reserve_run(self, engine: str, run: Run, answers: list[int]) -> Iterator[None]:
        """Comes back before every chunk, and once more: others may be served then."""
        yield
        missing = count = len(run.keys) // KEY_BYTES
        keys = [run.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES] for at in range(count)]
        if not self._is_sensible(run):
            self._counters["stores.no"] += count
            answers += [Answer.NO] * count
            return
        answer, parent, newcomer = int(Answer.HAVE), run.parent, None
        for key in keys:
            yield
            if not self._is_known(parent):
                answer = Answer.NO
                break
            if self._has(short(key)):
                self._counters["stores.have"] += 1
                answer = Answer.HAVE
            else:
                newcomer = newcomer or (short(key), None if parent == ROOT else short(parent))
                name = RecordName(run.namespace, run.group, key, parent)
                answer = self._reserve_one(engine, name, run.length, newcomer)
            if answer in (Answer.LATER, Answer.NO):
                break  # what follows could not be reached, or would come before what it continues
            answers.append(answer)
            missing -= 1
            parent = key
        if missing:
            self._counters["stores.later" if answer == Answer.LATER else "stores.no"] += missing
            if answer == Answer.LATER and self._disk is not None:
                self._hurry()
            answers += [answer] * missing

    def _hurry(self) -> None:
        """Somebody found no slot: whatever can be written is on its way to the disk by now."""
        self.write_behind(idle=True)
        if self.writing < WRITES_MAX and self._room.policy.queued_bytes:
            self._counters["stores.later_beside_an_idle_disk"] += 1  # it should not be

    def _is_sensible(self, run: Run) -> bool:
        return (
            not len(run.keys) % KEY_BYTES
            and len(run.parent) == KEY_BYTES
            and len(run.namespace) == NAMESPACE_BYTES
            and 0 < run.length <= PAYLOAD_BYTES_MAX
            and 0 <= run.group < 1 << 32
            and slot_bytes_for(run.length) <= self._room.slab.arena_bytes
        )

    def _reserve_one(self, engine: str, name: RecordName, length: int, newcomer: Newcomer) -> int:
        room = self._room
        slot_bytes = slot_bytes_for(length)
        held = room.storing_bytes
        if held and held + slot_bytes > room.store_budget_bytes:
            return Answer.LATER
        guard = self._guard(name)
        offset = room.take(length, newcomer)
        if offset is None or offset == DECLINED:
            self._unguard(guard)
            return Answer.LATER if offset is None else Answer.NO
        chunk = Chunk(name, State.FILLING, offset, length)
        chunk.slot_bytes = slot_bytes
        chunk.engine = engine
        chunk.guards = guard
        room.chunks.add(chunk)
        room.unsettled_bytes += slot_bytes
        self._filling.setdefault(engine, {})[offset] = chunk
        self._counters["stores.slots"] += 1
        return offset

    def _has(self, key: bytes) -> bool:
        """Whether a chunk of this short key is in a tier, or on its way into one."""
        if self._room.chunks.get(key) is not None:
            return True
        return self._disk is not None and self._disk.has(key)

    def _is_known(self, key: bytes) -> bool:
        """Whether a prefix ends here that a chunk may continue."""
        if key == ROOT or self._room.chunks.get(short(key)) is not None:
            return True
        return self._disk is not None and self._disk.has(key)

    def _guard(self, name: RecordName) -> Chunk | None:
        """Pin the parent while its child is filled, if the parent has no copy on disk."""
        parent = self._room.chunks.get(short(name.parent)) if name.parent != ROOT else None
        if parent is None or parent.state is not State.READY or parent.on_disk:
            return None
        self._room.pin(parent)
        return parent

    def _unguard(self, guard: Chunk | None) -> None:
        if guard is not None:
            self._room.unpin(guard)

    def _commit(self, chunk: Chunk) -> bool:
        self._settle_filling(chunk)
        if not self._is_known(chunk.name.parent):
            self._room.drop(chunk)
            return False
        self._room.chunks.settle(chunk)
        now = self._clock.monotonic()
        self._room.policy.stored(chunk.key, chunk.parent, self._room.place_of(chunk), now)
        self._counters["stored.chunks"] += 1
        self._counters["stored.bytes"] += chunk.length
        return True

    def _hash(self, chunks: list[Chunk]) -> None:
        """Have the digests of a commit's chunks computed; one that leaves meanwhile needs none."""
        if chunks:
            payloads = [self._room.slab.payload(chunk.offset, chunk.length) for chunk in chunks]
            self._checker.submit(payloads, partial(self._hashed, chunks))

    def _hashed(self, chunks: list[Chunk], digests: list[bytes]) -> None:
        for chunk, digest in zip(chunks, digests, strict=True):
            if self._room.chunks.get(chunk.key) is chunk:  # else its slot may be another's
                chunk.digest = digest

    def _abandon(self, chunk: Chunk) -> None:
        """Drop a chunk that will never be filled, and what was stored to continue it."""
        self._settle_filling(chunk)
        self._room.drop(chunk)
        self._room.drop_tree(chunk.key)

    def _settle_filling(self, chunk: Chunk) -> None:
        self._room.unsettled_bytes -= chunk.slot_bytes
        guard, chunk.guards = chunk.guards, None
        self._unguard(guard)

    def _written_on_thread(self, chunk: Chunk, outcome: StoreOutcome) -> None:
        self._complete(partial(self._written, chunk, outcome))

    def _written(self, chunk: Chunk, outcome: StoreOutcome) -> None:
        self.writing -= 1
        chunk.writing = False
        self._room.unsettled_bytes -= chunk.slot_bytes
        self._room.policy.unpin(chunk.key)
        if isinstance(outcome, Dropped) and outcome.reason is not DropReason.DUPLICATE:
            self._counters[f"disk.dropped.{outcome.reason.value}"] += 1
            self._room.policy.write_failed(chunk.key)
        else:
            self._counters["disk.written"] += 1
            self._counters["disk.written_bytes"] += chunk.length
            chunk.on_disk = True
            self._room.policy.on_disk(chunk.key, present=True)
