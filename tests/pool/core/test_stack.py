"""The stack of tiers: what a tier has to ask for, what fails over, what is lost everywhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests import core_harness
from tests.core_harness import LENGTH, Client, CoreHarness, chain
from tests.disk_harness import flip, records
from tests.tiers.slow_memory import SlowMemoryTier

from forebay.pool.messages import AdminReply, Clear, Found
from forebay.record.header import HEADER_BYTES
from forebay.record.region import short
from forebay.tiers.contract import Prefix, Tier
from forebay.tiers.disk.tier import DiskTier

MIB = 1 << 20


class ForgetfulTier(SlowMemoryTier):
    """Knows nothing that it was not asked about, even of what it stored itself."""

    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        known = 0
        while known < len(keys) and short(keys[known]) in self._asked:
            known += 1
        found = super().prefix(keys[:known]).chunks
        if found < known or known == len(keys):
            return Prefix(found)
        self._jobs.put(lambda: self._learn(short(keys[known]), keys))
        return Prefix(found, is_unknown=True)


@pytest.fixture
def three_tiers(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CoreHarness]:
    """A pool with a third tier beneath a disk of 6 MiB."""

    def opened(third: Callable[..., Tier]) -> CoreHarness:
        monkeypatch.setattr(core_harness, "MORE_TIERS", [third])
        return CoreHarness(1 * MIB, place, 6 * MIB)

    return opened


def only_in_third(core: CoreHarness, client: Client, keys: list[bytes]) -> None:
    """Store a chain, and others until neither DRAM nor the disk has it."""
    disk: DiskTier = core.pool._stack._tiers[0]  # type: ignore[assignment]
    core.store(client, keys)
    core.settle()
    number = 0
    while any(map(disk.has, keys)) or core.pool._dram.chunks.get(short(keys[0])) is not None:
        core.store(client, chain(f"filler {number}", 4))
        core.settle()
        number += 1


def test_what_a_tier_has_to_ask_for_is_found_when_it_knows(
    three_tiers: Callable[..., CoreHarness],
) -> None:
    core, client, keys = three_tiers(ForgetfulTier), Client("e"), chain("asked", 6)
    only_in_third(core, client, keys)
    number, found = core.lookup(client, keys)
    assert (found.known, found.ready) == (0, 0), "it does not wait for the answer"

    def known() -> list[int]:
        return [message.known for message in client.inbox if isinstance(message, Found)]

    core.until(lambda: len(keys) in known())
    assert known() == sorted(known())
    assert core.ask(client, number, keys).total == len(keys)
    core.pool.disconnected(client)
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_record_that_the_nearest_tier_cannot_give_comes_from_the_next(
    three_tiers: Callable[..., CoreHarness], place: Path
) -> None:
    core, client, keys = three_tiers(SlowMemoryTier), Client("e"), chain("twice", 4)
    core.store(client, keys)
    core.settle()
    disk, third = core.pool._stack._tiers
    assert all(disk.has(key) and third.has(key) for key in keys)
    while core.pool._dram.chunks.get(short(keys[0])) is not None:
        core.store(client, chain(f"filler {core.number('chunks', tier='disk')}", 4))
        core.settle()
    assert all(disk.has(key) for key in keys)
    for path, offset in records(place):
        flip(path, (offset + HEADER_BYTES) * 8)
    assert core.load(client, keys) == len(keys)
    assert core.number("operations", tier="slow_memory", direction="load", outcome="ok") == len(
        keys
    )
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_what_was_cleared_while_it_was_filled_is_found_nowhere(
    three_tiers: Callable[..., CoreHarness],
) -> None:
    core, client, keys = three_tiers(SlowMemoryTier), Client("e"), chain("cleared", 4)
    offsets = core.reserve(client, keys)
    core.pool.handle(client, Clear(None))
    assert core.receive(client, AdminReply).ok
    assert core.commit(client, offsets) == 0
    core.settle()
    assert core.lookup(client, keys)[1].known == 0
    assert core.number("chunks", tier="disk") == core.number("chunks", tier="slow_memory") == 0
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_chunk_says_which_tiers_have_it(three_tiers: Callable[..., CoreHarness]) -> None:
    core, client, keys = three_tiers(SlowMemoryTier), Client("e"), chain("set", 4)
    core.store(client, keys)
    core.settle()
    chunks = [core.pool._dram.chunks.get(short(key)) for key in keys]
    assert [chunk.tiers for chunk in chunks if chunk is not None] == [{0, 1}] * 4
    core.pool._stack._tiers[1].remove(keys[2])
    core.until(lambda: chunks[2] is not None and chunks[2].tiers == {0})
    assert [chunk.tiers for chunk in chunks if chunk is not None] == [{0, 1}] * 2 + [{0}] * 2
    assert core.number("chunks", tier="slow_memory") == 2
    assert core.number("used_bytes", tier="dram") == 4 * LENGTH
    core.pool.close(300)
