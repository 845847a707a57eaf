"""Request traces without text: who asked for which chunks, and when.

Two formats, told apart by their first line, plain or `.xz`:

* conversation: one request a line, `{"timestamp": ms, "input_length": …, "hash_ids": […]}`; an
  equal id is an equal block of 512 tokens with an equal prefix. `forebay pool --trace` records it.
* agent sessions: one session a line, blocks of 64 tokens whose ids are local to the session;
  sub-agents are nested and run beside their session. Eight blocks make a chunk.

A request is its chain of whole chunks, root first: what is left over at the end of a prompt is
counted as tokens but is no chunk. A chunk's key names its whole prefix, as in the pool.
"""

import heapq
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from forebay.errors import SettingsError

CHUNK_TOKENS: Final = 512
LINE_BYTES_MAX: Final = 64 << 20
_FORMATS: Final = "forebay sim --help describes both formats"


class Request(NamedTuple):
    """One prompt."""

    at_s: float  # since the start of its session, or of the trace once scheduled
    keys: Sequence[bytes]  # its whole chunks, root first; equal chunks are one object
    tokens: int  # in the prompt, the incomplete last chunk included


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions in file order, each a list of requests in order of time."""

    sessions: list[list[Request]]
    open_loop: bool  # the requests carry the time of day: one session holds all of them

    def half(self, index: int) -> "Trace":
        """Every second session (or, of an open loop, the first or second half of the time)."""
        if not self.open_loop:
            return Trace(self.sessions[index::2], open_loop=False)
        requests = self.sessions[0]
        middle = len(requests) // 2
        part = requests[middle:] if index else requests[:middle]
        start = part[0].at_s if part else 0.0
        return Trace([[r._replace(at_s=r.at_s - start) for r in part]], open_loop=True)


def read_trace(path: Path, prompt_tokens_max: int | None = None) -> Trace:
    """The trace in `path`; sessions with a prompt beyond `prompt_tokens_max` are left out."""
    try:
        with _open(path) as file:
            trace = _parse(path, iter(lambda: file.readline(LINE_BYTES_MAX), b""))
    except OSError as error:
        raise SettingsError(f"'{path}' cannot be read: {error.strerror}.") from None
    except (EOFError, lzma.LZMAError):
        raise SettingsError(f"'{path}' is not a complete .xz file; make it again.") from None
    if prompt_tokens_max is None or trace.open_loop:
        return trace
    kept = [s for s in trace.sessions if max(r.tokens for r in s) <= prompt_tokens_max]
    return Trace(kept, open_loop=False)


def capped(trace: Trace, gap_max_s: float) -> Trace:
    """The same with no gap between two requests of a session longer than that."""
    sessions = []
    for session in trace.sessions:
        at_s, before_s, kept = 0.0, session[0].at_s, []
        for request in session:
            at_s += min(request.at_s - before_s, gap_max_s)
            before_s = request.at_s
            kept.append(request._replace(at_s=at_s))
        sessions.append(kept)
    return Trace(sessions, trace.open_loop)


def schedule(trace: Trace, users: int = 0) -> Iterator[Request]:
    """All requests in order of time, with `users` sessions at once (0: all of them).

    The next session in file order starts when one ends; gaps are as recorded and serving takes no
    time, so only the order matters, and two runs see the same one.
    """
    waiting = iter(trace.sessions)
    heap: list[tuple[float, int, float, int, list[Request]]] = []
    number = 0

    def start(at_s: float) -> None:
        nonlocal number
        session = next(waiting, None)
        if session:
            heapq.heappush(heap, (at_s + session[0].at_s, number, at_s, 0, session))
            number += 1

    for _ in range(users or len(trace.sessions)):
        start(0.0)
    while heap:
        at_s, order, base_s, position, session = heapq.heappop(heap)
        yield session[position]._replace(at_s=at_s)
        if position + 1 < len(session):
            later_s = base_s + session[position + 1].at_s
            heapq.heappush(heap, (later_s, order, base_s, position + 1, session))
        else:
            start(at_s)


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", lzma.open(path) if path.suffix == ".xz" else path.open("rb"))


def _parse(path: Path, lines: Iterable[bytes]) -> Trace:
    names = _Names()
    sessions: list[list[Request]] = []
    timed: list[Request] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "hash_ids" in row:
                timed.append(_conversation_request(row, names))
            elif session := _agent_session(row, names):
                sessions.append(session)
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
            raise SettingsError(
                f"line {number} of '{path}' is neither a request nor a session; {_FORMATS}."
            ) from None
    if bool(timed) == bool(sessions):
        wrong = "mixes requests and sessions" if timed else "has no requests"
        raise SettingsError(f"'{path}' {wrong}; {_FORMATS}.")
    timed.sort(key=lambda request: request.at_s)
    return Trace([timed], open_loop=True) if timed else Trace(sessions, open_loop=False)


class _Names:
    """Keys of chunks: one a (parent, blocks), counted, so that equal chains get equal objects."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, object], bytes] = {}

    def chain(self, blocks: Sequence[object], scope: bytes) -> list[bytes]:
        known, parent, keys = self._known, scope, []
        for block in blocks:
            place = (parent, block)
            key = known.get(place)
            if key is None:
                key = known[place] = len(known).to_bytes(16, "big")
            keys.append(key)
            parent = key
        return keys


def _conversation_request(row: dict[str, Any], names: _Names) -> Request:
    tokens = int(row["input_length"])
    blocks = row["hash_ids"][: tokens // CHUNK_TOKENS]
    return Request(float(row["timestamp"]) / 1000, names.chain(blocks, b""), tokens)


def _agent_session(row: dict[str, Any], names: _Names) -> list[Request]:
    blocks_a_chunk = CHUNK_TOKENS // int(row["block_size"])
    scope = str(row["id"]).encode()
    found = []
    for at_s, request in _flat(row["requests"], 0.0):
        tokens = int(request["in"])
        blocks = [i for first, last in request["hash_ranges"] for i in range(first, last + 1)]
        whole = min(len(blocks), tokens // int(row["block_size"])) // blocks_a_chunk
        groups = [
            tuple(blocks[i * blocks_a_chunk : (i + 1) * blocks_a_chunk]) for i in range(whole)
        ]
        found.append(Request(at_s, names.chain(groups, scope), tokens))
    found.sort(key=lambda request: request.at_s)
    return found


def _flat(requests: list[dict[str, Any]], start_s: float) -> Iterator[tuple[float, dict[str, Any]]]:
    for request in requests:
        at_s = start_s + float(request["t"])
        if request.get("type") == "subagent":
            yield from _flat(request["requests"], at_s)
        else:
            yield at_s, request
