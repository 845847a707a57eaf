"""The scheduler's membership of a pool: joined without ever waiting, lost and joined anew.

A lost connection is never resumed: the engine comes back under a new name, so that whatever the old
one had borrowed is given back by the pool's own rules. What the old one was promised stays pinned
until the pool hears that nobody reads it any more: see `former`.
"""

import os
import secrets
from typing import Final

from forebay.pool.client.link import Line
from forebay.pool.messages import PROTOCOL, ClientMessage, Hello, PoolMessage, Refused, Welcome
from forebay.sys import sockets
from forebay.sys.clock import Clock

_RETRY_S: Final = 0.25
_WELCOME_S: Final = 2.0


class Membership:
    """One connection, if any. Owned by the scheduler's thread; no call waits but `take`."""

    def __init__(self, socket_path: str, clock: Clock) -> None:
        self.socket_path = socket_path
        self.engine = ""  # our name in the pool
        self.former = ""  # and in the membership that was lost last
        self.generation = 0  # of its slab; 0: not a member
        self.why = ""  # in one sentence, where we are none
        self._clock = clock
        self._line: Line | None = None
        self._retry_at = 0.0
        self._told = 0  # the generation that `poll` last told of

    @property
    def is_member(self) -> bool:
        """Whether there is a pool to talk to."""
        return self.generation != 0

    def post(self, message: ClientMessage) -> None:
        """Say something, if there is anyone to hear it."""
        if self._line is not None:
            self._line.post(message)

    def take(self, until: float) -> PoolMessage | None:
        """The next message; waits for one until then, if at all."""
        line = self._line
        if line is None:
            return None
        if line.is_over:
            self._lose("the pool went away")
            return None
        message = line.take(until)
        if isinstance(message, Welcome):
            self._welcomed(line, message)
            return None
        if isinstance(message, Refused):
            self._lose(message.sentence)
            return None
        return message

    def poll(self) -> bool:
        """Join if there is a pool and we are no member; True: it is not the pool of last time."""
        if self._line is None:
            self._knock()
        elif not self.is_member:
            self.take(0.0)
            if not self.is_member and self._clock.monotonic() > self._retry_at + _WELCOME_S:
                self._lose("the pool does not answer")
        elif self._line.is_over:
            self._lose("the pool went away")
        before, self._told = self._told, self.generation
        return self._told != before

    def close(self) -> None:
        """Leave."""
        if self._line is not None:
            self._line.close()
        self._line, self.generation = None, 0

    def _knock(self) -> None:
        now = self._clock.monotonic()
        if now < self._retry_at:
            return
        self._retry_at = now + _RETRY_S
        try:
            connection = sockets.connect(self.socket_path)
        except OSError as error:
            self.why = f"no pool answers at {self.socket_path} ({error.strerror})"
            return
        self.engine = secrets.token_hex(8)
        self._line = Line(connection, self._clock)
        self._line.post(Hello(PROTOCOL, self.engine))

    def _welcomed(self, line: Line, message: Welcome) -> None:
        # The scheduler's side never touches the slab; its workers map it.
        while line.fds:
            os.close(line.fds.pop())
        self.generation = message.generation
        self.why = ""

    def _lose(self, why: str) -> None:
        if self.is_member:
            self.former = self.engine
        self.close()
        self.why = why
        self._retry_at = self._clock.monotonic() + _RETRY_S
