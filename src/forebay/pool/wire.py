"""Frames: a length (u32, little-endian), then that many bytes of MessagePack. Any bytes are safe.

A length is checked before anything is allocated for it, so that a reader holds at most one frame
and one receive buffer; what is no frame or no message is a `FrameError`, as a value. After one, the
connection must end, since nobody knows where the next frame begins. docs/protocol.md has the bytes
of every message.
"""

import json
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

from forebay.pool.messages import FRAME_BYTES_MAX, ClientMessage, PoolMessage

LENGTH_BYTES: Final = 4
RECEIVE_BYTES: Final = 256 << 10
_encoder: Final = msgspec.msgpack.Encoder()

_Message = TypeVar("_Message")


class FrameError(ValueError):
    """Bytes that are no frame, or a frame that is no message; tells which, but not the content."""


def encode(message: ClientMessage | PoolMessage) -> bytes:
    """A message as one frame; a FrameError if it is longer than a frame may be."""
    frame = bytearray(LENGTH_BYTES)
    _encoder.encode_into(message, frame, LENGTH_BYTES)
    length = len(frame) - LENGTH_BYTES
    if length > FRAME_BYTES_MAX:
        raise FrameError(f"a message of {length} bytes is longer than a frame may be")
    frame[:LENGTH_BYTES] = length.to_bytes(LENGTH_BYTES, "little")
    return bytes(frame)


def json_bytes(found: object) -> bytes:
    """JSON in UTF-8, escaping only the bytes of paths that are no UTF-8."""
    return json.dumps(found, ensure_ascii=False).encode(errors="backslashreplace")


class Reader(Generic[_Message]):
    """Turns one side's byte stream into messages; owned by one connection."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()  # [0, _at) is consumed, [_at, end) is not
        self._at = 0
        self._broken: FrameError | None = None

    def feed(self, data: bytes) -> None:
        """Take in received bytes, at most RECEIVE_BYTES at a time, once `messages` has ended."""
        assert len(data) <= RECEIVE_BYTES
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    @property
    def waiting_bytes(self) -> int:
        """Received bytes that are no complete message yet."""
        return len(self._buffer) - self._at

    @property
    def has_frame(self) -> bool:
        """Whether `messages` would yield a message or an error without more bytes."""
        length = self._length()
        return length is not None and (
            length > FRAME_BYTES_MAX or self.waiting_bytes >= LENGTH_BYTES + length
        )

    def messages(self) -> Iterator[_Message | FrameError]:
        """The complete messages; an error is the last item of a stream."""
        while self.has_frame or self._broken is not None:
            message = self._broken or self._next()
            yield message
            if isinstance(message, FrameError):
                self._broken = message
                return

    def _length(self) -> int | None:
        if self.waiting_bytes < LENGTH_BYTES:
            return None
        return int.from_bytes(self._buffer[self._at : self._at + LENGTH_BYTES], "little")

    def _next(self) -> _Message | FrameError:
        length = self._length()
        assert length is not None
        if length > FRAME_BYTES_MAX:
            return FrameError(f"a frame of {length} bytes is longer than {FRAME_BYTES_MAX}")
        start = self._at + LENGTH_BYTES
        self._at = start + length
        with memoryview(self._buffer) as view, view[start : self._at] as frame:
            try:
                return self._decoder.decode(frame)
            except (ValueError, RecursionError) as error:
                # The decoder's own text may quote the input, so only the kind of error is kept.
                return FrameError(f"a frame of {length} bytes is no message ({_kind(error)})")


def _kind(error: Exception) -> str:
    return type(error).__name__


def client_reader() -> "Reader[ClientMessage]":
    """A reader for the pool, of clients' messages."""
    decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
    return Reader(decoder)


def pool_reader() -> "Reader[PoolMessage]":
    """A reader for clients, of the pool's messages."""
    decoder: msgspec.msgpack.Decoder[PoolMessage] = msgspec.msgpack.Decoder(PoolMessage)
    return Reader(decoder)
