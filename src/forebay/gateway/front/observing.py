"""What is seen of an answer while it passes: whole events, tokens as told, why it ended.

Bytes are never changed. Of a stream only whole events are passed on, so that an answer which breaks
off ends between two; of what was passed, the last `TAIL_BYTES` are kept until its end.
"""

import re
from typing import Final

import msgspec

from forebay.gateway.placement.request import ServedTokens

TAIL_BYTES: Final = 16 << 10  # of a stream: usage comes with the last events
WHOLE_BYTES_MAX: Final = 4 << 20  # of an answer that is no stream; of larger ones only usage is
EVENT_BYTES_MAX: Final = 1 << 20  # of one event; a longer one is passed on in pieces
_TOKENS_MAX: Final = 10**9  # that an answer is believed to have taken
_ENDED: Final = re.compile(rb'"(?:finish_reason|stop_reason)": ?"([a-z_]{1,32})"')
# A member of its own: in a text its quotes would have backslashes.
_USAGE: Final = re.compile(rb'"usage": ?(\{[^{}]{0,500}(?:\{[^{}]{0,200}\}[^{}]{0,200}){0,4}\})')
_USAGE_BYTES: Final = 2048  # that it may have
# As the pool's hints have it.
_CLASSES: Final = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
}


class _TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _TokenUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None
    input_tokens_details: _TokenDetails | None = None


class _WithUsage(msgspec.Struct):
    usage: _TokenUsage | None = None


class _AnswerPart(msgspec.Struct):
    usage: _TokenUsage | None = None
    response: _WithUsage | None = None  # of an event of the Responses API
    message: msgspec.Raw = msgspec.Raw(b"")


_decoder: Final = msgspec.json.Decoder(_AnswerPart)


class AnswerObserver:
    """One answer."""

    __slots__ = ("_held", "_is_stream", "_late_usage", "_tail", "events")

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._held = b""  # of a stream: an event that is not whole yet; else what passed last
        self._late_usage = b""  # of an answer that is too large to be kept
        self._tail = b""  # of a stream: the end of what passed; else all of it
        self.events = 0

    def passing(self, data: bytes) -> bytes:
        """What of this, and of what was held back before, may be passed on now."""
        if not self._is_stream:
            self._keep(data)
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
        self._tail = (self._tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data
        return data

    def _keep(self, data: bytes) -> None:
        """Keep an answer that is no stream, or what it says of its tokens if it is too large."""
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
        """What was held back of an answer that has ended as it should."""
        if not self._is_stream:
            return b""
        rest, self._held = self._held, b""
        return rest

    def served(self) -> ServedTokens:
        """What the answer took, as it says; of a stream that does not, an event is a token."""
        usage = self._usage()
        if usage is None:
            return ServedTokens(answer=self.events)
        prompt = usage.prompt_tokens if usage.input_tokens is None else usage.input_tokens
        details = usage.prompt_tokens_details or usage.input_tokens_details
        cached = (details.cached_tokens if details else usage.cache_read_input_tokens) or 0
        answer = usage.completion_tokens or usage.output_tokens or 0
        told = None if prompt is None else _bounded(prompt)
        return ServedTokens(told, _bounded(cached), _bounded(answer))

    def ended(self) -> str:
        """Why the answer ended, as hints say it; empty: it does not say."""
        found = _ENDED.findall(self._tail)
        return _CLASSES.get(found[-1].decode(), "") if found else ""

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
    try:
        said = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return said.usage or (said.response.usage if said.response else None)
