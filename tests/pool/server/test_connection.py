"""Order in a round: loads of everyone before stores of anyone, and each connection in order."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from forebay.pool import wire
from forebay.pool.messages import (
    FRAME_BYTES_MAX,
    Abort,
    Ask,
    Cancel,
    ChunkRun,
    ClientMessage,
    Commit,
    Found,
    Lookup,
    Refused,
    Reserve,
    StatsQuery,
    StatsReply,
)
from forebay.pool.server.connection import Connection
from forebay.pool.session import Work
from forebay.sys.sockets import Peer

LOOKUP = Lookup(1, bytes(32), 0, b"")
ASK = Ask(1, 0, 1, 10, stream=False)
RESERVE = Reserve(1, [])
COMMIT = Commit(1, [], b"")
ABORT = Abort(1, [])
STATS = StatsQuery()


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setblocking(False)
    connection = Connection(ours, Peer(1, 0), 0.0, 1000)
    yield connection, theirs
    connection.close()
    theirs.close()


@pytest.mark.parametrize(
    ("sent", "loads", "rest", "patient"),
    [
        ([LOOKUP, ASK], [LOOKUP, ASK], [], []),
        ([RESERVE, COMMIT], [], [COMMIT], [RESERVE]),
        ([LOOKUP, RESERVE, ASK], [LOOKUP, ASK], [], [RESERVE]),
        ([COMMIT, LOOKUP], [], [COMMIT, LOOKUP], []),
        ([RESERVE, ABORT, COMMIT, ASK, STATS], [], [COMMIT, ASK], [RESERVE, ABORT, STATS]),
    ],
)
def test_loads_go_first_and_with_commits_overtake_all_else(
    pair: tuple[Connection, socket.socket],
    sent: list[ClientMessage],
    loads: list[ClientMessage],
    rest: list[ClientMessage],
    patient: list[ClientMessage],
) -> None:
    connection, theirs = pair
    theirs.sendall(b"".join(map(wire.encode, sent)))
    connection.receive()
    connection.fill(64)
    assert list(connection.urgent_before_commit()) == loads
    assert list(connection.urgent()) == rest
    assert not connection.has_messages
    assert connection.has_work is bool(patient)
    assert list(connection.deferred()) == patient
    assert not connection.has_work


def test_what_takes_long_is_done_a_little_a_round_and_the_next_waits_for_it(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    theirs.sendall(wire.encode(RESERVE) + wire.encode(ABORT) + wire.encode(LOOKUP))
    connection.receive()
    connection.fill(64)
    assert [*connection.urgent_before_commit(), next(connection.deferred())] == [LOOKUP, RESERVE]
    connection.begin(work([]))
    rounds = 0
    while not (taken := list(connection.deferred())):
        rounds += 1
        connection.resume()
    assert (rounds, taken) == (3, [ABORT])


def work(ended: list[bool]) -> Work:
    """Two turns, and an end in any case."""
    try:
        yield
        yield
    finally:
        ended.append(True)


def test_who_has_hung_up_gets_no_slots_but_what_it_gave_back_is_taken(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    theirs.sendall(wire.encode(RESERVE) * 2 + wire.encode(ABORT))
    theirs.close()
    connection.receive()
    connection.fill(64)
    assert next(connection.deferred()) == RESERVE
    ended: list[bool] = []
    connection.begin(work(ended))
    connection.resume()
    assert not ended
    connection.receive()
    assert ended == [True], "nobody would hear of it"
    assert not connection.is_over, "it has given something back"
    assert list(connection.deferred()) == [ABORT]
    connection.receive()
    assert connection.is_over


def test_no_more_requests_for_slots_wait_than_messages_may(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    theirs.sendall(wire.encode(RESERVE) * 10 + wire.encode(LOOKUP))
    for _ in range(3):
        connection.receive()
        connection.fill(4)
        assert not list(connection.urgent_before_commit())
    for _ in range(6):
        assert next(connection.deferred()) == RESERVE
        connection.fill(4)
    assert not list(connection.urgent_before_commit()), "four wait before it"
    assert next(connection.deferred()) == RESERVE
    connection.fill(4)
    assert list(connection.urgent_before_commit()) == [LOOKUP]


def test_what_waits_is_bounded_in_bytes_too(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    long = Reserve(1, [ChunkRun(bytes(32), 0, bytes(32), bytes(32 * 10_000), 1)])
    frame = wire.encode(long)
    theirs.setblocking(False)
    connection.begin(work([]))
    sent = taken = 0
    for _ in range(400):
        with contextlib.suppress(BlockingIOError):
            sent += theirs.send((frame * 2)[sent % len(frame) :])
        connection.receive()
        connection.fill(64)
    assert sent < 8 * len(frame), "no more is read"
    connection.resume()
    connection.resume()
    connection.resume()
    for _ in range(400):
        taken += sum(message == long for message in connection.deferred())
        connection.receive()
        connection.fill(64)
    assert taken == sent // len(frame), "and then all of it"
    assert not connection.has_work


def test_a_round_takes_no_more_than_its_share(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(wire.encode(Cancel(1)) * 10)
    taken = []
    connection.receive()
    while connection.has_messages:
        connection.fill(4)
        taken.append(len(list(connection.urgent_before_commit())))
        connection.receive()
    assert taken == [4, 4, 2]


def test_what_is_not_read_ends_the_connection(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    while not connection.is_over:
        connection.send(Found(1, 2, 3))
    assert connection.has_output
    connection.send(Found(1, 2, 3))  # does nothing
    connection.flush()
    assert theirs.recv(1 << 20)


@pytest.mark.parametrize(
    ("sent", "is_engine"), [([], True), ([StatsQuery()], False), ([StatsQuery(), LOOKUP], True)]
)
def test_looking_at_a_pool_does_not_keep_it_alive(
    pair: tuple[Connection, socket.socket], sent: list[ClientMessage], is_engine: bool
) -> None:
    connection, theirs = pair
    theirs.sendall(wire.encode(wire_hello()) + b"".join(map(wire.encode, sent)))
    connection.receive()
    connection.fill(64)
    assert connection.is_engine == is_engine
    connection.is_operator = True
    assert not connection.is_engine, "a health check says Hello, and no more"


def wire_hello() -> ClientMessage:
    from forebay.pool.messages import PROTOCOL, Hello

    return Hello(PROTOCOL, "e")


def test_an_answer_that_no_frame_can_hold_is_refused_in_a_sentence(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    connection.send(StatsReply(bytes(FRAME_BYTES_MAX)))
    reader = wire.pool_reader()
    reader.feed(theirs.recv(4096))
    (refused,) = reader.messages()
    assert isinstance(refused, Refused)
    assert refused.sentence.startswith("the answer cannot be sent: a message of ")
    assert connection.is_over
