"""A warm start: two pools on one directory; what one uses most the other has fetched ahead."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain
from tests.encryption_harness import KEYS
from tests.gated_tier import GatedTier
from tests.remote_harness import PATIENT

from forebay.metrics.reading import tier_of
from forebay.pool.core.budget import NOBODY
from forebay.pool.core.warming.use_counts import COUNTED_MAX, PUBLISH_S
from forebay.pool.messages import Clear
from forebay.record.header import DEFAULT_TENANT, TENANT_BYTES
from forebay.record.keyring import Keyring
from forebay.record.region import short
from forebay.sys.world import World
from forebay.tiers.contract import Tier, TierListener, UsedRecord, WarmStart
from forebay.tiers.hidden_names import HiddenNamesTier
from forebay.tiers.remote.index.used import used_name
from forebay.tiers.remote.tier import RemoteTier

MIB = 1 << 20
STORED = {"tier": "remote", "direction": "store", "outcome": "ok"}
LOADED = {"tier": "remote", "direction": "load", "outcome": "ok"}
SLOTS = 8 * MIB // LENGTH
LONG_S = 100 * PUBLISH_S  # a call is not late because a test lets that time pass
FAST = 1 << 40  # bytes a second: never waited for


def opener(
    place: Path, host: str, prefetch: str, keyring: Keyring | None = None
) -> Callable[[TierListener, World], Tier]:
    url = f"file://{place}?cap=16MiB" + (f"&warm={prefetch}" if prefetch else "")
    options = replace(PATIENT, call_s=LONG_S, put_s=LONG_S, maintenance_s=LONG_S, keyring=keyring)

    def opened(listener: TierListener, world: World) -> Tier:
        begin = partial(RemoteTier.open, url, host, options, world)
        if keyring is not None:
            return HiddenNamesTier(begin, keyring.names, listener)
        return begin(listener)

    return opened


@contextmanager
def pool_on(
    place: Path, host: str, prefetch: str = "", keyring: Keyring | None = None
) -> Iterator[CoreHarness]:
    place.mkdir(mode=0o700, exist_ok=True)
    core = CoreHarness(8 * MIB, store=opener(place, host, prefetch, keyring))
    yield core
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(60)


def publish(place: Path, keyring: Keyring | None = None) -> tuple[list[bytes], list[bytes]]:
    """Let host a store two chains, one of which many ask for; the chains."""
    shared, rare = chain("what all prompts begin with", 8), chain("one dialog", 4)
    with pool_on(place, "a", keyring=keyring) as core:
        client = Client("e")
        core.store(client, shared)
        core.store(client, rare)
        core.pass_time_until(lambda: core.number("operations", **STORED) == 12)
        for _ in range(5):
            core.lookup(client, shared)
        core.lookup(client, rare)
        core.pass_time(PUBLISH_S)
        core.until((place / used_name("a")).exists)
    return shared, rare


def in_dram(core: CoreHarness) -> int:
    return int(tier_of(core.pool.stats(), "dram")["chunks"])


def test_what_one_host_uses_most_another_has_before_anybody_asks(tmp_path: Path) -> None:
    shared, rare = publish(tmp_path / "s")
    with pool_on(tmp_path / "s", "b", "64MiB:1TiB") as core:
        core.until(lambda: core.number("prefetched_chunks", tier="remote") == 8)
        assert core.number("lookups") == 0, "nobody has asked yet"
        assert core.number("prefetched_bytes") == 8 * LENGTH
        assert core.number("prefetched_used_chunks") == 0
        assert in_dram(core) == 8, "what was asked for once is not fetched"
        assert core.load(Client("f"), shared) == 8
        assert core.number("operations", **LOADED) == 8, "each was read once"
        assert core.load(Client("f"), shared) == 8
        assert core.number("prefetched_used_chunks", tier="remote") == 8
        assert core.number("prefetched_used_bytes") == 8 * LENGTH
        assert core.load(Client("f"), rare) == 4
        assert core.number("prefetched_chunks") == core.number("prefetched_used_chunks") == 8


def test_nothing_is_fetched_unless_told(tmp_path: Path) -> None:
    publish(tmp_path / "s")
    with pool_on(tmp_path / "s", "b") as core:
        for _ in range(50):
            core.turn()
        core.settle()
        assert core.number("operations", tier="remote", direction="load") == in_dram(core) == 0


def test_with_encryption_a_store_learns_no_names_and_it_works_alike(tmp_path: Path) -> None:
    keyring = Keyring(KEYS)
    shared, _ = publish(tmp_path / "s", keyring)
    told = (tmp_path / "s" / used_name("a")).read_bytes()
    assert not any(short(key) in told for key in shared)
    assert NAMESPACE not in told
    with pool_on(tmp_path / "s", "b", "64MiB:1TiB", keyring) as core:
        core.until(lambda: core.number("prefetched_chunks") == 8)
        assert core.load(Client("f"), shared) == 8
        assert core.number("prefetched_used_chunks") == 8


def test_no_more_bytes_than_told_and_heads_before_tails(tmp_path: Path) -> None:
    shared, _ = publish(tmp_path / "s")
    with pool_on(tmp_path / "s", "b", f"{3 * LENGTH + 1}:1TiB") as core:
        core.until(lambda: core.number("prefetched_chunks") == 3)
        core.until(lambda: not core.pool._prefetching.is_waiting)
        assert in_dram(core) == 3
        _, found = core.lookup(Client("f"), shared)
        assert (found.known, found.ready) == (8, 3)


def test_what_is_left_of_dram_is_used_and_nothing_leaves_for_it(tmp_path: Path) -> None:
    publish(tmp_path / "s")
    away = tmp_path / "not mounted yet"
    (tmp_path / "s").rename(away)
    core = CoreHarness(8 * MIB, store=opener(tmp_path / "s", "b", "64MiB:1TiB"))
    core.store(Client("f"), chain("of this host", SLOTS - 2))
    away.rename(tmp_path / "s")
    core.pass_time_until(lambda: core.number("prefetched_chunks") == 2)
    core.until(lambda: not core.pool._prefetching.is_waiting)
    core.settle()
    assert core.number("prefetched_chunks") == 2
    assert core.number("evictions", tier="dram") == 0
    _, found = core.lookup(Client("f"), chain("of this host", SLOTS - 2))
    assert found.ready == SLOTS - 2
    core.pool.close(60)


# What a store offers, by hand: a tier in memory that only answers when it may.


Gated = tuple[CoreHarness, GatedTier, list[bytes]]


def pool_with_a_gate(place: Path | None = None) -> Gated:
    """A pool that has lost a chain of eight chunks from DRAM; its tiers have them."""
    tiers: list[GatedTier] = []

    def opened(listener: TierListener, world: World) -> Tier:
        tiers.append(GatedTier(listener, world))
        return tiers[0]

    core, keys = CoreHarness(8 * MIB, place, 64 * MIB, store=opened), chain("in the store", 8)
    core.store(Client("e"), keys)
    core.until(lambda: len(tiers[0].records) == 8)
    for key in reversed(keys):
        chunk = core.pool._dram.chunks.get(short(key))
        assert chunk is not None
        core.until(lambda chunk=chunk: not chunk.is_busy)  # type: ignore[misc]
        core.pool._dram.drop(chunk)
    return core, tiers[0], keys


@pytest.fixture
def gated() -> Iterator[Gated]:
    core, tier, keys = pool_with_a_gate()
    yield core, tier, keys
    tier.is_open = True
    tier.answer_all()
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(60)


def offer(
    tier: GatedTier, keys: list[bytes], rate: int = FAST, tenant: bytes = DEFAULT_TENANT
) -> None:
    records = [UsedRecord(NAMESPACE, tenant, 0, short(key), 9) for key in keys]
    tier._listener.warm_start(WarmStart(records, 1 << 40, rate))


def turns(core: CoreHarness, count: int = 20) -> None:
    for _ in range(count):
        core.turn()


def test_two_reads_at_a_time_and_none_while_an_engine_reads(
    gated: Gated,
) -> None:
    core, tier, keys = gated
    offer(tier, keys[:6])
    core.until(lambda: len(tier.begun) == 2)
    turns(core)
    assert tier.begun == [short(key) for key in keys[:2]]
    number, _ = core.lookup(Client("e"), keys[6:])  # an engine's own, which begins at once
    core.until(lambda: len(tier.begun) == 4)
    fetched, tier.waiting = tier.waiting[:2], tier.waiting[2:]
    for each in fetched:
        each()
    core.until(lambda: core.number("prefetched_chunks") == 2)
    turns(core)
    assert tier.begun == [short(key) for key in [*keys[:2], *keys[6:]]], "it waits for the engine"
    tier.answer_all()
    core.until(lambda: len(tier.begun) == 6)
    assert number


def test_an_engine_joins_what_is_being_fetched(
    gated: Gated,
) -> None:
    core, tier, keys = gated
    offer(tier, keys[:1])
    core.until(lambda: len(tier.begun) == 1)
    client = Client("e")
    number, _ = core.lookup(client, keys[:1])
    turns(core)
    tier.answer_all()
    assert core.ask(client, number, keys[:1]).total == 1
    assert tier.begun == [short(keys[0])], "it is read once"
    core.until(lambda: core.number("prefetched_chunks") == 1)
    assert core.number("prefetched_used_chunks") == 1


def test_as_many_bytes_a_second_as_told(
    gated: Gated,
) -> None:
    core, tier, keys = gated
    core.pass_time(1000.0)
    offer(tier, keys, rate=LENGTH)
    for seconds in range(1, 5):
        core.until(lambda count=seconds: len(tier.begun) == count)  # type: ignore[misc]
        tier.answer_all()
        core.until(lambda count=seconds: core.number("prefetched_chunks") == count)  # type: ignore[misc]
        turns(core)
        assert len(tier.begun) == seconds
        core.pass_time(1.0)


def test_a_store_that_takes_nothing_for_now_is_not_asked_either(
    gated: Gated,
) -> None:
    """It has failed lately, or the requests of today are left to engines' loads."""
    core, tier, keys = gated
    tier.takes = False
    offer(tier, keys)
    turns(core)
    assert not tier.begun
    assert not core.pool.is_waiting, "and nobody waits for it with every tick"
    tier.takes = True
    core.until(lambda: len(tier.begun) == 2)


def test_it_waits_while_reads_that_nobody_waits_for_have_their_share_of_dram(
    gated: Gated,
) -> None:
    core, tier, keys = gated
    budget = core.pool._dram.load_budget
    budget.take(NOBODY, 2 * MIB)
    offer(tier, keys)
    turns(core)
    assert not tier.begun
    budget.give(NOBODY, 2 * MIB)
    core.until(lambda: len(tier.begun) == 2)


def test_an_operator_who_clears_ends_it(
    gated: Gated,
) -> None:
    core, tier, keys = gated
    offer(tier, keys)
    core.until(lambda: len(tier.begun) == 2)
    core.pool.handle(Client("operator"), Clear("ff" * 32))
    tier.answer_all()
    turns(core)
    assert len(tier.begun) == 2


def test_a_pool_that_closes_begins_no_read() -> None:
    core, tier, keys = pool_with_a_gate()
    tier.takes = False
    offer(tier, keys[:4])
    turns(core)
    tier.takes = tier.is_open = True
    core.pool.close(60)
    offer(tier, keys[4:])  # one that comes late
    turns(core)
    assert not tier.begun
    assert not core.pool._prefetching.is_waiting


def test_a_store_that_fails_does_not_hold_up_another(tmp_path: Path) -> None:
    core, tier, keys = pool_with_a_gate(tmp_path)
    tier.takes = False
    offer(tier, keys)
    turns(core)
    records = [UsedRecord(NAMESPACE, DEFAULT_TENANT, 0, short(key), 9) for key in keys]
    core.pool._tier_warm_start(0, WarmStart(records, 1 << 40, FAST))
    core.until(lambda: core.number("prefetched_chunks", tier="disk") == len(keys))
    assert not tier.begun
    core.pool.close(60)


def test_t35_what_nobody_may_load_is_passed_over(
    gated: Gated,
) -> None:
    """Tenants that this pool does not have, keys that are not there, and what is here already."""
    core, tier, keys = gated
    offer(tier, keys, tenant=b"t" * TENANT_BYTES)
    offer(tier, chain("of which nobody has heard", 200))
    offer(tier, [*keys[:1], *keys[:1]])
    core.until(lambda: len(tier.begun) == 1)
    tier.answer_all()
    core.until(lambda: core.number("prefetched_chunks") == 1)
    core.until(lambda: not core.pool._prefetching.is_waiting)
    assert tier.begun == [short(keys[0])]


# What is told to others.


def test_what_is_used_most_is_told_first_and_what_was_counts_half(
    gated: Gated,
) -> None:
    core, tier, keys = gated
    tier.is_open = True
    offer(tier, keys)
    core.until(lambda: core.number("prefetched_chunks") == 8)
    for _ in range(6):
        core.lookup(Client("e"), keys[:2])
    for _ in range(2):
        core.lookup(Client("e"), keys[:5])
    for _ in range(2):
        core.pass_time(PUBLISH_S)
        turns(core, 2)
    first, second = tier.told
    names = [(NAMESPACE, DEFAULT_TENANT, 0, short(key)) for key in keys]
    assert first == [
        UsedRecord(*name, uses) for name, uses in zip(names, [8, 8, 2, 2, 2], strict=False)
    ]
    assert second == [UsedRecord(*name, 4) for name in names[:2]]


def test_counts_are_bounded_and_the_least_used_leave(
    gated: Gated,
) -> None:
    core, _, keys = gated
    uses = core.pool._uses
    hot = [short(key) for key in keys]
    for _ in range(100):
        uses.asked_for(hot)
    for number in range(5):
        flood = [bytes([number]) + at.to_bytes(15, "big") for at in range(COUNTED_MAX)]
        for _ in range(1 + number % 2):
            uses.asked_for(flood)
        assert len(uses) <= COUNTED_MAX
        assert uses._uses.keys() >= {*hot}
