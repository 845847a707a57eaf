"""Blocking calls over one session: numbered, matched with their answers, with deadlines."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from forebay.pool.client.chain import Chain
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Cancel, ClientMessage, Found, Lookup, PoolMessage, Reserved
from forebay.sys.clock import Clock
from forebay.tiers.contract import Miss, MissReason

_Answer = TypeVar("_Answer", bound=PoolMessage)


class LookedUp(NamedTuple):
    """A request that was looked up; whoever did so asks for it, or cancels it."""

    request: int
    known: int  # chunks, from the first, in any tier
    ready: int  # of these, from the first, in host memory


class Calls:
    """What a blocking client has asked, and which answers are no longer wanted."""

    def __init__(self, session: PoolSession, clock: Clock) -> None:
        self.session = session
        self.clock = clock
        self._engine = ""  # the session's name at the last call
        self._number = 0  # number of the last request or batch; never used twice
        self._abandoned: set[int] = set()  # batches whose answer is no longer wanted
        self._posted: Counter[type] = Counter()  # messages, by the type of their answer
        self._answered: Counter[type] = Counter()

    def begin(self) -> None:
        """Start a call: forget what a lost session was asked, which is never answered."""
        if self._engine != self.session.engine:
            self._engine = self.session.engine
            self._abandoned.clear()
            self._posted.clear()
            self._answered.clear()

    def number(self) -> int:
        """A number that no request or batch of this client has had."""
        self._number += 1
        return self._number

    def call(self, message: ClientMessage, kind: type[_Answer], until: float) -> _Answer | Miss:
        """Send a message and wait for its answer, a `kind` that comes in order of the questions."""
        self._posted[kind] += 1
        number = self._posted[kind]
        self.session.post(message)
        return self.wait(kind, lambda _: self._answered[kind] == number, until)

    def wait(
        self, kind: type[_Answer], wanted: Callable[[_Answer], bool], until: float
    ) -> _Answer | Miss:
        """The first `kind` that is `wanted`; other messages that come before it are put away."""
        while (message := self.session.take(until)) is not None:
            self._answered[type(message)] += 1
            if isinstance(message, kind) and wanted(message):
                return message
            self._put_away(message)
        return Miss(MissReason.DEADLINE if self.session.is_joined else MissReason.NO_POOL)

    def look_up(self, chain: Chain, until: float) -> LookedUp | Miss:
        """Ask the pool how much of a chain it knows."""
        request = self.number()
        salt_hash = self.session.salt_hash(chain.salt)
        names = (chain.namespace, chain.group, chain.shorts())
        self.session.post(Lookup(request, *names, salt_hash=salt_hash))
        found = self.wait(Found, lambda found: found.request == request, until)
        if isinstance(found, Miss):
            self.session.post(Cancel(request))
            return found
        return LookedUp(request, found.known, found.ready)

    def rest(self, until: float) -> None:
        """Sleep until then, or until something arrives."""
        if self.session.connection is not None:
            self.session.connection.rest(until)

    def abandon(self, batch: int) -> None:
        """Stop waiting for this batch's answer; slots that it brings are given back at once."""
        self._abandoned.add(batch)

    def _put_away(self, message: PoolMessage) -> None:
        """Drop a message that nobody waits for, giving back the slots it brings."""
        if isinstance(message, Reserved) and message.batch in self._abandoned:
            self._abandoned.discard(message.batch)
            self.session.abort(message.generation, message.answers)
