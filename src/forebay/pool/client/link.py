"""One joined connection and the slab that came with it. A lost link is never resumed.

The mapping outlives the connection for as long as someone still reads from it; the next slab is
mapped only after this one is unmapped, so that host memory is never counted twice.
"""

import contextlib
import mmap
import os
import socket
from collections import deque
from typing import Final

from forebay.pool import wire
from forebay.pool.messages import PROTOCOL, ClientMessage, Hello, PoolMessage, Refused, Welcome
from forebay.pool.wire import FrameError
from forebay.sys import sockets
from forebay.sys.clock import Clock

REFUSED: Final = "the pool refuses: "  # begins what `join` says when asking again is no use
_OUTPUT_BYTES_MAX: Final = 16 << 20
_INBOX_MAX: Final = 4096


class Line:
    """Messages over one connection, with deadlines; `is_over` once it is lost."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self.is_over = False
        self.fds: list[int] = []  # that came along; ours to close
        self._connection = connection
        self._clock = clock
        self._reader = wire.pool_reader()
        self._inbox: deque[PoolMessage] = deque()
        self._output = bytearray()

    def post(self, message: ClientMessage) -> None:
        """Send as much as the kernel takes now; the rest goes with the next call."""
        if self.is_over:
            return
        frame = wire.encode(message)
        if len(self._output) + len(frame) > _OUTPUT_BYTES_MAX:
            self.close()  # the pool does not read
            return
        self._output += frame
        self._flush()

    def take(self, until: float) -> PoolMessage | None:
        """The next message; None when the time is up or the line is lost."""
        while not self._inbox and not self.is_over:
            timeout_s = until - self._clock.monotonic()
            if timeout_s <= 0:
                self.pump()
                break
            sockets.wait(self._connection, write=bool(self._output), timeout_s=timeout_s)
            self.pump()
        return self._inbox.popleft() if self._inbox else None

    def rest(self, until: float) -> None:
        """Do nothing until then, unless something comes."""
        timeout_s = until - self._clock.monotonic()
        if not self.is_over and timeout_s > 0:
            sockets.wait(self._connection, write=False, timeout_s=timeout_s)
            self.pump()

    def pump(self) -> None:
        """Write and read what can be without waiting; notices a pool that is gone."""
        self._flush()
        while not self.is_over and len(self._inbox) < _INBOX_MAX:
            try:
                data, fds = sockets.receive_fds(self._connection, wire.RECEIVE_BYTES)
            except OSError:
                self.close()
                return
            self.fds += fds
            if data is None:
                return
            if not data:
                self.close()
                return
            self._reader.feed(data)
            for message in self._reader.messages():
                if isinstance(message, FrameError):
                    self.close()
                    return
                self._inbox.append(message)

    def close(self) -> None:
        """Hang up; what has arrived can still be taken."""
        self.is_over = True
        with contextlib.suppress(OSError):
            self._connection.close()
        while self.fds:
            os.close(self.fds.pop())

    def _flush(self) -> None:
        try:
            while self._output and not self.is_over:
                with memoryview(self._output) as view:
                    count = sockets.send(self._connection, view)
                if not count:
                    return
                del self._output[:count]
        except OSError:
            self.close()


class Link:
    """A line that was welcomed, and the slab."""

    def __init__(self, line: Line, engine: str, welcome: Welcome, mapping: mmap.mmap) -> None:
        self.line = line
        self.engine = engine  # as we said in Hello
        self.generation = welcome.generation
        self.slab_bytes = welcome.slab_bytes
        self.arena_bytes = welcome.arena_bytes
        self._mapping = mapping
        self.slab = memoryview(mapping)

    def view(self, offset: int, length: int) -> memoryview | None:
        """Part of the slab, or None if it does not lie in it."""
        if not 0 <= offset <= offset + length <= self.slab_bytes:
            return None
        return self.slab[offset : offset + length]

    def close(self) -> bool:
        """Hang up and unmap; False if someone still reads from the slab: then try again."""
        self.line.close()
        self.slab.release()
        try:
            self._mapping.close()
        except BufferError:
            return False
        return True


def join(path: str, engine: str, clock: Clock, until: float) -> Link | str:
    """A link, or in one sentence why there is none; never later than `until`."""
    try:
        connection = sockets.connect(path)
    except OSError as error:
        return f"no pool answers at {path} ({error.strerror})."
    line = Line(connection, clock)
    line.post(Hello(PROTOCOL, engine))
    welcome = line.take(until)
    link = _enter(line, engine, welcome)
    if isinstance(link, str):
        line.close()
    return link


def _enter(line: Line, engine: str, welcome: PoolMessage | None) -> Link | str:
    if isinstance(welcome, Refused):
        return REFUSED + welcome.sentence
    if not isinstance(welcome, Welcome):
        return "the pool hung up." if line.is_over else "the pool did not answer in time."
    if len(line.fds) != 1 or welcome.slab_bytes <= 0:
        return "the pool sent no slab."
    descriptor = line.fds.pop()
    try:
        # A slab that could shrink under us would turn a read into a SIGBUS.
        if not sockets.cannot_shrink(descriptor):
            return "the pool's slab is not sealed."
        if os.fstat(descriptor).st_size < welcome.slab_bytes:
            return "the pool's slab is smaller than it says."
        return Link(line, engine, welcome, mmap.mmap(descriptor, welcome.slab_bytes))
    except (OSError, ValueError, OverflowError) as error:
        return f"the pool's slab cannot be mapped ({type(error).__name__})."
    finally:
        os.close(descriptor)
