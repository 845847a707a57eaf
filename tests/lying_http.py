"""An HTTP server that says what a test wants, and a proxy that lies about a store."""

import http.client
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

from tests.listening import STUFFING, HangUp, ListeningServer, dripping

_REQUESTS_MAX: Final = 10_000  # of one connection
_OWN_HEADERS: Final = {"connection", "content-length", "transfer-encoding"}


class Request(NamedTuple):
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes


class LyingServer(ListeningServer):
    """On a port of its own; `answer` yields a reply's bytes, and may hang up in the midst of it."""

    def __init__(self, answer: Callable[[Request], Iterator[bytes]]) -> None:
        super().__init__()
        self.answer = answer
        self.requests: list[Request] = []
        self.url = f"http://{self.address}"

    def replies(self, incoming: BinaryIO) -> Iterator[bytes]:
        for _ in range(_REQUESTS_MAX):
            first = incoming.readline().decode("latin-1")
            if len(first.split()) != 3:
                return  # at its end, or no HTTP
            headers = []
            while (line := incoming.readline().decode("latin-1").strip()) != "":
                name, _, value = line.partition(":")
                headers.append((name, value.strip()))
            size = int({name.lower(): value for name, value in headers}.get("content-length", 0))
            method, target, _ = first.split()
            request = Request(method, target, headers, incoming.read(size))
            self.requests.append(request)
            yield from self.answer(request)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def head(self, **changed: str) -> bytes:
        given = {name.replace("_", "-").lower(): value for name, value in changed.items()}
        lines = [f"HTTP/1.1 {self.status} Said"]
        lines += [f"{name}: {value}" for name, value in self.headers if name.lower() not in given]
        lines += [f"{name}: {value}" for name, value in given.items() if value]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def whole(self) -> bytes:
        return self.head(content_length=str(len(self.body))) + self.body


def error(status: int, code: str) -> Reply:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    return Reply(status, (("Content-Type", "application/xml"),), body)


class LyingProxy(LyingServer):
    """Passes requests on to a store; `fault` says what becomes of the replies to `methods`."""

    def __init__(self, store_url: str) -> None:
        super().__init__(self._lie)
        self._store = urlsplit(store_url).netloc
        self.fault = ""
        self.methods = {"GET", "PUT", "DELETE", "POST"}

    def _lie(self, request: Request) -> Iterator[bytes]:
        reply = self._honest(request)
        is_honest = not self.fault or request.method not in self.methods
        fault = "honest" if is_honest else self.fault
        yield from getattr(self, f"_{fault}")(reply) if fault != "honest" else [reply.whole()]

    def _honest(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection(self._store, timeout=600)
        try:
            connection.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers:
                connection.putheader(name, value)
            connection.endheaders(request.body)
            got = connection.getresponse()
            kept = [each for each in got.getheaders() if each[0].lower() not in _OWN_HEADERS]
            return Reply(got.status, tuple(kept), got.read())
        finally:
            connection.close()

    def _busy(self, reply: Reply) -> Iterator[bytes]:
        yield error(503, "SlowDown").whole()

    def _expired(self, reply: Reply) -> Iterator[bytes]:
        yield error(403, "ExpiredToken").whole()

    def _quota(self, reply: Reply) -> Iterator[bytes]:
        yield error(400, "QuotaExceeded").whole()

    def _gone(self, reply: Reply) -> Iterator[bytes]:
        yield error(404, "NoSuchKey").whole()

    def _unknown(self, reply: Reply) -> Iterator[bytes]:
        """What a proxy says of a server that it does not know."""
        yield Reply(404, (), b"<html>no such page</html>").whole()

    def _redirected(self, reply: Reply) -> Iterator[bytes]:
        yield Reply(307, (("Location", self.url + "/elsewhere"),), b"").whole()

    def _no_http(self, reply: Reply) -> Iterator[bytes]:
        yield b"\0" * 1000
        raise HangUp

    def _stalled(self, reply: Reply) -> Iterator[bytes]:
        yield reply.whole()[: len(reply.head()) + len(reply.body) // 2]
        self.stall()

    def _silent(self, reply: Reply) -> Iterator[bytes]:
        self.stall()
        yield b""

    def _reset(self, reply: Reply) -> Iterator[bytes]:
        yield b""
        raise HangUp

    def _dripping(self, reply: Reply) -> Iterator[bytes]:
        yield from dripping(reply.whole(), self.over)

    def _truncated(self, reply: Reply) -> Iterator[bytes]:
        yield reply.head(content_length=str(len(reply.body))) + reply.body[: len(reply.body) // 2]
        raise HangUp

    def _too_long(self, reply: Reply) -> Iterator[bytes]:
        """More is announced than comes."""
        yield reply.head(content_length=str(10**15)) + reply.body
        raise HangUp

    def _endless(self, reply: Reply) -> Iterator[bytes]:
        yield reply.head(content_length=str(10**15)) + reply.body
        yield from itertools.repeat(STUFFING)

    def _endless_chunked(self, reply: Reply) -> Iterator[bytes]:
        yield reply.head(transfer_encoding="chunked")
        yield from itertools.repeat(b"10000\r\n" + STUFFING + b"\r\n")

    def _short(self, reply: Reply) -> Iterator[bytes]:
        """A reply of less than was asked for, in good order but for that."""
        yield replace(reply, body=reply.body[: len(reply.body) // 2]).whole()

    def _shifted(self, reply: Reply) -> Iterator[bytes]:
        """Bytes of another part of the object, as it says itself."""
        yield (
            reply.head(content_range="bytes 1-9/10", content_length=str(len(reply.body)))
            + reply.body
        )

    def _whole_object(self, reply: Reply) -> Iterator[bytes]:
        """The range is not looked at, and so it says."""
        yield replace(reply, status=200).whole()

    def _flipped(self, reply: Reply) -> Iterator[bytes]:
        middle = len(reply.body) // 2
        body = bytearray(reply.body)
        if body:
            body[middle] ^= 1
        yield replace(reply, body=bytes(body)).whole()

    def _stuffed(self, reply: Reply) -> Iterator[bytes]:
        """Other bytes, as many as it should be."""
        yield replace(
            reply, body=(STUFFING * (1 + len(reply.body) // 65536))[: len(reply.body)]
        ).whole()
