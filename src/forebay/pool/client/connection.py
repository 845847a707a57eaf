"""Messages over one socket to a pool, sent and received without waiting or until a deadline."""

import contextlib
import os
import socket
from collections import deque
from typing import Final

from forebay.pool import wire
from forebay.pool.messages import ClientMessage, PoolMessage
from forebay.pool.wire import FrameError
from forebay.sys import sockets
from forebay.sys.clock import Clock

_OUTPUT_BYTES_MAX: Final = 16 << 20
_INBOX_MAX: Final = 4096


class PoolConnection:
    """One connection, which may be lost and is never resumed. Owned by one thread."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self.is_lost = False
        self.fds: list[int] = []  # descriptors that came with messages; ours to close
        self._connection = connection
        self._clock = clock
        self._reader = wire.pool_reader()
        self._inbox: deque[PoolMessage] = deque()
        self._output = bytearray()

    def post(self, message: ClientMessage, *, later: bool = False) -> None:
        """Send what the kernel takes now; the rest goes with the next call.

        `later`: send all of it with the next call, which saves a system call.
        """
        if self.is_lost:
            return
        frame = wire.encode(message)
        if len(self._output) + len(frame) > _OUTPUT_BYTES_MAX:
            self.close()  # the pool has stopped reading
            return
        self._output += frame
        if not later:
            self._flush()

    @property
    def has_output(self) -> bool:
        """Whether some of what was posted was not taken by the kernel yet."""
        return bool(self._output) and not self.is_lost

    def take(self, until: float) -> PoolMessage | None:
        """The next message, or None if the time is up or the connection is lost."""
        while not self._inbox and not self.is_lost:
            timeout_s = until - self._clock.monotonic()
            if timeout_s <= 0:
                self.pump()
                break
            sockets.wait(self._connection, write=bool(self._output), timeout_s=timeout_s)
            self.pump()
        return self._inbox.popleft() if self._inbox else None

    def rest(self, until: float) -> None:
        """Sleep until then, or until something arrives."""
        timeout_s = until - self._clock.monotonic()
        if not self.is_lost and timeout_s > 0:
            sockets.wait(self._connection, write=False, timeout_s=timeout_s)
            self.pump()

    def pump(self) -> None:
        """Write and read as much as possible without waiting; notices if the pool is gone."""
        self._flush()
        while not self.is_lost and len(self._inbox) < _INBOX_MAX:
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

    def take_fds(self, count: int) -> list[int]:
        """The next `count` descriptors that came with messages; the caller has to close them."""
        taken, self.fds = self.fds[:count], self.fds[count:]
        return taken

    def close(self) -> None:
        """Close the connection; messages that have arrived can still be taken."""
        self.is_lost = True
        with contextlib.suppress(OSError):
            self._connection.close()
        while self.fds:
            os.close(self.fds.pop())

    def _flush(self) -> None:
        try:
            while self._output and not self.is_lost:
                with memoryview(self._output) as view:
                    count = sockets.send(self._connection, view)
                if not count:
                    return
                del self._output[:count]
        except OSError:
            self._output.clear()  # the pool hung up; `pump` reads what it said, then the end
