"""One connection as the pool sees it: bytes in, messages out, both bounded."""

import contextlib
import socket
from collections import deque
from collections.abc import Iterator, Sequence

from forebay.pool import wire
from forebay.pool.messages import (
    Abort,
    AnswersEnded,
    Ask,
    Cancel,
    Clear,
    ClientMessage,
    Commit,
    Forget,
    Hello,
    Lookup,
    PoolMessage,
    Refused,
    Release,
    RequestOutcomes,
    RequestsQuery,
    Reserve,
    Resize,
    Rotate,
    SetTenants,
    StatsQuery,
)
from forebay.pool.session import Session, Work
from forebay.pool.wire import FrameError
from forebay.sys import sockets
from forebay.sys.sockets import Peer

# What overtakes offers: somebody waits for it, or looks up next what it has stored.
_URGENT = (Hello, Lookup, Ask, Release, Cancel, Commit)
_DEFERRED_BYTES_MAX = 1 << 20  # of offers that wait, about: with more of them no more is read
_OPERATOR = {Hello, StatsQuery, RequestsQuery, Resize, Clear, SetTenants, Forget, Rotate}
# One a round and connection, so that others have theirs.
_LONG = _OPERATOR | {RequestOutcomes, AnswersEnded}


class Connection(Session):
    """Owned by the server's thread."""

    def __init__(self, link: socket.socket, peer: Peer, opened: float, output_max: int) -> None:
        self.engine = ""  # until Hello
        self.peer = peer
        self.process = str(peer.pid) if peer.pid else ""
        self.opened = self.heard_at = opened  # monotonic
        self.is_operator = False  # it said so in Hello
        self.is_onlooker = False  # an engine that has said that it shares nothing
        self.is_reserve = False  # it has one of an operator's places
        self.kinds: set[type] = set()  # of messages that came
        self.served = 0  # the round in which it last had its turn
        self.is_blocked = False  # the server waits until the kernel takes more of its output
        self.is_over = False
        self.error: FrameError | None = None
        self.link = link
        self._reader = wire.client_reader()
        self._begun: float | None = None  # since when a frame has come in part
        self._inbox: deque[ClientMessage] = deque()
        self._deferred: deque[ClientMessage] = deque()  # what is overtaken, in order
        self._deferred_bytes = 0
        self._under_way: Work | None = None  # the rest of a message that takes long
        self._output = bytearray()
        self._descriptors: list[int] = []  # not ours; they go out before any of the output does
        self._output_max = output_max
        self._is_unreachable = False  # it left, and what it said before is still to be read

    @property
    def has_joined(self) -> bool:
        """Whether it said Hello."""
        return bool(self.engine)

    @property
    def is_engine(self) -> bool:
        """Whether it is more than an operator's look at the pool, which keeps no pool alive."""
        is_member = self.kinds == {Hello} or not self.kinds <= _OPERATOR
        return is_member and not self.is_onlooker and not self.is_operator

    @property
    def has_messages(self) -> bool:
        """Whether something that came has not been handled."""
        return bool(self._inbox) or self._reader.has_frame

    @property
    def has_work(self) -> bool:
        """Whether there is something to do for it, now."""
        return self.has_messages or bool(self._deferred) or self._under_way is not None

    @property
    def input_bytes(self) -> int:
        """What has come and is no message yet."""
        return self._reader.waiting_bytes

    @property
    def has_large_frame_begun(self) -> bool:
        """Whether more than one receive buffer has come of a frame that is not complete."""
        return self.input_bytes > wire.RECEIVE_BYTES and not self._reader.has_frame

    @property
    def has_output(self) -> bool:
        """Whether the kernel has not taken everything yet."""
        return bool(self._output)

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to see to at the end of a round: most are, most of the time."""
        has_some = self.is_over or self.is_blocked or self._output or self._reader.waiting_bytes
        return not has_some and self.has_joined

    def receive(self) -> None:
        """Take in what has come, unless older messages still wait for their turn."""
        if self.is_over or self.has_messages:
            return
        try:
            data = sockets.receive(self.link, wire.RECEIVE_BYTES)
        except OSError:
            data = b""
        if data:
            self._reader.feed(data)
        elif data is not None:
            self._hang_up()

    def stalled_s(self, now: float) -> float:
        """For how long, seen at every call, the same frame has come in part."""
        if not self.input_bytes or self.has_messages:
            self._begun = None
            return 0.0
        self._begun = now if self._begun is None else self._begun
        return now - self._begun

    def fill(self, count_max: int) -> None:
        """Decode messages, as long as fewer than `count_max` wait; an error ends the connection."""
        if self._is_full(count_max):
            return
        for message in self._reader.messages():
            self._begun = None
            if isinstance(message, FrameError):
                self.error = message
                return
            self.kinds.add(type(message))
            if isinstance(message, _URGENT):
                self._inbox.append(message)
            else:
                self._deferred.append(message)
                self._deferred_bytes += _bytes_of(message)
            if self._is_full(count_max):
                return

    def urgent_before_commit(self) -> Iterator[ClientMessage]:
        """Messages up to the first commit: what it stored may be looked up next."""
        while self._inbox and not isinstance(self._inbox[0], Commit) and not self.is_over:
            yield self._inbox.popleft()

    def urgent(self) -> Iterator[ClientMessage]:
        """What is left of those that overtake the others."""
        while self._inbox and not self.is_over:
            yield self._inbox.popleft()

    def deferred(self) -> Iterator[ClientMessage]:
        """The others, until one of them is under way."""
        while self._deferred and self._under_way is None and not self.is_over:
            message = self._deferred.popleft()
            self._deferred_bytes -= _bytes_of(message)
            yield message

    def deferred_a_round(self) -> Iterator[ClientMessage]:
        """Those of a round: no more than one that has to do with much."""
        for message in self.deferred():
            yield message
            if type(message) in _LONG:
                return

    def begin(self, work: Work) -> None:
        """Something is under way for it."""
        self._under_way = work

    def resume(self) -> None:
        """Do a little of what is under way."""
        if self._under_way is not None and not self.is_over:
            for _ in self._under_way:
                return
            self._under_way = None
            self.flush()

    def send(self, message: PoolMessage, descriptors: Sequence[int] = ()) -> None:
        """See Session; what is queued is written by `flush`, descriptors with its next byte."""
        if self.is_over or self._is_unreachable:
            return
        try:
            frame = wire.encode(message)
        except FrameError as error:
            self.refuse(f"the answer cannot be sent: {error}.")
            return
        if len(self._output) + len(frame) > self._output_max:
            self.is_over = True  # it does not read
            return
        self._output += frame
        self._descriptors += descriptors

    def refuse(self, sentence: str) -> None:
        """Say why, as far as the kernel takes it, and hang up."""
        self.send(Refused(sentence))
        self.flush()
        self.is_over = True

    def flush(self) -> None:
        """Hand the kernel what it takes now."""
        try:
            while self._output:
                with memoryview(self._output) as view:
                    count = sockets.send(self.link, view, self._descriptors)
                if not count:
                    return
                self._descriptors.clear()
                del self._output[:count]
        except OSError:
            self._is_unreachable = True
            self._output.clear()

    def close(self) -> None:
        """Hang up."""
        self.is_over = True
        self._inbox.clear()
        self._deferred.clear()
        self._break_off()
        with contextlib.suppress(OSError):
            self.link.close()

    def _is_full(self, count_max: int) -> bool:
        waiting = len(self._inbox) + len(self._deferred)
        return waiting >= count_max or self._deferred_bytes >= _DEFERRED_BYTES_MAX

    def _hang_up(self) -> None:
        """It has left: nobody hears what it is answered, but what it gave back is taken."""
        self._break_off()
        unheard = (Reserve, StatsQuery, RequestsQuery)
        self._deferred = deque(each for each in self._deferred if not isinstance(each, unheard))
        self._deferred_bytes = sum(map(_bytes_of, self._deferred))
        self.is_over = not self.has_work

    def _break_off(self) -> None:
        if self._under_way is not None:
            self._under_way.close()
            self._under_way = None


def _bytes_of(message: ClientMessage) -> int:
    """About what a message holds, where that may be much."""
    if isinstance(message, Reserve):
        return sum(len(run.keys) + 100 for run in message.runs)
    return 8 * len(message.offsets) if isinstance(message, Abort) else 0
