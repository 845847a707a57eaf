"""A streaming client of OpenAI-compatible servers, on asyncio and nothing else.

One connection a request. Times are taken as bytes leave and arrive: from handing the request to the
open connection to the first piece of the answer, and to the last; what this process takes to open
many connections at once is no part of them. Nothing here raises for what a server does: a request
ends as an Answer or as Failed with its kind.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from forebay.bench.load.http import Events, Response
from forebay.errors import SettingsError

Message = dict[str, str]  # role and content, as the protocol has it
REQUEST_S: Final = 300.0
_SAID_MAX: Final = 200  # letters of a server's reason,
_SAID_BYTES_MAX: Final = 16 << 10  # of so much that is looked at
_BODY_BYTES_MAX: Final = 16 << 20
_END: Final = b"[DONE]"


class Endpoint(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    base: str = "/v1"  # of the API; /metrics and /health lie beside it
    is_tls: bool = False
    key: str = ""  # a secret: shown nowhere

    @property
    def place(self) -> str:
        """Host and port as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """For people."""
        return f"{'https' if self.is_tls else 'http'}://{self.place}{self.base}"


class Failed(NamedTuple):
    """There is no answer: the server refused, broke off, was late or made no sense."""

    kind: str  # refused, http_429, broken_off, timeout, garbage, empty, error
    why: str  # without a full stop


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and what it took."""

    text: str
    ttft_s: float
    seconds: float  # to the last token
    prompt_tokens: int
    cached_tokens: int | None  # of these, not computed; None where the server does not say
    answer_tokens: int
    has_usage: bool = True  # else tokens are the pieces that came

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None where there is none."""
        if self.answer_tokens < 2:
            return None
        return (self.seconds - self.ttft_s) / (self.answer_tokens - 1)


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a server, and how it is asked."""

    endpoint: Endpoint
    model: str
    timeout_s: float = REQUEST_S  # of a whole request
    is_plain: bool = (
        False  # no parameters beyond the standard, so an answer may end before its time
    )


def endpoint_of(url: str, key: str = "") -> Endpoint:
    """The server behind a URL as people write it; a SettingsError if it is none."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise SettingsError(f"'{url[:80]}' is no URL; write http://HOST:PORT.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(f"'{url[:80]}' is no URL of a server; write http://HOST:PORT.")
    is_tls = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return Endpoint(parts.hostname, port or (443 if is_tls else 80), base, is_tls, key)


async def ask(target: Target, messages: Sequence[Message], answer_tokens: int) -> Answer | Failed:
    """Have one answer of exactly so many tokens, greedily."""
    body: dict[str, object] = {
        "model": target.model,
        "messages": messages,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if not target.is_plain:
        body |= {"min_tokens": answer_tokens, "ignore_eos": True}
    path = target.endpoint.base + "/chat/completions"
    heard = _Heard()
    request = _request(target.endpoint, "POST", path, msgspec.json.encode(body))
    ended = await _exchange(target.endpoint, request, target.timeout_s, heard.hear)
    if heard.error is not None:  # it gave its reason, and may have broken off then
        why = "the server broke off with an error"
        return _failed("error", why, heard.error, target.endpoint.key)
    if isinstance(ended, Failed):
        return ended
    if ended.status != 200:
        return ended.refused(target.endpoint.key)
    return heard.answer(ended.begun)


async def fetch(
    endpoint: Endpoint, path: str, timeout_s: float, method: str = "GET"
) -> bytes | Failed:
    """The body at a path, whole."""
    ended = await _exchange(endpoint, _request(endpoint, method, path, b""), timeout_s, None)
    if isinstance(ended, Failed):
        return ended
    if ended.status != 200:
        return ended.refused(endpoint.key)
    return bytes(ended.body)


async def is_up(endpoint: Endpoint) -> bool:
    """Whether the server answers."""
    return not isinstance(await fetch(endpoint, "/health", 5.0), Failed)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decoder: Final = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class _Heard:
    """An answer as far as it has come; `hear` is called for every token, so it does little."""

    events: Events = field(default_factory=Events)
    pieces: list[str] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    usage: _Usage | None = None
    error: object = None
    has_events: bool = False
    is_finished: bool = False  # the server said so

    def hear(self, body: bytes, now: float) -> bool:
        """More of the answer; whether that was all."""
        for data in self.events.feed(body):
            self.has_events = True
            if data == _END:
                self.is_finished = True
                return True
            event = _decoder.decode(data)
            self.usage = event.usage or self.usage
            self.error = event.error or self.error
            for choice in event.choices:
                delta = choice.delta
                piece = delta and (delta.content or delta.reasoning_content or delta.reasoning)
                if piece:
                    self.first = self.first or now
                    self.pieces.append(piece)
                # A last token may be no text, or half a letter: the end of the answer is its time.
                if piece or choice.finish_reason is not None:
                    self.last = now
                    self.is_finished |= choice.finish_reason is not None
        return False

    def answer(self, begun: float) -> Answer | Failed:
        """What all of it comes to."""
        if not self.has_events:
            return Failed("garbage", "the server streamed what is no answer")
        if not self.is_finished:
            return Failed("broken_off", "the server ended its stream in mid-answer")
        if not self.pieces:
            return Failed("empty", "the server answered with nothing")
        usage = self.usage or _Usage(0, len(self.pieces))
        details = usage.prompt_tokens_details
        return Answer(
            text="".join(self.pieces),
            ttft_s=self.first - begun,
            seconds=self.last - begun,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            answer_tokens=usage.completion_tokens,
            has_usage=self.usage is not None,
        )


def _failed(kind: str, why: str, said: object, secret: str) -> Failed:
    """A failure with the server's reason, if it has one, as a line that is fit for a terminal."""
    while isinstance(said, dict) and (said.get("error") or said.get("message")):
        said = said.get("error") or said.get("message")
    try:
        text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    except RecursionError:
        text = ""  # nested for no other reason than to be
    if secret:
        text = text.replace(secret, "…")  # some servers repeat what they were sent
    text = "".join(letter if letter.isprintable() else " " for letter in text[:_SAID_BYTES_MAX])
    reason = " ".join(text.split())[:_SAID_MAX].rstrip(" .")
    return Failed(kind, f"{why}: {reason}" if reason else why)


Hear = Callable[[bytes, float], bool]  # more of the body, and when; whether that was all


class _Exchange(asyncio.Protocol):
    """One request on its way and what comes back, handed on as it arrives."""

    def __init__(self, request: bytes, hear: Hear | None) -> None:
        self.begun = 0.0  # when the request was sent
        self.over: asyncio.Future[Failed | None] = asyncio.get_running_loop().create_future()
        self.response = Response()
        self.body = bytearray()  # of what is not streamed
        self._request = request
        self._hear = hear
        self._transport: asyncio.Transport | None = None

    @property
    def status(self) -> int:
        """As HTTP has it; 0 until it is there."""
        return self.response.status

    def refused(self, secret: str) -> Failed:
        """What a server made of a request that it did not serve."""
        body = bytes(self.body[:_SAID_BYTES_MAX])
        try:
            said = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            said = body.decode(errors="replace")
        return _failed(f"http_{self.status}", f"the server answered {self.status}", said, secret)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.begun = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()  # before anything else: this is the measurement
        if self.over.done():
            return
        try:
            body = self.response.feed(data)
            if self._hear is not None and self.status == 200:
                is_all = bool(body) and self._hear(body, now)
            else:
                is_all = False
                self.body += body
        except (ValueError, msgspec.DecodeError, RecursionError):
            self._end(Failed("garbage", "the server streamed what is no answer"))
            return
        if is_all or self.response.is_over or len(self.body) > _BODY_BYTES_MAX:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            is_whole = exc is None and self.response.ends_with_connection
            name = "" if exc is None else f" ({type(exc).__name__})"
            self._end(None if is_whole else Failed("broken_off", f"the server broke off{name}"))

    def _end(self, failed: Failed | None) -> None:
        if not self.over.done():
            self.over.set_result(failed)
        if self._transport is not None:
            self._transport.close()


async def _exchange(
    endpoint: Endpoint, request: bytes, timeout_s: float, hear: Hear | None
) -> _Exchange | Failed:
    exchange = _Exchange(request, hear)
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: exchange, endpoint.host, endpoint.port, ssl=endpoint.is_tls or None
            )
            failed = await exchange.over
    except TimeoutError:
        return Failed("timeout", f"the server did not answer within {timeout_s:g} s")
    except (OSError, ssl.SSLError) as error:
        return Failed("refused", f"{endpoint.url} cannot be reached ({type(error).__name__})")
    finally:
        if isinstance(transport, asyncio.Transport):
            transport.abort()  # closing would wait for a server that hangs
    return exchange if failed is None else failed


def _request(endpoint: Endpoint, method: str, path: str, body: bytes) -> bytes:
    headers: Mapping[str, str] = {
        "Host": endpoint.place,
        "Accept": "*/*",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **({"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
