"""GET into given buffers: exact, an end that was announced, or nothing."""

import socket
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest
from tests.listening import STUFFING, HangUp, ListeningServer
from tests.lying_http import LyingServer, Request

from forebay.sys.clock import Clock
from forebay.tiers.remote.stores.http import HttpReader, HttpReply

AGES_S = 600.0
Answer = Callable[[Request], Iterator[bytes]]


class NoTlsServer(ListeningServer):
    """Whatever it is sent, it says something else and hangs up."""

    def replies(self, incoming: BinaryIO) -> Iterator[bytes]:
        incoming.read(1)
        yield b"no TLS at all"
        raise HangUp


def said(*parts: bytes, hang_up: bool = False) -> Answer:
    def answer(request: Request) -> Iterator[bytes]:
        yield from parts
        if hang_up:
            raise HangUp

    return answer


def got(answer: Answer, at: int = 0, size: int = 8) -> tuple[HttpReply | None, bytes]:
    """The reply to one GET, and what is in the buffers then."""
    reader, buffer = HttpReader(), bytearray(size)
    with LyingServer(answer) as server:
        view = memoryview(buffer)
        reply = reader.read(f"{server.url}/x?y=1", at, [view[:3], view[3:]], AGES_S)
        reader.close()
    return reply, bytes(buffer)


OK = b"HTTP/1.1 200 OK\r\n"
PART = b"HTTP/1.1 206 Partial Content\r\n"


@pytest.mark.parametrize(
    ("answer", "at", "count"),
    [
        (said(OK + b"Content-Length: 8\r\n\r\nabcdefgh"), 0, 8),
        (said(OK + b"Content-Length: 3\r\n\r\nabc"), 0, 3),
        (said(OK + b"Content-Length: 10\r\n\r\nabcdefghij"), 0, 8),
        (said(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), 0, 3),
        (said(PART + b"Content-Range: bytes 5-12/99\r\nContent-Length: 8\r\n\r\nabcdefgh"), 5, 8),
        (said(PART + b"Content-Range: bytes 5-7/8\r\nContent-Length: 3\r\n\r\nabc"), 5, 3),
        (said(PART + b"Content-Range: bytes 0-7/9\r\n\r\n", b"abcdef", b"gh", STUFFING), 0, 8),
    ],
)
def test_what_is_said_in_good_order_is_taken(answer: Answer, at: int, count: int) -> None:
    reply, found = got(answer, at)
    assert reply is not None
    assert reply.filled == count
    assert found == b"abcdefgh"[:count].ljust(8, b"\0")


@pytest.mark.parametrize(
    ("answer", "at"),
    [
        (said(OK + b"Content-Length: 8\r\n\r\nabc", hang_up=True), 0),
        (said(OK + b"\r\nabc", hang_up=True), 0),
        (said(OK + b"Content-Length: 8\r\n\r\nabcdefgh"), 5),
        (said(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nab", hang_up=True), 0),
        (said(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc", hang_up=True), 0),
        (said(PART + b"Content-Length: 8\r\n\r\nabcdefgh"), 0),
        (said(PART + b"Content-Range: bytes 4-11/99\r\nContent-Length: 8\r\n\r\nabcdefgh"), 5),
        (said(PART + b"Content-Range: bytes 5-7/99\r\nContent-Length: 3\r\n\r\nabc"), 5),
        (said(b"no HTTP\r\n\r\n", hang_up=True), 0),
        (said(hang_up=True), 0),
    ],
)
def test_what_contradicts_itself_is_nothing(answer: Answer, at: int) -> None:
    assert got(answer, at)[0] is None


def test_an_error_has_a_status_and_the_beginning_of_its_text() -> None:
    text = b"why" * 5000
    answer = said(b"HTTP/1.1 503 Slow\r\nContent-Length: 15000\r\n\r\n" + text)
    assert got(answer)[0] == HttpReply(503, text=text[:4096])


class Passing(Clock):
    """A second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_t26_the_deadline_is_one_for_all_that_drips_in() -> None:
    def dripping(request: Request) -> Iterator[bytes]:
        yield OK + b"Content-Length: 1000000\r\n\r\n"
        while not server.over.wait(0.001):
            yield b"x"

    with LyingServer(dripping) as server:
        buffer = memoryview(bytearray(1_000_000))
        assert HttpReader(Passing()).read(server.url + "/", 0, [buffer], 100.0) is None


def test_t25_a_server_that_is_not_there_is_nothing() -> None:
    buffer = memoryview(bytearray(1))
    with socket.socket() as taken:  # so that nobody else listens there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        assert HttpReader().read(url, 0, [buffer], AGES_S) is None
    assert HttpReader().read("http://127.0.0.1:port/", 0, [buffer], AGES_S) is None
    with NoTlsServer() as server:
        assert HttpReader().read(f"https://{server.address}/", 0, [buffer], AGES_S) is None


def test_connections_are_kept_if_nothing_is_left_in_them() -> None:
    replies = {
        "/whole": OK + b"Content-Length: 4\r\n\r\nabcd",
        "/more": OK + b"Content-Length: 9\r\n\r\nabcdefghi",
        "/behind": OK + b"Content-Length: 4\r\n\r\nabcd" + b"HTTP/1.1 200 OK\r\n\r\n",
        "/close": OK + b"Connection: close\r\nContent-Length: 4\r\n\r\nabcd",
    }
    reader, buffer = HttpReader(), memoryview(bytearray(4))
    with LyingServer(lambda request: iter([replies[request.target]])) as server:
        connections = []
        for path in (
            "/whole",
            "/whole",
            "/more",
            "/whole",
            "/behind",
            "/whole",
            "/close",
            "/whole",
        ):
            reply = reader.read(server.url + path, 0, [buffer], AGES_S)
            assert reply == HttpReply(200, 4)
            assert bytes(buffer) == b"abcd"
            connections.append(server.connections)
        assert connections[:4] == [1, 1, 1, 2]
        assert connections[5] > connections[3], "what came unasked is nobody's reply"
        assert connections[7] == connections[6] + 1
    with LyingServer(lambda request: iter([replies["/whole"]])) as other:
        assert reader.read(other.url + "/", 0, [buffer], AGES_S) == HttpReply(200, 4)
        assert other.connections == 1, "of another server"
        reader.close()


def test_few_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.tiers.remote.stores.http._IDLE_MAX", 0)
    reader, buffer = HttpReader(), memoryview(bytearray(4))
    with LyingServer(said(OK + b"Content-Length: 4\r\n\r\nabcd")) as server:
        for number in (1, 2):
            assert reader.read(server.url + "/", 0, [buffer], AGES_S) == HttpReply(200, 4)
            assert server.connections == number
