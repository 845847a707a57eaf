"""One connection to a server that speaks RESP, the protocol of Valkey and Redis.

Values are read into given buffers, never more than they hold; other replies have limits of their
own, whatever the server says. Every call ends at the connection's deadline, however slowly bytes
drip in. What is no RESP, or too long, is a ValueError, and an end of the connection an OSError:
after either it must be closed, since nobody knows what would come next.
"""

import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from forebay.sys.clock import Clock

_BUFFERS_MAX: Final = 512  # of one system call
_AHEAD_BYTES: Final = 4096  # read at once where a line is wanted
_LINE_BYTES_MAX: Final = 4096
_BULK_BYTES_MAX: Final = 64 << 10  # of a text in a reply; values have buffers
_ITEMS_MAX: Final = 1 << 17  # of one reply, in all its arrays
_DEPTH_MAX: Final = 4
_LAST_DIGITS: Final = 19
_END: Final = b"\r\n"


class ServerError(NamedTuple):
    """What a server refused, in its own words, which are never logged."""

    text: str

    @property
    def code(self) -> str:
        """Its first word, which says what kind of error it is."""
        return self.text.partition(" ")[0]


Reply: TypeAlias = int | bytes | ServerError | list["Reply"] | None


def command(*parts: str | int | bytes) -> bytes:
    """A command as it is sent."""
    texts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(texts) + b"".join(map(argument, texts))


def argument(text: bytes) -> bytes:
    """One argument of a command."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


class RespConnection:
    """A socket to one server. One thread at a time."""

    def __init__(self, connected: socket.socket, clock: Clock) -> None:
        self._socket, self._clock = connected, clock
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._from = self._until = 0  # what has been read ahead
        self._items = 0
        self.deadline = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether the server has neither closed it nor said anything unasked."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if pending or self._from < self._until:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Give the descriptor back."""
        with suppress(OSError):
            self._socket.close()

    def send(self, buffers: Sequence[memoryview | bytes]) -> None:
        """Send all, one behind another."""
        if isinstance(self._socket, ssl.SSLSocket):
            for buffer in buffers:
                self._limit()
                self._socket.sendall(buffer)
            return
        left = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while left:
            self._limit()
            sent = self._socket.sendmsg(left[:_BUFFERS_MAX])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def ask(self, *parts: str | int | bytes) -> Reply:
        """Send a command and take its reply."""
        self.send([command(*parts)])
        return self.reply()

    def reply(self) -> Reply:
        """Take a reply of any kind but a value."""
        self._items = 0
        return self._reply(0)

    def value_into(self, buffers: Sequence[memoryview]) -> int | ServerError:
        """Take a reply that is a value; how many bytes of the buffers it has filled."""
        kind, rest = self._line()
        if kind == b"-":
            return ServerError(rest.decode("latin-1"))
        size = _number(rest)
        if kind != b"$" or not 0 <= size <= sum(map(len, buffers)):  # it must fit
            raise ValueError(kind)
        left = size
        for buffer in buffers:
            part = buffer[:left]
            self._fill(part)
            left -= len(part)
        self._expect_end()
        return size

    def _reply(self, depth: int) -> Reply:
        self._items += 1
        kind, rest = self._line()
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode("latin-1"))
        number = _number(rest)
        if kind == b":":
            return number
        if number == -1 and kind in b"$*":
            return None
        if kind == b"$" and 0 <= number <= _BULK_BYTES_MAX:
            text = memoryview(bytearray(number))
            self._fill(text)
            self._expect_end()
            return bytes(text)
        is_array = kind == b"*" and depth < _DEPTH_MAX
        if is_array and 0 <= number <= _ITEMS_MAX - self._items:  # and end
            return [self._reply(depth + 1) for _ in range(number)]
        raise ValueError(kind)

    def _line(self) -> tuple[bytes, bytes]:
        """The next line: its first character, and the rest without its end."""
        line = b""
        while not line.endswith(_END):
            if self._from == self._until:
                self._read_ahead()
            seen = bytes(self._ahead[self._from : self._until])
            newline = seen.find(b"\n")
            taken = seen if newline < 0 else seen[: newline + 1]
            self._from += len(taken)
            line += taken
            if len(line) > _LINE_BYTES_MAX or (newline >= 0 and not line.endswith(_END)):
                raise ValueError(len(line))
        return line[:1], line[1:-2]

    def _fill(self, target: memoryview) -> None:
        """All of the target, from what was read ahead and from the socket."""
        filled = min(len(target), self._until - self._from)
        target[:filled] = self._ahead[self._from : self._from + filled]
        self._from += filled
        while filled < len(target):
            self._limit()
            count = self._socket.recv_into(target[filled:])
            if not count:
                raise ConnectionResetError
            filled += count

    def _expect_end(self) -> None:
        end = memoryview(bytearray(len(_END)))
        self._fill(end)
        if bytes(end) != _END:
            raise ValueError(bytes(end))

    def _read_ahead(self) -> None:
        self._limit()
        self._from, self._until = 0, self._socket.recv_into(self._ahead)
        if not self._until:
            raise ConnectionResetError

    def _limit(self) -> None:
        """Let the next system call end at the deadline."""
        left_s = self.deadline - self._clock.monotonic()
        if left_s <= 0.0:
            raise TimeoutError
        self._socket.settimeout(left_s)


def _number(text: bytes) -> int:
    if len(text) > 1 + _LAST_DIGITS or not text.removeprefix(b"-").isdigit():
        raise ValueError(len(text))
    return int(text)
