"""Stores, from reserve to commit: lends slots to engines.

A slot lent to an engine is that engine's until it commits, aborts, or all of its processes have
exited: a process that lives may still write there. Nothing waits: an engine that finds no slot is
told to ask again.

A chunk's digest comes from its producer, with the commit: it goes into the record unchanged, and
whoever loads the record, or hashes the slot, compares. Nothing is hashed here or on the way to a
drive, since bytes could change between that and the write; what no longer matches its digest is a
miss. A producer that lies about a digest makes its own chunk a miss; one that lies about the bytes
could as well have stored them with the right digest: engines that share a namespace trust each
other.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from forebay.identity.groups import GroupRule, rule_of
from forebay.identity.tenants import masked, masked_parent
from forebay.metrics.labels import Direction, RefusalReason
from forebay.pool.core.chunks import Chunk
from forebay.pool.core.dram import Newcomer, NoSlot
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.storing.write_behind import WriteBehind
from forebay.pool.messages import (
    Abort,
    ChunkRun,
    Commit,
    Committed,
    Reserve,
    ReserveAnswer,
    Reserved,
)
from forebay.pool.session import Session, Work
from forebay.record.header import (
    HASH_BYTES,
    KEY_BYTES,
    NAMESPACE_BYTES,
    PAYLOAD_BYTES_MAX,
    ROOT,
    RecordName,
    are_shards,
)
from forebay.record.region import short
from forebay.tiers.dram.slab import slot_bytes_for

_AT_ONCE: Final = 16  # chunks per turn; half a millisecond if slots must be freed


class Stores:
    """Everything that is being stored. Owned by the pool's thread."""

    def __init__(
        self,
        parts: CoreParts,
        write_behind: WriteBehind,
        loads_wait: Callable[[], bool],
    ) -> None:
        self._dram, self._metrics = parts.dram, parts.metrics
        self._generation, self._tenants = parts.generation, parts.tenants
        self._write_behind = write_behind
        self._loads_wait = loads_wait  # whether loads wait for room
        self._filling: dict[str, dict[int, Chunk]] = {}  # engine → slots lent to it

    def reserve(self, session: Session, message: Reserve) -> Work:
        """Answer for every chunk (a slot, HAVE, NO or LATER), a few chunks per turn."""
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
            if not is_answered:  # nobody was told of these slots
                self._take_back(session.engine, answers)

    def commit(self, session: Session, message: Commit) -> None:
        """An engine has filled slots: their chunks can be found from now on."""
        committed: list[Chunk] = []
        if message.generation == self._generation:
            mine = self._filling.get(session.engine, {})
            for offset, digest in _digests(message):
                chunk = mine.pop(offset, None)
                if chunk is not None and self._dram.commit(chunk, digest):
                    committed.append(chunk)
            self._take_back(session.engine, message.offsets)  # those without a digest
        self._metrics.tiers.copied(Direction.STORE, [chunk.length for chunk in committed])
        for chunk in committed:
            name = self._tenants.name_of(chunk.name.tenant)
            self._metrics.tenants.moved(name, Direction.STORE, chunk.length)
        session.send(Committed(len(committed)))

    def abort(self, session: Session, message: Abort) -> None:
        """Take back slots that an engine will not fill."""
        if message.generation == self._generation:
            self._take_back(session.engine, message.offsets)

    def exited(self, engine: str) -> None:
        """All processes of an engine have exited: take back its slots."""
        for chunk in self._filling.pop(engine, {}).values():
            self._dram.abandon(chunk)

    def lends(self, engine: str) -> bool:
        """Whether an engine has slots that it may write into."""
        return bool(self._filling.get(engine))

    @property
    def filling(self) -> int:
        """How many slots are lent to engines."""
        return sum(map(len, self._filling.values()))

    def _take_back(self, engine: str, offsets: list[int]) -> None:
        for offset in offsets:
            chunk = self._filling.get(engine, {}).pop(offset, None)
            if chunk is not None:
                self._dram.abandon(chunk)

    def _reserve_run(self, engine: str, run: ChunkRun, answers: list[int]) -> Iterator[None]:
        """Reserves one run; yields before every chunk, so that others can be served in between."""
        yield
        tenant = self._tenants.of_salt(run.salt_hash)
        run = _masked(run, tenant.mask)
        missing = count = len(run.keys) // KEY_BYTES
        keys = [run.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES] for at in range(count)]
        if not self._is_sensible(run):
            self._refused(RefusalReason.MALFORMED, count)
            answers += [ReserveAnswer.NO] * count
            return
        rule = rule_of(run.group)
        answer, previous, newcomer = int(ReserveAnswer.HAVE), run.parent, None
        reason = RefusalReason.DECLINED
        for key in keys:
            yield
            parent = rule.parent_of(previous)
            name = RecordName(run.namespace, run.group, key, parent, tenant.id)
            is_current = self._tenants.is_current(tenant.id)  # verify: forgotten meanwhile
            if not (is_current and self._dram.is_known(name.parent)):
                answer, reason = ReserveAnswer.NO, RefusalReason.ORPHAN
                break
            if self._dram.has(short(key)):
                self._refused(RefusalReason.HAVE, 1)
                answer = ReserveAnswer.HAVE
            elif self._dram.chunks.is_condemned(short(key)):
                answer = ReserveAnswer.LATER
            else:
                above = run.parent if rule is GroupRule.LOCAL else name.parent
                newcomer = newcomer or Newcomer(short(key), _short_or_none(above))
                answer = self._reserve_one(engine, name, run, newcomer)
            if answer in (ReserveAnswer.LATER, ReserveAnswer.NO):
                break  # what follows would have no parent, or come before it
            answers.append(answer)
            missing -= 1
            previous = key
        if missing:
            is_later = answer == ReserveAnswer.LATER
            self._refused(RefusalReason.LATER if is_later else reason, missing)
            if is_later:
                self._write_behind.hurry()
            answers += [answer] * missing

    def _is_sensible(self, run: ChunkRun) -> bool:
        return (
            not len(run.keys) % KEY_BYTES
            and len(run.parent) == KEY_BYTES
            and len(run.namespace) == NAMESPACE_BYTES
            and 0 < run.length <= PAYLOAD_BYTES_MAX
            and 0 <= run.group < 1 << 32
            and are_shards(run.length, run.shards)
            and slot_bytes_for(run.length) <= self._dram.slab.arena_bytes
        )

    def _reserve_one(self, engine: str, name: RecordName, run: ChunkRun, newcomer: Newcomer) -> int:
        # A burst may leave all of DRAM waiting to be written. But if loads want room, what
        # waits counts too: they cannot have it before it is written, and half of DRAM is theirs.
        waiting_bytes = self._dram.policies.queued_bytes if self._loads_wait() else 0
        slot_bytes = slot_bytes_for(run.length)
        if not self._dram.store_budget.fits(
            engine, slot_bytes, waiting_bytes
        ):  # verify: store budget
            return ReserveAnswer.LATER
        chunk = self._dram.begin_fill(engine, name, run.length, newcomer)
        if isinstance(chunk, NoSlot):
            return ReserveAnswer.LATER if chunk is NoSlot.NOW else ReserveAnswer.NO
        chunk.shards = run.shards
        if name.parent == ROOT:
            chunk.beside = newcomer.parent
        self._filling.setdefault(engine, {})[chunk.offset] = chunk
        self._metrics.stores.leases.add()
        return chunk.offset

    def _refused(self, reason: RefusalReason, count: int) -> None:
        self._metrics.stores.refused.add(count, (reason,))


def _digests(commit: Commit) -> Iterator[tuple[int, bytes]]:
    """The slots of a commit, each with its digest; none if the numbers do not match."""
    size = HASH_BYTES
    if len(commit.digests) != len(commit.offsets) * size:  # verify: a digest a slot
        return
    for number, offset in enumerate(commit.offsets):
        yield offset, commit.digests[number * size : (number + 1) * size]


def _masked(run: ChunkRun, mask: bytes) -> ChunkRun:
    """The same chunks with keys masked for their tenant."""
    if len(run.keys) % KEY_BYTES or len(run.parent) != KEY_BYTES or not any(mask):
        return run
    keys, parent = masked(run.keys, mask), masked_parent(run.parent, mask)
    return msgspec.structs.replace(run, keys=keys, parent=parent)


def _short_or_none(parent: bytes) -> bytes | None:
    return None if parent == ROOT else short(parent)
