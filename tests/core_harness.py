"""The pool's core for tests that call it directly: one process, no socket, real tiers."""

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.oldest_first import OldestFirst

from forebay.identity.keys import ChainRoot, KeyChain, proof_of
from forebay.metrics import reading
from forebay.pool.core import Pool, PoolOptions
from forebay.pool.core.stack import TierOpener
from forebay.pool.messages import (
    Ask,
    ChunkRun,
    Commit,
    Committed,
    Found,
    Lookup,
    PoolMessage,
    Promise,
    Ready,
    Release,
    Reserve,
    ReserveAnswer,
    Reserved,
)
from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.contract import Policy
from forebay.pool.policy.learned import Learned
from forebay.pool.session import Session, Work
from forebay.record.header import HASH_BYTES, ROOT, payload_hash
from forebay.record.region import short
from forebay.sys.world import World
from forebay.tenants import TenantSetting
from forebay.testing.clock import ManualClock
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.disk import Directory, DiskTier

NAMESPACE = b"n" * 32
SECRET = b"a secret of sixteen bytes or more"  # that tenants' ids are made of
LENGTH = 1 << 16
M = TypeVar("M", bound=PoolMessage)
# Beneath the disk, each called with a listener and `world`; see --lower-tier in tests/conftest.py.
MORE_TIERS: list[Callable[..., Tier]] = []


class Client(Session):
    """A session that keeps what it is sent."""

    def __init__(self, engine: str, salt_hash: bytes = b"") -> None:
        self.engine = engine
        self.salt_hash = salt_hash  # of all its requests: whose they are
        self.inbox: list[PoolMessage] = []

    def send(self, message: PoolMessage) -> None:
        self.inbox.append(message)


def chain(name: str, chunks: int) -> list[bytes]:
    """Full keys of a made-up dialog."""
    return KeyChain(ChainRoot(NAMESPACE, 1, salt=name)).extend(range(chunks))


def payload(key: bytes, length: int = LENGTH) -> bytes:
    """What is stored under a key: the oracle outside the pool."""
    return random.Random(key).randbytes(length)


class CoreHarness:
    """A pool's core, called as the server would call it."""

    def __init__(
        self,
        dram_bytes: int,
        place: Path | None = None,
        disk_bytes: int = 0,
        world: World | None = None,
        *,
        learned: LowerTier | None = None,  # judged by the default policy, which is told this
        verify_dram: bool = False,
        policy: Policy | None = None,
        store: Callable[[TierListener, World], Tier] | None = None,  # beneath all others
        tenants: tuple[TenantSetting, ...] = (),
    ) -> None:
        self._woken = threading.Event()
        self._numbers = 0
        self._digests: dict[int, bytes] = {}  # of what was filled in, by slot
        world = world or World(clock=ManualClock())  # no deadline passes unless a test says so
        tiers: list[TierOpener] = []
        if place is not None:
            directories = [Directory(str(place), disk_bytes)]
            tiers.append(lambda listener: DiskTier.open(directories, None, world, listener))
            tiers += [partial(opener, world=world) for opener in MORE_TIERS]
        if store is not None:
            tiers.append(lambda listener: store(listener, world))
        if learned is None:
            self.policy = policy or OldestFirst(len(tiers))
        else:
            self.policy = Learned([learned] * len(tiers))
        count = len(tiers)
        wanted = PoolOptions(
            dram_bytes,
            tuple(tiers),
            verify_dram=verify_dram,
            tenant_secret=SECRET,
            tenants=tenants,
            new_policy=lambda: (
                OldestFirst(count) if learned is None else Learned([learned] * count)
            ),
        )
        self.pool = Pool(wanted, self.policy, self._woken.set, world)
        self.clock = world.clock

    def number(self, name: str, **labels: str) -> int:
        """One figure of the statistics, summed over the labels that are not given."""
        return reading.count(self.pool.stats(), name, **labels)

    def allocated_bytes(self) -> int:
        """Memory that DRAM has now."""
        return int(reading.tier_of(self.pool.stats(), "dram")["allocated_bytes"])

    def wait_until_woken(self) -> None:
        """As the server does between two rounds."""
        assert self._woken.wait(60.0), f"nothing came: {self.pool.stats()}"
        self._woken.clear()

    def turn(self) -> None:
        """One round of the server's loop."""
        self._woken.wait(0.002)
        self._woken.clear()
        self.pool.complete()
        self.pool.tick(self.clock.monotonic())

    def until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end, f"nothing came: {self.pool.stats()}"
            self.turn()

    def pass_time_until(self, done: Callable[[], bool]) -> None:
        """The same, while a tenth of a second passes with every turn."""
        self.until(lambda: done() or self.pass_time(0.1))

    def pass_time(self, seconds: float) -> bool:
        """Put the clock forward; False, so that who waits goes on."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(seconds)
        return False

    def settle(self) -> None:
        """Wait until nothing is being read or written."""
        self.until(lambda: self.pool.is_settled)

    def receive(self, client: Client, kind: type[M]) -> M:
        def here() -> list[M]:
            return [message for message in client.inbox if isinstance(message, kind)]

        self.until(lambda: bool(here()))
        message = here()[0]
        client.inbox.remove(message)
        return message

    def reserve(
        self, client: Client, keys: list[bytes], parent: bytes = ROOT, length: int = LENGTH
    ) -> list[int]:
        for _ in self.reserving(client, keys, parent, length):
            pass
        return self.receive(client, Reserved).answers

    def reserving(
        self, client: Client, keys: list[bytes], parent: bytes = ROOT, length: int = LENGTH
    ) -> Work:
        """The same, a little with every turn; the answer is to be received at its end."""
        joined = b"".join(keys)
        run = ChunkRun(NAMESPACE, 0, parent, joined, length, salt_hash=client.salt_hash)
        return self.reserving_run(client, run)

    def reserve_run(self, client: Client, run: ChunkRun) -> list[int]:
        for _ in self.reserving_run(client, run):
            pass
        return self.receive(client, Reserved).answers

    def reserving_run(self, client: Client, run: ChunkRun) -> Work:
        work = self.pool.handle(client, Reserve(7, [run]))
        assert work is not None
        return work

    def fill(self, offset: int, data: bytes) -> None:
        self.pool.view(offset, len(data))[:] = data
        self._digests[offset] = payload_hash(data)

    def commit_of(self, offsets: list[int]) -> Commit:
        """The message, with digests of what was last filled in; of what was not, zeros."""
        digests = (self._digests.get(offset, bytes(HASH_BYTES)) for offset in offsets)
        return Commit(self.pool.generation, offsets, b"".join(digests))

    def commit(self, client: Client, offsets: list[int]) -> int:
        self.pool.handle(client, self.commit_of(offsets))
        return self.receive(client, Committed).count

    def store(self, client: Client, keys: list[bytes], timeout_s: float = 60.0) -> None:
        """Store a whole chain, coming again as long as the pool says so."""
        end = time.monotonic() + timeout_s
        parent, left = ROOT, list(keys)
        while left:
            assert time.monotonic() < end, self.pool.stats()
            offsets = []
            for key, answer in zip(list(left), self.reserve(client, left, parent), strict=True):
                assert answer != ReserveAnswer.NO, self.pool.stats()
                if answer == ReserveAnswer.LATER:
                    break
                if answer >= 0:
                    self.fill(answer, payload(key))
                    offsets.append(answer)
                parent = key
                left.pop(0)
            assert self.commit(client, offsets) == len(offsets)
            self.turn()

    def lookup(
        self,
        client: Client,
        keys: list[bytes],
        namespace: bytes = NAMESPACE,
        group: int = 0,
    ) -> tuple[int, Found]:
        self._numbers += 1
        joined = b"".join(map(short, keys))
        client.inbox[:] = [m for m in client.inbox if not isinstance(m, Found)]
        names = (namespace, group, joined)
        self.pool.handle(client, Lookup(self._numbers, *names, salt_hash=client.salt_hash))
        return self._numbers, self.receive(client, Found)

    def ask(
        self, client: Client, number: int, keys: list[bytes], *, stream: bool = False
    ) -> Promise:
        self.pool.handle(client, Ask(number, 0, len(keys), 10_000, stream))
        promise = self.receive(client, Promise)
        for key, offset, length in zip(keys, promise.offsets, promise.lengths, strict=False):
            assert self.pool.view(offset, length) == payload(key), "wrong bytes"
        assert promise.proof == proof_of(keys[: len(promise.offsets)])
        return promise

    def load(self, client: Client, keys: list[bytes], *, stream: bool = False) -> int:
        """How many chunks, from the first, came back exact."""
        number, _ = self.lookup(client, keys)
        promise = self.ask(client, number, keys, stream=stream)
        count, total = len(promise.offsets), promise.total
        if stream and count < total:
            self.pool.handle(client, Release(number, list(range(count))))
            came = set(range(count))
            while not came.issuperset(range(total)):
                ready = self.receive(client, Ready)
                if not ready.length:
                    total = ready.chunk
                    continue
                assert ready.key == keys[ready.chunk]
                assert self.pool.view(ready.offset, ready.length) == payload(ready.key)
                self.pool.handle(client, Release(number, [ready.chunk]))
                came.add(ready.chunk)
            count = total
        self.pool.handle(client, Release(number, []))
        return count
