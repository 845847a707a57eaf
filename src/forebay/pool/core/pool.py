"""The pool's core: one thread's worth of decisions over a slab, a disk tier and a policy.

I/O threads never touch it: they leave what they have done in `_done` and wake the server, which
calls `complete`.
"""

import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forebay.errors import StartupError
from forebay.pool.core.audit import violations
from forebay.pool.core.checker import Scrubber
from forebay.pool.core.chores import Chores
from forebay.pool.core.loading.answers import Answers
from forebay.pool.core.loading.loads import Loads
from forebay.pool.core.loading.reads import Reads
from forebay.pool.core.room import Room
from forebay.pool.core.stores import Stores
from forebay.pool.messages import (
    Abort,
    Ask,
    Cancel,
    Clear,
    ClientMessage,
    Commit,
    Hello,
    Lookup,
    Release,
    Reserve,
    Resize,
    Settled,
    Stats,
    StatsReply,
)
from forebay.pool.policy.contract import Policy
from forebay.pool.policy.tenants import Floor, Tenants
from forebay.pool.session import Core, Session, Work
from forebay.quantity import format_size
from forebay.sys.shared import SharedMemory, total_memory_bytes
from forebay.sys.world import World
from forebay.tiers.contract import Removed, TierListener
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.dram.preallocator import Preallocator
from forebay.tiers.dram.slab import Slab, arena_bytes_for

_CHORES_MAX: Final = 4  # operators' wishes under way at once
_FLUSH_STEP_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a pool is made of."""

    dram_bytes: int
    directories: tuple[Directory, ...] = ()
    disk: Options = field(default_factory=Options)
    huge_pages: bool = False
    verify_dram: bool = False
    floors: tuple[Floor, ...] = ()  # of DRAM; the policy is made with the same


class Pool(Core):
    """See Core."""

    def __init__(
        self,
        options: PoolOptions,
        policy: Policy,
        wake: Callable[[], None],
        world: World | None = None,
    ) -> None:
        """Take DRAM and directories; a StartupError says in one sentence what cannot be had."""
        self._world = world or World()
        self._wake = wake
        self._done: deque[Callable[[], None]] = deque()  # left by I/O threads
        self._is_woken = False  # and somebody will look at it
        memory = _shared_memory(options)
        self.generation = secrets.randbits(62)
        self.arena_bytes = arena_bytes_for(options.dram_bytes)
        self.slab_bytes = memory.size_bytes
        self.slab_descriptor = memory.descriptor
        self._slab = Slab(memory, self.arena_bytes, options.dram_bytes)
        self._counters: Counter[str] = Counter()
        clock = self._world.clock
        tenants = Tenants(options.floors)
        self._room = Room(self._slab, policy, self._counters, clock.monotonic, tenants)
        self._disk = self._open_disk(options)
        if self._disk is not None:
            self._room.writes_behind = True
            self._room.lost = self._disk.lost
        parts = (self._room, self._disk, self._counters, clock, self._complete)
        reads, answers = Reads(*parts), Answers(self._counters, self.generation)
        self._loads = Loads(self._room, reads, answers, self._counters, clock)
        self._stores = Stores(*parts, generation=self.generation)
        self._ahead = Preallocator(self._slab, self._complete)
        self._ahead.step()
        self._scrubber = Scrubber(self._room, self._stores.checker, self._loads.damaged)
        self._loads.checker = self._stores.checker if options.verify_dram else None
        self._started = clock.monotonic()
        self._chores = Chores(self._room, self._disk, clock, self._complete)

    def handle(  # noqa: C901 - a line each
        self, session: Session, message: ClientMessage
    ) -> Work | None:
        """See Core."""
        self._loads.catch_up()
        match message:
            case Lookup():
                self._loads.lookup(session, message)
            case Ask():
                self._loads.ask(session, message)
            case Release():
                self._loads.release(session, message)
            case Cancel():
                self._loads.cancel(session, message.request)
            case Settled():
                self._loads.settled(message.engine)
            case Reserve():
                return self._stores.reserve(session, message)
            case Commit():
                self._stores.commit(session, message)
            case Abort():
                self._stores.abort(session, message)
            case Stats():
                session.send(StatsReply(msgspec.json.encode(self.stats())))
            case Resize():
                self._loads.keep_nothing()
                self._chores.resize(session, message)
            case Clear():
                self._loads.keep_nothing()
                self._chores.clear(session, message)
            case Hello():
                self._counters["nonsense"] += 1
        return None

    def left(self, session: Session) -> None:
        """See Core."""
        self._loads.left(session)

    def exited(self, engine: str) -> None:
        """See Core."""
        self._loads.settled(engine)
        self._stores.exited(engine)

    def lends(self, engine: str) -> bool:
        """See Core."""
        return self._stores.lends(engine) or self._loads.lends(engine)

    def answered(self) -> None:
        """See Core."""
        self._loads.catch_up()

    def complete(self) -> None:
        """See Core."""
        self._loads.catch_up()
        self._is_woken = False  # before looking: who comes later wakes us again
        for _ in range(len(self._done)):
            self._done.popleft()()
        if self._done and not self._is_woken:
            self._is_woken = True
            self._wake()
        self._stores.write_behind()

    def tick(self, now: float) -> None:
        """See Core."""
        self._loads.catch_up()
        self._loads.tick(now)
        self._room.shrink()
        self._chores.tick(now)
        self._ahead.step()
        idle = not (self._loads.loading or self._stores.writing)
        self._stores.write_behind(idle=idle)
        if idle:
            self._scrubber.step(now)

    def violations(self) -> list[str]:
        """What is wrong with the books; always empty, say the tests."""
        return violations(self._room, self._loads)

    def view(self, offset: int, length: int) -> memoryview:
        """A slot's bytes, as a process that maps the slab sees them."""
        return self._slab.view(offset, length)[:length]

    @property
    def is_waiting(self) -> bool:
        """Whether something is due soon, so that ticks matter."""
        busy = self._loads.loading or self._stores.writing or self._loads.held_requests
        return bool(busy or self._chores.is_waiting)

    @property
    def is_settled(self) -> bool:
        """Whether no thread has anything of ours in hand."""
        busy = self._loads.loading or self._stores.writing or self._done
        return not busy and self._stores.checker.is_idle

    def stats(self) -> dict[str, object]:
        """See Core."""
        usage = self._disk.usage() if self._disk is not None else None
        drives = self._disk.volumes() if self._disk is not None else []
        return {
            "uptime_s": round(self._world.clock.monotonic() - self._started, 3),
            "dram": {
                "cap_bytes": self._slab.cap_bytes,
                "allocated_bytes": self._slab.allocated_bytes,
                "taken_bytes": self._slab.taken_bytes,
                "pinned_bytes": self._room.pinned_bytes,
                "kept_bytes": self._loads.kept_bytes,
                "unsettled_bytes": self._room.unsettled_bytes,
                "chunks": len(self._room.chunks),
                "pinned_chunks": sum(1 for chunk in self._room.chunks if chunk.pins),
                "filling": self._stores.filling,
            },
            "disk": {
                "cap_bytes": usage.cap_bytes if usage else 0,
                "used_bytes": usage.used_bytes if usage else 0,
                "records": usage.records if usage else 0,
                "payload_bytes": usage.payload_bytes if usage else 0,
                "drives": drives,
            },
            "requests": self._loads.held_requests,
            "counters": dict(sorted(self._counters.items())),
        }

    def close(self, timeout_s: float) -> None:
        """See Core."""
        until = self._world.clock.monotonic() + timeout_s
        pause = threading.Event()
        while self._disk is not None and self._world.clock.monotonic() < until:
            self.complete()
            self._stores.write_behind(idle=True)
            if not self._stores.writing:
                break
            pause.wait(_FLUSH_STEP_S)
        left_s = max(0.1, until - self._world.clock.monotonic())
        self._stores.close(left_s)
        if self._disk is not None:
            self._disk.close(left_s)
        self.complete()
        self._chores.close(left_s)
        self._ahead.close(left_s)
        self._slab.close()

    def _complete(self, action: Callable[[], None]) -> None:
        """Called by I/O threads: do this on the pool's thread."""
        self._done.append(action)
        # One wake for all that is done meanwhile: each would cost a system call and a round.
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _open_disk(self, options: PoolOptions) -> DiskTier | None:
        if not options.directories:
            return None
        return DiskTier.open(options.directories, options.disk, self._world, _Listener(self))

    def disk_removed(self, removed: list[Removed]) -> None:
        """Records left the disk; any thread may say so."""
        self._complete(lambda: self._stores.disk_removed(removed))

    def dram_holds(self, key: bytes) -> bool:
        """Whether DRAM has a chunk; any thread may ask."""
        return self._room.chunks.is_ready(key)


class _Listener(TierListener):
    """What the disk tells and asks of the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def removed(self, records: list[Removed]) -> None:
        self._pool.disk_removed(records)

    def holds(self, key: bytes) -> bool:
        return self._pool.dram_holds(key)


def _shared_memory(options: PoolOptions) -> SharedMemory:
    """The slab's memory: as large as the machine's, so that the cap can be raised while running."""
    total = total_memory_bytes()
    wanted = options.dram_bytes
    if wanted > total:
        raise StartupError(
            f"{format_size(wanted)} of DRAM are asked for and this machine has "
            f"{format_size(total)}; lower --dram."
        )
    size = wanted if options.huge_pages else max(wanted, total)
    arena = arena_bytes_for(wanted)
    try:
        return SharedMemory(size - size % arena, huge_pages=options.huge_pages)
    except OSError as error:
        kind = "huge pages" if options.huge_pages else "shared memory"
        raise StartupError(f"no {kind} can be had ({error.strerror}); lower --dram.") from None
