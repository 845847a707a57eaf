"""What was promised on a connection that is over: pinned as long as anyone may read it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.desk import LENGTH, Client, Desk, chain, payload

from forebay.pool.messages import AdminReply, Ask, Cancel, Clear, Release, Resize, Settled

MIB = 1 << 20
SLOTS = 64  # of LENGTH, in 4 MiB; the load budget is half of them


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(SLOTS * LENGTH)
    yield desk
    desk.settle()
    assert desk.pool.violations() == []
    desk.pool.close(5)


def pinned(desk: Desk) -> int:
    """Chunks that count against the load budget; the books are right."""
    assert desk.pool.violations() == []
    return desk.number("dram", "pinned_bytes") // LENGTH


def lost(desk: Desk, keys: list[bytes], engine: str = "e") -> list[int]:
    """Slots that were promised to an engine which then lost its connection."""
    client = Client(engine)
    desk.store(client, keys)
    number, _ = desk.lookup(client, keys)
    offsets = desk.ask(client, number, keys).offsets
    desk.pool.disconnected(client)
    return offsets


def flood(desk: Desk) -> None:
    """Store more than there is room for; whatever can leave does."""
    for dialog in range(3):
        client, keys = Client("flood"), chain(f"flood {dialog}", SLOTS)
        answers = desk.reserve(client, keys)
        for key, answer in zip(keys, answers, strict=True):
            if answer >= 0:
                desk.fill(answer, payload(key))
        desk.commit(client, [answer for answer in answers if answer >= 0])
        desk.turn()


def test_t23_a_lost_connections_promise_is_not_overwritten(desk: Desk) -> None:
    keys = chain("a", 8)
    offsets = lost(desk, keys)
    flood(desk)
    assert pinned(desk) == 8
    for key, offset in zip(keys, offsets, strict=True):
        assert desk.pool.view(offset, LENGTH) == payload(key)
    desk.pool.exited("e")
    flood(desk)
    assert desk.lookup(Client("f"), keys)[1].known == 0, "now it may leave"


def test_it_is_free_when_the_engine_has_exited(desk: Desk) -> None:
    lost(desk, chain("a", 8))
    lost(desk, chain("b", 4), "other")
    assert desk.pool.lends("e")
    desk.pool.exited("e")
    assert not desk.pool.lends("e")
    assert pinned(desk) == 4, "the other one's"
    desk.pool.exited("other")
    assert pinned(desk) == 0
    assert desk.number("dram", "pinned_chunks") == 0


def test_it_is_free_when_the_engine_says_that_nobody_reads_it(desk: Desk) -> None:
    lost(desk, chain("a", 8))
    again = Client("e again")
    keys = chain("b", 2)
    desk.store(again, keys)
    number, _ = desk.lookup(again, keys)
    desk.ask(again, number, keys)
    desk.pool.handle(again, Settled("nobody"))
    assert pinned(desk) == 10
    desk.pool.handle(again, Settled("e"))
    assert pinned(desk) == 2, "what it was promised under its new name"
    assert not desk.pool.lends("e")
    desk.pool.handle(again, Release(number, []))
    assert pinned(desk) == 0


def test_settled_may_be_heard_before_the_old_connections_end(desk: Desk) -> None:
    old, keys = Client("e"), chain("a", 8)
    desk.store(old, keys)
    number, _ = desk.lookup(old, keys)
    desk.ask(old, number, keys)
    desk.pool.handle(Client("e again"), Settled("e"))
    assert pinned(desk) == 0
    desk.pool.disconnected(old)
    assert not desk.pool.lends("e")


def test_what_was_not_promised_or_is_released_ends_with_the_connection(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    desk, keys = Desk(SLOTS * LENGTH, tmp_path, 64 * MIB), chain("a", SLOTS // 2)
    desk.store(Client("e"), keys)
    desk.settle()
    holding, arrived, waiting, done = (Client(name) for name in ("h", "a", "w", "d"))
    number, _ = desk.lookup(holding, keys)
    desk.ask(holding, number, keys)  # all of the load budget
    desk.lookup(arrived, keys)
    more = chain("b", 4)
    desk.store(Client("e"), more)
    desk.settle()
    released, _ = desk.lookup(done, keys)
    desk.ask(done, released, keys)
    desk.pool.handle(done, Release(released, list(range(SLOTS // 2))))
    asked, _ = desk.lookup(waiting, more)
    desk.pool.handle(waiting, Ask(asked, 0, 4, 10_000, stream=False))
    for client in (arrived, waiting, done):
        desk.pool.disconnected(client)
        assert not desk.pool.lends(client.engine)
    assert pinned(desk) == SLOTS // 2
    desk.pool.handle(holding, Cancel(number))
    assert pinned(desk) == 0
    desk.pool.close(5)


def test_operators_do_not_free_it(desk: Desk) -> None:
    keys = chain("a", 8)
    offsets = lost(desk, keys)
    operator = Client("operator")
    desk.pool.handle(operator, Clear(""))
    assert desk.receive(operator, AdminReply).ok
    desk.pool.handle(operator, Resize(MIB, []))
    for _ in range(5):
        desk.turn()
    assert pinned(desk) == 8
    for key, offset in zip(keys, offsets, strict=True):
        assert desk.pool.view(offset, LENGTH) == payload(key)
    desk.pool.handle(operator, Settled("e"))
    desk.turn()
    assert desk.number("dram", "chunks") == 0, "cleared as soon as nobody uses it"


def test_a_connection_lost_again_and_again_counts_once(desk: Desk) -> None:
    keys = chain("a", 8)
    for _ in range(3):
        lost(desk, keys)
    assert pinned(desk) == 8
    lost(desk, keys, "other")
    desk.pool.exited("e")
    assert pinned(desk) == 8, "the other one may read them"
    desk.pool.exited("other")
    assert pinned(desk) == 0


def test_others_stream_through_the_room_that_is_left(desk: Desk) -> None:
    """A stream that is longer than that does not wait for orphaned, which may stay for long."""
    lost(desk, chain("a", 24))
    client, keys = Client("f"), chain("b", 16)
    desk.store(client, keys)
    number, _ = desk.lookup(client, keys)
    promise = desk.ask(client, number, keys, stream=True)
    assert (len(promise.offsets), promise.total) == (8, 16)
    assert pinned(desk) == SLOTS // 2
    desk.pool.handle(client, Settled("e"))
    assert pinned(desk) == 16, "who waited has gone on"
    desk.pool.handle(client, Release(number, []))
    assert pinned(desk) == 0
