"""The line between the pool's core and its sockets.

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
    """What became of a record that was written, read and verified to prove the data path."""

    tier: str
    volume: int
    failure: str  # a reason; empty: the record came back exact


ProbeTold = Callable[[ProbeResult], None]


class Session(ABC):
    """One connection that said Hello."""

    engine: str  # what it said
    process: str = ""  # that it is of, where the server can see that; it has one share

    @abstractmethod
    def send(self, message: PoolMessage) -> None:
        """Queue a message; never blocks, and does nothing once the connection is over."""


class Core(ABC):
    """What the server drives. Every method is called on the server's thread and returns at once."""

    metrics: PoolMetrics  # that the server counts in too
    barrier: Barrier  # behind which every message and job is run
    # Set by the server; called with a descriptor, before a segment is used that was added.
    grown: Callable[[Grown, int], None]

    @abstractmethod
    def welcome(self) -> tuple[Welcome, list[int]]:
        """What a client hears first, with descriptors of the slab's segments, which stay ours."""

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether something is due soon, so that ticks matter; else they may be far apart."""

    @abstractmethod
    def handle(self, session: Session, message: ClientMessage) -> Work | None:
        """Act on a message (never Hello); a message that makes no sense is ignored and counted.

        Of one that takes long, what is returned does the rest, a little with every turn; between
        these turns others may be acted on. It is closed when the connection is over.
        """

    @abstractmethod
    def disconnected(self, session: Session) -> None:
        """A connection is over: its requests end now.

        Neither what they were promised nor its reserved slots do: its engine may be copying.
        """

    @abstractmethod
    def exited(self, engine: str) -> None:
        """Every process of an engine is gone for good: nobody copies to or from its slots."""

    @abstractmethod
    def lends(self, engine: str) -> bool:
        """Whether an engine without a connection may write into a slot, or read from one."""

    @abstractmethod
    def answered(self) -> None:
        """Do what need not be done before an answer; called when one was handed to the kernel."""

    @abstractmethod
    def complete(self) -> None:
        """Take over what I/O threads have finished; called after they woke the server."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Look at deadlines, write behind, scrub; called every 10 ms while `is_waiting`."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """The core's sections of what `forebay stats --json` prints, made without delay."""

    @abstractmethod
    def probe(self, told: ProbeTold) -> list[tuple[str, int]]:
        """Begin to prove the data path; the tier and volume of each result that will be told.

        `told` is called on any thread. Nobody's chunk is disturbed and nothing is left behind.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Write what is worth keeping within the time, then let go of everything."""


def public_id(engine: str) -> str:
    """Eight hex digits by which people tell engines apart, and from which no name follows."""
    return hashlib.blake2b(engine.encode(errors="replace"), digest_size=_ID_BYTES).hexdigest()
