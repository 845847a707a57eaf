"""The gateway's HTTP client, on aiohttp: one request to one engine, its answer piece by piece.

Promised: nothing is retried or changed here, and bytes are passed on as they come; leaving the
block of an answer that has not ended closes its connection at once. Failures are values.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import aiohttp

from forebay.gateway.http.messages import BrokenOff, Headers, Unanswered

CONNECT_S: Final = 10.0
SILENCE_S: Final = 1800.0  # without a byte of an answer; a long prompt may take minutes
# Below the 5 s after which vLLM's server closes an unused connection: if it did so just as a
# request is sent, that would look like an engine's failure, and the request is not sent twice.
_KEEP_S: Final = 3.0
_READ_BYTES: Final = 1 << 18  # of an answer that are buffered for a slow client
_LINE_BYTES_MAX: Final = 1 << 16
_JSON: Final = (("Content-Type", "application/json"),)


class EngineAnswer:
    """An engine's answer, once it has begun."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.headers.items())

    def header(self, name: str) -> str:
        """A header's value; empty if there is none."""
        return self._response.headers.get(name, "")

    async def read(self) -> bytes | BrokenOff:
        """The next bytes; empty at the end of the answer."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            return BrokenOff(_said(error))


class EngineClient:
    """Connections to engines; made and closed on the event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=_READ_BYTES,
            max_line_size=_LINE_BYTES_MAX,
            max_field_size=_LINE_BYTES_MAX,
        )

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> AsyncIterator[EngineAnswer | Unanswered]:
        """Send a request; the block gets the answer, or why there is none."""
        response: aiohttp.ClientResponse | None = None
        try:
            try:
                response = await self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=body or None,
                    allow_redirects=False,
                )
                found: EngineAnswer | Unanswered = EngineAnswer(response)
                if response.status == HTTPStatus.SWITCHING_PROTOCOLS:  # nobody asked for that
                    found = Unanswered("it sent what is not HTTP")
            except (aiohttp.ClientError, OSError) as error:
                is_gone = isinstance(
                    error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
                )
                found = Unanswered(_said(error), is_gone)
            yield found
        finally:
            if response is not None:
                response.close() if not response.content.is_eof() else response.release()

    async def fetch(
        self, url: str, bytes_max: int, timeout_s: float, *, posted: bytes | None = None
    ) -> bytes | Unanswered:
        """The whole of a small answer to a GET, or to a POST of JSON; its status must be 200."""
        method = "GET" if posted is None else "POST"
        headers = () if posted is None else _JSON
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.send(method, url, headers, posted or b"") as answer,
            ):
                if isinstance(answer, Unanswered):
                    return answer
                content = b""
                while piece := await answer.read():
                    if isinstance(piece, BrokenOff):
                        return Unanswered(piece.why)
                    content += piece
                    if len(content) > bytes_max:
                        return Unanswered("its answer is too long")
                if answer.status != 200:
                    return Unanswered(f"it answered {answer.status}", is_ill=True)
                return content
        except TimeoutError:
            return Unanswered("it did not answer in time")

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


def _said(error: BaseException) -> str:
    """What went wrong, without anything that the engine sent: that may be user data."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection could be made ({error.os_error.strerror or 'no address'})"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "it closed the connection"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection could be made in time"
    if isinstance(error, TimeoutError):
        return f"it said nothing for {SILENCE_S:g} s"
    if isinstance(error, OSError) and error.strerror:
        return f"the connection failed ({error.strerror})"
    return "it sent what is not HTTP"
