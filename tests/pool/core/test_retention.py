"""Between lookup and ask: what a request will want stays in DRAM, or comes there, within limits."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload
from tests.line_counter import LineCounter

from forebay.identity.keys import ChainRoot, KeyChain
from forebay.pool.core.loading import retention
from forebay.pool.messages import AdminReply, Ask, Cancel, Clear, Found, Promise, Release
from forebay.record.header import ROOT
from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk

MIB = 1 << 20
SLOTS = 32  # of 64 KiB; half of them are the load budget


@pytest.fixture
def client() -> Client:
    return Client("e")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def dram() -> Iterator[CoreHarness]:
    """A pool of DRAM alone."""
    core = CoreHarness(SLOTS * LENGTH)
    yield core
    close(core)


@pytest.fixture
def disk(place: Path, client: Client, clock: ManualClock) -> Iterator[CoreHarness]:
    """A pool that has the chains "0" to "5", of twelve chunks each, on disk alone."""
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    for number in range(6):
        core.store(client, chain(str(number), 12))
    core.pool.close(300)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, World(clock=clock))
    yield core
    close(core)


def close(core: CoreHarness) -> None:
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def read(core: CoreHarness) -> int:
    return core.number("operations", tier="disk", direction="load", outcome="ok")


def churn(core: CoreHarness, client: Client, chunks: int = 3 * SLOTS) -> None:
    """Others' chunks go through DRAM."""
    for number in range(chunks // 4):
        core.store(client, chain(f"other {number}", 4))


def test_what_was_found_in_dram_is_there_when_it_is_asked_for(
    dram: CoreHarness, client: Client
) -> None:
    keys = chain("a", 10)
    dram.store(client, keys)
    number, found = dram.lookup(client, keys)
    assert found == Found(number, 10, 10)
    churn(dram, client)
    dram.settle()
    assert dram.number("pinned_chunks") == 1, "one pin keeps ten chunks"
    assert dram.ask(client, number, keys).total == 10
    dram.pool.handle(client, Release(number, []))
    churn(dram, client)
    assert dram.lookup(client, keys)[1].known == 0, "nothing is kept without a reason"


def test_a_request_that_goes_away_keeps_nothing(dram: CoreHarness, client: Client) -> None:
    keys = chain("a", 10)
    dram.store(client, keys)
    number, _ = dram.lookup(client, keys)
    dram.pool.handle(client, Cancel(number))
    churn(dram, client)
    assert dram.lookup(client, keys)[1].known == 0


def test_no_more_is_kept_than_the_load_budget(dram: CoreHarness, client: Client) -> None:
    chains = [chain(str(number), 10) for number in range(3)]
    for keys in chains:
        dram.store(client, keys)
        dram.lookup(client, keys)
    churn(dram, client)
    known = [dram.lookup(client, keys)[1].known for keys in chains]
    assert known == [10, SLOTS // 2 - 10, 0]


def test_what_is_read_ahead_is_read_once_whatever_comes_between(
    disk: CoreHarness, client: Client
) -> None:
    keys = chain("0", 12)
    number, found = disk.lookup(client, keys)
    assert found == Found(number, 12, 0)
    disk.settle()
    assert disk.receive(client, Found) == Found(number, 12, 12), "the engine hears of it"
    churn(disk, client)
    assert read(disk) == 12
    assert disk.ask(client, number, keys).total == 12
    assert read(disk) == 12
    assert disk.number("operations", tier="dram", direction="load") == 12


def test_what_comes_before_its_turn_is_there_when_its_turn_comes(
    place: Path, client: Client
) -> None:
    keys = chain("a", 8)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    core.store(client, keys)
    core.pool.close(300)
    faulty = FaultDisk()
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, World(faulty, ManualClock()))
    slow = faulty.arm("read:hang@1")
    core.lookup(client, keys)
    core.until(lambda: read(core) == 7)
    churn(core, client)
    slow.disarm()
    core.until(lambda: read(core) == 8)
    assert core.receive(client, Found).ready == 8
    number, found = core.lookup(client, keys)
    assert found == Found(number, 8, 8), "none of them had to leave meanwhile"
    core.pool.disconnected(client)
    core.settle()
    assert core.number("pinned_chunks") == 0
    close(core)


def test_reading_ahead_stays_within_the_load_budget_in_order_of_arrival(
    disk: CoreHarness, client: Client
) -> None:
    chains = [chain(str(number), 12) for number in range(4)]
    numbers = [disk.lookup(client, keys)[0] for keys in chains]
    disk.settle()
    assert read(disk) == SLOTS // 2
    assert disk.number("retained_bytes") == SLOTS // 2 * LENGTH
    assert disk.ask(client, numbers[0], chains[0]).total == 12
    assert read(disk) == SLOTS // 2, "the first had all it wanted"
    disk.pool.handle(client, Release(numbers[0], []))
    disk.settle()
    assert read(disk) == SLOTS // 2 + 12, "its room is the next ones'"


def test_who_asks_takes_the_room_of_who_only_arrived(disk: CoreHarness, client: Client) -> None:
    chains = [chain(str(number), 12) for number in range(3)]
    numbers = [disk.lookup(client, keys)[0] for keys in chains]
    disk.settle()
    assert disk.ask(client, numbers[2], chains[2]).total == 12, "though it came last"
    disk.pool.handle(client, Release(numbers[2], []))
    for number in (0, 1):
        assert disk.ask(client, numbers[number], chains[number]).total == 12
        disk.pool.handle(client, Release(numbers[number], []))


def test_nothing_is_kept_for_ever(disk: CoreHarness, client: Client, clock: ManualClock) -> None:
    keys = chain("0", 12)
    number, _ = disk.lookup(client, keys)
    disk.settle()
    assert disk.number("retained_bytes") == 12 * LENGTH
    clock.advance(retention.RETAIN_S)
    disk.turn()
    assert disk.number("retained_bytes") == 0
    assert disk.ask(client, number, keys).total == 12, "it may still ask"


def test_an_operators_wish_does_not_wait_for_who_only_arrived(
    disk: CoreHarness, client: Client
) -> None:
    disk.lookup(client, chain("0", 12))
    disk.settle()
    disk.pool.handle(client, Clear(None))
    reply = disk.receive(client, AdminReply)
    assert reply.ok
    records = int(reply.sentence.partition(" records")[0].split()[-1])
    assert records >= 72, "the disk's; a tier beneath it has copies"
    assert disk.number("chunks", tier="dram") == 0


def test_an_ask_for_a_part_lets_go_of_the_rest(disk: CoreHarness, client: Client) -> None:
    number, _ = disk.lookup(client, chain("0", 12))
    disk.settle()
    disk.pool.handle(client, Ask(number, 4, 4, 10_000, stream=True))
    promise = disk.receive(client, Promise)
    assert (promise.first, promise.total, len(promise.offsets)) == (4, 4, 4)
    assert disk.number("pinned_bytes") == 4 * LENGTH


def test_what_was_read_ahead_does_not_keep_out_what_comes_before_it(
    place: Path, client: Client
) -> None:
    """A prefix is in DRAM, but for want of room not kept; then what follows it is read ahead."""
    keys, other = chain("a", 30), chain("other", SLOTS // 2)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    for each in (keys, other):
        core.store(client, each)
    core.pool.close(300)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    assert core.load(client, keys[:10]) == 10
    elsewhere, _ = core.lookup(client, other)
    assert core.ask(client, elsewhere, other).total == SLOTS // 2, "the whole load budget"
    number, found = core.lookup(client, keys)
    assert found == Found(number, 30, 10)
    core.pool.handle(client, Release(elsewhere, []))
    core.settle()
    assert core.number("retained_bytes") == SLOTS // 2 * LENGTH
    promise = core.ask(client, number, keys, stream=True)
    assert (promise.total, len(promise.offsets)) == (30, SLOTS // 2)
    core.pool.handle(client, Cancel(number))
    close(core)


def test_what_is_kept_for_a_request_does_not_keep_out_what_it_asks_for(
    place: Path, client: Client
) -> None:
    keys = chain("a", SLOTS // 2 + 4)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    core.store(client, keys)
    core.pool.close(300)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    assert core.load(client, keys[: SLOTS // 2]) == SLOTS // 2
    assert len([slot for slot in core.reserve(client, chain("new", SLOTS)) if slot >= 0]) == 16
    number, found = core.lookup(client, keys)
    assert found == Found(number, SLOTS // 2 + 4, SLOTS // 2)
    core.pool.handle(client, Ask(number, SLOTS // 2, 4, 2_000, stream=False))
    assert core.receive(client, Promise).total == 4
    core.pool.handle(client, Cancel(number))
    close(core)


def test_what_is_kept_stays_when_asks_wait_for_one_another_and_not_for_slots(
    dram: CoreHarness, client: Client
) -> None:
    keys, first, second = chain("a", 4), chain("first", SLOTS // 2), chain("second", 4)
    for each in (keys, first, second):
        dram.store(client, each)
    numbers = [dram.lookup(client, each)[0] for each in (keys, second, first)]
    assert dram.ask(client, numbers[2], first).total == SLOTS // 2, "the whole load budget"
    dram.pool.handle(client, Ask(numbers[1], 0, 4, 10_000, stream=False))
    churn(dram, client)
    assert not [message for message in client.inbox if isinstance(message, Promise)], "it waits"
    assert dram.lookup(client, keys)[1].known == 4
    dram.pool.handle(client, Release(numbers[2], []))
    assert dram.receive(client, Promise).total == 4
    dram.pool.handle(client, Cancel(numbers[1]))


def test_what_many_requests_begin_with_is_kept_once(place: Path, client: Client) -> None:
    prompt = chain("prompt", 12)
    chains = [prompt[:8] + chain(str(number), 12)[8:] for number in range(4)]
    core = CoreHarness(2 * SLOTS * LENGTH, place, 64 * MIB)
    for keys in chains:
        core.store(client, keys)
    core.pool.close(300)
    core = CoreHarness(2 * SLOTS * LENGTH, place, 64 * MIB)
    assert core.load(client, prompt[:8]) == 8
    numbers = [core.lookup(client, keys)[0] for keys in chains]
    core.settle()
    assert read(core) == 8 + 4 * 4, "none of them keeps the others from reading ahead"
    for number in numbers:
        assert core.pool.violations() == []
        core.pool.handle(client, Cancel(number))
    assert core.number("retained_bytes") == core.number("pinned_chunks") == 0
    close(core)


def test_a_damaged_chunk_is_not_kept(dram: CoreHarness, client: Client) -> None:
    keys = chain("a", 4)
    dram.store(client, keys)
    dram.settle()  # until their hashes are known
    number, _ = dram.lookup(client, keys)
    last = dram.pool._dram.chunks.get(short(keys[3]))
    assert last is not None
    dram.fill(last.offset, b"spoilt")
    dram.pass_time_until(lambda: bool(dram.number("errors", kind="dram_corrupt")))
    assert dram.ask(client, number, keys).total == 3


@pytest.mark.long
def test_thousands_may_wait_for_the_same_long_prompt(place: Path, client: Client) -> None:
    keys = chain("a", 500)
    core = CoreHarness(1024 * LENGTH, place, 64 * MIB)
    core.store(client, keys)
    core.pool.close(300)
    core = CoreHarness(1024 * LENGTH, place, 64 * MIB)
    for _ in range(1000):
        core.lookup(client, keys)
    most_lines = 0
    while not core.pool.is_settled:
        with LineCounter() as counter:
            core.turn()
        most_lines = max(most_lines, counter.lines)
    assert read(core) == 500
    assert core.number("retained_bytes") == 500 * LENGTH
    # A chunk that is pinned takes some thirty lines.
    assert most_lines < 6 * 1000 * 500, "not for each of them and each of their chunks"
    core.pool.disconnected(client)
    close(core)


def test_who_is_behind_may_use_what_was_kept_for_the_one_before(place: Path) -> None:
    trunk = KeyChain(ChainRoot(NAMESPACE, 1, salt="x")).extend(range(6))
    branch = KeyChain(ChainRoot(NAMESPACE, 1, salt="x")).extend([0, 1, 99])
    core = CoreHarness(16 * LENGTH, place, 64 * MIB)
    first, behind, other = Client("a"), Client("b"), Client("c")
    core.store(first, trunk)
    core.store(first, branch)
    core.pool.close(300)
    core = CoreHarness(16 * LENGTH, place, 64 * MIB)
    assert core.load(first, trunk) == 6
    core.settle()
    core.pool._write_behind.run = lambda **_: None  # type: ignore[method-assign]
    number, _ = core.lookup(first, trunk)  # all six are kept for it
    core.store(other, chain("c", 8))
    core.store(other, chain("more", 2))
    assert core.number("used_bytes", tier="dram") == 16 * LENGTH
    next_number, found = core.lookup(behind, branch)
    assert found.known == 3
    holding, _ = core.lookup(other, chain("c", 8))
    assert core.ask(other, holding, chain("c", 8)).total == 8  # the whole load budget
    core.pool.handle(first, Ask(number, 0, 2, 10_000, stream=False))
    core.pool.handle(behind, Ask(next_number, 0, 3, 10_000, stream=False))
    core.pool.handle(other, Release(holding, []))
    assert core.receive(first, Promise).total == 2
    assert core.receive(behind, Promise).total == 3
    close(core)


def test_reading_ahead_goes_on_when_a_promise_is_given(disk: CoreHarness, client: Client) -> None:
    number, _ = disk.lookup(client, chain("0", 12))
    disk.pool.handle(client, Ask(number, 0, 12, 10_000, stream=False))
    disk.lookup(client, chain("1", 12)[:4])
    while read(disk) < 16:  # no tick comes to its help
        time.sleep(0.001)
        disk.pool.complete()
        disk.pool.answered()


def test_what_comes_for_an_ask_behind_another_is_held_once(
    disk: CoreHarness, client: Client
) -> None:
    chains = [chain(str(number), 12) for number in range(3)]
    numbers = [disk.lookup(client, keys)[0] for keys in chains[:1]]
    assert disk.ask(client, numbers[0], chains[0]).total == 12
    numbers += [disk.lookup(client, keys)[0] for keys in chains[1:]]
    for number in (2, 1):  # the first waits for room, the other for it and for what it reads ahead
        disk.pool.handle(client, Ask(numbers[number], 0, 12, 10_000, stream=False))
    disk.settle()
    assert disk.number("pinned_bytes") == SLOTS // 2 * LENGTH
    for number in (0, 2, 1):
        if number:
            assert disk.receive(client, Promise).total == 12
        disk.pool.handle(client, Release(numbers[number], []))
    assert disk.number("pinned_bytes") == 0


def test_an_ask_does_not_wait_for_what_was_read_ahead_for_one_behind_it(place: Path) -> None:
    first, behind = Client("a"), Client("a")
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    for name in ("a", "b"):
        core.store(first, chain(name, SLOTS // 2))
    core.pool.close(300)
    faulty = FaultDisk()
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB, World(faulty, ManualClock()))
    slow = faulty.arm("read:hang")
    waiting, _ = core.lookup(behind, chain("b", SLOTS // 2))
    number, _ = core.lookup(first, chain("a", SLOTS // 2))
    for client, each in ((first, number), (behind, waiting)):
        core.pool.handle(client, Ask(each, 0, SLOTS // 2, 60_000, stream=True))
    slow.disarm()
    assert len(core.receive(first, Promise).offsets) == SLOTS // 2, "the whole load budget"
    core.pool.handle(first, Release(number, []))
    assert len(core.receive(behind, Promise).offsets) == SLOTS // 2
    core.pool.handle(behind, Release(waiting, []))
    assert core.number("pinned_bytes") == 0
    close(core)


def test_what_may_not_be_kept_is_not_kept_by_being_here(place: Path, client: Client) -> None:
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    for name in ("a", "full"):
        core.store(client, chain(name, SLOTS // 2))
    core.pool.close(300)
    core = CoreHarness(SLOTS * LENGTH, place, 64 * MIB)
    full = chain("full", SLOTS // 2)
    assert core.load(client, full) == SLOTS // 2
    core.lookup(client, full)  # it keeps all that may be kept
    core.lookup(client, chain("a", SLOTS // 2))
    assert core.load(Client("f"), chain("a", SLOTS // 2)) == SLOTS // 2
    core.settle()
    assert core.number("retained_bytes") == SLOTS // 2 * LENGTH
    new = chain("new", SLOTS // 2)
    assert len([slot for slot in core.reserve(client, new) if slot >= 0]) == SLOTS // 2
    core.pool.disconnected(client)
    core.pool.exited("e")
    close(core)


def test_a_chain_ends_where_a_key_is_repeated(dram: CoreHarness, client: Client) -> None:
    """None that is a chain has such a key; a client that sends one must not confuse the books."""
    keys = chain("a", 2)
    dram.store(client, keys)
    twice, found = dram.lookup(client, [*keys, keys[0], keys[1]])
    assert found == Found(twice, 2, 2)
    once, _ = dram.lookup(client, keys)
    assert dram.pool.violations() == []
    dram.pool.handle(client, Cancel(twice))
    dram.pool.handle(client, Cancel(once))
    dram.pool.answered()
    assert dram.pool.violations() == []
    assert dram.number("retained_bytes") == 0


def test_chunks_of_one_chain_may_differ_in_length(client: Client) -> None:
    """What was taken for a chunk is given back, whatever its neighbours take."""
    core = CoreHarness(64 * LENGTH)
    keys = chain("unlike", 4)
    parent = ROOT
    for key, length in zip(keys, (4096, 4096, LENGTH, LENGTH), strict=True):
        (offset,) = core.reserve(client, [key], parent, length)
        core.fill(offset, payload(key)[:length])
        assert core.commit(client, [offset]) == 1
        parent = key
    first, _ = core.lookup(client, keys[:2])
    second, found = core.lookup(client, keys)
    assert found.known == 4
    assert not core.pool.violations()
    for number in (first, second):
        core.pool.handle(client, Cancel(number))
        core.turn()
        assert not core.pool.violations()
    assert core.number("retained_bytes") == 0
    core.pool.close(300)
