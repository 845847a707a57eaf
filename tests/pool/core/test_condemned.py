"""Chunks that are damaged or cleared while in use: nobody is promised them any more."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain, payload
from tests.pool.core.test_joined_reads import HeldReads, promised

from forebay.pool.core.chunks import Chunk
from forebay.pool.messages import AdminReply, Ask, Clear, Release, ReserveAnswer
from forebay.record.region import short
from forebay.tiers.contract import EvictionCause

MIB = 1 << 20


@pytest.fixture
def dram() -> Iterator[CoreHarness]:
    made = CoreHarness(8 * MIB)
    yield made
    made.pool.close(300)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[CoreHarness]:
    """A pool above a drive."""
    made = CoreHarness(8 * MIB, tmp_path, 64 * MIB)
    yield made
    made.pool.close(300)


def chunk_of(core: CoreHarness, key: bytes) -> Chunk:
    found = core.pool._dram.chunks.get(short(key))
    assert found is not None
    return found


def hold(core: CoreHarness, engine: Client, keys: list[bytes]) -> int:
    """Have an engine be promised a chain and not release it; the request's number."""
    number, _ = core.lookup(engine, keys)
    assert len(core.ask(engine, number, keys).offsets) == len(keys)
    return number


def scrub(core: CoreHarness, rounds: int = 10) -> None:
    scrubber = core.pool._scrubber
    wanted = scrubber.checked + rounds * core.number("chunks", tier="dram")
    core.pass_time_until(lambda: scrubber.checked >= wanted)


def clear(core: CoreHarness) -> None:
    operator = Client("operator")
    core.pool.handle(operator, Clear(None))
    core.pass_time_until(lambda: any(isinstance(each, AdminReply) for each in operator.inbox))


def test_t6_a_rotten_slot_in_use_is_promised_to_nobody_else(dram: CoreHarness) -> None:
    slow, other, keys = Client("slow"), Client("other"), chain("a", 4)
    dram.store(slow, keys)
    dram.settle()
    earlier, found = dram.lookup(other, keys)
    assert found.known == 4
    number = hold(dram, slow, keys)
    dram.pool.view(chunk_of(dram, keys[2]).offset, 1)[0] ^= 1
    dram.pass_time_until(lambda: bool(dram.number("errors", kind="dram_corrupt")))
    assert len(dram.ask(other, earlier, keys).offsets) == 2, "it was looked up before"
    dram.pool.handle(other, Release(earlier, []))
    assert dram.lookup(other, keys)[1].known == 2
    scrub(dram, rounds=2)
    assert dram.number("errors", kind="dram_corrupt") == 1, "what is known is not hashed again"
    assert dram.pool.violations() == []
    dram.pool.handle(slow, Release(number, []))
    dram.turn()
    assert dram.number("chunks", tier="dram") == 2, "nor is anything there that continues it"
    assert dram.pool.violations() == []
    dram.store(other, keys)
    assert dram.load(other, keys) == 4


def test_a_copy_below_a_rotten_slot_is_loaded_when_the_slot_is_free(drive: CoreHarness) -> None:
    slow, other, keys = Client("slow"), Client("other"), chain("a", 4)
    drive.store(slow, keys)
    drive.settle()
    earlier, _ = drive.lookup(other, keys)
    number = hold(drive, slow, keys)
    drive.pool.view(chunk_of(drive, keys[2]).offset, 1)[0] ^= 1
    drive.pass_time_until(lambda: bool(drive.number("errors", kind="dram_corrupt")))
    assert len(drive.ask(other, earlier, keys).offsets) == 2
    drive.pool.handle(other, Release(earlier, []))
    assert drive.load(other, keys) == drive.lookup(other, keys)[1].known == 2
    assert drive.pool.violations() == []
    drive.pool.handle(slow, Release(number, []))
    drive.turn()
    assert drive.load(other, keys) == 4
    assert drive.number("operations", tier="disk", direction="load", outcome="ok") == 1
    assert drive.pool.violations() == []


def test_what_is_found_rotten_before_a_promise_is_not_in_it(drive: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 4)
    drive.store(client, keys)
    drive.settle()
    drive.pool._dram.evict(short(keys[3]), EvictionCause.SPACE)
    reads = HeldReads(drive.pool)
    number, _ = drive.lookup(client, keys)
    drive.pool.handle(client, Ask(number, 0, 4, 10_000, False))
    assert (len(reads), promised(client)) == (1, None), "it waits for the last"
    drive.pool._loads.acquisition.damaged(chunk_of(drive, keys[1]))
    reads.let_go()
    drive.until(lambda: promised(client) is not None)
    given = promised(client)
    assert given is not None
    assert len(given.offsets) == given.total == 1
    drive.settle()
    assert drive.pool.violations() == []


def test_what_is_cleared_in_use_is_promised_to_nobody_and_stored_again(dram: CoreHarness) -> None:
    slow, keys = Client("slow"), chain("a", 4)
    dram.store(slow, keys)
    dram.settle()
    number = hold(dram, slow, keys)
    clear(dram)
    for name in ("b", "c"):
        assert dram.load(Client(name), keys) == 0
        dram.turn()
    assert dram.reserve(Client("d"), keys) == [ReserveAnswer.LATER] * 4
    more = chain("a", 5)
    assert dram.reserve(Client("d"), more[4:], more[3]) == [ReserveAnswer.NO]
    assert dram.pool.violations() == []
    dram.pool.handle(slow, Release(number, []))
    dram.turn()
    assert dram.number("chunks", tier="dram") == 0
    dram.store(slow, more)
    assert dram.load(slow, more) == 5
    assert dram.pool.violations() == []


def test_what_is_cleared_while_it_is_read_is_promised_to_nobody(drive: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 1)
    drive.store(client, keys)
    drive.settle()
    drive.pool._dram.evict(short(keys[0]), EvictionCause.SPACE)
    reads = HeldReads(drive.pool)
    number, _ = drive.lookup(client, keys)
    drive.pool.handle(client, Ask(number, 0, 1, 10_000, False))
    chunk = chunk_of(drive, keys[0])
    drive.pool._dram.condemn([chunk])
    assert drive.lookup(Client("other"), keys)[1].known == 0
    reads.let_go()
    drive.until(lambda: promised(client) is not None)
    given = promised(client)
    assert given is not None
    assert not given.offsets
    drive.settle()
    assert drive.number("chunks", tier="dram") == 0
    assert payload(keys[0]) != drive.pool.view(chunk.offset, LENGTH) == bytes(LENGTH)
    assert drive.pool.violations() == []
