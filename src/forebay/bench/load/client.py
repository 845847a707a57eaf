"""A streaming client of OpenAI-compatible servers, on aiohttp.

Each request has its own connection. Times are from the moment when the connection is open to the
first piece of the answer, and to the last. A server's failures raise nothing: a request ends as a
Completion, or as Failed with its kind. Only a missing aiohttp is a StartupError.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from forebay.bench.load.vocabulary import Vocabulary
from forebay.errors import SettingsError, StartupError

if TYPE_CHECKING:
    import aiohttp

Message = dict[str, str]  # role and content, as the protocol has it
REQUEST_S: Final = 300.0
UNREACHABLE: Final = "refused"  # the kind of failure if no connection can be made
_HEALTH_S: Final = 5.0
_REASON_LETTERS_MAX: Final = 200  # of a server's reason that are kept
_REASON_BYTES_MAX: Final = 16 << 10  # of a server's reason that are read
_BODY_BYTES_MAX: Final = 16 << 20
_LINE_BYTES_MAX: Final = 1 << 20
_END: Final = b"[DONE]"


class Endpoint(NamedTuple):
    host: str
    port: int
    base: str = "/v1"  # of the API; /metrics and /health lie beside it
    is_tls: bool = False
    key: str = ""  # a secret: shown nowhere

    @property
    def root(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of its API, for people."""
        return self.root + self.base


class Failed(NamedTuple):
    """There is no valid answer: the server refused, broke off, was late or sent garbage."""

    kind: str  # refused, http_429, broken_off, timeout, garbage, empty, error
    why: str  # without a full stop


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    ttft_s: float
    seconds: float  # to the last token
    prompt_tokens: int
    cached_tokens: int | None  # of these, not computed; None where the server does not say
    answer_tokens: int
    has_usage: bool = True  # else tokens are the pieces that came
    tokens: tuple[int, ...] = ()  # their ids, where the prompt was ids
    token_times_s: tuple[float, ...] = ()  # of each of these, from the start

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None if there is only one token."""
        if self.answer_tokens < 2:
            return None
        return (self.seconds - self.ttft_s) / (self.answer_tokens - 1)


@dataclass(frozen=True, slots=True)
class Target:
    endpoint: Endpoint
    model: str
    timeout_s: float = REQUEST_S  # of a whole request
    is_plain: bool = False  # standard parameters only, so an answer may be shorter than asked
    vocabulary: Vocabulary | None = None  # text is sent as token ids; None: as a chat


def endpoint_of(url: str, key: str = "") -> Endpoint:
    """The server behind a URL as people write it; a SettingsError if it is none."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
        (parts.hostname or "").encode("idna")
        parts.path.encode()
    except ValueError:
        raise SettingsError(f"'{url[:80]}' is no URL; write http://HOST:PORT.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(f"'{url[:80]}' is no URL of a server; write http://HOST:PORT.")
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("OPENAI_API_KEY is no key: it holds what no header can.")
    is_tls = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return Endpoint(parts.hostname, port or (443 if is_tls else 80), base, is_tls, key)


def require() -> None:
    """StartupError if this environment has no aiohttp."""
    try:
        import aiohttp  # noqa: F401, PLC0415 - 0.2 s that other commands need not wait
    except ModuleNotFoundError:
        raise StartupError(
            "asking a server needs aiohttp; install it with: pip install aiohttp"
        ) from None


async def ask(
    target: Target, messages: Sequence[Message], answer_tokens: int
) -> Completion | Failed:
    """Get one answer of exactly this many tokens to a chat, greedily."""
    if target.vocabulary is not None:
        text = " ".join(message["content"] for message in messages)
        found = await ask_tokens(target, target.vocabulary.encode(text), answer_tokens)
        if isinstance(found, Failed):
            return found
        return replace(found, text=target.vocabulary.decode(found.tokens))
    body: dict[str, object] = {"messages": messages}
    if not target.is_plain:
        body["min_tokens"] = answer_tokens
    return await _ask(target, "/chat/completions", body, answer_tokens)


async def ask_tokens(
    target: Target, prompt: Sequence[int], answer_tokens: int
) -> Completion | Failed:
    """The same for a prompt of token ids, answered in ids: for vLLM without a tokenizer."""
    body = {"prompt": prompt, "return_token_ids": True}
    return await _ask(target, "/completions", body, answer_tokens)


async def fetch(
    endpoint: Endpoint, path: str, timeout_s: float, method: str = "GET", body: object = None
) -> bytes | Failed:
    data = b"" if body is None else msgspec.json.encode(body)
    content = bytearray()

    def feed(more: bytes, _now: float) -> bool:
        content.extend(more)
        return len(content) > _BODY_BYTES_MAX

    ended = await _exchange(endpoint, (method, path, data), timeout_s, feed)
    return ended if isinstance(ended, Failed) else bytes(content)


async def is_up(endpoint: Endpoint) -> bool:
    return not isinstance(await fetch(endpoint, "/health", _HEALTH_S), Failed)


async def _ask(
    target: Target, path: str, prompt: dict[str, object], answer_tokens: int
) -> Completion | Failed:
    body = {
        **prompt,
        "model": target.model,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if not target.is_plain:
        body["ignore_eos"] = True
    endpoint = target.endpoint
    request = ("POST", endpoint.base + path, msgspec.json.encode(body))
    stream = _Stream()
    begun = await _exchange(endpoint, request, target.timeout_s, stream.feed)
    if stream.error is not None:  # it gave its reason, and may have broken off then
        why = "the server broke off with an error"
        return _failed("error", why, stream.error, endpoint.key)
    return begun if isinstance(begun, Failed) else stream.answer(begun)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    token_ids: list[int] | None = None
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
class _Stream:
    """An answer that is coming in; `feed` is called for every token, so it must be fast."""

    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    usage: _Usage | None = None
    error: object = None
    has_events: bool = False
    is_finished: bool = False  # the server said so
    rest: bytes = b""  # of a line that is not whole yet

    def feed(self, data: bytes, now: float) -> bool:
        """Take more of the answer; True if it is complete. ValueError if it is no event stream."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > _LINE_BYTES_MAX:
            raise ValueError("a line without end")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            self.has_events = True
            content = line[5:].strip()
            if content == _END:
                self.is_finished = True
                return True
            self._add(_decoder.decode(content), now)
        return False

    def answer(self, begun: float) -> Completion | Failed:
        if not self.has_events:
            return Failed("garbage", "the server streamed what is no answer")
        if not self.is_finished:
            return Failed("broken_off", "the server ended its stream in mid-answer")
        if not self.pieces and not self.tokens:
            return Failed("empty", "the server answered with nothing")
        usage = self.usage or _Usage(0, len(self.tokens) or len(self.pieces))
        details = usage.prompt_tokens_details
        return Completion(
            text="".join(self.pieces),
            ttft_s=self.first - begun,
            seconds=self.last - begun,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            answer_tokens=usage.completion_tokens,
            has_usage=self.usage is not None,
            tokens=tuple(self.tokens),
            token_times_s=tuple(each - begun for each in self.token_times),
        )

    def _add(self, event: _Event, now: float) -> None:
        self.usage = event.usage or self.usage
        self.error = event.error or self.error
        for choice in event.choices:
            delta, ids = choice.delta, choice.token_ids
            piece = delta and (delta.content or delta.reasoning_content or delta.reasoning)
            if piece:
                self.pieces.append(piece)
            if ids:
                self.tokens += ids
                self.token_times += [now] * len(ids)
            if piece or ids:
                self.first = self.first or now
            # A last token may be no text, or half a letter: the end of the answer is its time.
            if piece or ids or choice.finish_reason is not None:
                self.last = now
                self.is_finished |= choice.finish_reason is not None


def _failed(kind: str, why: str, reason: object, secret: str) -> Failed:
    """A failure with the server's reason, if it has one, as a line that is fit for a terminal."""
    while isinstance(reason, dict) and (reason.get("error") or reason.get("message")):
        reason = reason.get("error") or reason.get("message")
    try:
        text = reason if isinstance(reason, str) else msgspec.json.encode(reason).decode()
    except RecursionError:
        text = ""  # nested for no other reason than to be
    if secret:
        text = text.replace(secret, "…")  # some servers repeat what they were sent
    text = "".join(letter if letter.isprintable() else " " for letter in text[:_REASON_BYTES_MAX])
    text = " ".join(text.split())[:_REASON_LETTERS_MAX].rstrip(" .")
    return Failed(kind, f"{why}: {text}" if text else why)


async def _exchange(
    endpoint: Endpoint,
    request: tuple[str, str, bytes],
    timeout_s: float,
    feed: Callable[[bytes, float], bool],
) -> float | Failed:
    """Send a request on a new connection and pass on what comes, until `feed` returns True.

    Returns the time at which the connection was open, by `perf_counter`.
    """
    require()
    import aiohttp  # noqa: PLC0415 - see require

    begun: list[float] = []

    async def opened(*_: Any) -> None:  # noqa: ANN401 - as aiohttp calls it
        begun.append(time.perf_counter())

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(opened)
    method, path, data = request
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                timeout=aiohttp.ClientTimeout(total=None),
                trace_configs=[trace],
                headers=headers,
            ) as session,
            session.request(
                method, endpoint.root + path, data=data, allow_redirects=False
            ) as response,
        ):
            if response.status != 200:
                return await _refused(response, endpoint.key)
            async for more in response.content.iter_any():
                if feed(more, time.perf_counter()):
                    break
            return begun[0]
    except TimeoutError:
        return Failed("timeout", f"the server did not answer within {timeout_s:g} s")
    except aiohttp.ClientConnectorError as error:
        code = error.os_error.errno or 0
        why = os.strerror(code) if code > 0 else error.os_error.strerror or "no connection"
        return Failed(UNREACHABLE, f"no server answers at {endpoint.url} ({why})")
    except (aiohttp.ClientPayloadError, OSError, aiohttp.ClientConnectionError) as error:
        return Failed("broken_off", f"the server broke off ({type(error).__name__})")
    except (aiohttp.ClientError, ValueError, msgspec.DecodeError, RecursionError):
        return Failed("garbage", "the server streamed what is no answer")


async def _refused(response: "aiohttp.ClientResponse", secret: str) -> Failed:
    """The failure of a request that a server refused, with the beginning of its reason."""
    body = b""
    async for more in response.content.iter_any():
        body = (body + more)[:_REASON_BYTES_MAX]
        if len(body) == _REASON_BYTES_MAX:
            break
    try:
        reason = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        reason = "" if body.lstrip().startswith(b"<") else body.decode(errors="replace")
    status = response.status
    return _failed(f"http_{status}", f"the server answered {status}", reason, secret)
