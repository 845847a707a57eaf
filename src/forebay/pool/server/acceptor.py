"""Accepting connections, also when the pool's process has no descriptor left.

One is kept for that: with it a connection is accepted, so that another can give way to it, or it
hears why not. Without this, who takes all descriptors would keep everyone out.
"""

import logging
import socket
from typing import Final

from forebay.sys import sockets
from forebay.sys.clock import Clock
from forebay.sys.processes import SpareDescriptor

_SAY_AGAIN_S: Final = 60.0
_log: Final = logging.getLogger(__name__)


class Acceptor:
    """Owned by the server's thread."""

    def __init__(self, listener: socket.socket, clock: Clock) -> None:
        self.listener = listener
        self.is_short = False  # the last accepted has the spare descriptor: one must be freed
        self.is_exhausted = False  # not even that could be had: to be tried again later
        self._clock = clock
        self._spare = SpareDescriptor()
        self._said_at = -_SAY_AGAIN_S

    @property
    def path(self) -> str:
        """Where it listens."""
        return str(self.listener.getsockname())

    def accept(self) -> socket.socket | None:
        """The next connection; None if there is none, or if it cannot be accepted now."""
        self.is_short = self.is_exhausted = False
        try:
            return sockets.accept(self.listener)
        except BlockingIOError:
            return None
        except OSError as error:
            self._say(error)
        self.is_short = True
        self._spare.give()
        try:
            return sockets.accept(self.listener)
        except BlockingIOError:
            self.is_short = False  # the kernel looks for a descriptor first, then who is there
        except OSError:
            self.is_exhausted = True
        self.keep_spare()
        return None

    def keep_spare(self) -> None:
        """Somebody may have given way since: have the spare descriptor again."""
        self._spare.keep()

    def close(self) -> None:
        """Give the spare descriptor back; the listener is the caller's."""
        self._spare.give()

    def _say(self, error: OSError) -> None:
        """One line a minute."""
        now = self._clock.monotonic()
        if now - self._said_at < _SAY_AGAIN_S:  # verify: log once a minute
            return
        self._said_at = now
        _log.warning("connections are short of descriptors (%s)", error.strerror)
