"""A9: an engine makes a chunk its own ancestor; nothing loops or is dropped twice."""

from tests.core_harness import LENGTH, Client, CoreHarness, chain, payload

from forebay.pool.messages import Ask, Promise, Release
from forebay.record.region import short


def test_a_chunk_that_is_its_own_ancestor_leaves_once() -> None:
    core, client = CoreHarness(16 * LENGTH), Client("e")
    parent, child = chain("circle", 2)
    core.store(client, [parent, child])
    number, _ = core.lookup(client, [parent, child])
    core.pool.handle(client, Ask(number, 1, 1, 10_000, stream=False))  # so the child stays
    assert core.receive(client, Promise).total == 1
    damaged = core.pool._dram.chunks.get(short(parent))
    assert damaged is not None
    core.pool._loads.acquisition.damaged(damaged)
    (offset,) = core.reserve(client, [parent], child)
    core.fill(offset, payload(parent))
    assert core.commit(client, [offset]) == 1
    core.pool.handle(client, Release(number, []))
    assert core.number("chunks", tier="dram") == 2
    core.pool._dram.slab.resize(0)  # less than `set` allows: both must go
    core.turn()
    assert core.number("chunks", tier="dram") == 0
    assert not core.pool.violations()
