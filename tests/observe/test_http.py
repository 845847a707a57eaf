"""The HTTP server: what it answers, and that no client costs more than its bounds."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus

import pytest
from tests.pool_process import HANG_S, wait_until

from forebay.barrier import Barrier
from forebay.observe.access import Access
from forebay.observe.http import (
    HEAD_BYTES_MAX,
    HttpLimits,
    HttpRequest,
    HttpResponse,
    HttpServer,
    parse_head,
)

LARGE = bytes(64 << 20)  # more than the kernel keeps for a client that does not read
PATIENT = HttpLimits(connections_max=2, request_s=HANG_S, give_way_s=HANG_S)
STRICT = HttpLimits(connections_max=1, request_s=0.2)


HEARD: list[str] = []  # the paths of requests that were handed over


def handler(request: HttpRequest) -> HttpResponse:
    HEARD.append(request.path)
    if request.path == "/bug":
        raise ZeroDivisionError
    if request.path == "/large":
        return HttpResponse(body=LARGE)
    return HttpResponse(body=f"{request.path} {dict(request.query)}".encode())


@contextmanager
def answering(limits: HttpLimits | None = None) -> Iterator[HttpServer]:
    server = HttpServer(Access("127.0.0.1", 0, None), handler, Barrier(), limits)
    try:
        yield server
    finally:
        server.close(HANG_S)


def connect(server: HttpServer) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), HANG_S)
    link.settimeout(HANG_S)
    return link


def said(link: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    heard = b""
    with suppress(ConnectionError):
        while data := link.recv(1 << 16):
            heard += data
    return heard


def ask(server: HttpServer, sent: bytes) -> bytes:
    with connect(server) as link:
        with suppress(OSError):  # it may hang up before it has heard all
            link.sendall(sent)
        return said(link)


def head(target: str, method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in ({"Host": "localhost"} | headers).items()]
    return "\r\n".join([*lines, "", ""]).encode()


def test_get_and_head() -> None:
    with answering() as server:
        got, headed = (ask(server, head("/a%20b?x=1", method)) for method in ("GET", "HEAD"))
        assert got.endswith(b"\r\n\r\n/a b {'x': '1'}")
        assert headed == got.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", "the same without the body"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0\xff\xfe garbage\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET http://x/ HTTP/1.1\r\nHost: localhost\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHOST: x\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET //[x HTTP/1.1\r\nHost: localhost\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /?" + b"a=1&" * 50 + b" HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100 + b"\r\n", HTTPStatus.BAD_REQUEST),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
    ],
)
def test_what_is_not_understood_is_refused(sent: bytes, status: HTTPStatus) -> None:
    refused = parse_head(sent.partition(b"\r\n\r\n")[0])
    assert isinstance(refused, HttpResponse)
    assert refused.status == status
    with answering() as server:
        assert ask(server, sent).startswith(f"HTTP/1.1 {status.value} ".encode())
        assert ask(server, head("/")).startswith(b"HTTP/1.1 200 ")


def test_t65_a_head_that_is_too_long_is_not_read_on() -> None:
    with answering() as server:
        endless = b"GET / HTTP/1.1\r\nX: " + b"x" * (4 * HEAD_BYTES_MAX)
        too_long = b"HTTP/1.1 431 "
        assert ask(server, endless)[:13] in {b"", too_long}, "it may hear nothing while it sends"
        just = b"GET / HTTP/1.1\r\nX: ".ljust(HEAD_BYTES_MAX + 1, b"x")
        assert ask(server, just).startswith(too_long)
        assert ask(server, head("/")).startswith(b"HTTP/1.1 200 ")


def test_t65_who_comes_when_all_places_are_taken_is_told_so() -> None:
    with answering(PATIENT) as server, ExitStack() as waiting:
        heard = len(HEARD)
        for _ in range(PATIENT.connections_max):
            waiting.enter_context(connect(server)).sendall(head("/large"))
        wait_until(lambda: len(HEARD) == heard + PATIENT.connections_max, "the requests")
        assert b"too many clients" in ask(server, b"")
        waiting.close()
        wait_until(lambda: ask(server, head("/")).startswith(b"HTTP/1.1 200 "), "a place")


def test_t65_silent_clients_keep_nobody_out() -> None:
    """Each newcomer has the place of the one that has been silent longest."""
    with answering(PATIENT) as server, ExitStack() as stack:
        silent: list[socket.socket] = []
        for sent in (b"", b"GET / HT"):
            silent.append(stack.enter_context(connect(server)))
            silent[-1].sendall(sent)
            wait_until(lambda: len(server._silent) == len(silent), "its thread")
        assert ask(server, head("/")).startswith(b"HTTP/1.1 200 ")
        assert said(silent[0]) == b"", "the oldest is gone"
        silent[1].sendall(head("/")[len(b"GET / HT") :])
        assert said(silent[1]).startswith(b"HTTP/1.1 200 "), "the other has its place still"


def test_a_request_that_had_come_is_answered_before_its_place_is_anothers() -> None:
    with answering(PATIENT) as server, connect(server) as first, connect(server) as second:
        wait_until(lambda: len(server._silent) == PATIENT.connections_max, "both")
        first.sendall(head("/"))
        second.sendall(head("/"))
        assert ask(server, head("/")).startswith(b"HTTP/1.1 200 ")
        for each in (first, second):
            assert said(each).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", head("/large")])
def test_t65_a_slow_client_loses_its_place(sent: bytes) -> None:
    """It sends nothing, or not all, or does not read what it asked for."""
    with answering(STRICT) as server, connect(server) as slow:
        slow.sendall(sent)
        wait_until(lambda: ask(server, head("/")).startswith(b"HTTP/1.1 200 "), "its place")


def test_t65_a_client_that_drips_loses_its_place() -> None:
    """Every byte comes in time, and the whole does not."""
    with answering(STRICT) as server, connect(server) as drips:

        def is_cut_off() -> bool:
            try:
                drips.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(is_cut_off, "the end of its patience")
        wait_until(lambda: ask(server, head("/")).startswith(b"HTTP/1.1 200 "), "its place")


@pytest.mark.expects_faults
def test_t56_an_exception_ends_its_request_alone() -> None:
    with answering() as server:
        assert ask(server, head("/bug")).startswith(b"HTTP/1.1 500 ")
        assert ask(server, head("/")).startswith(b"HTTP/1.1 200 ")


def test_that_descriptors_have_run_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with answering() as server:
        for _ in range(100):
            server._tell_exhausted(OSError(24, "Too many open files"))
    assert caplog.text.count("cannot be accepted now (Too many open files)") == 1
