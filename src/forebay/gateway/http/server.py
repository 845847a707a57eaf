"""The gateway's HTTP server, on aiohttp: bounded in connections, heads, bodies and waiting.

Promised: whatever clients send, or do not send, costs bounded memory and time; what is not HTTP is
answered with 400, and no byte of it is logged; when a client disconnects, its handler is cancelled
at once. A half-closed connection counts as disconnected, since nothing tells the two apart.
Assumed: handlers answer.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from forebay.barrier import Barrier
from forebay.errors import StartupError
from forebay.gateway.http.messages import BodyFault, Headers, IncomingRequest

HEAD_BYTES_MAX: Final = 16 << 10  # of one header line
HEADERS_MAX: Final = 128
_BACKLOG: Final = 1024
_UNTIMED_BYTES: Final = 16 << 10  # so many fit into an empty buffer, and writing never waits
_log: Final = logging.getLogger(__name__)
_silent: Final = logging.getLogger(f"{__name__}.library")
_silent.disabled = True  # it would quote what clients send


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """Limits on what clients may use of this process; tests make them small."""

    connections_max: int = 4096
    idle_s: float = 30.0  # that a connection may be open without a complete request head
    body_s: float = 120.0  # that a whole body may take to come
    write_s: float = 60.0  # that a client may take to read a piece of its answer
    body_bytes_max: int = 64 << 20
    bodies_bytes_max: int = 1 << 30  # over all requests


Handler = Callable[[IncomingRequest], Awaitable[None]]


class FrontServer:
    """Listens at one address; made and closed on the event loop."""

    def __init__(self, handler: Handler, limits: FrontLimits, barrier: Barrier) -> None:
        self.limits = limits
        self.barrier = barrier
        self.bodies_bytes = 0  # held by requests under way
        self.owners_bytes: Counter[str] = Counter()  # the same by owner; owners are few
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._library: _Server | None = None

    async def start(self, address: str, port: int) -> int:
        """Start to listen; returns the port. StartupError if that fails."""
        loop = asyncio.get_running_loop()
        self._library = _Server(
            self,
            self._handle,
            handler_cancellation=True,
            logger=_silent,
            access_log=None,
            keepalive_timeout=self.limits.idle_s,
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
        )
        try:
            self._server = await loop.create_server(
                self._library, address, port, backlog=_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise StartupError(
                f"the gateway cannot listen at {address}:{port}: {error.strerror or error}."
            ) from None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._library.connections) if self._library else 0

    async def close(self, timeout_s: float) -> None:
        """Accept no more connections; answers under way have `timeout_s` to end."""
        if self._server is None or self._library is None:
            return  # it never listened
        self._server.close()
        self._library.pre_shutdown()
        await self._library.shutdown(timeout_s)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        incoming = _Incoming(request, self)
        try:
            await incoming.wait_for_turn()
            await self._handler(incoming)
        except ConnectionError:
            _log.debug("a client went before its answer's end")
        finally:
            incoming.release_body()
        if incoming.response is None:
            return web.Response(status=500)
        return incoming.response


class _Server(web.Server):
    """aiohttp's server, with our protocol."""

    def __init__(self, front: FrontServer, handler: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(handler, **options)
        self.front = front

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Protocol(RequestHandler):
    """One connection."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(self._manager, _Server)
        front = self._manager.front
        if len(self._manager.connections) >= front.limits.connections_max:
            _log.warning("a client was refused: %d connections", front.limits.connections_max)
            assert isinstance(transport, asyncio.Transport)
            transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
            transport.close()
            self._force_close = True
            self._manager = None  # nothing is read from this connection
            return
        super().connection_made(transport)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it may quote the request
    ) -> web.StreamResponse:
        """The answer to a client that sent no valid HTTP, or met a bug."""
        if status == HTTPStatus.BAD_REQUEST:
            _log.info("a client sent what is not HTTP/1.1")
        elif exc is not None and isinstance(self._manager, _Server):  # else its client has gone
            self._manager.front.barrier.call("a request of the gateway", _raise, exc)
        if self.transport is not None and request.writer.output_size > 0:
            raise ConnectionResetError  # the answer has begun, and cannot be replaced
        said = b'{"error": {"message": "this request is not understood", "code": %d}}' % status
        failed = web.Response(status=status, body=said, content_type="application/json")
        failed.force_close()
        return failed


def _raise(error: BaseException) -> None:
    raise error


def _encodable(value: str) -> str:
    """A header's value, with a question mark for each byte that is not UTF-8."""
    return value if value.isascii() else value.encode(errors="replace").decode()


class _Incoming:
    """One request; see IncomingRequest."""

    __slots__ = (
        *("_front", "_held_bytes", "_owner", "_request"),
        *("method", "path", "query", "response"),
    )

    def __init__(self, request: web.BaseRequest, front: FrontServer) -> None:
        self._request, self._front = request, front
        self.method = request.method
        self.path, _, self.query = request.path_qs.partition("?")
        self._held_bytes = 0
        self._owner = ""
        self.response: web.StreamResponse | None = None

    async def wait_for_turn(self) -> None:
        """Let others go first, and wait until the client has read the answers before this one.

        Otherwise a client that sends thousands of requests at once would keep the loop to itself,
        and the answers to one that reads none would all be kept in memory.
        """
        await asyncio.sleep(0)
        await self._timed(self._request.writer.drain())

    def header(self, name: str) -> str:
        return _encodable(self._request.headers.get(name, ""))

    def headers(self) -> Iterable[tuple[str, str]]:
        return ((name, _encodable(value)) for name, value in self._request.headers.items())

    async def read_body(self, owner: str = "") -> bytes | BodyFault:
        self._owner = owner
        limits = self._front.limits
        length = self._request.content_length or 0
        if length > limits.body_bytes_max:
            return BodyFault.TOO_LARGE
        transport = self._request.transport
        if self.header("Expect").lower() == "100-continue" and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(limits.body_s):
                return await self._read(limits)
        except TimeoutError:
            return BodyFault.TOO_SLOW
        except (web.RequestPayloadError, ValueError):
            return BodyFault.BROKEN

    async def _read(self, limits: FrontLimits) -> bytes | BodyFault:
        pieces = []
        size_bytes = 0
        while piece := await self._request.content.readany():
            size_bytes += len(piece)
            self._hold(len(piece))
            if size_bytes > limits.body_bytes_max:
                return BodyFault.TOO_LARGE
            own_bytes = self._front.owners_bytes[self._owner] if self._owner else 0
            if self._front.bodies_bytes + own_bytes > limits.bodies_bytes_max:
                return BodyFault.TOO_MANY
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._front.bodies_bytes += size_bytes
        self._front.owners_bytes[self._owner] += size_bytes

    def release_body(self) -> None:
        """Give back the body's share of the limits: the request is over."""
        self._hold(-self._held_bytes)

    async def begin(self, status: int, headers: Headers) -> None:
        response = web.StreamResponse(status=status)
        for name, value in headers:
            response.headers.add(name, value)
        self.response = response
        await response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        assert self.response is not None
        transport = self._request.transport
        is_taking = transport is None or transport.get_write_buffer_size() == 0
        if is_taking and len(data) <= _UNTIMED_BYTES:
            await self.response.write(data)
            return
        await self._timed(self.response.write(data))

    async def _timed(self, writing: Awaitable[object]) -> None:
        """Wait until a client takes what is written; break off if it takes too long."""
        try:
            async with asyncio.timeout(self._front.limits.write_s):
                await writing
        except TimeoutError:
            _log.info("a client took nothing of its answer for %g s", self._front.limits.write_s)
            self.break_off()
            raise ConnectionResetError from None

    async def end(self) -> None:
        assert self.response is not None
        await self.response.write_eof()

    def break_off(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.response = web.Response(status=status, body=body, headers=dict(headers))
        await self.response.prepare(self._request)
        await self._timed(self.response.write_eof())
