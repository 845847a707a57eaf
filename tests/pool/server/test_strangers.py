"""Hostile and careless peers: a typed answer, bounded memory, the others unaffected."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests import pool_process
from tests.other_user import OTHER_UID, THIRD_UID, asked_by_other_user, needs_root
from tests.pool.test_wire import BOMBS, CLIENT, framed
from tests.pool_process import PatientClient

from forebay.metrics.reading import count
from forebay.pool import wire
from forebay.pool.client import Client, Known
from forebay.pool.messages import (
    PROTOCOL,
    Hello,
    Lookup,
    PoolMessage,
    Refused,
    StatsQuery,
    StatsReply,
    Welcome,
)
from forebay.pool.server.limits import ServerLimits
from forebay.pool.service import Service
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing import samples
from forebay.testing.clock import ManualClock

HELLO = wire.encode(Hello(PROTOCOL, "stranger"))
LIMITS = ServerLimits(connections_max=8, output_bytes_max=1 << 20)


@contextmanager
def connected(service: Service, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(pool_process.HANG_S)
        link.connect(service.address.path)
        if data:
            link.sendall(data)
        yield link


def heard(link: socket.socket) -> list[PoolMessage]:
    """Everything that the pool says until it hangs up."""
    return list(heard_one_by_one(link))


def heard_one_by_one(link: socket.socket) -> Iterator[PoolMessage]:
    """The same, as it comes."""
    reader = wire.pool_reader()
    while True:
        try:
            data = link.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return
        reader.feed(data)
        for message in reader.messages():
            assert not isinstance(message, wire.FrameError)
            yield message


def say_for_ever(link: socket.socket, data: bytes) -> None:
    for _ in range(10_000):
        link.sendall(data)


def number(client: Client, name: str, **labels: str) -> int:
    stats = client.stats()
    assert isinstance(stats, dict)
    return count(stats, name, **labels)


@pytest.mark.parametrize("name", sorted(BOMBS.keys() - {"2^63 and more"}))
@pytest.mark.parametrize("greeted", [False, True])
def test_t39_t40_hostile_bytes_end_their_connection_alone(
    service: Service, client: Client, name: str, greeted: bool
) -> None:
    assert client.join()
    with connected(service, HELLO * greeted + BOMBS[name]) as link:
        answers = heard(link)
    assert isinstance(answers[-1], Refused)
    assert [type(answer) for answer in answers[:-1]] == [Welcome] * greeted
    assert isinstance(client.lookup(pool_process.made("other")[1]), Known)


def test_half_a_frame_and_an_end_is_nobody(service: Service, client: Client) -> None:
    for data in (b"", b"\x10", HELLO[:-1], HELLO + framed(b"\x92\xa6cancel\x01")[:-3]):
        with connected(service, data):
            pass
    assert isinstance(client.lookup(pool_process.made("other")[1]), Known)


@pytest.mark.parametrize("name", sorted(CLIENT.keys() - {"Hello"}))
def test_t38_nothing_is_answered_before_hello(service: Service, client: Client, name: str) -> None:
    with connected(service, wire.encode(CLIENT[name])) as link:
        assert [type(answer) for answer in heard(link)] == [Refused]
    assert not number(client, "lookups")


@pytest.mark.parametrize(
    "hello",
    [
        Hello(PROTOCOL + 1, "e"),
        Hello(PROTOCOL - 1, "e"),
        Hello(PROTOCOL, ""),
        Hello(PROTOCOL, "e" * 65),
        Hello(-1, "e"),
    ],
)
def test_a_wrong_hello_is_refused_with_a_sentence(service: Service, hello: Hello) -> None:
    with connected(service, wire.encode(hello)) as link:
        (answer,) = heard(link)
    assert isinstance(answer, Refused)
    assert answer.sentence.endswith(".")


def test_hello_is_said_once(service: Service) -> None:
    with connected(service, HELLO + HELLO) as link:
        assert [type(answer) for answer in heard(link)] == [Welcome, Refused]


class StrangersDisk(Disk):
    """The disk of a user that we are not."""

    def user(self) -> int:
        return super().user() + 1


@needs_root
def test_t38_other_users_are_refused_before_a_byte_is_read(place: Path) -> None:
    def listen() -> list[PoolMessage]:
        with connected(service) as link:
            return heard(link)

    place.chmod(0o755)
    settings = replace(pool_process.SMALL, allow_uid=(THIRD_UID,))  # so that all can connect
    with pool_process.serving(place, settings) as service:
        (answer,) = asked_by_other_user(listen, OTHER_UID)
        assert isinstance(answer, Refused)
        assert "--allow-uid" in answer.sentence


def test_an_allowed_user_may_join(place: Path) -> None:
    settings = replace(pool_process.SMALL, allow_uid=(os.geteuid(),))
    with (
        pool_process.serving(place, settings, world=World(StrangersDisk())) as service,
        PatientClient(service.address.path) as client,
    ):
        assert client.join()


def test_who_says_nothing_is_let_go(place: Path) -> None:
    clock = ManualClock()
    with (
        pool_process.serving(place, world=World(clock=clock)) as service,
        connected(service) as silent,
        connected(service, HELLO) as greeted,
    ):
        assert greeted.recv(1)  # so both have been accepted
        clock.advance(ServerLimits().hello_s + 0.01)
        assert [type(answer) for answer in heard(silent)] == [Refused]


def test_one_connection_too_many_is_refused(place: Path) -> None:
    with pool_process.serving(place, limits=LIMITS) as service:
        links = [socket.socket(socket.AF_UNIX) for _ in range(LIMITS.connections_max + 1)]
        try:
            for link in links:
                link.settimeout(pool_process.HANG_S)
                link.connect(service.address.path)
                link.sendall(HELLO)
            assert [type(answer) for answer in heard(links[-1])] == [Refused]
        finally:
            for link in links:
                link.close()
        with PatientClient(service.address.path) as client:
            pool_process.wait_until(client.join, "the next to be served")


def test_t57_who_does_not_read_is_cut_off(place: Path) -> None:
    with (
        pool_process.serving(place, limits=LIMITS) as service,
        PatientClient(service.address.path) as client,
    ):
        assert client.join()
        question = wire.encode(StatsQuery()) * 100
        with connected(service, HELLO) as link, pytest.raises(ConnectionError):
            say_for_ever(link, question)
        assert number(client, "errors", kind="cut_off") == 1


def test_t57_a_talker_does_not_keep_others_waiting(place: Path) -> None:
    """A connection has its share of a round, however much it sends."""
    question = wire.encode(Lookup(1, samples.NAMESPACE, 0, bytes(16)))
    with ExitStack() as links:
        sent: list[int] = []
        others: list[socket.socket] = []

        def ask(service: Service) -> None:
            talker = links.enter_context(connected(service, HELLO))
            talker.setblocking(False)
            sent.append(talker.send(question * 10_000) // len(question))
            others.append(
                links.enter_context(connected(service, HELLO + wire.encode(StatsQuery())))
            )

        with pool_process.serving(place, before=ask):
            reply = next(each for each in heard_one_by_one(others[0]) if type(each) is StatsReply)
        handled = count(json.loads(reply.json), "lookups")
    assert handled <= 2 * ServerLimits().messages_a_round_max < sent[0]


def test_descriptors_return_to_the_baseline(service: Service, client: Client) -> None:
    assert client.join()
    before = pool_process.descriptors()
    for _ in range(50):
        with PatientClient(service.address.path) as other:
            assert other.join()
        with connected(service, HELLO):
            pass
    pool_process.wait_until(
        lambda: pool_process.descriptors() <= before, "descriptors to be closed"
    )
