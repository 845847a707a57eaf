"""HTTP/1.1 GET into given buffers, never more than they hold, whatever the server says.

One deadline holds for the whole call, however slowly bytes arrive (in a TLS handshake each wait
counts anew). Nothing is retried, no redirect followed, no proxy used. A connection is kept for the
next call if the reply ended where it said, with nothing after it.
"""

import io
import re
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from forebay.sys.clock import Clock
from forebay.sys.processes import is_readable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_IDLE_MAX: Final = 16  # connections that are kept
_BUFFER_BYTES: Final = 64 << 10  # read at once if less is wanted
_TEXT_BYTES_MAX: Final = 4096  # of a reply that is an error
_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_OK, _PARTIAL = 200, 206


class HttpReply(NamedTuple):
    """A server's reply."""

    status: int
    filled: int = 0  # bytes of the buffers
    text: bytes = b""  # the beginning of an error's body


class _Connection:
    """A socket whose reads end at a deadline; HTTPResponse takes it for a socket."""

    def __init__(self, connected: socket.socket, place: tuple[str, str], clock: Clock) -> None:
        self.socket, self.place, self._clock = connected, place, clock
        self.deadline = 0.0
        self.has_more = False  # something came after a reply

    def limit(self) -> None:
        """Let the next system call end at the deadline."""
        left_s = self.deadline - self._clock.monotonic()
        if left_s <= 0.0:
            raise TimeoutError
        self.socket.settimeout(left_s)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What a reply is read from."""
        assert mode == "rb"
        return _Replies(_Reads(self))

    @property
    def is_quiet(self) -> bool:
        """Whether the server has neither closed it nor sent anything unasked."""
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        return not (self.has_more or pending) and not is_readable(self.socket.fileno())

    def close(self) -> None:
        """Give the descriptor back."""
        with suppress(OSError):
            self.socket.close()


class _Reads(io.RawIOBase):
    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        if self.is_over:
            return None
        self.connection.limit()
        return self.connection.socket.recv_into(buffer)


class _Replies(io.BufferedReader):
    """Notes what was read and not asked for."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__(reads, _BUFFER_BYTES)
        self._reads = reads

    def close(self) -> None:
        self._reads.is_over = True
        with suppress(ValueError):  # it was closed before
            self._reads.connection.has_more |= bool(self.peek())
        super().close()


class HttpReader:
    """Connections to a server; several threads may read at once."""

    def __init__(self, clock: Clock | None = None, context: ssl.SSLContext | None = None) -> None:
        self._clock, self._context = clock or Clock(), context
        self._lock = threading.Lock()  # guards the idle connections
        self._idle: list[_Connection] = []

    def read(
        self, url: str, at: int, buffers: Sequence[memoryview], wait_s: float
    ) -> HttpReply | None:
        """Fill the buffers from byte `at` on; None if there was no valid reply.

        Fewer bytes than the buffers hold mean that the object ends there.
        """
        parts, deadline = urlsplit(url), self._clock.monotonic() + wait_s
        try:
            connection = self._connected(parts, deadline)
        except (OSError, ValueError):
            return None
        is_kept = False
        try:
            connection.deadline = deadline
            response = _ask(connection, parts, at, sum(map(len, buffers)))
            reply = _take(response, at, buffers)
            is_kept = response.isclosed() and not response.will_close and connection.is_quiet
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            if not (is_kept and self._keep(connection)):
                connection.close()
        return reply

    def close(self) -> None:
        """Give the idle connections back."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connected(self, parts: SplitResult, deadline: float) -> _Connection:
        place = (parts.scheme, parts.netloc)
        while (idle := self._kept()) is not None:
            if idle.place == place and idle.is_quiet:
                return idle
            idle.close()
        is_tls = parts.scheme == "https"
        left_s = max(0.001, deadline - self._clock.monotonic())
        address = (parts.hostname or "", parts.port or (443 if is_tls else 80))
        connected = socket.create_connection(address, left_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_tls:
                context = self._context or ssl.create_default_context()
                connected = context.wrap_socket(connected, server_hostname=parts.hostname)
        except (OSError, ValueError):
            connected.close()
            raise
        return _Connection(connected, place, self._clock)

    def _kept(self) -> _Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: _Connection) -> bool:
        with self._lock:
            has_room = len(self._idle) < _IDLE_MAX
            if has_room:
                self._idle.append(connection)
        return has_room


def _ask(connection: _Connection, parts: SplitResult, at: int, wanted: int) -> HTTPResponse:
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    lines = (
        f"GET {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Accept-Encoding: identity",
        "User-Agent: forebay",
        f"Range: bytes={at}-{at + wanted - 1}",
    )
    connection.limit()
    connection.socket.sendall("\r\n".join((*lines, "\r\n")).encode("ascii"))
    response = HTTPResponse(connection, method="GET")  # type: ignore[arg-type]
    response.begin()
    return response


def _take(response: HTTPResponse, at: int, buffers: Sequence[memoryview]) -> HttpReply | None:
    """The content of a reply; None if its body does not match its head."""
    wanted = sum(map(len, buffers))
    if response.status not in (_OK, _PARTIAL):
        text = response.read(_TEXT_BYTES_MAX)
        response.read(1)  # a body that ends here leaves the connection to the next call
        return HttpReply(response.status, text=text)
    there = _bytes_from(response, at)
    if there is None:
        return None
    count = _fill(response, buffers)
    return HttpReply(response.status, count) if count >= min(wanted, there) else None


def _bytes_from(response: HTTPResponse, at: int) -> int | None:
    """How many bytes the object has from `at` on; 0 if not told, None if that is impossible."""
    if response.status == _PARTIAL:
        said = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if said is None or int(said[1]) != at:
            return None
        return int(said[3]) - at
    if at or (response.length is None and not response.chunked):
        return None
    return response.length or 0


def _fill(response: HTTPResponse, buffers: Sequence[memoryview]) -> int:
    count = 0
    for buffer in buffers:
        filled = 0
        while filled < len(buffer):
            got = response.readinto(buffer[filled:])
            if not got:
                return count + filled
            filled += got
        count += filled
    return count
