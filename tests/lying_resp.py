"""A proxy before Valkey that lies about its replies."""

import itertools
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO, Final, NamedTuple

from tests.listening import STUFFING, HangUp, ListeningServer, dripping

_REQUESTS_MAX: Final = 100_000  # of one connection
_WAIT_S: Final = 600.0  # a guard against hanging
END: Final = b"\r\n"


class Reply(NamedTuple):
    """As the store has sent it; `value` is what a bulk string holds."""

    raw: bytes
    value: bytes | None


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


class LyingValkey(ListeningServer):
    """Passes commands on; `fault` says what becomes of the replies to `commands`, or to all."""

    def __init__(self, store: tuple[str, int]) -> None:
        super().__init__()
        self._store = store
        self.fault = ""
        self.commands: set[bytes] = set()
        self.asked: list[bytes] = []  # the first word of every command
        self._kept = b""  # a value of before

    def replies(self, incoming: BinaryIO) -> Iterator[bytes]:
        with (
            closing(socket.create_connection(self._store, _WAIT_S)) as upstream,
            upstream.makefile("rb") as answers,
        ):
            for _ in range(_REQUESTS_MAX):
                request = _read(incoming)
                if not request.raw:
                    return
                name = request.raw.split(END)[2].upper()
                self.asked.append(name)
                upstream.sendall(request.raw)
                reply = _read(answers)
                self._kept = self._kept or reply.value or b""
                is_honest = not self.fault or (self.commands and name not in self.commands)
                yield from [reply.raw] if is_honest else getattr(self, f"_{self.fault}")(reply)

    def _says(self, error: str) -> bytes:
        return f"-{error}\r\n".encode()

    def _loading(self, reply: Reply) -> Iterator[bytes]:
        yield self._says("LOADING the dataset is in memory soon")

    def _full(self, reply: Reply) -> Iterator[bytes]:
        yield self._says("OOM command not allowed when used memory > 'maxmemory'.")

    def _denied(self, reply: Reply) -> Iterator[bytes]:
        yield self._says("NOPERM this user has no permissions")

    def _replica(self, reply: Reply) -> Iterator[bytes]:
        yield self._says("READONLY You can't write against a read only replica.")

    def _moved_nowhere(self, reply: Reply) -> Iterator[bytes]:
        yield self._says("MOVED 1 127.0.0.1:1")

    def _moved_in_circles(self, reply: Reply) -> Iterator[bytes]:
        yield self._says(f"MOVED 1 {self.address}")

    def _moved_to_nonsense(self, reply: Reply) -> Iterator[bytes]:
        yield self._says("MOVED 1 here:99999999")

    def _moved_once(self, reply: Reply) -> Iterator[bytes]:
        """To this server itself; from then on it is honest."""
        self.fault = ""
        yield self._says(f"MOVED 1 :{self.address.rpartition(':')[2]}")

    def _without_a_host(self, reply: Reply) -> Iterator[bytes]:
        """A cluster whose only server does not say what it is called."""
        yield self._slots(0, 16383)

    def _with_gaps(self, reply: Reply) -> Iterator[bytes]:
        yield self._slots(0, 100)

    def _of_nonsense(self, reply: Reply) -> Iterator[bytes]:
        yield self._slots(100, 0)

    def _slots(self, first: int, last: int) -> bytes:
        port = int(self.address.rpartition(":")[2])
        return b"*1\r\n*3\r\n:%d\r\n:%d\r\n*2\r\n$-1\r\n:%d\r\n" % (first, last, port)

    def _nil(self, reply: Reply) -> Iterator[bytes]:
        yield b"$-1\r\n"

    def _empty(self, reply: Reply) -> Iterator[bytes]:
        yield bulk(b"")

    def _number(self, reply: Reply) -> Iterator[bytes]:
        yield b":7\r\n"

    def _flipped(self, reply: Reply) -> Iterator[bytes]:
        value = bytearray(reply.value or b"")
        if value:
            value[len(value) // 2] ^= 1
        yield bulk(bytes(value)) if value else reply.raw

    def _stuffed(self, reply: Reply) -> Iterator[bytes]:
        """Other bytes, as many as it should be."""
        size = len(reply.value or b"")
        yield bulk((STUFFING * (1 + size // len(STUFFING)))[:size]) if size else reply.raw

    def _another(self, reply: Reply) -> Iterator[bytes]:
        """Another key's value."""
        yield bulk(self._kept)

    def _short(self, reply: Reply) -> Iterator[bytes]:
        """Half of the value, in good order but for that."""
        value = reply.value or b""
        yield bulk(value[: len(value) // 2])

    def _twice(self, reply: Reply) -> Iterator[bytes]:
        yield reply.raw + reply.raw

    def _no_end(self, reply: Reply) -> Iterator[bytes]:
        """Longer than it says."""
        yield b"$3\r\nabcde\r\n"

    def _too_long(self, reply: Reply) -> Iterator[bytes]:
        yield b"$%d\r\n%b\r\n" % (10**15, reply.value or b"")

    def _endless(self, reply: Reply) -> Iterator[bytes]:
        yield b"$%d\r\n" % 10**15
        yield from itertools.repeat(STUFFING)

    def _endless_line(self, reply: Reply) -> Iterator[bytes]:
        yield b"+"
        yield from itertools.repeat(STUFFING)

    def _endless_depth(self, reply: Reply) -> Iterator[bytes]:
        yield from itertools.repeat(b"*1\r\n")

    def _endless_array(self, reply: Reply) -> Iterator[bytes]:
        yield b"*%d\r\n" % 10**9
        yield from itertools.repeat(b":1\r\n" * 1000)

    def _endless_number(self, reply: Reply) -> Iterator[bytes]:
        yield b"$" + b"9" * 1000 + END

    def _no_resp(self, reply: Reply) -> Iterator[bytes]:
        yield b"HTTP/1.1 400 Bad Request\n\n"
        raise HangUp

    def _zeros(self, reply: Reply) -> Iterator[bytes]:
        yield b"\0" * 1000 + END

    def _reset(self, reply: Reply) -> Iterator[bytes]:
        yield b""
        raise HangUp

    def _truncated(self, reply: Reply) -> Iterator[bytes]:
        yield reply.raw[: len(reply.raw) // 2]
        raise HangUp

    def _stalled(self, reply: Reply) -> Iterator[bytes]:
        yield reply.raw[: len(reply.raw) // 2]
        self.stall()

    def _silent(self, reply: Reply) -> Iterator[bytes]:
        self.stall()
        yield b""

    def _deaf(self, reply: Reply) -> Iterator[bytes]:
        """Answers, and takes nothing more."""
        yield reply.raw
        self.stall()

    def _dripping(self, reply: Reply) -> Iterator[bytes]:
        yield from dripping(reply.raw, self.over)


def _read(incoming: BinaryIO) -> Reply:
    """One command or reply, whole; nothing at the end."""
    line = incoming.readline()
    if line[:1] == b"$" and int(line[1:]) >= 0:
        value = incoming.read(int(line[1:]) + 2)
        return Reply(line + value, value[:-2])
    parts = range(int(line[1:])) if line[:1] == b"*" else range(0)
    return Reply(line + b"".join(_read(incoming).raw for _ in parts), None)
