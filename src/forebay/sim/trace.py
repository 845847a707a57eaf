"""Request traces without text: who asked for which chunks, and when.

A request is its chain of whole chunks, root first; the rest at the end of a prompt counts as tokens
but is no chunk. A chunk's key names its whole prefix, as in the pool. In an agent trace several
blocks make a chunk: eight, if a block has 64 tokens.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from forebay.errors import SettingsError
from forebay.identity.endings import SESSION_BYTES, EndingClass
from forebay.pool.policy.contract import Ending
from forebay.sim.trace_file import (
    CONVERSATION_BLOCK_TOKENS,
    AgentRequest,
    AgentSession,
    ConversationRequest,
    read_trace_lines,
)

CHUNK_TOKENS: Final = CONVERSATION_BLOCK_TOKENS
_STOPS: Final = {
    "tool_use": EndingClass.TOOL_CALL,
    "end_turn": EndingClass.STOP,
    "max_tokens": EndingClass.LENGTH,
}


class TracedAnswer(NamedTuple):
    """What a trace tells of an answer, but a policy is not told."""

    duration_s: float = 0.0  # since its request arrived
    tokens: int = 0
    after: int = 0  # the class of the earlier answer that its prompt continues; 0: unknown


class Request(NamedTuple):
    """One prompt."""

    at_s: float  # since the start of its session, or of the trace once scheduled
    keys: Sequence[bytes]  # its whole chunks, root first; equal chunks are one object
    tokens: int  # in the prompt, the incomplete last chunk included
    ending: Ending | None = None  # how its answer ended; None: unknown
    answer: TracedAnswer = TracedAnswer()
    stores: bool = True  # False: its prefix may be found, but nothing of it is stored


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions in file order, each a list of requests in order of time."""

    sessions: list[list[Request]]
    open_loop: bool  # requests have absolute times, and are all in one session

    def half(self, index: int) -> "Trace":
        """Every second session; of an open loop, the first or second half of the requests."""
        if not self.open_loop:
            return Trace(self.sessions[index::2], open_loop=False)
        requests = self.sessions[0]
        middle = len(requests) // 2
        part = requests[middle:] if index else requests[:middle]
        start = part[0].at_s if part else 0.0
        return Trace([[r._replace(at_s=r.at_s - start) for r in part]], open_loop=True)


def read_trace(path: Path, prompt_tokens_max: int | None = None) -> Trace:
    """The trace in `path`; sessions with a prompt beyond `prompt_tokens_max` are left out."""
    names = _Names()
    rows = read_trace_lines(path)
    timed = [_conversation(row, names) for row in rows if isinstance(row, ConversationRequest)]
    if timed:
        timed.sort(key=lambda request: request.at_s)
        return Trace([timed], open_loop=True)
    if any(row.block_size > CHUNK_TOKENS for row in rows if isinstance(row, AgentSession)):
        raise SettingsError(f"{path} has blocks of more than {CHUNK_TOKENS} tokens.")
    sessions = [_session(row, names) for row in rows if isinstance(row, AgentSession)]
    longest = float("inf") if prompt_tokens_max is None else prompt_tokens_max
    kept = [s for s in sessions if s and max(r.tokens for r in s) <= longest]
    return Trace(kept, open_loop=False)


def capped(trace: Trace, gap_max_s: float) -> Trace:
    """The same trace with every gap between two requests of a session limited."""
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
    """All requests in order of time, with `users` sessions at once (0: all of them)."""
    return (request for _, request in turns(trace, users))


def turns(trace: Trace, users: int = 0) -> Iterator[tuple[int, Request]]:
    """As `schedule`, with each request's session number, in the order in which sessions start.

    When a session ends, the next one in file order starts. Gaps are as recorded and serving takes
    no time, so only the order matters, which is the same in every run.
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

    for _ in trace.sessions[: users or None]:
        start(0.0)
    while heap:
        at_s, order, base_s, position, session = heapq.heappop(heap)
        yield order, session[position]._replace(at_s=at_s)
        if position + 1 < len(session):
            later_s = base_s + session[position + 1].at_s
            heapq.heappush(heap, (later_s, order, base_s, position + 1, session))
        else:
            start(at_s)


class _Names:
    """Keys of chunks: one number per (parent, blocks), so that equal chains get equal objects."""

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


def _conversation(row: ConversationRequest, names: _Names) -> Request:
    blocks = row.hash_ids[: row.input_length // CHUNK_TOKENS]
    ending = None
    if row.duration_ms is not None:
        session = b"" if row.session is None else row.session.to_bytes(SESSION_BYTES, "big")
        ending = Ending(row.ended, session, row.returns_in_s, row.keep_s, row.priority)
    keys = names.chain(blocks, b"")
    answer = TracedAnswer((row.duration_ms or 0.0) / 1000, row.output_length, row.after)
    return Request(row.timestamp / 1000, keys, row.input_length, ending, answer, row.store)


def _session(row: AgentSession, names: _Names) -> list[Request]:
    """A session's requests in order of time; their chunks are groups of blocks."""
    size = CHUNK_TOKENS // row.block_size
    found = []
    for at_s, request in row.in_order():
        blocks = list(request.blocks())[: request.tokens // row.block_size]
        whole = range(0, len(blocks) - size + 1, size)
        groups = [tuple(blocks[first : first + size]) for first in whole]
        keys = names.chain(groups, row.id.encode())
        found.append(Request(at_s, keys, request.tokens, *_agent_answer(request)))
    return found


def _agent_answer(request: AgentRequest) -> tuple[Ending | None, TracedAnswer]:
    """How an agent's answer ended, from the trace's words; an engine uses its last tokens."""
    if request.api_time is None:
        return None, TracedAnswer()
    after = EndingClass.TOOL_CALL if "tool_result" in request.input_types else EndingClass.STOP
    ending = Ending(_STOPS.get(request.stop or "", EndingClass.OTHER))
    return ending, TracedAnswer(request.api_time, request.out_tokens, after)
