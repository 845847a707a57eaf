"""T37, as far as eviction goes: one tenant's flood leaves another's floor alone."""

from collections.abc import Iterator

import pytest
from tests.desk import LENGTH, Client, Desk, chain, payload

from forebay.pool.messages import Reserve, Reserved, Run
from forebay.pool.policy.learned import Learned
from forebay.pool.policy.tenants import NOBODY, Floor, Tenants
from forebay.record.header import ROOT

MIB = 1 << 20
QUIET, LOUD = b"q" * 32, b"l" * 32
FLOORS = (Floor(QUIET[:8], 16 * LENGTH),)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(4 * MIB, policy=Learned(floors=Tenants(FLOORS).floors), floors=FLOORS)
    yield desk
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def store(desk: Desk, namespace: bytes, name: str, length: int = LENGTH) -> int:
    """Store a dialog of four chunks as far as there is room; how many chunks found a slot."""
    client, keys = Client("e"), chain(name, 4)
    desk.lookup(client, keys, namespace)
    run = Run(namespace, 0, ROOT, b"".join(keys), length)
    assert not list(desk.pool.handle(client, Reserve(1, [run])) or [])  # so few at once
    slots = [answer for answer in desk.receive(client, Reserved).answers if answer >= 0]
    for key, offset in zip(keys, slots, strict=False):
        desk.fill(offset, payload(key, length))
    desk.commit(client, slots)
    desk.settle()
    return len(slots)


def kept(desk: Desk, dialogs: int) -> int:
    client = Client("e")
    return sum(
        desk.lookup(client, chain(f"quiet {number}", 4), QUIET)[1].ready
        for number in range(dialogs)
    )


def test_a_flood_takes_what_is_above_the_floor_and_no_more(desk: Desk) -> None:
    for number in range(8):
        assert store(desk, QUIET, f"quiet {number}") == 4
    taken = sum(store(desk, LOUD, f"loud {number}") for number in range(60))
    assert taken >= 48, "the rest of DRAM is theirs"
    assert kept(desk, 8) == 16


def test_a_floor_is_kept_by_those_who_want_slots_of_another_size(desk: Desk) -> None:
    for number in range(16):
        assert store(desk, QUIET, f"quiet {number}") == 4, "all of DRAM"
    taken = sum(store(desk, LOUD, f"loud {number}", 2 * LENGTH) for number in range(60))
    assert taken > 0
    assert kept(desk, 16) >= 16


def test_the_first_floor_that_fits_counts() -> None:
    tenants = Tenants([Floor(b"ab", 1), Floor(b"a", 2), Floor(b"", 3)])
    assert [tenants.number_of(name) for name in (b"abc", b"ax", b"x", b"abc")] == [1, 2, 3, 1]
    assert tenants.floors == {1: 1, 2: 2, 3: 3}
    assert Tenants().number_of(b"x") == NOBODY
