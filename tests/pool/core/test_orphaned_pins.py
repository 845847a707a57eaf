"""What was promised on a connection that is over: pinned as long as anyone may read it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain, payload

from forebay.pool.messages import AdminReply, Ask, Cancel, Clear, Release, Resize, Settled

MIB = 1 << 20
SLOTS = 64  # of LENGTH, in 4 MiB; the load budget is half of them


@pytest.fixture
def core() -> Iterator[CoreHarness]:
    core = CoreHarness(SLOTS * LENGTH)
    yield core
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def pinned(core: CoreHarness) -> int:
    """Chunks that count against the load budget; the books are right."""
    assert core.pool.violations() == []
    return core.number("pinned_bytes") // LENGTH


def lost(core: CoreHarness, keys: list[bytes], engine: str = "e") -> list[int]:
    """Slots that were promised to an engine which then lost its connection."""
    client = Client(engine)
    core.store(client, keys)
    number, _ = core.lookup(client, keys)
    offsets = core.ask(client, number, keys).offsets
    core.pool.disconnected(client)
    return offsets


def flood(core: CoreHarness) -> None:
    """Store more than there is room for; whatever can leave does."""
    for dialog in range(3):
        client, keys = Client("flood"), chain(f"flood {dialog}", SLOTS)
        answers = core.reserve(client, keys)
        for key, answer in zip(keys, answers, strict=True):
            if answer >= 0:
                core.fill(answer, payload(key))
        core.commit(client, [answer for answer in answers if answer >= 0])
        core.turn()


def test_t23_a_lost_connections_promise_is_not_overwritten(core: CoreHarness) -> None:
    keys = chain("a", 8)
    offsets = lost(core, keys)
    flood(core)
    assert pinned(core) == 8
    for key, offset in zip(keys, offsets, strict=True):
        assert core.pool.view(offset, LENGTH) == payload(key)
    core.pool.exited("e")
    flood(core)
    assert core.lookup(Client("f"), keys)[1].known == 0, "now it may leave"


def test_t30_it_is_free_when_the_engine_has_exited(core: CoreHarness) -> None:
    lost(core, chain("a", 8))
    lost(core, chain("b", 4), "other")
    assert core.pool.lends("e")
    core.pool.exited("e")
    assert not core.pool.lends("e")
    assert pinned(core) == 4, "the other one's"
    core.pool.exited("other")
    assert pinned(core) == 0
    assert core.number("pinned_chunks") == 0


def test_t30_it_is_free_when_the_engine_says_that_nobody_reads_it(core: CoreHarness) -> None:
    lost(core, chain("a", 8))
    again = Client("e again")
    keys = chain("b", 2)
    core.store(again, keys)
    number, _ = core.lookup(again, keys)
    core.ask(again, number, keys)
    core.pool.handle(again, Settled("nobody"))
    assert pinned(core) == 10
    core.pool.handle(again, Settled("e"))
    assert pinned(core) == 2, "what it was promised under its new name"
    assert not core.pool.lends("e")
    core.pool.handle(again, Release(number, []))
    assert pinned(core) == 0


def test_settled_may_be_heard_before_the_old_connections_end(core: CoreHarness) -> None:
    old, keys = Client("e"), chain("a", 8)
    core.store(old, keys)
    number, _ = core.lookup(old, keys)
    core.ask(old, number, keys)
    core.pool.handle(Client("e again"), Settled("e"))
    assert pinned(core) == 0
    core.pool.disconnected(old)
    assert not core.pool.lends("e")


def test_t30_what_was_not_promised_or_is_released_ends_with_the_connection(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    core, keys = CoreHarness(SLOTS * LENGTH, tmp_path, 64 * MIB), chain("a", SLOTS // 2)
    core.store(Client("e"), keys)
    core.settle()
    holding, arrived, waiting, done = (Client(name) for name in ("h", "a", "h", "d"))
    number, _ = core.lookup(holding, keys)
    core.ask(holding, number, keys)  # all of the load budget
    core.lookup(arrived, keys)
    more = chain("b", 4)
    core.store(Client("e"), more)
    core.settle()
    released, _ = core.lookup(done, keys)
    core.ask(done, released, keys)
    core.pool.handle(done, Release(released, list(range(SLOTS // 2))))
    asked, _ = core.lookup(waiting, more)
    core.pool.handle(waiting, Ask(asked, 0, 4, 10_000, stream=False))
    for client in (arrived, waiting, done):
        core.pool.disconnected(client)
        assert not core.pool.lends(client.engine)
    assert pinned(core) == SLOTS // 2
    core.pool.handle(holding, Cancel(number))
    assert pinned(core) == 0
    core.pool.close(300)


def test_operators_do_not_free_it(core: CoreHarness) -> None:
    keys = chain("a", 8)
    offsets = lost(core, keys)
    operator = Client("operator")
    core.pool.handle(operator, Clear(None))
    assert core.receive(operator, AdminReply).ok
    core.pool.handle(operator, Resize(MIB, []))
    for _ in range(5):
        core.turn()
    assert pinned(core) == 8
    for key, offset in zip(keys, offsets, strict=True):
        assert core.pool.view(offset, LENGTH) == payload(key)
    core.pool.handle(operator, Settled("e"))
    core.turn()
    assert core.number("chunks", tier="dram") == 0, "cleared as soon as nobody uses it"


def test_a_connection_lost_again_and_again_counts_once(core: CoreHarness) -> None:
    keys = chain("a", 8)
    for _ in range(3):
        lost(core, keys)
    assert pinned(core) == 8
    lost(core, keys, "other")
    core.pool.exited("e")
    assert pinned(core) == 8, "the other one may read them"
    core.pool.exited("other")
    assert pinned(core) == 0


def test_others_stream_through_the_room_that_is_left(core: CoreHarness) -> None:
    """A stream that is longer than that does not wait for orphaned, which may stay for long."""
    lost(core, chain("a", 24))
    client, keys = Client("f"), chain("b", 16)
    core.store(client, keys)
    number, _ = core.lookup(client, keys)
    promise = core.ask(client, number, keys, stream=True)
    assert (len(promise.offsets), promise.total) == (14, 16), "half of DRAM, but for 3/4 of 24"
    assert pinned(core) == 24 + 14
    core.pool.handle(client, Settled("e"))
    assert pinned(core) == 16, "who waited has gone on"
    core.pool.handle(client, Release(number, []))
    assert pinned(core) == 0
