"""DRAM goes on as a cache when the disk cannot be written, for whatever reason."""

import time
from pathlib import Path

import pytest
from tests.desk import LENGTH, Client, Desk, chain, payload

from forebay.pool.messages import Cancel, ReserveAnswer
from forebay.pool.policy.admission import LowerTier
from forebay.record.header import ROOT
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20
SLOTS = 32
STORE_S = 60.0  # a dialog of a few chunks gets its slots at once, or never


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def stores(desk: Desk, client: Client, keys: list[bytes]) -> bool:
    """Whether a whole chain is stored, or declined, before long."""
    until = time.monotonic() + STORE_S
    desk.pass_time(0.01)
    number, _ = desk.lookup(client, keys)
    desk.pool.handle(client, Cancel(number))
    parent, left = ROOT, list(keys)
    while left and time.monotonic() < until:
        offsets = []
        for key, answer in zip(list(left), desk.reserve(client, left, parent), strict=True):
            if answer == ReserveAnswer.LATER:
                break
            if answer >= 0:
                desk.fill(answer, payload(key))
                offsets.append(answer)
            parent = key
            left.pop(0)
        desk.commit(client, offsets)
        desk.turn()
    return not left


def check(desk: Desk, client: Client) -> None:
    """Newcomers replace what is there, and can be loaded."""
    for number in range(3 * SLOTS // 4):
        assert stores(desk, client, chain(f"dialog {number}", 4)), desk.pool.stats()
    kept = [desk.load(client, chain(f"dialog {number}", 4)) for number in range(3 * SLOTS // 4)]
    assert sum(kept) >= SLOTS // 2
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_while_the_budget_of_bytes_a_day_is_exhausted(place: Path) -> None:
    tier = LowerTier(64 * MIB, 24 * 8 * LENGTH)
    desk, client = Desk(SLOTS * LENGTH, place, 64 * MIB, learned=tier), Client("e")
    for depth in (4, 8, 12, 24):  # a dialog that was let in, and grows
        assert stores(desk, client, chain("first", depth))
        desk.settle()
    assert desk.number("counters", "disk.written") == 8
    check(desk, client)


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_while_every_write_fails(place: Path, fault: str) -> None:
    disk = FaultDisk()
    world = World(disk, ManualClock())
    desk = Desk(SLOTS * LENGTH, place, 64 * MIB, world, learned=LowerTier(64 * MIB))
    disk.arm(f"write:errno={fault}")
    check(desk, Client("e"))


def test_while_little_is_let_in(place: Path) -> None:
    desk = Desk(SLOTS * LENGTH, place, 64 * MIB, learned=LowerTier(64 * MIB))
    for _ in range(10):
        desk.policy.evicted(0, 64 * MIB, 0, 0.0)
    check(desk, Client("e"))
