"""A small HTTP server: GET and HEAD, one request per connection, everything limited.

Promised: whatever a client sends, or does not send, costs at most one of a few threads for a few
seconds and some KiB (`HttpLimits`). If all threads are taken, a new connection replaces the one
that has been silent longest, that is, without a complete request; if there is none, the new one is
refused with 503.
Nothing here accesses the pool: answers come from the handler. Assumed: the handler is bounded in
time too, and any thread may call it.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from forebay.barrier import Barrier
from forebay.observe.access import Access
from forebay.sys import sockets

HEAD_BYTES_MAX: Final = 8192  # of a request: line and headers
HEADERS_MAX: Final = 64
_EXHAUSTED_S: Final = 0.5  # without accepting, after descriptors have run out
_TOLD_S: Final = 60.0  # between two log lines about that
_UNREAD_BYTES_MAX: Final = 1 << 16  # read and thrown away before a connection is closed
_BACKLOG: Final = 32
_QUERY_FIELDS_MAX: Final = 8
_END: Final = b"\r\n\r\n"
_METHODS: Final = ("GET", "HEAD")
_PLAIN: Final = "text/plain; charset=utf-8"
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on what clients may use of this process; tests make them small."""

    connections_max: int = 16  # of one thread each
    request_s: float = 5.0  # to receive a request's whole head, and again to send its answer
    give_way_s: float = 2.0  # for a silent client's thread to end when its place is needed


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The parts of a request that are used."""

    method: str
    path: str  # decoded, without the query
    query: Mapping[str, str]
    headers: Mapping[str, str]  # by lower-case name; of several with one name, the last
    peer_uid: Callable[[], int | None] = lambda: None  # the client's user, if it can be seen


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a request."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = _PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)  # in addition to the usual ones


HttpHandler = Callable[[HttpRequest], HttpResponse]


class HttpServer:
    """Listens at one address, on threads of its own. Made and closed by one thread."""

    def __init__(
        self,
        access: Access,
        handler: HttpHandler,
        barrier: Barrier,
        limits: HttpLimits | None = None,
    ) -> None:
        """Start to listen; raises the kernel's OSError."""
        self._access, self._handler, self._barrier = access, handler, barrier
        self._limits = limits or HttpLimits()
        self._listener = sockets.listen_tcp(access.address, access.port, _BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._places = threading.BoundedSemaphore(self._limits.connections_max)
        self._lock = threading.Lock()  # guards `_silent`, and keeps what is in it open
        self._silent: dict[socket.socket, None] = {}  # without a complete request, oldest first
        self._told_at = -_TOLD_S  # monotonic
        self._is_closing = False
        self._thread = threading.Thread(target=self._accept, name="forebay-http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL at which it answers."""
        address = self._access.address
        return f"http://{f'[{address}]' if ':' in address else address}:{self.port}"

    def close(self, timeout_s: float) -> None:
        """Accept no more connections; answers under way go on, and end in time."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout_s)
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                link, _ = self._listener.accept()
            except OSError as error:
                if not self._is_closing:
                    self._tell_exhausted(error)
                    time.sleep(_EXHAUSTED_S)
                continue
            self._barrier.call("an HTTP client", self._admit, link)

    def _tell_exhausted(self, error: OSError) -> None:
        if time.monotonic() - self._told_at >= _TOLD_S:
            self._told_at = time.monotonic()
            _log.warning("HTTP clients cannot be accepted now (%s)", error.strerror)

    def _admit(self, link: socket.socket) -> None:
        if not self._places.acquire(blocking=False) and not self._take_place():
            busy = HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"too many clients at once\n")
            link.settimeout(0.0)
            with contextlib.suppress(OSError):
                link.send(_encode(busy, "GET"))
            _hang_up(link)
            return
        with self._lock:
            self._silent[link] = None
        try:
            serve = threading.Thread(
                target=self._serve, args=(link,), name="forebay-http-client", daemon=True
            )
            serve.start()
        except RuntimeError:  # the system has no thread for us now
            self._end(link)

    def _take_place(self) -> bool:
        """Take the place of the client that was silent longest; False if none is, or it takes long.

        What that client has sent is still read: if its request is complete, it is answered first.
        """
        with self._lock:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RD)
        return self._places.acquire(timeout=self._limits.give_way_s)

    def _serve(self, link: socket.socket) -> None:
        try:
            self._barrier.call("an HTTP request", self._answer, link)
        finally:
            self._end(link)

    def _end(self, link: socket.socket) -> None:
        self._heard(link)
        _hang_up(link)
        self._places.release()

    def _heard(self, link: socket.socket) -> None:
        """A client's request is complete, or will never be."""
        with self._lock:
            self._silent.pop(link, None)

    def _answer(self, link: socket.socket) -> None:
        timeout_s = self._limits.request_s
        head = _receive_head(link, timeout_s)
        self._heard(link)
        if head is None:
            return  # the client hung up or was too slow: nobody waits for an answer
        parsed = parse_head(head)
        if isinstance(parsed, HttpResponse):
            _send(link, _encode(parsed, "GET"), timeout_s)
            return
        failed = HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"the pool's log says why\n")
        request = replace(parsed, peer_uid=partial(sockets.tcp_peer_uid, link))
        response = self._refusal(request) or self._barrier.result(
            "an HTTP request", failed, self._handler, request
        )
        _send(link, _encode(response, parsed.method), timeout_s)

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        if not self._access.is_host_ours(request.headers.get("host")):
            return HttpResponse(HTTPStatus.MISDIRECTED_REQUEST, b"this host has another name\n")
        if not self._access.is_allowed(request.headers.get("authorization")):
            challenge = {"WWW-Authenticate": 'Basic realm="forebay", charset="UTF-8"'}
            return HttpResponse(HTTPStatus.UNAUTHORIZED, b"a token is needed\n", headers=challenge)
        return None


def parse_head(head: bytes) -> HttpRequest | HttpResponse:
    """Parse a request's line and headers; an answer with an error if they are refused."""
    if len(head) > HEAD_BYTES_MAX:
        return HttpResponse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"this request's head is too long\n"
        )
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return HttpResponse(HTTPStatus.BAD_REQUEST, b"this is not HTTP/1.1\n")
    method, target, _ = words
    if method not in _METHODS:
        allow = {"Allow": ", ".join(_METHODS)}
        return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", headers=allow)
    if len(lines) - 1 > HEADERS_MAX or not target.startswith("/"):
        return HttpResponse(HTTPStatus.BAD_REQUEST, b"this request is not understood\n")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return HttpResponse(HTTPStatus.BAD_REQUEST, b"a header is malformed\n")
        if name.lower() == "host" and "host" in headers:
            return HttpResponse(HTTPStatus.BAD_REQUEST, b"there are two Host headers\n")
        headers[name.lower()] = value.strip()
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, max_num_fields=_QUERY_FIELDS_MAX))
    except ValueError:
        return HttpResponse(HTTPStatus.BAD_REQUEST, b"this address is not understood\n")
    return HttpRequest(method, unquote(parts.path), query, headers)


def _receive_head(link: socket.socket, timeout_s: float) -> bytes | None:
    """Read up to the empty line; None if that did not come in time. Stops at `HEAD_BYTES_MAX`."""
    until = time.monotonic() + timeout_s
    head = b""
    while _END not in head and len(head) <= HEAD_BYTES_MAX:
        left_s = until - time.monotonic()
        if left_s <= 0:
            return None
        link.settimeout(left_s)
        try:
            data = link.recv(HEAD_BYTES_MAX)
        except OSError:
            return None
        if not data:
            return None
        head += data
    return head.partition(_END)[0]


def _send(link: socket.socket, data: bytes, timeout_s: float) -> None:
    """Send as much as the client takes in time; the timeout of `sendall` is for the whole."""
    link.settimeout(timeout_s)
    with contextlib.suppress(OSError):
        link.sendall(data)


def _hang_up(link: socket.socket) -> None:
    """Close a connection; unread bytes are read first, else the client could lose its answer."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_WR)
        link.settimeout(0.0)
        link.recv(_UNREAD_BYTES_MAX)
    link.close()


def _encode(response: HttpResponse, method: str) -> bytes:
    status = response.status
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    head = "\r\n".join(lines).encode("latin-1") + _END
    return head if method == "HEAD" else head + response.body
