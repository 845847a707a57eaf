"""Trace files: JSON lines, plain or `.xz`, in two formats that are told apart by their first line.

* conversation: one request per line, `{"timestamp": ms, "input_length": …, "hash_ids": […]}`; equal
  ids are equal blocks of 512 tokens with equal prefixes. `forebay pool --trace` records it.
* agent sessions: one session per line, with block ids of its own; sub-agents are nested and run
  concurrently with their session.

For what cannot be read, a SettingsError names the file and the line.
"""

import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from forebay.errors import SettingsError
from forebay.files import open_regular
from forebay.identity.endings import ENDINGS_MAX

LINES_MAX: Final = 1_000_000
LINE_BYTES_MAX: Final = 64 << 20
CONVERSATION_BLOCK_TOKENS: Final = 512
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**7)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Class = Annotated[int, msgspec.Meta(ge=0, lt=ENDINGS_MAX)]
_Row = TypeVar("_Row")


class ConversationRequest(msgspec.Struct):
    """A line of a conversation trace."""

    timestamp: _Time  # in ms
    input_length: _Count
    hash_ids: list[int]
    output_length: _Count = 0
    duration_ms: _Time | None = None  # until the answer ended; None: unknown
    ended: _Class = 0  # see `forebay.identity.endings`
    after: _Class = 0
    session: _Count | None = None
    returns_in_s: _Time = 0.0
    keep_s: _Time = 0.0
    priority: int = 0
    store: bool = True  # False: the caller asked to store nothing of it


class AgentRequest(msgspec.Struct, rename={"tokens": "in", "out_tokens": "out"}):
    """A request of an agent, or a sub-agent with requests of its own."""

    t: _Time = 0.0  # in s, since its session or sub-agent began
    type: str = ""
    tokens: _Count = 0
    out_tokens: _Count = 0
    think_time: _Time = 0.0
    api_time: _Time | None = None  # until the answer ended
    stop: str | None = ""  # why it ended
    input_types: list[str] = []  # kinds of the new part of the prompt
    hash_ranges: list[tuple[_Count, _Count]] = []  # first and last block of each run
    requests: list["AgentRequest"] = []  # of a sub-agent

    def blocks(self) -> Iterator[int]:
        """The ids of its blocks, in order."""
        for first, last in self.hash_ranges:
            yield from range(first, last + 1)


class AgentSession(msgspec.Struct):
    """A line of an agent trace."""

    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # in tokens
    requests: list[AgentRequest]

    def in_order(self) -> list[tuple[float, AgentRequest]]:
        """All requests with their times, including those of sub-agents."""
        return sorted(_flat(self.requests, 0.0), key=lambda pair: pair[0])


def _flat(requests: list[AgentRequest], start_s: float) -> Iterator[tuple[float, AgentRequest]]:
    for request in requests:
        at_s = start_s + request.t
        if request.type == "subagent":
            yield from _flat(request.requests, at_s)
        else:
            yield at_s, request


def read_trace_lines(path: Path) -> list[ConversationRequest] | list[AgentSession]:
    """Every line of a trace, in either format."""
    _, first = next(_lines(path), (0, b""))
    if b'"hash_ids"' in first:
        return read_lines(path, ConversationRequest)
    return read_lines(path, AgentSession)


def read_lines(path: Path, kind: type[_Row]) -> list[_Row]:
    """Every line of a file, each an object of this kind."""
    decode: Callable[[bytes], _Row] = msgspec.json.Decoder(kind).decode
    rows: list[_Row] = []
    for number, line in _lines(path):
        if number > LINES_MAX:
            raise SettingsError(f"'{path}' has more than {LINES_MAX:,} lines.")
        try:
            rows.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SettingsError(
                f"line {number} of '{path}' is not as docs/bench.md says: {error}."
            ) from None
    if not rows:
        raise SettingsError(f"'{path}' is empty.")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """All lines that are not blank, with their numbers."""
    try:
        with open_regular(path) as raw, lzma.open(raw) if path.suffix == ".xz" else raw as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise SettingsError(f"'{path}' cannot be read: {error.strerror}.") from None
    except (EOFError, lzma.LZMAError):
        raise SettingsError(f"'{path}' cannot be read: it is no complete .xz file.") from None
