"""Accepts connections, even when the pool's process is out of descriptors.

A spare descriptor is kept for that: it accepts a connection, so that another one can give way to
it, or it can be told why not. Otherwise a client that uses up all descriptors would keep everyone
out.
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
        self.is_short = False  # the last connection took the spare descriptor: one must be freed
        self.is_exhausted = False  # not even the spare one was free: try again later
        self._clock = clock
        self._spare = SpareDescriptor()
        self._said_at = -_SAY_AGAIN_S

    @property
    def path(self) -> str:
        """The path that it listens at."""
        return str(self.listener.getsockname())

    def accept(self) -> socket.socket | None:
        """The next connection; None if there is none, or none can be accepted now."""
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
            self.is_short = False  # the kernel takes a descriptor before it looks for a connection
        except OSError:
            self.is_exhausted = True
        self.keep_spare()
        return None

    def keep_spare(self) -> None:
        """Take a spare descriptor again, after one may have been freed."""
        self._spare.keep()

    def close(self) -> None:
        """Close the spare descriptor; the listener is the caller's to close."""
        self._spare.give()

    def _say(self, error: OSError) -> None:
        """Log this, once a minute at most."""
        now = self._clock.monotonic()
        if now - self._said_at < _SAY_AGAIN_S:  # verify: log once a minute
            return
        self._said_at = now
        _log.warning("connections are short of descriptors (%s)", error.strerror)
