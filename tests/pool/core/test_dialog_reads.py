"""Dialogs are read back from drives before they are asked for, at nobody else's cost.

What is read is what the policy names; here a policy names what a test wants. The drive is a tier in
memory that answers reads when it is told to.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, MORE_TIERS, SECRET, Client, CoreHarness, chain
from tests.gated_tier import GatedTier
from tests.oldest_first import OldestFirst

from forebay.identity.endings import EndingClass
from forebay.identity.tenants import masked, salt_hash, salt_key
from forebay.pool.messages import AnswerEnd, AnswersEnded, Cancel, Forget, Release
from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.contract import ToRead
from forebay.pool.policy.learned import Learned
from forebay.record.region import SHORT_KEY_BYTES, short
from forebay.settings import PrefetchMode
from forebay.sys.world import World
from forebay.tenants import TenantSetting
from forebay.tiers.contract import Tier, TierListener

MIB = 1 << 20
KEY = salt_key(SECRET)
SLOTS = 8 * MIB // LENGTH
STORED = {"tier": "disk", "direction": "store", "outcome": "ok"}


class Named(OldestFirst):
    """Names for reading what a test put down."""

    def __init__(self) -> None:
        super().__init__(1)
        self.wanted: list[ToRead] = []
        self.failed: list[bytes] = []

    def next_read(self, now: float, has_room: Callable[[int], bool]) -> ToRead | None:
        if not self.wanted or not (self.wanted[0].victim or has_room(LENGTH)):
            return None
        return self.wanted.pop(0)

    def read_failed(self, key: bytes) -> None:
        self.failed.append(key)


class GatedDrive(GatedTier):
    """Is not a store, which requests to might cost something."""

    comes_back = False


class Scene:
    """A pool that has lost a chain of eight chunks from DRAM; its drive has them."""

    def __init__(
        self, drive: type[GatedTier] = GatedDrive, tenants: tuple[TenantSetting, ...] = ()
    ) -> None:
        tiers: list[GatedTier] = []

        def opened(listener: TierListener, world: World) -> Tier:
            tiers.append(drive(listener, world))
            return tiers[0]

        self.policy, self.keys = Named(), chain("of a dialog", 8)
        self.core = CoreHarness(8 * MIB, policy=self.policy, store=opened, tenants=tenants)
        self.drive = tiers[0]
        self.core.store(Client("e"), self.keys)
        self.core.until(lambda: len(self.drive.records) == len(self.keys))
        self.core.lookup(Client("e"), self.keys)
        self.lose(self.keys)

    def lose(self, keys: list[bytes]) -> None:
        dram = self.core.pool._dram
        self.core.pool._loads.retain_nothing()
        for key in reversed(keys):
            chunk = dram.chunks.get(short(key))
            assert chunk is not None
            self.core.until(lambda chunk=chunk: not chunk.is_busy)  # type: ignore[misc]
            dram.drop(chunk)

    def want(self, keys: list[bytes], victim: bytes | None = None) -> None:
        end = short(self.keys[-1])
        self.policy.wanted += [ToRead(short(key), victim, end) for key in keys]

    def turns(self, seconds: float = 2.0, count: int = 20) -> None:
        """Let the pool look again, and do what it will."""
        self.core.pass_time(seconds)
        for _ in range(count):
            self.core.turn()

    def open(self) -> None:
        """The drive answers all reads from now on."""
        self.drive.is_open = True
        self.drive.answer_all()

    def number(self, name: str) -> int:
        return self.core.number(name, tier="slow_memory")


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.open()
    made.core.settle()
    assert made.core.pool.violations() == []
    made.core.pool.close(60)


def test_what_was_read_is_served_from_dram_and_counts_as_used(scene: Scene) -> None:
    scene.drive.is_open = True
    scene.want(scene.keys)
    scene.core.pass_time(2)
    scene.core.until(lambda: scene.number("prefetched_chunks") == 8)
    _, found = scene.core.lookup(Client("f"), scene.keys)
    assert found.ready == 8
    assert scene.core.load(Client("e"), scene.keys) == 8
    assert scene.drive.begun == [short(key) for key in scene.keys], "each was read once"
    assert scene.number("prefetched_used_chunks") == 8
    assert scene.number("prefetched_used_bytes") == 8 * LENGTH
    scene.lose(scene.keys)
    assert scene.number("prefetched_wasted_chunks") == 0


def test_what_leaves_before_anybody_asks_counts_as_wasted(scene: Scene) -> None:
    scene.drive.is_open = True
    scene.want(scene.keys[:3])
    scene.core.pass_time(2)
    scene.core.until(lambda: scene.number("prefetched_chunks") == 3)
    scene.lose(scene.keys[:3])
    assert scene.number("prefetched_wasted_chunks") == 3
    assert scene.number("prefetched_wasted_bytes") == 3 * LENGTH
    assert scene.number("prefetched_used_chunks") == 0


def test_two_reads_at_a_time_and_none_while_an_engine_reads(scene: Scene) -> None:
    scene.want(scene.keys[:4])
    scene.turns()
    assert scene.drive.begun == [short(key) for key in scene.keys[:2]]
    scene.core.lookup(Client("e"), [*scene.keys[:2], *scene.keys[2:4]])
    scene.core.until(lambda: len(scene.drive.begun) == 4)
    assert scene.drive.begun[2:] == [short(key) for key in scene.keys[2:4]], "its own, at once"
    scene.policy.wanted = [ToRead(short(scene.keys[6]), None, short(scene.keys[-1]))]
    scene.turns()
    assert len(scene.drive.begun) == 4, "whoever asks comes first"
    scene.open()
    scene.core.until(lambda: len(scene.drive.begun) == 5)
    assert scene.drive.begun[-1] == short(scene.keys[6])


def test_who_asks_joins_what_is_being_read(scene: Scene) -> None:
    scene.want(scene.keys[:2])
    scene.turns()
    client = Client("e")
    number, _ = scene.core.lookup(client, scene.keys[:2])
    scene.open()
    assert len(scene.core.ask(client, number, scene.keys[:2]).offsets) == 2
    assert scene.drive.begun == [short(key) for key in scene.keys[:2]]
    scene.core.pool.disconnected(client)


def test_only_what_the_policy_gives_leaves_for_it(scene: Scene) -> None:
    others = chain("of another dialog", SLOTS)
    scene.core.store(Client("f"), others)
    scene.core.until(lambda: len(scene.drive.records) == 8 + SLOTS)
    scene.core.settle()
    scene.drive.is_open = True
    scene.want(scene.keys[:1])
    scene.turns()
    assert scene.drive.begun == [], "there is no room"
    scene.policy.wanted.clear()
    scene.want(scene.keys[:1], victim=short(others[-1]))
    scene.core.pass_time(2)
    scene.core.until(lambda: scene.number("prefetched_chunks") == 1)
    assert scene.core.number("evictions", tier="dram", cause="space") == 1
    _, found = scene.core.lookup(Client("f"), others)
    assert found.ready == SLOTS - 1


def test_what_is_in_use_does_not_leave_for_it(scene: Scene) -> None:
    others, client = chain("of another dialog", SLOTS), Client("f")
    scene.core.store(client, others)
    scene.core.until(lambda: len(scene.drive.records) == 8 + SLOTS)
    scene.core.settle()
    number, _ = scene.core.lookup(client, others[:4])
    assert len(scene.core.ask(client, number, others[:4]).offsets) == 4  # pinned until released
    scene.want(scene.keys[:1], victim=short(others[3]))
    scene.turns()
    assert scene.drive.begun == []
    assert scene.policy.failed == [short(scene.keys[0])]
    assert scene.core.number("evictions", tier="dram", cause="space") == 0
    scene.core.pool.handle(client, Release(number, []))


def test_a_drive_that_fails_costs_nothing(scene: Scene) -> None:
    scene.want(scene.keys[:2])
    scene.turns()
    for key in scene.keys[:2]:
        del scene.drive.records[short(key)]
        scene.drive.remove(key)
    scene.open()
    scene.core.settle()
    scene.turns()
    assert set(scene.policy.failed) == {short(key) for key in scene.keys[:2]}
    assert scene.number("prefetched_chunks") == scene.number("prefetched_wasted_chunks") == 0
    assert len(scene.core.pool._dram.chunks) == 0, "the slots are free again"


def test_nothing_is_read_of_chains_that_nobody_looked_up(scene: Scene) -> None:
    strange = short(chain("nobody's", 1)[0])
    scene.policy.wanted = [
        ToRead(short(scene.keys[0]), None, strange),
        ToRead(strange, None, short(scene.keys[-1])),
    ]
    scene.turns()
    assert scene.drive.begun == []
    assert scene.policy.failed == [short(scene.keys[0]), strange]


def test_stores_are_not_read() -> None:
    scene = Scene(GatedTier)
    scene.want(scene.keys[:2])
    scene.turns()
    assert scene.drive.begun == []
    scene.open()
    scene.core.settle()
    scene.core.pool.close(60)


def test_nothing_is_read_of_a_forgotten_tenant() -> None:
    scene = Scene(tenants=(TenantSetting("a", (salt_hash("a", KEY),)),))
    core, client = scene.core, Client("e", salt_hash("a", KEY))
    keys, tenant = chain("of a", 4), core.pool._tenants.id_of("a")
    assert tenant is not None
    core.store(client, keys)
    core.lookup(client, keys)
    core.settle()
    core.pool.handle(client, Forget("a"))
    core.pass_time_until(lambda: core.pool._tenants.with_id(tenant) is None)
    core.settle()
    policy, mask = Named(), core.pool._tenants.mask(tenant)[:SHORT_KEY_BYTES]
    core.pool._dram.policies._by_tenant[tenant] = policy
    inner = [masked(short(key), mask) for key in keys]
    policy.wanted = [ToRead(key, None, inner[-1]) for key in inner]
    scene.turns()
    assert scene.drive.begun == []
    core.pool.close(60)


@pytest.mark.parametrize("prefetch", [PrefetchMode.HINTS, PrefetchMode.OFF])
def test_a_dialog_of_which_its_caller_said_when_it_returns(
    tmp_path: Path, prefetch: PrefetchMode
) -> None:
    """The default policy and a real drive: what left is back where that is set, for it alone."""
    policy = Learned([LowerTier(64 * MIB)] * (1 + len(MORE_TIERS)), prefetch)
    core = CoreHarness(8 * MIB, tmp_path, 64 * MIB, policy=policy)
    client, said, other = Client("e"), chain("said", 4), chain("not said", 4)
    for stored, keys, returns_in_s in ((4, said, 100.0), (8, other, 0.0)):
        number, _ = core.lookup(client, keys)
        core.pool.handle(client, Cancel(number))  # or what is found late is kept for it
        core.store(client, keys)
        core.pass_time_until(
            lambda stored=stored: core.number("operations", **STORED) == stored  # type: ignore[misc]
        )
        ended = AnswerEnd(
            short(keys[-1]), EndingClass.TOOL_CALL, 0, 8, 10, returns_in_s=returns_in_s
        )
        core.pool.handle(client, AnswersEnded([ended]))
    dram = core.pool._dram
    core.settle()
    for key in [*reversed(said), *reversed(other)]:
        chunk = dram.chunks.get(short(key))
        assert chunk is not None
        dram.drop(chunk)
    if prefetch is PrefetchMode.HINTS:
        core.pass_time_until(lambda: core.number("prefetched_chunks", tier="disk") == 4)
    for _ in range(20):
        core.pass_time(0.2)
        core.turn()
    core.settle()
    _, found = core.lookup(client, said)
    assert found.ready == (4 if prefetch is PrefetchMode.HINTS else 0)
    assert dram.chunks.get(short(other[0])) is None
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(60)
