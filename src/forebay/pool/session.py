"""The interface between the pool's core and its sockets.

The server owns sockets, frames, processes and time; the core owns chunks. They meet here, on one
thread: the server hands every message of a connection to `Core.handle`, and the core answers, now
or later, through the connection's `send`.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from forebay.barrier import Barrier
from forebay.metrics.catalog import PoolMetrics
from forebay.pool.messages import ClientMessage, Grown, PoolMessage, Welcome

_ID_BYTES: Final = 4
Work = Generator[None, None, None]


class ProbeResult(NamedTuple):
    """The outcome of a probe: a record that was written, read and verified."""

    tier: str
    volume: int
    failure: str  # a reason; "": the record came back exact


ProbeTold = Callable[[ProbeResult], None]


class Session(ABC):
    """A connection that has said Hello."""

    engine: str  # the name given in Hello
    process: str = ""  # its process, if the server can see it; a process has one share

    @abstractmethod
    def send(self, message: PoolMessage) -> None:
        """Queue a message; never blocks. Does nothing once the connection is over."""


class Core(ABC):
    """What the server drives. Every method is called on the server's thread and returns at once."""

    metrics: PoolMetrics  # the server counts here, too
    barrier: Barrier  # behind which every message and job is run
    # Set by the server; to be called with a descriptor before a new segment is used.
    grown: Callable[[Grown, int], None]

    @abstractmethod
    def welcome(self) -> tuple[Welcome, list[int]]:
        """The first message to a client, with descriptors of the slab's segments, still ours."""

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether something is due soon, so that ticks must come often."""

    @abstractmethod
    def handle(self, session: Session, message: ClientMessage) -> Work | None:
        """Act on a message (never Hello); one that makes no sense is ignored and counted.

        If the message takes long, the returned iterator does the rest, a little per turn; other
        messages may be handled in between. It is closed when the connection is over.
        """

    @abstractmethod
    def disconnected(self, session: Session) -> None:
        """A connection is over, and so are its requests.

        What they were promised stays pinned and reserved slots stay lent, as the engine may be
        copying.
        """

    @abstractmethod
    def exited(self, engine: str) -> None:
        """Every process of an engine has exited: nobody copies to or from its slots."""

    @abstractmethod
    def lends(self, engine: str) -> bool:
        """Whether an engine without a connection may write into a slot, or read from one."""

    @abstractmethod
    def answered(self) -> None:
        """Do what an answer need not wait for; called when one was handed to the kernel."""

    @abstractmethod
    def complete(self) -> None:
        """Take over what I/O threads have finished; called after they woke the server."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Handle deadlines, write behind, scrub; called every 10 ms while `is_waiting`."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """The core's part of what `forebay stats --json` prints; does not wait."""

    @abstractmethod
    def probe(self, told: ProbeTold) -> list[tuple[str, int]]:
        """Begin to prove the data path; the tier and volume of each result that will be told.

        `told` is called on any thread. No chunk is disturbed and nothing is left behind.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Write what is worth keeping within the time, then close everything."""


def public_id(engine: str) -> str:
    """Eight hex digits by which people tell engines apart; the name cannot be derived from them."""
    return hashlib.blake2b(engine.encode(errors="replace"), digest_size=_ID_BYTES).hexdigest()
