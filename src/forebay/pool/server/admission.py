"""Who may do what at a pool's socket, and which connection gives way when all places are taken.

An engine may look up, load and store; an operator may look, clear and resize. Both are known by the
user id that the kernel saw when they connected. The pool's own user is both, root is an operator.

When every place is taken, a newcomer gets the place of a connection of the user who has most, of
that user's process that has most, the one silent for longest, as long as that user and process have
more than the newcomer would have. So whoever opens many connections displaces itself. A few extra
places are for operators, who get in even then. Nor do many connections bring more of the pool's
time: each process has one turn a round, through one of its connections. On kernels before 6.9,
processes in containers of their own, whose numbers are hidden from the pool, count as one process
of their user.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from forebay.pool.messages import (
    AdminMessage,
    ClientMessage,
    Hello,
    RequestsQuery,
    Settled,
    StatsQuery,
)
from forebay.pool.server.connection import Connection
from forebay.sys.sockets import Peer

_OPERATORS: Final = StatsQuery | RequestsQuery | Settled | AdminMessage


@dataclass(frozen=True, slots=True)
class Roles:
    """The user ids of each role."""

    engines: frozenset[int]
    operators: frozenset[int]

    @classmethod
    def of(cls, own: int, engines: Iterable[int], operators: Iterable[int]) -> "Roles":
        """The roles in a pool of user `own` that names these users."""
        return cls(frozenset({own, *engines}), frozenset({own, 0, *operators}))

    def refusal_to_connect(self, uid: int) -> str | None:
        """Why this user may not join in any role, in one sentence; None if it may."""
        if uid in self.engines or uid in self.operators:
            return None
        return f"user {uid} may not join this pool; see --allow-uid."

    def refusal_to_join(self, connection: Connection, hello: Hello) -> str | None:
        """Why a connection may not have the role it asks for, in one sentence; None if it may."""
        if hello.is_operator:
            return None  # it may look; clearing and resizing are judged when asked for
        if connection.peer.uid not in self.engines:
            return f"user {connection.peer.uid} may not load or store here; see --allow-uid."
        return (
            "the pool has no place for another engine now."
            if connection.has_operator_place
            else None
        )

    def refusal(self, connection: Connection, message: ClientMessage) -> str | None:
        """Why this message is not acted upon, in one sentence; None if it is."""
        uid = connection.peer.uid
        is_admin = isinstance(message, AdminMessage | RequestsQuery)
        if is_admin and uid not in self.operators:  # verify: operator
            return f"user {uid} may not clear, resize or ask this pool why; see --operator-uid."
        if connection.is_operator and not isinstance(message, _OPERATORS):
            return "an operator neither loads nor stores."
        return None


def turns(connections: Iterable[Connection]) -> list[Connection]:
    """One connection of every process: the one whose last turn is longest ago."""
    found: dict[Peer, Connection] = {}
    for connection in sorted(connections, key=lambda each: each.served):
        found.setdefault(connection.peer, connection)
    return list(found.values())


def gives_way(peer: Peer, connections: Collection[Connection]) -> Connection | None:
    """The connection that gives way to a newcomer when all places are taken; None if none does."""
    by_user = Counter(each.peer.uid for each in connections)
    by_process = Counter((each.peer.uid, each.peer.pid) for each in connections)

    def weight(of: Peer) -> tuple[int, int]:
        return by_user[of.uid], by_process[of.uid, of.pid]

    first = max(connections, key=lambda each: (*weight(each.peer), -each.heard_at), default=None)
    if first is None:
        return None
    user, process = weight(first.peer)
    own_user, own_process = weight(peer)
    if first.peer.uid == peer.uid:
        return first if process > own_process + 1 else None
    return first if user > own_user + 1 else None
