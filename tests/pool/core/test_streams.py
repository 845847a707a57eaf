"""A stream needs more than the room for loads: when it is promised, and what may go wrong then."""

from pathlib import Path

import pytest
from tests.desk import LENGTH, Client, Desk, Watch, chain

from forebay.pool.messages import Ask, Promise, Ready, Release
from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_stream_is_promised_before_the_drive_has_to_pause(place: Path) -> None:
    keys, client, disk = chain("long", 100), Client("e"), FaultDisk()
    desk = Desk(8 * MIB, place, 64 * MIB, World(disk))
    desk.store(client, keys)
    desk.store(client, chain("other", 128))
    disk.arm("read:latency=20ms")
    number, found = desk.lookup(client, keys)
    assert (found.known, found.ready) == (100, 0)
    promise = desk.ask(client, number, keys, stream=True)
    assert promise.total == 100
    assert 32 <= len(promise.offsets) < 64, "half of what a load may have"
    assert desk.pool._loads.loading, "and what follows is being read"
    came = list(range(len(promise.offsets)))
    while len(came) < 100:
        desk.pool.handle(client, Release(number, came[-1:]))
        came.append(desk.receive(client, Ready).chunk)
    assert sorted(came) == list(range(100)), "each once"
    assert desk.number("counters", "disk.loaded") == 100, "and read once"
    desk.pool.left(client)
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_a_stream_that_has_room_is_promised_when_it_is_here(place: Path) -> None:
    keys, client, disk = chain("short", 60), Client("e"), FaultDisk()
    desk = Desk(8 * MIB, place, 64 * MIB, World(disk))
    desk.store(client, keys)
    desk.store(client, chain("other", 128))
    disk.arm("read:latency=5ms")
    number, _ = desk.lookup(client, keys)
    assert len(desk.ask(client, number, keys, stream=True).offsets) == 60
    desk.pool.close(5)


def asked_for_100(place: Path, fault: str, watch: Watch, near: int = 0) -> tuple[Desk, Client]:
    """A desk whose drive is then struck; of 100 chunks so many lie in DRAM, a load may have 64."""
    keys, client, disk = chain("long", 100), Client("e"), FaultDisk()
    desk = Desk(8 * MIB, place, 64 * MIB, World(disk, watch))
    desk.store(client, keys)
    desk.store(client, chain("other", 128))
    desk.settle()
    if near:
        assert desk.load(client, keys[:near]) == near
    disk.arm(fault)
    number, found = desk.lookup(client, keys)
    assert (found.known, found.ready) == (100, near)
    desk.pool.handle(client, Ask(number, 0, 100, 2_000, stream=True))
    return desk, client


def test_a_drive_that_leaves_a_hole_is_not_relied_upon(place: Path) -> None:
    watch = Watch()
    desk, client = asked_for_100(place, "read:hang@2", watch)
    desk.until(lambda: desk.pool._counters["disk.loaded"] == 63)
    assert not [each for each in client.inbox if isinstance(each, Promise)]
    watch.ahead_s += 2.1
    promise = desk.receive(client, Promise)
    assert promise.total == len(promise.offsets) < 8
    assert desk.number("counters", "promises.cut_by_deadline") == 1
    desk.pool.left(client)
    desk.pool.close(0.1)


def test_what_lay_in_dram_says_nothing_about_a_drive(place: Path) -> None:
    watch = Watch()
    desk, client = asked_for_100(place, "read:hang", watch, near=36)
    desk.turn()
    assert not [each for each in client.inbox if isinstance(each, Promise)]
    watch.ahead_s += 2.1
    promise = desk.receive(client, Promise)
    assert promise.total == len(promise.offsets) == 36
    desk.pool.left(client)
    desk.pool.close(0.1)


def test_a_drive_that_takes_its_time_has_to_fill_all_of_the_room(place: Path) -> None:
    watch = Watch()
    desk, client = asked_for_100(place, "read:latency=10ms", watch)
    watch.ahead_s += 1.1
    promise = desk.receive(client, Promise)
    assert (len(promise.offsets), promise.total) == (64, 100)
    desk.pool.left(client)
    desk.pool.close(5)


def test_what_an_engine_has_itself_needs_no_room(place: Path) -> None:
    keys, client, disk = chain("long", 100), Client("e"), FaultDisk()
    other, held = Client("f"), chain("held", 10)
    desk = Desk(8 * MIB, place, 64 * MIB, World(disk))
    for each in (keys, chain("other", 118), held):
        desk.store(client, each)
    holds, _ = desk.lookup(other, held)
    assert len(desk.ask(other, holds, held).offsets) == 10
    number, _ = desk.lookup(client, keys)
    desk.pool.handle(client, Ask(number, 40, 60, 10_000, stream=True))
    desk.until(lambda: desk.number("dram", "pinned_bytes") == 64 * LENGTH)
    desk.until(lambda: not desk.pool._loads.loading)
    assert not [each for each in client.inbox if isinstance(each, Promise)], "it fits, but for ten"
    desk.pool.handle(other, Release(holds, []))
    assert len(desk.receive(client, Promise).offsets) == 60
    desk.pool.left(client)
    desk.pool.close(5)


@pytest.mark.parametrize("rotten", [30, 50])
def test_t6_a_rotten_slot_is_found_by_verify_dram_in_a_stream(place: Path, rotten: int) -> None:
    desk = Desk(8 * MIB, place, 64 * MIB, verify_dram=True)
    client, keys = Client("e"), chain("long", 100)
    desk.store(client, keys)
    desk.settle()
    number, _ = desk.lookup(client, keys)
    chunk = desk.pool._room.chunks.get(short(keys[rotten]))
    assert chunk is not None
    desk.pool.view(chunk.offset, 1)[0] ^= 1
    promise = desk.ask(client, number, keys, stream=True)
    assert len(promise.offsets) <= rotten
    desk.until(lambda: desk.pool._room.chunks.get(short(keys[rotten])) is not chunk)
    came = [each.chunk for each in client.inbox if isinstance(each, Ready) and each.length]
    assert rotten not in came
    desk.pool.left(client)
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)
