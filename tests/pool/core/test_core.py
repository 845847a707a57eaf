"""The pool's core, driven directly: what is stored comes back, whatever the sizes."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.desk import LENGTH, NAMESPACE, Client, Desk, chain, payload
from tests.oldest import Oldest

from forebay.pool.core.dram import Dram
from forebay.pool.messages import (
    Abort,
    AdminReply,
    Ask,
    Cancel,
    ChunkRun,
    Clear,
    Commit,
    Committed,
    Promise,
    Ready,
    Release,
    Reserve,
    ReserveAnswer,
    Reserved,
    Resize,
)
from forebay.record.header import ROOT, payload_hash
from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(4 * MIB)
    yield desk
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_a_chain_comes_back_from_dram(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 8)
    desk.store(client, keys)
    assert desk.load(client, keys) == 8
    assert desk.load(client, [*keys[:5], *chain("b", 3)]) == 5


def test_an_unknown_chain_is_promised_nothing(desk: Desk) -> None:
    client = Client("e")
    number, found = desk.lookup(client, chain("a", 3))
    assert (found.known, found.ready) == (0, 0)
    assert desk.ask(client, number, chain("a", 3)).total == 0


@pytest.mark.parametrize(("namespace", "group"), [(b"m" * 32, 0), (NAMESPACE, 1)])
def test_a_key_under_another_name_is_promised_nothing(
    desk: Desk, namespace: bytes, group: int
) -> None:
    """The wire carries half of a key: equal halves must not make chunks of two models one."""
    client, keys = Client("e"), chain("a", 2)
    desk.store(client, keys)
    number, _ = desk.lookup(client, keys, namespace, group)
    promise = desk.ask(client, number, keys)
    assert (promise.total, promise.offsets) == (0, [])
    assert desk.load(client, keys) == 2


def test_what_is_not_committed_is_not_found(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 2)
    desk.reserve(client, keys)
    assert desk.lookup(client, keys)[1].known == 0


def test_two_engines_of_one_key_share_one_slot(desk: Desk) -> None:
    keys = chain("a", 2)
    first, second = Client("e"), Client("f")
    offsets = desk.reserve(first, keys)
    assert desk.reserve(second, keys) == [ReserveAnswer.HAVE, ReserveAnswer.HAVE]
    assert desk.commit(second, offsets) == 0, "only the engine that reserved may commit"
    for key, offset in zip(keys, offsets, strict=True):
        desk.fill(offset, payload(key))
    assert desk.commit(first, offsets) == 2
    assert desk.load(second, keys) == 2


def test_a_chunk_without_its_prefix_is_refused(desk: Desk) -> None:
    keys = chain("a", 3)
    assert desk.reserve(Client("e"), keys[1:], parent=keys[0]) == [
        ReserveAnswer.NO,
        ReserveAnswer.NO,
    ]


def test_others_are_served_while_slots_are_found_for_many() -> None:
    desk, kept = Desk(16 * MIB), chain("kept", 4)
    first, second = Client("e"), Client("f")
    desk.store(second, kept)
    turns = 0
    for _ in desk.reserving(first, chain("long", 60)):
        turns += 1
        assert desk.load(second, kept) == 4
    assert turns == 3
    offsets = desk.receive(first, Reserved).answers
    assert all(offset >= 0 for offset in offsets)
    assert desk.commit(first, offsets) == 60
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_a_run_whose_parent_leaves_meanwhile_gets_no_more_slots(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 41)
    desk.store(client, keys[:1])
    work = desk.reserving(client, keys[1:], keys[0])
    next(work)
    early = [offset for offset in range(4 * MIB) if offset in desk.pool._stores._filling["e"]]
    desk.pool.handle(client, Abort(desk.pool.generation, early))
    assert list(work) == []
    answers = desk.receive(client, Reserved).answers
    assert answers[14:] == [ReserveAnswer.NO] * 26, "what it would continue is gone"
    assert len(answers) == 40


def test_slots_of_an_offer_that_is_broken_off_are_free_again(desk: Desk) -> None:
    client = Client("e")
    work = desk.reserving(client, chain("a", 40))
    next(work)
    assert desk.number("dram", "filling") == 14
    work.close()
    assert not desk.pool.lends("e")
    assert desk.number("dram", "filling") == 0
    assert desk.reserve(client, chain("a", 4))[0] >= 0


def test_a_turn_is_short_whatever_the_answers_are(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, tried = Client("e"), Counter[int]()
    while desk.reserve(client, chain(f"full {desk.number('dram', 'filling')}", 1))[0] >= 0:
        pass
    has = Dram.has

    def count(dram: Dram, key: bytes) -> bool:
        tried[turns] += 1
        return has(dram, key)

    monkeypatch.setattr(Dram, "has", count)
    runs = [ChunkRun(NAMESPACE, 0, ROOT, b"".join(chain(f"r{n}", 8)), LENGTH) for n in range(100)]
    runs += [
        ChunkRun(NAMESPACE, 0, chain("gone", 1)[0], chain(f"g{n}", 1)[0], 1) for n in range(100)
    ]
    turns = 0
    for _ in desk.pool.handle(client, Reserve(1, runs)) or ():
        turns += 1
    answers = desk.receive(client, Reserved).answers
    assert set(answers) == {ReserveAnswer.LATER, ReserveAnswer.NO}
    assert len(answers) == 900
    assert turns == (2 * 100 + 2 * 100) // 16, "each run counts, and each chunk that was tried"
    assert max(tried.values()) <= 16


class Closed(Oldest):
    """A policy that would rather keep what it has."""

    def __init__(self) -> None:
        super().__init__(tiers=0)
        self.asked: list[tuple[bytes, bytes | None]] = []

    def declines(self, key: bytes, parent: bytes | None, now: float, slot_bytes: int) -> bool:
        self.asked.append((key, parent))
        return True


def test_a_newcomer_that_the_policy_declines_is_refused_and_nothing_leaves_for_it() -> None:
    desk, client = Desk(4 * MIB), Client("e")
    policy = desk.pool._dram.policy = Closed()
    kept, offered = chain("a", 60), chain("b", 8)
    desk.store(client, kept)
    answers = desk.reserve(client, offered)
    assert [answer >= 0 for answer in answers] == [True] * 4 + [False] * 4, "while slots are free"
    assert answers[4:] == [ReserveAnswer.NO] * 4
    assert policy.asked == [(short(offered[0]), None)], "the run's first chunk stands for all"
    more = desk.reserve(client, chain("a", 62)[60:], parent=kept[-1])
    assert more == [ReserveAnswer.NO, ReserveAnswer.NO]
    assert policy.asked[-1] == (short(chain("a", 61)[-1]), short(kept[-1]))
    assert desk.lookup(client, kept)[1].ready == 60
    assert desk.number("counters", "stores.declined") == 2
    desk.pool.handle(client, Abort(desk.pool.generation, answers[:4]))
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_nonsense_is_refused(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 1)
    for length in (0, -1, 1 << 40, 4 * MIB):
        assert desk.reserve(client, keys, length=length) == [ReserveAnswer.NO]
    assert desk.reserve(client, keys, parent=b"short") == [ReserveAnswer.NO]
    desk.pool.handle(client, Commit(desk.pool.generation + 1, [0]))
    assert desk.receive(client, Committed).count == 0
    desk.pool.handle(client, Release(99, [1, 2]))
    desk.pool.handle(client, Cancel(99))
    desk.pool.handle(client, Abort(desk.pool.generation, [12345]))
    desk.pool.handle(client, Ask(99, -5, -5, -5, True))
    assert desk.receive(client, Promise).total == 0


def test_t33_with_everything_pinned_a_store_is_refused_at_once(desk: Desk) -> None:
    client = Client("e")
    chains = [chain(str(number), 16) for number in range(4)]  # 64 slots: all there are
    offsets = []
    for keys in chains:
        answers = desk.reserve(client, keys)
        offsets += [answer for answer in answers if answer >= 0]
    assert ReserveAnswer.LATER in desk.reserve(client, chain("more", 16))
    desk.pool.handle(client, Abort(desk.pool.generation, offsets))
    assert desk.number("dram", "taken_bytes") == 0


def test_leaves_go_before_roots(desk: Desk) -> None:
    client, old = Client("e"), chain("old", 40)
    desk.store(client, old)
    desk.store(client, chain("new", 40))
    known = desk.lookup(client, old)[1].known
    assert 0 < known < 40
    assert desk.load(client, chain("new", 40)) == 32, "the load budget is half of the slab"


def test_models_of_different_shape_share_the_slab(desk: Desk) -> None:
    client = Client("e")
    desk.store(client, chain("small", 64))
    for length in (LENGTH // 2, LENGTH * 3, LENGTH * 7):
        desk.settle()
        keys = chain(f"of {length}", 3)
        offsets = desk.reserve(client, keys, length=length)
        assert all(offset >= 0 for offset in offsets)
        assert desk.commit(client, offsets) == 3
        assert desk.lookup(client, keys)[1].known == 3


def test_an_engine_that_exits_gives_back_all_that_it_held(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 8)
    desk.store(client, keys[:4])
    desk.reserve(client, keys[4:], parent=keys[3])
    number, _ = desk.lookup(client, keys)
    desk.ask(client, number, keys)
    desk.pool.disconnected(client)
    assert desk.number("dram", "pinned_bytes") == 4 * LENGTH, "a living process may still read"
    assert desk.number("dram", "filling") == 4, "or write there"
    desk.pool.exited("e")
    assert desk.number("dram", "pinned_bytes") == 0
    assert desk.number("dram", "filling") == 0
    assert desk.load(Client("f"), keys) == 4


def test_an_aborted_parent_takes_its_children_along(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 3)
    offsets = desk.reserve(client, keys)
    assert desk.commit(client, offsets[1:]) == 2
    desk.pool.handle(client, Abort(desk.pool.generation, offsets[:1]))
    desk.settle()
    desk.pool.handle(client, Abort(desk.pool.generation, offsets[:1]))
    assert desk.lookup(client, keys)[1].known == 0


def test_t6_a_rotten_slot_is_found_by_verify_dram() -> None:
    desk = Desk(4 * MIB, verify_dram=True)
    client, keys = Client("e"), chain("a", 4)
    desk.store(client, keys)
    desk.settle()
    number, _ = desk.lookup(client, keys)
    offset = desk.ask(client, number, keys).offsets[2]
    desk.pool.handle(client, Release(number, []))
    desk.pool.view(offset, 1)[0] ^= 1
    assert desk.load(client, keys) == 2
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_t6_a_rotten_slot_is_found_by_the_idle_scrubber(desk: Desk) -> None:
    client, keys = Client("e"), chain("a", 4)
    desk.store(client, keys)
    desk.settle()  # its hash is known
    number, _ = desk.lookup(client, keys)
    offset = desk.ask(client, number, keys).offsets[2]
    desk.pool.handle(client, Release(number, []))
    desk.pool.view(offset, 1)[0] ^= 1
    desk.pass_time_until(lambda: desk.lookup(client, keys)[1].known == 2)


def test_what_waits_for_its_hash_can_leave_and_gets_nobody_elses(desk: Desk) -> None:
    gate = threading.Event()

    def slow() -> Iterator[bytes]:
        gate.wait(100)  # longer than a store waits
        yield b""

    desk.pool._hasher.submit(slow(), lambda _: None)  # type: ignore[arg-type]
    client = Client("e")
    for number in range(40):  # three times what DRAM holds
        desk.store(client, chain(str(number), 5))
    assert all(chunk.digest is None for chunk in desk.pool._dram.chunks)
    gate.set()
    desk.settle()
    for chunk in desk.pool._dram.chunks:
        assert chunk.digest == payload_hash(payload(chunk.name.key))


def test_everything_goes_through_a_small_dram(place: Path) -> None:
    desk = Desk(1 * MIB, place, 64 * MIB)
    client = Client("e")
    chains = [chain(str(number), 40) for number in range(5)]  # each 2.5 times the slab
    for keys in chains:
        desk.store(client, keys)
    for keys in chains:
        assert desk.load(client, keys, stream=True) == 40
    assert desk.load(client, chains[0]) == 8, "without streaming: what the budget holds"
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_a_restart_is_warm(place: Path) -> None:
    keys = chain("a", 30)
    for stored in (False, True):
        desk = Desk(4 * MIB, place, 64 * MIB)
        if not stored:
            desk.store(Client("e"), keys)
        assert desk.load(Client("e"), keys) == 30
        desk.pool.close(5)


def test_many_requests_join_one_read(place: Path) -> None:
    keys = chain("a", 16)
    desk = Desk(4 * MIB, place, 64 * MIB)
    desk.store(Client("e"), keys)
    desk.pool.close(5)
    desk = Desk(4 * MIB, place, 64 * MIB)
    clients = [Client(str(number)) for number in range(6)]
    numbers = [desk.lookup(client, keys)[0] for client in clients]
    for client, number in zip(clients, numbers, strict=True):
        assert desk.ask(client, number, keys).total == 16
    assert desk.number("counters", "disk.loaded") == 16
    for client in clients:
        desk.pool.disconnected(client)
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_requests_that_want_more_than_there_is_are_served_in_turn(place: Path) -> None:
    """Each fits by itself; were room given to all at once, all would wait for one another."""
    desk = Desk(1 * MIB, place, 64 * MIB)
    client = Client("a")
    dialogs = [chain(f"dialog {number}", 6) for number in range(5)]
    for keys in dialogs:
        desk.store(client, keys)
    desk.settle()
    numbers = [desk.lookup(client, keys)[0] for keys in dialogs]
    for number in numbers:
        desk.pool.handle(client, Ask(number, 0, 6, 3_600_000, stream=True))
    for _ in dialogs:
        promise = desk.receive(client, Promise)
        assert len(promise.offsets) == promise.total == 6
        desk.pool.handle(client, Release(promise.request, []))
    assert not desk.pool.violations()
    desk.pool.close(10)


def test_a_full_disk_never_leaves_a_hole(place: Path) -> None:
    desk = Desk(1 * MIB, place, 6 * MIB)
    client = Client("e")
    chains = [chain(str(number), 20) for number in range(12)]  # 15 MiB
    for keys in chains:
        desk.store(client, keys)
    desk.settle()
    desk.turn()
    found = [desk.lookup(client, keys)[1].known for keys in chains]
    for keys, known in zip(chains, found, strict=True):
        desk.pool.disconnected(client)
        assert desk.load(client, keys, stream=True) == known
    assert sum(found) > 40
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_what_continues_a_head_in_dram_outlives_the_heads_record(place: Path) -> None:
    desk = Desk(1 * MIB, place, 6 * MIB)
    client, other, fillers = Client("e"), Client("f"), itertools.count()
    keys = chain("shared", 2)
    disk = desk.pool._stack._tiers[0]

    def flood() -> None:
        desk.store(other, chain(f"filler {next(fillers)}", 4))
        desk.settle()

    desk.store(client, keys[:1])
    number, _ = desk.lookup(client, keys[:1])
    desk.ask(client, number, keys[:1])  # in use: DRAM keeps the head
    for _ in range(6):
        flood()
    desk.store(client, keys)
    while disk.has(keys[0]):
        flood()
    assert disk.has(keys[1]), "its own record is younger"
    assert desk.lookup(other, keys)[1].known == 2
    desk.pool.disconnected(other)
    desk.settle()
    desk.pool.handle(client, Release(number, []))
    while desk.pool._dram.chunks.get(short(keys[0])) is not None:
        flood()
    desk.settle()
    assert desk.lookup(other, keys)[1].known == 0
    assert not disk.has(keys[1]), "nobody has what is before it"
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_caps_change_while_it_runs(place: Path) -> None:
    desk = Desk(4 * MIB, place, 64 * MIB)
    client = Client("e")
    for number in range(8):
        desk.store(client, chain(str(number), 30))
    desk.settle()
    desk.pool.handle(client, Resize(1 * MIB, [(str(place), 6 * MIB)]))
    assert desk.receive(client, AdminReply).ok
    desk.until(lambda: desk.number("dram", "allocated_bytes") <= MIB)
    assert desk.number("disk", "used_bytes") <= 6 * MIB
    desk.pool.handle(client, Resize(-1, [("/nowhere", MIB)]))
    assert not desk.receive(client, AdminReply).ok
    desk.pool.close(5)


@pytest.mark.parametrize("namespace", ["", "6e6e6e6e"])
def test_clearing_deletes_for_good(place: Path, namespace: str) -> None:
    keys = chain("a", 30)
    desk = Desk(4 * MIB, place, 64 * MIB)
    client = Client("e")
    desk.store(client, keys)
    desk.settle()
    for wrong in ("6e", "zz", "00" * 32):
        desk.pool.handle(client, Clear(wrong))
        done = desk.receive(client, AdminReply)
        assert done.ok == (wrong == "00" * 32)
    assert desk.lookup(client, keys)[1].known == 30
    desk.pool.disconnected(client)
    desk.pool.handle(client, Clear(namespace))
    assert desk.receive(client, AdminReply).ok
    desk.turn()
    assert desk.lookup(client, keys)[1].known == 0
    desk.pool.close(5)
    desk = Desk(4 * MIB, place, 64 * MIB)
    assert desk.load(client, keys) == 0
    desk.pool.close(5)


def test_a_promise_is_cut_at_its_deadline(place: Path) -> None:
    keys = chain("a", 8)
    desk = Desk(4 * MIB, place, 64 * MIB)
    desk.store(Client("e"), keys)
    desk.pool.close(5)
    disk, clock = FaultDisk(), ManualClock()
    desk = Desk(4 * MIB, place, 64 * MIB, World(disk, clock))
    client = Client("e")
    assert desk.load(client, keys[:3]) == 3
    disk.arm("read:hang")
    number, _ = desk.lookup(client, keys)
    desk.pool.handle(client, Ask(number, 0, 8, 50, False))
    clock.advance(0.06)
    assert desk.receive(client, Promise).total == 3
    desk.pool.handle(client, Release(number, []))
    disk.disarm()
    desk.settle()
    assert desk.load(client, keys) == 8, "what came too late for one is there for the next"
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_a_damaged_record_ends_a_stream(place: Path) -> None:
    keys = chain("a", 40)
    desk = Desk(1 * MIB, place, 64 * MIB)
    client = Client("e")
    desk.store(client, keys)
    desk.pool.close(5)
    (region,) = place.glob("region-*")
    data = bytearray(region.read_bytes())
    at = data.find(keys[30])
    data[at + 8000] ^= 4
    region.write_bytes(data)
    desk = Desk(1 * MIB, place, 64 * MIB)
    assert desk.load(client, keys, stream=True) == 30
    assert desk.lookup(client, keys)[1].known == 30
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def test_a_burst_of_stores_may_have_all_of_dram_but_not_the_loads_half(place: Path) -> None:
    old, new, newer = chain("old", 100), chain("new", 110), chain("newer", 80)
    desk = Desk(8 * MIB, place, 64 * MIB)
    client = Client("e")
    desk.store(client, old)
    desk.pool.close(5)
    disk = FaultDisk()
    desk = Desk(8 * MIB, place, 64 * MIB, World(disk, ManualClock()))
    disk.arm("write:hang")
    desk.store(client, new)
    assert not desk.number("disk", "records") - 100, "a burst waits for no disk"
    disk.disarm()
    desk.settle()
    disk.arm("write:hang")
    number, _ = desk.lookup(client, old)
    came = len(desk.ask(client, number, old, stream=True).offsets)
    desk.until(lambda: not desk.pool._acquisition.reads_in_flight)
    came += len([message for message in client.inbox if isinstance(message, Ready)])
    assert came == 64, "of 100"
    client.inbox.clear()
    held = [answer for answer in desk.reserve(client, newer) if answer >= 0]
    assert len(held) == 64, "half of DRAM"
    for key, slot in zip(newer, held, strict=False):
        desk.fill(slot, payload(key))
    assert desk.commit(client, held) == 64
    assert desk.reserve(client, newer[64:], newer[63])[0] == ReserveAnswer.LATER, (
        "until it is written"
    )
    desk.pool.handle(client, Release(number, list(range(64))))
    assert desk.receive(client, Ready).chunk >= 64
    assert desk.number("disk", "records") == 100 + 110, "no load waits for writes"
    desk.pool.disconnected(client)
    disk.disarm()
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)
