"""A stream needs more than the room for loads: when it is promised, and what may go wrong then."""

from pathlib import Path

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain

from forebay.pool.messages import Ask, Promise, Ready, Release
from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


class Struck:
    """A pool whose drive is struck once a chain lies there, and some of it in DRAM too.

    Loads may have 64 slots.
    """

    def __init__(self, place: Path, count: int, fault: str, near: int = 0) -> None:
        self.disk, self.clock, self.client = FaultDisk(), ManualClock(), Client("e")
        self.core = CoreHarness(8 * MIB, place, 64 * MIB, World(self.disk, self.clock))
        self.keys = chain("a", count)
        self.core.store(self.client, self.keys)
        self.core.settle()  # all of it is on disk, so all of it can leave DRAM
        self.core.store(self.client, chain("other", 128))
        self.core.settle()
        if near:
            assert self.core.load(self.client, self.keys[:near]) == near
        self.disk.arm(fault)
        self.number, found = self.core.lookup(self.client, self.keys)
        assert (found.known, found.ready) == (count, near)
        self.core.pool.handle(self.client, Ask(self.number, 0, count, 2_000, stream=True))

    @property
    def promises(self) -> list[Promise]:
        return [each for each in self.client.inbox if isinstance(each, Promise)]

    def end(self) -> None:
        self.disk.disarm()
        self.core.pool.disconnected(self.client)
        self.core.settle()
        assert self.core.pool.violations() == []
        self.core.pool.close(300)


def test_a_stream_is_promised_before_the_drive_has_to_pause(place: Path) -> None:
    struck = Struck(place, 100, "read:hang@40+")
    promise = struck.core.receive(struck.client, Promise)
    assert promise.total == 100
    assert 32 <= len(promise.offsets) < 40, "half of what a load may have"
    assert struck.core.pool._loads.reads_in_flight, "and what follows is being read"
    struck.disk.disarm()
    came = list(range(len(promise.offsets)))
    while len(came) < 100:
        struck.core.pool.handle(struck.client, Release(struck.number, came[-1:]))
        came.append(struck.core.receive(struck.client, Ready).chunk)
    assert sorted(came) == list(range(100)), "each once"
    assert struck.core.number("operations", tier="disk", direction="load", outcome="ok") == 100, (
        "and read once"
    )
    struck.end()


def test_a_stream_that_has_room_is_promised_when_it_is_here(place: Path) -> None:
    struck = Struck(place, 60, "read:latency=5ms")
    assert len(struck.core.receive(struck.client, Promise).offsets) == 60
    struck.end()


def test_a_drive_that_leaves_a_hole_is_not_relied_upon(place: Path) -> None:
    struck = Struck(place, 100, "read:hang@2")
    loads = {"tier": "disk", "direction": "load", "outcome": "ok"}
    struck.core.until(lambda: struck.core.number("operations", **loads) == 63)
    assert not struck.promises
    struck.clock.advance(2.1)
    promise = struck.core.receive(struck.client, Promise)
    assert promise.total == len(promise.offsets) < 8
    assert struck.core.number("promises_cut") == 1
    struck.end()


def test_what_lay_in_dram_says_nothing_about_a_drive(place: Path) -> None:
    struck = Struck(place, 100, "read:hang", near=36)
    struck.core.turn()
    assert not struck.promises
    struck.clock.advance(2.1)
    promise = struck.core.receive(struck.client, Promise)
    assert promise.total == len(promise.offsets) == 36
    struck.end()


def test_a_drive_that_takes_its_time_has_to_fill_all_of_the_room(place: Path) -> None:
    struck = Struck(place, 100, "read:latency=10ms")
    struck.clock.advance(1.1)
    promise = struck.core.receive(struck.client, Promise)
    assert (len(promise.offsets), promise.total) == (64, 100)
    struck.end()


def test_what_an_engine_has_itself_needs_no_room(place: Path) -> None:
    client, keys = Client("e"), chain("long", 100)
    other, held = Client("e"), chain("held", 10)
    core = CoreHarness(8 * MIB, place, 64 * MIB)
    for each in (keys, chain("other", 118), held):
        core.store(client, each)
        core.settle()  # no slot is busy for being written
    holds, _ = core.lookup(other, held)
    assert len(core.ask(other, holds, held).offsets) == 10
    number, _ = core.lookup(client, keys)
    core.pool.handle(client, Ask(number, 40, 60, 10_000, stream=True))
    core.until(lambda: core.number("pinned_bytes") == 64 * LENGTH)
    core.until(lambda: not core.pool._loads.reads_in_flight)
    assert not [each for each in client.inbox if isinstance(each, Promise)], "it fits, but for ten"
    core.pool.handle(other, Release(holds, []))
    assert len(core.receive(client, Promise).offsets) == 60
    core.pool.disconnected(client)
    core.pool.close(300)


@pytest.mark.parametrize("rotten", [30, 50])
def test_t6_a_rotten_slot_is_found_by_verify_dram_in_a_stream(place: Path, rotten: int) -> None:
    core = CoreHarness(8 * MIB, place, 64 * MIB, verify_dram=True)
    client, keys = Client("e"), chain("long", 100)
    core.store(client, keys)
    core.settle()
    number, _ = core.lookup(client, keys)
    chunk = core.pool._dram.chunks.get(short(keys[rotten]))
    assert chunk is not None
    core.pool.view(chunk.offset, 1)[0] ^= 1
    promise = core.ask(client, number, keys, stream=True)
    assert len(promise.offsets) <= rotten
    core.until(lambda: core.pool._dram.chunks.get(short(keys[rotten])) is not chunk)
    came = [each.chunk for each in client.inbox if isinstance(each, Ready) and each.length]
    assert rotten not in came
    core.pool.disconnected(client)
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)
