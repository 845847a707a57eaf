"""DRAM goes on as a cache when the disk cannot be written, for whatever reason."""

import time
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain, payload

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


def stores(core: CoreHarness, client: Client, keys: list[bytes]) -> bool:
    """Whether a whole chain is stored, or declined, before long."""
    until = time.monotonic() + STORE_S
    core.pass_time(0.01)
    number, _ = core.lookup(client, keys)
    core.pool.handle(client, Cancel(number))
    parent, left = ROOT, list(keys)
    while left and time.monotonic() < until:
        offsets = []
        for key, answer in zip(list(left), core.reserve(client, left, parent), strict=True):
            if answer == ReserveAnswer.LATER:
                break
            if answer >= 0:
                core.fill(answer, payload(key))
                offsets.append(answer)
            parent = key
            left.pop(0)
        core.commit(client, offsets)
        core.turn()
    return not left


def check(core: CoreHarness, client: Client) -> None:
    """Newcomers replace what is there, and can be loaded."""
    for number in range(3 * SLOTS // 4):
        assert stores(core, client, chain(f"dialog {number}", 4)), core.pool.stats()
    kept = [core.load(client, chain(f"dialog {number}", 4)) for number in range(3 * SLOTS // 4)]
    assert sum(kept) >= SLOTS // 2
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_while_the_budget_of_bytes_a_day_is_exhausted(place: Path) -> None:
    tier = LowerTier(64 * MIB, 24 * 8 * LENGTH)
    core, client = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, learned=tier), Client("e")
    core.turn()
    core.pass_time(7200.0)  # in which the budget fills
    for depth in (4, 8, 12, 24):  # a dialog that was let in, and grows
        assert stores(core, client, chain("first", depth))
        core.settle()
    assert core.number("operations", tier="disk", direction="store", outcome="ok") == 8
    check(core, client)


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_while_every_write_fails(place: Path, fault: str) -> None:
    disk = FaultDisk()
    world = World(disk, ManualClock())
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, world, learned=LowerTier(64 * MIB))
    disk.arm(f"write:errno={fault}")
    check(core, Client("e"))


def test_while_little_is_let_in(place: Path) -> None:
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, learned=LowerTier(64 * MIB))
    for _ in range(10):
        core.policy.evicted(0, 64 * MIB, 0, 0.0)
    check(core, Client("e"))
