"""The pool's core with a drive, driven directly: small DRAM, restarts, caps, damage."""

import itertools
from pathlib import Path

import pytest
from tests.core_harness import Client, CoreHarness, chain, payload
from tests.pool_process import NO_NAMESPACES

from forebay.pool.messages import (
    AdminReply,
    Ask,
    Clear,
    Promise,
    Ready,
    Release,
    ReserveAnswer,
    Resize,
)
from forebay.record.header import ROOT
from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_everything_goes_through_a_small_dram(place: Path) -> None:
    core = CoreHarness(1 * MIB, place, 64 * MIB)
    client = Client("e")
    chains = [chain(str(number), 40) for number in range(5)]  # each 2.5 times the slab
    for keys in chains:
        core.store(client, keys)
    for keys in chains:
        assert core.load(client, keys, stream=True) == 40
    assert core.load(client, chains[0]) == 8, "without streaming: what the budget holds"
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_restart_is_warm(place: Path) -> None:
    keys = chain("a", 30)
    for stored in (False, True):
        core = CoreHarness(4 * MIB, place, 64 * MIB)
        if not stored:
            core.store(Client("e"), keys)
        assert core.load(Client("e"), keys) == 30
        core.pool.close(300)


def test_many_requests_join_one_read(place: Path) -> None:
    keys = chain("a", 16)
    core = CoreHarness(4 * MIB, place, 64 * MIB)
    core.store(Client("e"), keys)
    core.pool.close(300)
    core = CoreHarness(4 * MIB, place, 64 * MIB)
    clients = [Client(str(number)) for number in range(6)]
    numbers = [core.lookup(client, keys)[0] for client in clients]
    for client, number in zip(clients, numbers, strict=True):
        assert core.ask(client, number, keys).total == 16
    assert core.number("operations", tier="disk", direction="load", outcome="ok") == 16
    for client in clients:
        core.pool.disconnected(client)
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_requests_that_want_more_than_there_is_are_served_in_turn(place: Path) -> None:
    """Each fits by itself; were room given to all at once, all would wait for one another."""
    core = CoreHarness(1 * MIB, place, 64 * MIB)
    client = Client("a")
    dialogs = [chain(f"dialog {number}", 6) for number in range(5)]
    for keys in dialogs:
        core.store(client, keys)
    core.settle()
    numbers = [core.lookup(client, keys)[0] for keys in dialogs]
    for number in numbers:
        core.pool.handle(client, Ask(number, 0, 6, 3_600_000, stream=True))
    for _ in dialogs:
        promise = core.receive(client, Promise)
        assert len(promise.offsets) == promise.total == 6
        core.pool.handle(client, Release(promise.request, []))
    assert not core.pool.violations()
    core.pool.close(300)


def test_a_full_disk_never_leaves_a_hole(place: Path) -> None:
    core = CoreHarness(1 * MIB, place, 6 * MIB)
    client = Client("e")
    chains = [chain(str(number), 20) for number in range(12)]  # 15 MiB
    for keys in chains:
        core.store(client, keys)
    core.settle()
    core.turn()
    found = 0
    for keys in chains:
        known = core.lookup(client, keys)[1].known
        core.pool.disconnected(client)
        assert core.load(client, keys, stream=True) == known
        core.settle()  # what came from a further tier may go to the disk, and drive others out
        found += known
    assert found > 40
    assert core.pool.violations() == []
    core.pool.close(300)


def test_what_continues_a_head_in_dram_outlives_the_heads_record(place: Path) -> None:
    core = CoreHarness(1 * MIB, place, 6 * MIB)
    client, other, fillers = Client("e"), Client("f"), itertools.count()
    keys = chain("shared", 2)
    disk, *lower = core.pool._stack._tiers

    def flood() -> None:
        core.store(other, chain(f"filler {next(fillers)}", 4))
        core.settle()

    core.store(client, keys[:1])
    number, _ = core.lookup(client, keys[:1])
    core.ask(client, number, keys[:1])  # in use: DRAM keeps the head
    for _ in range(6):
        flood()
    core.store(client, keys)
    while disk.has(keys[0]):
        flood()
    assert disk.has(keys[1]), "its own record is younger"
    assert core.lookup(other, keys)[1].known == 2
    core.pool.disconnected(other)
    core.settle()
    core.pool.handle(client, Release(number, []))
    while core.pool._dram.chunks.get(short(keys[0])) is not None:
        flood()
    core.settle()
    if not any(tier.has(keys[0]) for tier in lower):
        assert core.lookup(other, keys)[1].known == 0
        assert not disk.has(keys[1]), "nobody has what is before it"
    assert core.pool.violations() == []
    core.pool.close(300)


def test_caps_change_while_it_runs(place: Path) -> None:
    core = CoreHarness(4 * MIB, place, 64 * MIB)
    client = Client("e")
    for number in range(8):
        core.store(client, chain(str(number), 30))
    core.settle()
    core.pool.handle(client, Resize(1 * MIB, [(str(place), 6 * MIB)]))
    assert core.receive(client, AdminReply).ok
    core.until(lambda: core.allocated_bytes() <= MIB)
    assert core.number("used_bytes", tier="disk") <= 6 * MIB
    core.pool.handle(client, Resize(-1, [("/nowhere", MIB)]))
    assert not core.receive(client, AdminReply).ok
    core.pool.handle(client, Resize(4096, []))
    assert not core.receive(client, AdminReply).ok, "a cap of less than an arena would be none"
    for _ in range(2):
        core.pool.handle(client, Resize(6 * MIB, []))
    answers = [core.receive(client, AdminReply).ok for _ in range(2)]
    assert answers == [False, True], "while it is being raised, it is not raised again"
    assert core.allocated_bytes() == core.number("cap_bytes", tier="dram") == 6 * MIB
    core.pool.close(300)


@pytest.mark.parametrize("namespace", [None, "6e6e6e6e", "6E6e6e6e6"])
def test_clearing_deletes_for_good(place: Path, namespace: str | None) -> None:
    """F7: what is no namespace clears nothing, and the answer says what was removed."""
    keys = chain("a", 30)
    core = CoreHarness(4 * MIB, place, 64 * MIB)
    client = Client("e")
    core.store(client, keys)
    core.settle()
    for wrong in (*NO_NAMESPACES, "00" * 32):
        core.pool.handle(client, Clear(wrong))
        done = core.receive(client, AdminReply)
        assert done.ok == (wrong == "00" * 32), wrong
    assert core.lookup(client, keys)[1].known == 30
    core.pool.disconnected(client)
    core.pool.handle(client, Clear(namespace))
    done = core.receive(client, AdminReply)
    assert done.ok
    assert all(word in done.sentence for word in ("30 chunks", "MiB", "6e" * 8)), done.sentence
    core.turn()
    assert core.lookup(client, keys)[1].known == 0
    core.pool.close(300)
    core = CoreHarness(4 * MIB, place, 64 * MIB)
    assert core.load(client, keys) == 0
    core.pool.close(300)


def test_a_promise_is_cut_at_its_deadline(place: Path) -> None:
    keys = chain("a", 8)
    core = CoreHarness(4 * MIB, place, 64 * MIB)
    core.store(Client("e"), keys)
    core.pool.close(300)
    disk, clock = FaultDisk(), ManualClock()
    core = CoreHarness(4 * MIB, place, 64 * MIB, World(disk, clock))
    client = Client("e")
    assert core.load(client, keys[:3]) == 3
    disk.arm("read:hang")
    number, _ = core.lookup(client, keys)
    core.pool.handle(client, Ask(number, 0, 8, 50, False))
    clock.advance(0.06)
    assert core.receive(client, Promise).total == 3
    core.pool.handle(client, Release(number, []))
    disk.disarm()
    core.settle()
    assert core.load(client, keys) == 8, "what came too late for one is there for the next"
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_damaged_record_ends_a_stream(place: Path) -> None:
    keys = chain("a", 40)
    core = CoreHarness(1 * MIB, place, 64 * MIB)
    client = Client("e")
    for count in range(8, 41, 8):  # all of it on the drive, however fast other tiers are
        core.store(client, keys[:count])
        core.settle()
    core.pool.close(300)
    (region,) = place.glob("region-*")
    data = bytearray(region.read_bytes())
    at = data.find(keys[30])
    data[at + 8000] ^= 4
    region.write_bytes(data)
    core = CoreHarness(1 * MIB, place, 64 * MIB)
    assert core.load(client, keys, stream=True) == 30
    assert core.lookup(client, keys)[1].known == 30
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_burst_of_stores_may_have_all_of_dram_but_not_the_loads_half(place: Path) -> None:
    old, new, newer = chain("old", 100), chain("new", 110), chain("newer", 80)
    core = CoreHarness(8 * MIB, place, 64 * MIB)
    client = Client("e")
    core.store(client, old)
    core.pool.close(300)
    disk = FaultDisk()
    core = CoreHarness(8 * MIB, place, 64 * MIB, World(disk, ManualClock()))
    disk.arm("write:hang")
    core.store(client, new)
    assert not core.number("chunks", tier="disk") - 100, "a burst waits for no disk"
    disk.disarm()
    core.settle()
    disk.arm("write:hang")
    number, _ = core.lookup(client, old)
    came = len(core.ask(client, number, old, stream=True).offsets)
    core.until(lambda: not core.pool._loads.reads_in_flight)
    came += len([message for message in client.inbox if isinstance(message, Ready)])
    assert came == 64, "of 100"
    client.inbox.clear()
    for start, parent in ((0, ROOT), (32, newer[31])):
        answers = core.reserve(client, newer[start:], parent)
        held = [answer for answer in answers if answer >= 0]
        assert len(held) == 32, "an engine holds three quarters of DRAM at most"
        for key, slot in zip(newer[start:], held, strict=False):
            core.fill(slot, payload(key))
        assert core.commit(client, held) == 32
    assert core.reserve(client, newer[64:], newer[63])[0] == ReserveAnswer.LATER, (
        "until it is written"
    )
    core.pool.handle(client, Release(number, list(range(64))))
    assert core.receive(client, Ready).chunk >= 64
    assert core.number("chunks", tier="disk") == 100 + 110, "no load waits for writes"
    core.pool.disconnected(client)
    disk.disarm()
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)
