"""The pool's core: DRAM, the tiers below it and a policy, driven by one thread.

I/O threads never touch it: they leave what they have done in `_done` and wake the server, which
calls `complete`.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from forebay.errors import StartupError
from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.labels import ErrorKind
from forebay.pool.core.accounting.audit import violations
from forebay.pool.core.accounting.status import Status, TierLife
from forebay.pool.core.admin import AdminOperations
from forebay.pool.core.chunks import ChunkTable
from forebay.pool.core.dram import Dram
from forebay.pool.core.hashing import Hasher, Scrubber
from forebay.pool.core.loading.loads import Loads
from forebay.pool.core.lookups.lookups import ChainLookups
from forebay.pool.core.parts import CoreParts, Deferred
from forebay.pool.core.probing import Prober
from forebay.pool.core.recent.requests import RecentRequest
from forebay.pool.core.stack import TierNews, TierOpener, TierStack
from forebay.pool.core.storing.stores import Stores
from forebay.pool.core.storing.write_behind import WriteBehind
from forebay.pool.core.tenants.operations import Tenancy
from forebay.pool.core.tenants.policies import NewPolicy, Policies
from forebay.pool.core.tenants.registry import Tenants
from forebay.pool.core.warming.demand import ChunkDemand
from forebay.pool.core.warming.prefetching import Prefetching
from forebay.pool.encryption import Encryption
from forebay.pool.messages import (
    PROTOCOL,
    TIERS_MAX,
    Abort,
    AnswersEnded,
    Ask,
    Cancel,
    Clear,
    ClientMessage,
    Commit,
    Describe,
    Forget,
    Grown,
    Hello,
    Lookup,
    Release,
    RequestOutcomes,
    RequestsQuery,
    Reserve,
    Resize,
    Rotate,
    SetTenants,
    Settled,
    StatsQuery,
    Welcome,
)
from forebay.pool.policy.contract import Policy
from forebay.pool.policy.learned import Learned
from forebay.pool.session import Core, ProbeTold, Session, Work
from forebay.sys.machine.placement import ANYWHERE, NodePlacement
from forebay.sys.shared import Segment
from forebay.sys.world import World
from forebay.tenants import TenantSetting
from forebay.tiers.contract import Removed, WarmStart
from forebay.tiers.dram.slab import Slab, arena_bytes_for
from forebay.tiers.dram.taking import take_memory

_FLUSH_STEP_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a pool is made of."""

    dram_bytes: int
    tiers: tuple[TierOpener, ...] = ()  # the tiers below DRAM, the nearest first
    huge_pages: bool = False
    verify_dram: bool = False
    lives: tuple[TierLife, ...] = ()  # endurance of the tiers, in the same order
    encryption: Encryption | None = None  # keys for the tiers; None: they do not encrypt
    tenant_secret: bytes = b""  # b"": there is only the default tenant
    tenants: tuple[TenantSetting, ...] = ()
    new_policy: NewPolicy = Learned  # makes the policy of a further tenant
    placement: NodePlacement = ANYWHERE  # where DRAM is taken from


class Pool(Core):
    """See Core."""

    def __init__(
        self,
        options: PoolOptions,
        policy: Policy,
        wake: Callable[[], None],
        world: World | None = None,
    ) -> None:
        """Open the tiers and take DRAM; a StartupError says in one sentence what is missing."""
        world = world or World()
        clock, self.barrier = world.clock, world.barrier
        self._clock = clock
        self._wake = wake
        self._done: deque[Callable[[], None]] = deque()  # left by I/O threads, for `complete`
        self._is_woken = False  # the server was woken, and will call `complete`
        self.grown = lambda _message, _descriptor: None
        self.generation = secrets.randbits(62)
        chunks = ChunkTable()
        self._open(options, chunks)
        forgotten = frozenset(self._stack.forgotten())
        self._stack.delete_forgotten(forgotten)
        self._tenants = Tenants(options.tenant_secret, options.tenants, forgotten)
        metrics = self.metrics = PoolMetrics(
            [self._stack.name_of(tier) for tier in range(len(self._stack))]
        )
        tenants = self._tenants
        policies = Policies(policy, options.new_policy, tenants.weight_of, len(self._stack))
        dram = self._dram = Dram(
            self._slab, chunks, self._stack, policies, metrics=metrics, now=clock.monotonic
        )
        self._deferred = Deferred(self.barrier)
        parts = CoreParts(
            dram,
            self._stack,
            metrics,
            clock,
            self._complete,
            self._deferred,
            self.barrier,
            tenants,
            self.generation,
        )
        hasher = self._hasher = Hasher(parts)
        demand = ChunkDemand(parts)
        self._uses = demand.uses
        loads = self._loads = Loads(parts, demand, hasher if options.verify_dram else None)
        self._lookups = ChainLookups(parts, demand, loads.parts, loads.read_ahead)
        self._prefetching = Prefetching(parts, loads.read_ahead)
        self._write_behind = WriteBehind(parts)
        self._stores = Stores(parts, self._write_behind, loads.read_ahead.wait_for_room)
        self._scrubber = Scrubber(dram, hasher, loads.acquisition.damaged)
        self._prober = Prober(parts, hasher, loads.acquisition.damaged)
        self._admin = AdminOperations(parts, self._slab_grown, options.encryption)
        self._tenancy = Tenancy(parts, loads, self._admin)
        self._status = Status(parts, loads, self._stores, self._write_behind, options.lives)

    def _open(self, options: PoolOptions, chunks: ChunkTable) -> None:
        """Open the tiers, then take DRAM, which is slow: a bad directory is reported at once."""
        self._stack = TierStack(
            chunks,
            options.tiers,
            TierNews(
                self._tier_removed,
                self._tier_learned,
                self._tier_forgot,
                self._tier_warm_start,
            ),
            self._clock.monotonic,
        )
        try:
            self._slab = _slab(options)
        except StartupError:
            self._stack.close(0.0)
            raise
        self._stack.attach(self._slab.memory)

    def welcome(self) -> tuple[Welcome, list[int]]:
        """See Core."""
        memory = self._slab.memory
        sizes = [segment.size_bytes for segment in memory.segments]
        given_back, arena_bytes = self._slab.given_back, self._slab.arena_bytes
        return Welcome(
            PROTOCOL,
            self.generation,
            memory.limit_bytes,
            arena_bytes,
            sizes,
            given_back,
            list(self.metrics.tier_names[:TIERS_MAX]),
            self._tenants.salt_key,
        ), [segment.descriptor for segment in memory.segments]

    def handle(  # noqa: C901, PLR0912 - one line per message
        self, session: Session, message: ClientMessage
    ) -> Work | None:
        """See Core."""
        self._deferred.run()
        self._dram.processes.join(session.engine, session.process)
        match message:
            case Lookup():
                self._lookups.lookup(session, message)
                self._status.models.used(session.engine, message.namespace)
            case Ask():
                self._loads.ask(session, message)
            case Release():
                self._loads.release(session, message)
            case Cancel():
                self._lookups.awaited.cancel(session, message.request)
                self._loads.cancel(session, message.request)
            case Settled():
                self._loads.settled(message.engine)
            case Reserve():
                for namespace in {run.namespace for run in message.runs}:
                    self._status.models.used(session.engine, namespace)
                return self._stores.reserve(session, message)
            case Commit():
                self._stores.commit(session, message)
                self._lookups.stored()
            case Abort():
                self._stores.abort(session, message)
                self._lookups.stored()
            case Resize():
                self._make_way()
                self._admin.resize(session, message)
            case Rotate():
                self._admin.rotate(session)
            case Clear():
                self._make_way()
                self._admin.clear(session, message)
            case SetTenants():
                self._tenancy.replace(session, message)
            case Forget():
                self._prefetching.stop()
                self._tenancy.forget(session, message)
            case Describe() | RequestOutcomes():
                if isinstance(message, Describe):
                    models, said = self._status.models, (message.namespace, message.model)
                    models.described(session.engine, *said)
                self._lookups.recent.handle(session, message, self._clock.monotonic())
            case AnswersEnded():
                self._lookups.ended(message)
            case RequestsQuery():
                return self._lookups.recent.reply(session, message, self._clock.monotonic())
            case Hello() | StatsQuery():  # handled by the server itself
                self.metrics.error(ErrorKind.UNEXPECTED)
        return None

    def _make_way(self) -> None:
        """Drop what was only made ready, since an operator goes first."""
        self._prefetching.stop()
        self._loads.retain_nothing()

    def requests(self, query: RequestsQuery) -> list[RecentRequest]:
        """The recent requests that a query names, the newest last."""
        return self._lookups.recent.found(query)

    def disconnected(self, session: Session) -> None:
        """See Core."""
        self._lookups.disconnected(session)
        self._loads.disconnected(session)

    def exited(self, engine: str) -> None:
        """See Core."""
        self._loads.settled(engine)
        self._stores.exited(engine)
        self._lookups.stored()
        self._lookups.recent.engines.left(engine)
        self._status.models.left(engine)
        self._dram.processes.leave(engine)

    def lends(self, engine: str) -> bool:
        """See Core."""
        return self._stores.lends(engine) or self._loads.lends(engine)

    def answered(self) -> None:
        """See Core."""
        self._deferred.run()

    def complete(self) -> None:
        """See Core."""
        self._deferred.run()
        self._is_woken = False  # before looking: whoever comes later wakes the server again
        for _ in range(len(self._done)):
            self.barrier.call("a finished job", self._done.popleft())
        if self._done and not self._is_woken:
            self._is_woken = True
            self._wake()
        self.barrier.call("write-behind", self._write_behind.run)
        self.barrier.call("prefetching", self._prefetch, self._clock.monotonic())

    def tick(self, now: float) -> None:
        """See Core."""
        self._deferred.run()
        call = self.barrier.call
        call("awaited lookups", self._lookups.stored)
        call("deadlines", self._loads.tick, now)
        call("shrinking", self._dram.shrink)
        call("use counts", self._uses.tick, now)
        call("prefetching", self._prefetch, now)
        call("accounting", self._status.tick, now)
        call("admin operations", self._admin.tick, now)
        call("forgetting", self._tenancy.tick, now)
        idle = not (self._loads.reads_in_flight or self._write_behind.nearest_in_flight)
        call("write-behind", partial(self._write_behind.run, idle=idle))
        if idle:
            call("scrubbing", self._scrubber.step, now)

    def _prefetch(self, now: float) -> None:
        self._prefetching.step(now)
        is_writing = self._write_behind.nearest_in_flight > 0
        self._lookups.dialogs.step(now, is_writing=is_writing or self._prefetching.is_waiting)

    def violations(self) -> list[str]:
        """What is wrong with the accounting; tests check that it is always empty."""
        return violations(self._dram, self._loads)

    def view(self, offset: int, length: int) -> memoryview:
        """A slot's bytes, as a process that maps the slab sees them."""
        return self._slab.view(offset, length)[:length]

    @property
    def is_waiting(self) -> bool:
        """Whether something is due soon, so that ticks must come often."""
        is_asked = bool(self._loads.requests) or bool(self._lookups.awaited)
        is_due = self._has_operations or self._prefetching.is_waiting
        return self._is_moving or is_asked or is_due

    @property
    def _has_operations(self) -> bool:
        return self._admin.is_waiting or self._tenancy.is_waiting

    @property
    def is_settled(self) -> bool:
        """Whether no thread is working for the pool's core."""
        return not self._is_moving and not self._done and self._hasher.is_idle

    @property
    def _is_moving(self) -> bool:
        """Whether tiers have reads or writes in flight."""
        return bool(self._loads.reads_in_flight or self._write_behind.in_flight)

    def stats(self) -> dict[str, Any]:
        """See Core."""
        return self._status.snapshot(len(self._lookups.recent))

    def probe(self, told: ProbeTold) -> list[tuple[str, int]]:
        """See Core."""
        return self._prober.begin(told)

    def close(self, timeout_s: float) -> None:
        """See Core."""
        until = self._clock.monotonic() + timeout_s
        self._prefetching.close()
        self._lookups.dialogs.close()
        pause = threading.Event()
        while len(self._stack) and self._clock.monotonic() < until:
            self.complete()
            self.barrier.call("write-behind", partial(self._write_behind.run, idle=True))
            if not self._write_behind.nearest_in_flight:
                break
            pause.wait(_FLUSH_STEP_S)
        left_s = max(0.1, until - self._clock.monotonic())
        call = self.barrier.call
        call("closing the hasher", self._hasher.close, left_s)
        call("closing the tiers", self._stack.close, left_s)
        self.complete()
        call("closing admin operations", self._admin.close, left_s)
        self._slab.close()

    def _slab_grown(self, segment: Segment) -> None:
        self.grown(Grown(self.generation, segment.size_bytes), segment.descriptor)

    def _complete(self, action: Callable[[], None]) -> None:
        """Run this on the pool's thread; called by I/O threads."""
        self._done.append(action)
        # One wake is enough for all that comes meanwhile: each costs a system call and a round.
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _tier_removed(self, tier: int, records: list[Removed]) -> None:
        """Called by a tier's threads."""
        self._complete(lambda: self._dram.tier_removed(tier, records))

    def _tier_warm_start(self, tier: int, offered: WarmStart) -> None:
        """Called by a tier's threads, perhaps before the pool is complete."""
        self._complete(lambda: self._prefetching.begin(tier, offered))

    def _tier_learned(self, keys: Sequence[bytes]) -> None:
        """Called by a tier's threads, perhaps before the pool is complete."""
        learned = frozenset(keys)
        self._complete(lambda: self._loads.read_ahead.learned(learned))

    def _tier_forgot(self, tenants: frozenset[bytes]) -> None:
        """Called by a tier's thread."""
        self._complete(lambda: self._tenancy.learn_forgotten(tenants))


def _slab(options: PoolOptions) -> Slab:
    """DRAM in whole arenas, all of its memory taken."""
    arena_bytes = arena_bytes_for(options.dram_bytes)
    whole_bytes = options.dram_bytes - options.dram_bytes % arena_bytes
    memory = take_memory(whole_bytes, options.placement, huge_pages=options.huge_pages)
    return Slab(memory, arena_bytes)
