"""F3: nothing holds up others' loads: shares, turns, deadlines, and tiers that hang."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain, payload

from forebay.pool.core.loading.acquisition import PATIENCE_S
from forebay.pool.core.loading.request import KEYS_FOLLOWED
from forebay.pool.messages import Ask, Cancel, Promise, Release
from forebay.record.header import ROOT
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20
SLOTS = 32  # of 64 KiB; half of them are the load budget of an engine that is alone
READ_S = 60.0


class Hanging:
    """A drive with the chains "long" and "other" that does not answer, beneath DRAM with "here"."""

    def __init__(self, place: Path) -> None:
        place.chmod(0o700)
        core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
        for name, count in (("long", 24), ("other", 4)):
            core.store(Client("e"), chain(name, count))
        core.pool.close(300)
        self.disk = FaultDisk()
        self.core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, World(self.disk, ManualClock()))
        self.core.store(Client("e"), chain("here", 4))
        self.core.settle()
        self.disk.arm("read:hang")

    def ask(self, client: Client, name: str, count: int, deadline_ms: int = 10_000) -> int:
        number, _ = self.core.lookup(client, chain(name, count))
        self.core.pool.handle(client, Ask(number, 0, count, deadline_ms, stream=False))
        return number


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    pool = Hanging(tmp_path)
    yield pool
    pool.disk.disarm()
    pool.core.settle()
    assert pool.core.pool.violations() == []
    pool.core.pool.close(300)


def promised(client: Client) -> list[int]:
    """How many chunks came with each promise until now."""
    return [len(each.offsets) for each in client.inbox if isinstance(each, Promise)]


def test_t57_what_dram_has_overtakes_what_waits_for_a_drive(hanging: Hanging) -> None:
    slow, quick = Client("slow"), Client("quick")
    hanging.ask(slow, "long", 24)
    hanging.ask(quick, "here", 4)
    assert promised(quick) == [4]
    assert promised(slow) == []


def test_an_engine_overtakes_itself_where_that_takes_no_room(hanging: Hanging) -> None:
    client = Client("e")
    hanging.ask(client, "here", 4)
    hanging.ask(client, "long", 24)
    assert promised(client) == [4]
    hanging.ask(client, "here", 4)
    assert promised(client) == [4, 4]


def test_t57_a_deadline_is_not_later_than_a_pool_waits(hanging: Hanging) -> None:
    client = Client("e")
    hanging.ask(client, "long", 4, deadline_ms=1 << 62)
    hanging.core.pass_time(READ_S + 1)
    hanging.core.turn()
    assert promised(client) == [0]


@pytest.mark.parametrize("end", ["deadline", "cancel", "disconnect"])
def test_t57_reads_that_nobody_waits_for_leave_an_engine_its_share(
    hanging: Hanging, end: str
) -> None:
    client = Client("e")
    number = hanging.ask(client, "long", 24, deadline_ms=100)
    assert hanging.core.number("pinned_bytes") == 16 * LENGTH
    if end == "deadline":
        hanging.core.pass_time(0.2)
        hanging.core.turn()
        assert promised(client) == [0]
    elif end == "cancel":
        hanging.core.pool.handle(client, Cancel(number))
    else:
        hanging.core.pool.disconnected(client)
    again = Client("e")
    here = hanging.ask(again, "here", 4)
    assert promised(again) == [4]
    hanging.core.pool.handle(again, Release(here, []))
    hanging.ask(again, "other", 4)
    assert hanging.core.pool._loads.reads_in_flight == 16, "no more are begun"


def test_t57_engines_that_wait_for_one_another_are_promised_their_shares() -> None:
    core = CoreHarness(SLOTS * LENGTH)
    names = ("a", "b", "c")
    for name in names:
        core.store(Client(name), chain(name, 10))
    holder, clients = Client("h"), [Client(name) for name in names]
    core.store(holder, chain("h", 2))
    for client in clients:
        number, _ = core.lookup(client, chain(client.engine, 10))
        core.pool.handle(client, Ask(number, 0, 10, 10_000, stream=False))
    first, *others = [promised(client) for client in clients]
    assert first == [10]
    assert others == [[], []], "they wait a little for what it holds beyond its share"
    core.pass_time(PATIENCE_S)
    core.turn()
    core.pass_time(PATIENCE_S)
    core.turn()
    assert [promised(client)[0] for client in clients] == [10, 8, 2]
    core.pool.close(300)


def test_released_room_goes_to_whoever_waits_for_it() -> None:
    core = CoreHarness(SLOTS * LENGTH)
    for name in ("a", "b"):
        core.store(Client(name), chain(name, 14))
    first, second = Client("a"), Client("b")
    number, _ = core.lookup(first, chain("a", 14))
    core.ask(first, number, chain("a", 14))
    other, _ = core.lookup(second, chain("b", 14))
    core.pool.handle(second, Ask(other, 0, 14, 10_000, stream=False))
    assert promised(second) == []
    core.pool.handle(first, Release(number, []))
    assert promised(second) == [14]
    core.pool.close(300)


def test_t57_writes_to_a_hung_tier_pin_an_eighth_of_dram(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    disk = FaultDisk()
    core = CoreHarness(16 * LENGTH, tmp_path, 64 * MIB, World(disk, ManualClock()))
    hang = disk.arm("write:hang")
    client = Client("e")
    for number in range(12):
        keys = chain(str(number), 1)
        (offset,) = core.reserve(client, keys)
        core.commit(client, [offset])
    core.pass_time(3600.0)
    core.turn()
    assert core.pool._write_behind.nearest_in_flight == 3, (
        "the last begins while an eighth is not exceeded"
    )
    hang.disarm()
    core.settle()
    core.pool.close(300)


def test_records_that_no_slot_can_hold_are_absent(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    large, client = chain("large", 2), Client("e")
    core = CoreHarness(64 * MIB, tmp_path, 64 * MIB)
    offsets = core.reserve(client, large, length=MIB)
    for offset, key in zip(offsets, large, strict=True):
        core.fill(offset, payload(key, MIB))
    assert core.commit(client, offsets) == 2
    core.pool.close(300)
    core = CoreHarness(SLOTS * LENGTH, tmp_path, 64 * MIB)
    assert core.number("chunks", tier="disk") == 2
    assert core.lookup(client, large)[1].known == 0
    core.pool.close(300)


def test_t57_more_keys_than_an_engine_may_have_looked_up_are_not_followed() -> None:
    core, keys = CoreHarness(1000 * 4096 * 2), chain("short", 1000)
    client, other = Client("e"), Client("f")
    for start in range(0, 1000, 500):
        parent = keys[start - 1] if start else ROOT
        offsets = core.reserve(client, keys[start : start + 500], parent, length=4096)
        core.commit(client, offsets)
    for _ in range(KEYS_FOLLOWED // 1000):
        core.lookup(client, keys)
    assert not core.number("lookups_not_followed")
    number, found = core.lookup(client, keys)
    assert found.known == 1000
    assert core.number("lookups_not_followed") == 1
    assert core.ask(client, number, keys[:0]).total == 0, "not followed"
    number, _ = core.lookup(other, keys)
    core.pool.handle(other, Ask(number, 0, 1, 10_000, stream=False))
    assert promised(other) == [1], "another has its share"
    core.pool.disconnected(client)
    core.pool.disconnected(other)
    core.pool.close(300)
