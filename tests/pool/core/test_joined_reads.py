"""Reads that several requests wait for: whose chunk it is when they end, and who has gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload

from forebay.identity.keys import proof_of
from forebay.pool.core.budget import NOBODY
from forebay.pool.core.pool import Pool
from forebay.pool.messages import Ask, Cancel, Clear, Lookup, Promise, Ready
from forebay.record.region import short

SLOTS = 32
Read = Callable[[], object]


class HeldReads:
    """Reads of lower tiers that begin when they are let go."""

    def __init__(self, pool: Pool) -> None:
        self._load, self._held = pool._stack.load, list[Read]()
        setattr(pool._stack, "load", self._hold)  # noqa: B010 - until the pool ends

    def __len__(self) -> int:
        return len(self._held)

    def _hold(self, *read: Any) -> int:
        self._held.append(lambda: self._load(*read))
        return 0

    def let_go(self) -> None:
        """Begin the one that has waited longest."""
        self._held.pop(0)()


@pytest.fixture
def core(tmp_path: Path) -> Iterator[CoreHarness]:
    """A pool that has found on its drive what another has stored."""
    before = CoreHarness(SLOTS * LENGTH, tmp_path, 64 << 20)
    for name, count in (("held", 14), ("one", 3), ("two", 2), ("joined", 2), ("long", 8)):
        before.store(Client("before"), chain(name, count))
    before.pool.close(60.0)
    made = CoreHarness(SLOTS * LENGTH, tmp_path, 64 << 20)
    yield made
    made.pool.close(60.0)


def promised(client: Client) -> Promise | None:
    return next((each for each in client.inbox if isinstance(each, Promise)), None)


def test_what_one_makes_room_for_leaves_the_others_what_they_waited_for(core: CoreHarness) -> None:
    """The first that hears of a read needs a slot, and nothing else could leave for it."""
    pool, keys = core.pool, chain("joined", 2)
    for name, count in (("held", 14), ("one", 3), ("two", 2)):
        assert core.load(Client("before"), chain(name, count)) == count
    assert core.load(Client("before"), keys[:1]) == 1
    filling = Client("filling")
    core.reserve(filling, chain("filled", 11))
    reads = HeldReads(pool)
    first, second = Client("first"), Client("second")
    waits, _ = core.lookup(first, keys)
    fills, _ = core.lookup(first, chain("held", 14))
    core.ask(first, fills, chain("held", 14))
    first.inbox.clear()
    joins, _ = core.lookup(second, keys)
    pool.handle(second, Ask(joins, 1, 1, 10_000, False))
    pool.handle(first, Ask(waits, 0, 2, 10_000, False))
    assert len(reads) == 1, "both wait for the same"
    pool.handle(Client("operator"), Clear("ff" * 32))  # what is retained for asks is let go
    core.turn()
    for name, count in (("one", 3), ("two", 2)):
        core.lookup(Client(name), chain(name, count))
    core.reserve(filling, chain("more", 1))
    assert pool._dram.chunks.get(short(keys[0])) is None, "the first has to have it read"
    reads.let_go()
    core.until(lambda: promised(second) is not None)
    while len(reads):
        reads.let_go()
    core.turn()
    promise = promised(second)
    assert promise is not None
    assert promise.proof == proof_of(keys[1:])
    assert [bytes(pool.view(offset, LENGTH)) for offset in promise.offsets] == [payload(keys[1])]
    assert not pool.violations()


def test_who_has_gone_is_not_remembered_behind_a_read_that_hangs(core: CoreHarness) -> None:
    pool, client = core.pool, Client("engine")
    reads = HeldReads(pool)
    keys = b"".join(map(short, chain("joined", 2)))
    pool.handle(Client("other"), Lookup(1, NAMESPACE, 0, keys))
    for number in range(100):
        pool.handle(client, Lookup(number, NAMESPACE, 0, keys))
        pool.handle(client, Cancel(number))
    assert len(reads) == 2
    waiting = pool._loads._promotions._waiting
    assert [len(each) for each in waiting.values()] == [1, 1]
    while len(reads):
        reads.let_go()


@pytest.mark.parametrize("count", [0, 3])
def test_an_ask_for_less_is_not_charged_with_the_rest(core: CoreHarness, count: int) -> None:
    pool, client = core.pool, Client("engine")
    reads = HeldReads(pool)
    number, found = core.lookup(client, chain("long", 8))
    assert found.known == 8
    pool.handle(client, Ask(number, 0, count, 10_000, False))
    budget = pool._dram.load_budget
    assert budget.used_by("engine") == count * LENGTH
    assert budget.used_by(NOBODY) == (8 - count) * LENGTH
    while len(reads):
        reads.let_go()
    core.until(lambda: promised(client) is not None)
    assert not [each for each in client.inbox if isinstance(each, Ready)]
    assert not pool.violations()
