"""Watches an answer as it passes: complete events, the reported tokens, and why it ended.

Bytes are never changed. Of a stream only complete events are passed on, so that one that breaks off
ends between two events; the last `TAIL_BYTES` that were passed on are kept until its end.
"""

import re
from typing import Final, TypeVar

import msgspec

from forebay.gateway.placement.request import ServedTokens

TAIL_BYTES: Final = 16 << 10  # kept of a stream: usage comes with the last events
WHOLE_BYTES_MAX: Final = 4 << 20  # kept of an answer that is no stream; if larger, only its usage
_NAMED_EVENTS: Final = 4  # events to search for the answer's id; it is in the very first
EVENT_BYTES_MAX: Final = 1 << 20  # a longer event is passed on in pieces
_TOKENS_MAX: Final = 10**9  # that an answer is believed to have taken
# An answer of the Responses API, or its first event, begins with its id.
_NAME: Final = re.compile(rb'"id": ?"([^"\\]{1,128})"')
_ENDED: Final = re.compile(rb'"(?:finish_reason|stop_reason)": ?"([a-z_]{1,32})"')
# Only a JSON member can match: inside a text, its quotes would have backslashes.
_USAGE: Final = re.compile(rb'"usage": ?(\{[^{}]{0,500}(?:\{[^{}]{0,200}\}[^{}]{0,200}){0,4}\})')
_USAGE_BYTES: Final = 2048  # how long it may be
# The endings that the pool's hints know.
_CLASSES: Final = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
}


class _TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _TokenUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    # In the Messages API, `input_tokens` includes neither of these.
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None
    input_tokens_details: _TokenDetails | None = None

    def served(self) -> ServedTokens:
        answer = self.completion_tokens or self.output_tokens or 0
        prompt = self.prompt_tokens if self.input_tokens is None else self.input_tokens
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = details.cached_tokens if details else None
        if cached is None and self.cache_read_input_tokens is not None:
            cached = self.cache_read_input_tokens
            prompt = (prompt or 0) + cached + (self.cache_creation_input_tokens or 0)
        return ServedTokens(
            None if prompt is None else _bounded(prompt),
            None if cached is None else _bounded(cached),
            _bounded(answer),
        )


class _OutputItem(msgspec.Struct):
    type: str = ""


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    """The members of a Responses API answer that are read."""

    usage: _TokenUsage | None = None
    status: str | None = None
    output: list[_OutputItem] = []
    incomplete_details: _Incomplete | None = None

    def ended(self) -> str:
        if self.status == "incomplete":
            reason = self.incomplete_details.reason if self.incomplete_details else None
            return _CLASSES.get(reason or "", "")
        if self.status != "completed":
            return ""
        is_call = bool(self.output) and self.output[-1].type.endswith("_call")
        return "tool_call" if is_call else "stop"


class _AnswerPart(msgspec.Struct):
    usage: _TokenUsage | None = None
    response: _Response | None = None  # of an event of the Responses API


_Said = TypeVar("_Said")
_decoder: Final = msgspec.json.Decoder(_AnswerPart)
_responses: Final = msgspec.json.Decoder(_Response)


class AnswerObserver:
    """Watches one answer."""

    __slots__ = ("_held", "_is_response", "_is_stream", "_late_usage", "_tail", "events", "name")

    def __init__(self, *, is_stream: bool, is_response: bool = False) -> None:
        self._is_stream = is_stream
        self._is_response = is_response  # of the Responses API
        self.name = ""  # the id with which a later request may continue this answer; empty: none
        self._held = b""  # of a stream: an event that is not complete yet; else what passed last
        self._late_usage = b""  # the usage of an answer that is too large to be kept
        self._tail = b""  # of a stream: the end of what passed; else all of it
        self.events = 0

    def passing(self, data: bytes) -> bytes:
        """Take a piece of the answer; return the bytes that may be passed on now."""
        if not self._is_stream:
            self._keep(data)
            self._read_name(self._tail)
            return data
        if self._held:
            data = self._held + data
            self._held = b""
        if not data.endswith(b"\n\n"):
            cut = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
            if cut < 4 and len(data) <= EVENT_BYTES_MAX:
                self._held = data
                return b""
            if cut >= 4:
                self._held, data = data[cut:], data[:cut]
        self.events += data.count(b"\n\n") or 1
        if self.events <= _NAMED_EVENTS:
            self._read_name(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data
        return data

    def _read_name(self, data: bytes) -> None:
        if self._is_response and not self.name:
            found = _NAME.search(data, 0, TAIL_BYTES)
            self.name = found[1].decode(errors="replace") if found else ""

    def _keep(self, data: bytes) -> None:
        """Keep an answer that is no stream, or only its usage if it is too large."""
        if len(self._tail) <= WHOLE_BYTES_MAX:
            self._tail += data
            data = self._tail
            if len(data) <= WHOLE_BYTES_MAX:
                return
        else:
            data = self._held + data
        if found := _USAGE.findall(data):
            self._late_usage = found[-1]
        self._held = data[-_USAGE_BYTES:]

    def rest(self) -> bytes:
        """The bytes still held back, once the answer has ended properly."""
        if not self._is_stream:
            return b""
        rest, self._held = self._held, b""
        return rest

    def served(self) -> ServedTokens:
        """The tokens that the answer reports; if it reports none, each event counts as one."""
        usage = self._usage()
        return ServedTokens(answer=self.events) if usage is None else usage.served()

    def ended(self) -> str:
        """The answer's ending, as a class of the pool's hints; empty if unknown."""
        if self._is_response:
            return self._response_ended()
        found = _ENDED.findall(self._tail)
        return _CLASSES.get(found[-1].decode(), "") if found else ""

    def _response_ended(self) -> str:
        lines = reversed(self._tail.split(b"\n")) if self._is_stream else [self._tail]
        for line in lines:
            if self._is_stream:
                part = _decoded(_decoder, line[5:]) if line.startswith(b"data:") else None
                found = part.response if part is not None else None
            else:
                found = _decoded(_responses, line)
            if found is not None:
                return found.ended()
        return ""

    def _usage(self) -> _TokenUsage | None:
        if self._late_usage:
            return _usage_of(b'{"usage":%b}' % self._late_usage)
        if not self._is_stream:
            return _usage_of(self._tail)
        for line in reversed(self._tail.split(b"\n")):
            is_told = line.startswith(b"data:") and b'"usage"' in line
            if is_told and (found := _usage_of(line[5:])) is not None:
                return found
        return None


def _bounded(tokens: int) -> int:
    return min(max(0, tokens), _TOKENS_MAX)


def _usage_of(data: bytes) -> _TokenUsage | None:
    said = _decoded(_decoder, data)
    if said is None:
        return None
    return said.usage or (said.response.usage if said.response else None)


def _decoded(decoder: "msgspec.json.Decoder[_Said]", data: bytes) -> "_Said | None":
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
