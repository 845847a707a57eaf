"""T37, as far as eviction goes: one tenant's flood leaves another's floor alone."""

from collections.abc import Iterator

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain, payload

from forebay.pool.messages import Reserve, Reserved, Run
from forebay.pool.policy.learned import Learned
from forebay.pool.policy.tenants import NOBODY, Floor, Tenants
from forebay.record.header import ROOT

MIB = 1 << 20
QUIET, LOUD = b"q" * 32, b"l" * 32
FLOORS = (Floor(QUIET[:8], 16 * LENGTH),)


@pytest.fixture
def core() -> Iterator[CoreHarness]:
    core = CoreHarness(4 * MIB, policy=Learned(floors=Tenants(FLOORS).floors), floors=FLOORS)
    yield core
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(5)


def store(core: CoreHarness, namespace: bytes, name: str, length: int = LENGTH) -> int:
    """Store a dialog of four chunks as far as there is room; how many chunks found a slot."""
    client, keys = Client("e"), chain(name, 4)
    core.lookup(client, keys, namespace)
    run = Run(namespace, 0, ROOT, b"".join(keys), length)
    assert not list(core.pool.handle(client, Reserve(1, [run])) or [])  # so few at once
    slots = [answer for answer in core.receive(client, Reserved).answers if answer >= 0]
    for key, offset in zip(keys, slots, strict=False):
        core.fill(offset, payload(key, length))
    core.commit(client, slots)
    core.settle()
    return len(slots)


def kept(core: CoreHarness, dialogs: int) -> int:
    client = Client("e")
    return sum(
        core.lookup(client, chain(f"quiet {number}", 4), QUIET)[1].ready
        for number in range(dialogs)
    )


def test_a_flood_takes_what_is_above_the_floor_and_no_more(core: CoreHarness) -> None:
    for number in range(8):
        assert store(core, QUIET, f"quiet {number}") == 4
    taken = sum(store(core, LOUD, f"loud {number}") for number in range(60))
    assert taken >= 48, "the rest of DRAM is theirs"
    assert kept(core, 8) == 16


def test_a_floor_is_kept_by_those_who_want_slots_of_another_size(core: CoreHarness) -> None:
    for number in range(16):
        assert store(core, QUIET, f"quiet {number}") == 4, "all of DRAM"
    taken = sum(store(core, LOUD, f"loud {number}", 2 * LENGTH) for number in range(60))
    assert taken > 0
    assert kept(core, 16) >= 16


def test_the_first_floor_that_fits_counts() -> None:
    tenants = Tenants([Floor(b"ab", 1), Floor(b"a", 2), Floor(b"", 3)])
    assert [tenants.number_of(name) for name in (b"abc", b"ax", b"x", b"abc")] == [1, 2, 3, 1]
    assert tenants.floors == {1: 1, 2: 2, 3: 3}
    assert Tenants().number_of(b"x") == NOBODY
