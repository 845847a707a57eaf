"""An HTTP response and the events in it, read as the bytes come; every limit of it is here.

What a server sends is data from a stranger: whatever it is, it is read or it is a ValueError.
"""

from typing import Final

HEAD_BYTES_MAX: Final = 64 << 10
CHUNK_BYTES_MAX: Final = 64 << 20
LINE_BYTES_MAX: Final = 1 << 20
_CHUNK_LINE_MAX: Final = 1 << 10


class Response:
    """One response: `feed` it what arrives, it answers with the bytes of the body."""

    def __init__(self) -> None:
        self.status = 0  # until the head is there
        self.is_over = False  # the body has come to its end
        self._rest = b""  # what was fed and is not understood yet
        self._is_chunked = False
        self._left: int | None = None  # bytes of the body, where its length was said

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the connection's end ends the body."""
        return bool(self.status) and not self._is_chunked and self._left is None

    def feed(self, data: bytes) -> bytes:
        """The body's next bytes; a ValueError if this is no HTTP."""
        if self.is_over:
            return b""
        if not self.status:
            self._rest += data
            if not self._has_head():
                return b""
            data, self._rest = self._rest, b""
        if self._is_chunked:
            return self._chunks(data)
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.is_over = self._left == 0
        return data

    def _has_head(self) -> bool:
        head, found, rest = self._rest.partition(b"\r\n\r\n")
        if len(head) > HEAD_BYTES_MAX:
            raise ValueError("a head without end")
        if not found:
            return False
        first, *lines = head.split(b"\r\n")
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise ValueError("no HTTP")
        self.status = int(words[1])
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.strip().lower(), value.strip().lower()
            if name == b"transfer-encoding" and value == b"chunked":
                self._is_chunked = True
            elif name == b"content-length":
                self._left = int(value)
        if self._is_chunked:
            self._left = None
        self.is_over = self._left == 0
        self._rest = rest
        return True

    def _chunks(self, data: bytes) -> bytes:
        """Whole chunks; an incomplete one waits for its end."""
        data, at, pieces = self._rest + data, 0, []
        while (end := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:end].partition(b";")[0], 16)
            if not 0 <= size <= CHUNK_BYTES_MAX:
                raise ValueError("a chunk of no size")
            if size == 0:
                self.is_over = True
                break
            if len(data) < end + 2 + size + 2:
                break
            pieces.append(data[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        else:
            if len(data) - at > _CHUNK_LINE_MAX:
                raise ValueError("a chunk without a size")
        self._rest = b"" if self.is_over else data[at:]
        return b"".join(pieces)


class Events:
    """Server-sent events in a body: `feed` it the body, it answers with the data of each event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, body: bytes) -> list[bytes]:
        """The data of the events that are whole now; a ValueError if a line does not end."""
        *lines, self._rest = (self._rest + body).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise ValueError("a line without end")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
