"""A streaming client of an OpenAI-compatible server, on asyncio and nothing else.

One connection a request. Times are taken where a user would: from sending the request to the first
piece of the answer, and from there to the last.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from forebay.bench.dialog.script import Message

_LINE_BYTES_MAX: Final = 1 << 20
_REQUEST_S: Final = 300.0
_PREFIX: Final = b"data: "
_END: Final = b"[DONE]"


class Endpoint(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class Failed(NamedTuple):
    """There is no answer: the server refused, broke off or was late."""

    why: str  # without a full stop


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and what it took."""

    text: str
    ttft_s: float
    seconds: float  # of the whole request
    prompt_tokens: int
    cached_tokens: int  # of these, not computed; 0 where the server does not say
    answer_tokens: int

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first."""
        return (self.seconds - self.ttft_s) / max(1, self.answer_tokens - 1)


async def ask(
    endpoint: Endpoint, model: str, messages: Sequence[Message], answer_tokens: int
) -> Answer | Failed:
    """Have one answer of exactly so many tokens, greedily."""
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": answer_tokens,
        "min_tokens": answer_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with asyncio.timeout(_REQUEST_S):
            return await _ask(endpoint, json.dumps(body).encode())
    except TimeoutError:
        return Failed(f"the server did not answer within {_REQUEST_S:.0f} s")
    except (OSError, EOFError, ValueError, KeyError) as error:
        return Failed(f"the server broke off ({type(error).__name__})")


async def is_up(endpoint: Endpoint) -> bool:
    """Whether the server answers."""
    try:
        async with asyncio.timeout(5), _exchange(endpoint, "GET", "/health", b"") as reader:
            return (await _status(reader))[0] == 200
    except (OSError, EOFError, TimeoutError, ValueError):
        return False


async def _ask(endpoint: Endpoint, body: bytes) -> Answer | Failed:
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    begun = time.perf_counter()
    first = last = 0.0
    path = "/v1/chat/completions"
    async with _exchange(endpoint, "POST", path, body) as reader:
        status, is_chunked = await _status(reader)
        if status != 200:
            said = (await reader.read(500)).decode(errors="replace")
            return Failed(f"the server answered {status}: {said}")
        async for event in _events(_lines(reader, is_chunked=is_chunked)):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if choice.get("delta", {}).get("content"):
                    last = time.perf_counter()
                    first = first or last
                    pieces.append(choice["delta"]["content"])
    if not pieces or not usage:
        return Failed("the server answered with nothing")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text="".join(pieces),
        ttft_s=first - begun,
        seconds=last - begun,
        prompt_tokens=int(usage["prompt_tokens"]),
        cached_tokens=int(details.get("cached_tokens") or 0),
        answer_tokens=int(usage["completion_tokens"]),
    )


@contextlib.asynccontextmanager
async def _exchange(
    endpoint: Endpoint, method: str, path: str, body: bytes
) -> AsyncIterator[asyncio.StreamReader]:
    """A request on its way; the reader is at the answer's first line."""
    reader, writer = await asyncio.open_connection(
        endpoint.host, endpoint.port, limit=_LINE_BYTES_MAX
    )
    try:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _status(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status, and whether the body comes in chunks; the reader is at the body then."""
    words = (await reader.readuntil(b"\r\n")).split(None, 2)
    is_chunked = False
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        is_chunked |= line.lower().replace(b" ", b"").strip() == b"transfer-encoding:chunked"
    return int(words[1]), is_chunked


async def _lines(reader: asyncio.StreamReader, *, is_chunked: bool) -> AsyncIterator[bytes]:
    rest = b""
    while piece := await _piece(reader, is_chunked=is_chunked):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.strip()
    if rest:
        yield rest.strip()


async def _piece(reader: asyncio.StreamReader, *, is_chunked: bool) -> bytes:
    """The next bytes of the body; empty at its end."""
    if not is_chunked:
        return await reader.read(_LINE_BYTES_MAX)
    size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
    if not 0 <= size <= _LINE_BYTES_MAX:
        raise ValueError(size)
    piece = await reader.readexactly(size)
    await reader.readexactly(2)
    return piece


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        if line.startswith(_PREFIX):
            data = line.removeprefix(_PREFIX)
            if data == _END:
                return
            yield json.loads(data)
