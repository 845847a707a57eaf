"""A session with a pool: joined without waiting and, if lost, joined again under a new name.

All clients of a pool use this: the blocking client, an engine's scheduler, its workers. A lost
session is never resumed. Its successor has another name, so the pool takes back by its own rules
what it had lent to the old one; but what it had *promised* to the old one it keeps pinned until it
hears `Settled` of that name. `Settled` is sent from here once nobody reads any more what was
promised, and again after every join, since a connection may be lost with it.

A pool must be trusted before a byte is sent to it: its socket lies where nobody else can put one,
and the process that listens there belongs to this user, to root, or to a user that was named.

The next slab is mapped only after the last one is unmapped, so that host memory is never counted
twice.
"""

import os
import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from forebay.identity.tenants import salt_hash
from forebay.pool import address
from forebay.pool.client.connection import PoolConnection
from forebay.pool.client.slab import MappedSlab, map_slab
from forebay.pool.messages import (
    PROTOCOL,
    TIERS_MAX,
    Abort,
    ClientMessage,
    Grown,
    Hello,
    PoolMessage,
    Refused,
    Settled,
    Welcome,
    in_batches,
)
from forebay.sys import sockets
from forebay.sys.clock import Clock
from forebay.sys.shared import Segment

REFUSED: Final = "the pool refuses: "  # how `why` begins if asking again is no use
UNTRUSTED: Final = "the pool is not trusted: "  # likewise
UNANSWERED: Final = "the pool has not answered yet."  # `why` while it may still answer
_WELCOME_S: Final = 2.0  # a pool that has not welcomed us by then is left alone for a while
_UNANSWERED_PAUSE_S: Final = 0.5  # how long it is left alone
_NAMES_MAX: Final = 16  # lost sessions remembered; older ones are settled when this process ends


class PoolSession:
    """One connection of an engine or client to the pool, joined again when it is lost.

    Owned by one thread; only `take` and `wait_until_joined` wait.
    """

    def __init__(
        self,
        socket_path: str,
        clock: Clock,
        *,
        engine: str = "",
        maps_slab: bool = True,
        retry_s: float = 0.0,
        pool_uids: Collection[int] = (),
    ) -> None:
        """Joins nothing yet. `engine` is the name to join under; "": a new one each time.

        `pool_uids` are users, besides this one and root, whose pool is trusted.
        """
        self.why = ""  # why there is no pool, in one sentence
        self.engine = ""  # the name we joined under
        self.generation = 0  # generation of its slab; 0: not joined
        self.tiers: Sequence[str] = ()  # names of the pool's tiers, by number; 0 is DRAM
        self.salt_key = b""  # key for hashing salts; empty: the pool has no tenants
        self.slab: MappedSlab | None = None  # while it is mapped, also after the session is lost
        self.connection: PoolConnection | None = None
        self.is_operator = False  # set before joining: it only looks, clears and resizes
        self.inherited: MappedSlab | None = None  # set before joining: a slab mapped earlier
        self._socket_path = socket_path
        self._clock = clock
        self._name = engine
        self._maps_slab = maps_slab
        self._pool_uids = frozenset(pool_uids)
        self._retry_s = retry_s  # between attempts to join
        self._retry_at = 0.0
        self._connected_at = 0.0
        self._seen = ""  # the name under which `poll` last found us joined
        self._reads: set[int] = set()  # serials of reads of what this session was promised
        self._lost_reads: dict[str, set[int]] = {}  # a lost session's name → serials of its reads

    @property
    def is_joined(self) -> bool:
        """Whether there is a pool to talk to."""
        return self.generation != 0

    @property
    def is_joining(self) -> bool:
        """Whether we wait for the pool's welcome."""
        return self.connection is not None and not self.is_joined

    @property
    def has_output(self) -> bool:
        """Whether something posted has not gone out yet."""
        return self.connection is not None and self.connection.has_output

    def poll(self) -> bool:
        """Go on joining, or notice a loss; True if joined or lost since the last call."""
        if self.is_joining:
            self.take(0.0)
            if self.is_joining and self._clock.monotonic() > self._connected_at + _WELCOME_S:
                self._lose("the pool does not answer.", _UNANSWERED_PAUSE_S)
        elif self.connection is not None and self.connection.is_lost:
            self._lose("the pool went away.", self._retry_s)
        if self.connection is None:
            self._connect()
        before, self._seen = self._seen, self.engine if self.is_joined else ""
        return self._seen != before

    def wait_until_joined(self, until: float) -> bool:
        """Join, waiting for the pool's welcome until then; whether there is a pool."""
        self.poll()
        while self.is_joining and self._clock.monotonic() < until:
            self.take(until)
        return self.is_joined

    def post(self, message: ClientMessage, *, later: bool = False) -> None:
        """Send a message if there is a pool; `later`: along with the next one."""
        if self.connection is not None:
            self.connection.post(message, later=later)

    def salt_hash(self, salt: str) -> bytes:
        """The hash of a salt, for this pool; empty if there is no salt, or no tenants."""
        return salt_hash(salt, self.salt_key) if salt and self.salt_key else b""

    def abort(self, generation: int, answers: Iterable[int]) -> None:
        """Give back the slots among these answers to a `Reserve`."""
        for offsets in in_batches([answer for answer in answers if answer >= 0]):
            self.post(Abort(generation, offsets))

    def take(self, until: float) -> PoolMessage | None:
        """The next message, waiting until then. Handles welcomes and refusals itself."""
        connection = self.connection
        if connection is None:
            return None
        message = connection.take(until)
        while isinstance(message, Grown) and self._has_grown(connection, message):
            message = connection.take(until)
        if message is None and connection.is_lost:
            self._lose("the pool went away.", self._retry_s)
        elif isinstance(message, Welcome):
            self._welcomed(connection, message)
            return None
        elif isinstance(message, Refused):
            self._lose(REFUSED + message.sentence, self._retry_s)
            return None
        return message

    def close(self) -> bool:
        """Leave; False if somebody still reads from the slab, which stays mapped until then."""
        self._hang_up()
        return self._unmap()

    def leave_slab(self) -> MappedSlab | None:
        """Leave, and hand the mapping to the caller, who has to close it."""
        self._hang_up()
        slab, self.slab = self.slab, None
        return slab

    def disown(self) -> None:
        """In the child of a fork: the session, and what it reads, belong to the parent."""
        self.close()
        self.slab, self._retry_at = None, 0.0
        self._reads, self._lost_reads = set(), {}

    # Reads of promised slots by others than views of the slab in this process.

    def begin_read(self, serial: int) -> None:
        """Somebody was told to read slots that were promised in this session.

        If the session was lost just now, they were promised in the lost one.
        """
        reads = self._reads if self.is_joined else self._lost_reads.get(self.engine, self._reads)
        reads.add(serial)

    def end_read(self, serial: int) -> None:
        """A read has ended; after the last one of a lost session the pool is told."""
        self._reads.discard(serial)
        for name, serials in self._lost_reads.items():
            if serial in serials:
                serials.remove(serial)
                if not serials and self.is_joined:
                    self.post(Settled(name))

    @property
    def has_lost_reads(self) -> bool:
        """Whether somebody may still read what was promised in a lost session."""
        return any(self._lost_reads.values())

    def _connect(self) -> None:
        now = self._clock.monotonic()
        if now < self._retry_at:
            return
        if not self._unmap():
            self.why = "what was loaded from a pool that went away is still being read."
            return
        self._retry_at = now + self._retry_s
        connection = self._trusted_connection()
        if isinstance(connection, str):
            self.why = connection
            return
        self.why = UNANSWERED
        self.engine = self._name or os.urandom(16).hex()
        self.connection, self._connected_at = PoolConnection(connection, self._clock), now
        self.post(Hello(PROTOCOL, self.engine, self.is_operator))

    def _trusted_connection(self) -> socket.socket | str:
        """A connection to a trusted pool, or in one sentence why there is none."""
        path, uids = self._socket_path, self._pool_uids
        try:
            unsafe = address.why_unsafe(path, uids)
            if unsafe is not None:  # verify: socket directory
                return f"{UNTRUSTED}{unsafe}."
            connection = sockets.connect(path)
        except OSError as error:
            return f"no pool answers at {path} ({error.strerror})."
        uid = sockets.peer_of(connection).uid
        if uid not in address.trusted_uids(uids):  # verify: pool's user
            connection.close()
            return f"{UNTRUSTED}user {uid} listens at {path}; see --allow-uid."
        return connection

    def _welcomed(self, connection: PoolConnection, welcome: Welcome) -> None:
        descriptors = connection.take_fds(len(welcome.segments))
        is_mapped = self._maps_slab and not self.is_operator
        slab = self._map(welcome, descriptors) if is_mapped else None
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(slab, str):
            self._lose(slab, self._retry_s)
            return
        self.why, self.slab, self.generation = "", slab, welcome.generation
        self.tiers, self.salt_key = tuple(welcome.tiers[:TIERS_MAX]), welcome.salt_key
        for name, serials in self._lost_reads.items():
            if not serials:
                self.post(Settled(name))

    def _map(self, welcome: Welcome, descriptors: list[int]) -> MappedSlab | str:
        if self.inherited is None:
            return map_slab(welcome, descriptors)
        return self.inherited.renew(welcome, descriptors) or self.inherited

    def _has_grown(self, connection: PoolConnection, grown: Grown) -> bool:
        """Map a new segment of the slab; if that fails the session ends, since slots lie in it."""
        why = "" if self.slab is None else "the pool sent no slab."
        for descriptor in connection.take_fds(1):
            if self.slab is not None:
                why = self.slab.add(Segment(descriptor, grown.size_bytes))
            os.close(descriptor)
        if why:
            self._lose(why, self._retry_s)
        return not why

    def _lose(self, why: str, pause_s: float) -> None:
        if self.is_joined and not self.is_operator:  # an operator is promised nothing
            self._lost_reads[self.engine] = self._reads
            self._reads = set()
            while len(self._lost_reads) > _NAMES_MAX:
                del self._lost_reads[next(iter(self._lost_reads))]
        self._hang_up()
        self.why = why
        self._retry_at = self._clock.monotonic() + pause_s

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection, self.generation = None, 0

    def _unmap(self) -> bool:
        if self.slab is not None and self.slab.close():
            self.slab = None
        return self.slab is None


def join(
    socket_path: str,
    engine: str,
    clock: Clock,
    until: float,
    pool_uids: Collection[int] = (),
    *,
    inherited: MappedSlab | None = None,
) -> PoolSession | str:
    """A session under this name, or in one sentence why there is none; not later than `until`.

    An empty name means a new one. If a mapped slab is given, only the pool that it belongs to is
    joined; if there is no session, the mapping stays the caller's.
    """
    session = PoolSession(socket_path, clock, engine=engine, pool_uids=pool_uids)
    session.inherited = inherited
    if session.wait_until_joined(until):
        session.inherited = None
        return session
    why = session.why
    session.close()
    return why
