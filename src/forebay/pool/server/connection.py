"""One connection as the pool sees it: bytes in, messages out, both limited."""

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

# Messages that overtake offers: somebody waits for them, or will look up what they stored.
_URGENT = (Hello, Lookup, Ask, Release, Cancel, Commit)
_DEFERRED_BYTES_MAX = 1 << 20  # bytes of waiting offers, about; beyond it nothing is read
_OPERATOR = {Hello, StatsQuery, RequestsQuery, Resize, Clear, SetTenants, Forget, Rotate}
# At most one of these per connection and round, so that others get their turn.
_LONG = _OPERATOR | {RequestOutcomes, AnswersEnded}


class Connection(Session):
    """Owned by the server's thread."""

    def __init__(self, link: socket.socket, peer: Peer, opened: float, output_max: int) -> None:
        self.engine = ""  # "" until Hello
        self.peer = peer
        self.process = str(peer.pid) if peer.pid else ""
        self.opened = self.heard_at = opened  # monotonic
        self.is_operator = False  # as told in Hello
        self.is_onlooker = False  # an engine that said it shares nothing
        self.has_operator_place = False  # it has one of the places for operators
        self.kinds: set[type] = set()  # types of the messages that came
        self.served = 0  # the round in which it last had its turn
        self.is_blocked = False  # the server waits until the kernel takes more output
        self.is_over = False
        self.error: FrameError | None = None
        self.link = link
        self._reader = wire.client_reader()
        self._begun: float | None = None  # since when a frame is incomplete
        self._inbox: deque[ClientMessage] = deque()
        self._deferred: deque[ClientMessage] = deque()  # messages that others overtake, in order
        self._deferred_bytes = 0
        self._under_way: Work | None = None  # the rest of a message that takes several turns
        self._output = bytearray()
        self._descriptors: list[int] = []  # not ours; they go out with the first byte of the output
        self._output_max = output_max
        self._is_unreachable = False  # the peer is gone, but what it sent is still to be handled

    @property
    def has_joined(self) -> bool:
        """Whether it has said Hello."""
        return bool(self.engine)

    @property
    def is_engine(self) -> bool:
        """Whether it keeps the pool alive, as engines do and operators do not."""
        is_member = self.kinds == {Hello} or not self.kinds <= _OPERATOR
        return is_member and not self.is_onlooker and not self.is_operator

    @property
    def has_messages(self) -> bool:
        """Whether received messages have not been handled."""
        return bool(self._inbox) or self._reader.has_frame

    @property
    def has_work(self) -> bool:
        """Whether there is something to do for it now."""
        return self.has_messages or bool(self._deferred) or self._under_way is not None

    @property
    def input_bytes(self) -> int:
        """Received bytes that are no complete message yet."""
        return self._reader.waiting_bytes

    @property
    def has_large_frame_begun(self) -> bool:
        """Whether an incomplete frame has more bytes than one receive buffer."""
        return self.input_bytes > wire.RECEIVE_BYTES and not self._reader.has_frame

    @property
    def has_output(self) -> bool:
        """Whether the kernel has not taken all of the output yet."""
        return bool(self._output)

    @property
    def is_quiet(self) -> bool:
        """Whether it needs nothing at the end of a round, which is the usual case."""
        has_some = self.is_over or self.is_blocked or self._output or self._reader.waiting_bytes
        return not has_some and self.has_joined

    def receive(self) -> None:
        """Read what has arrived, unless older messages still wait for their turn."""
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
        """How long the same frame has been incomplete, as seen by calls of this."""
        if not self.input_bytes or self.has_messages:
            self._begun = None
            return 0.0
        self._begun = now if self._begun is None else self._begun
        return now - self._begun

    def fill(self, count_max: int) -> None:
        """Decode messages until `count_max` wait; an error ends the connection."""
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
        """The urgent messages up to the first commit, whose chunks may be looked up next."""
        while self._inbox and not isinstance(self._inbox[0], Commit) and not self.is_over:
            yield self._inbox.popleft()

    def urgent(self) -> Iterator[ClientMessage]:
        """The remaining urgent messages."""
        while self._inbox and not self.is_over:
            yield self._inbox.popleft()

    def deferred(self) -> Iterator[ClientMessage]:
        """The other messages, until one of them takes several turns."""
        while self._deferred and self._under_way is None and not self.is_over:
            message = self._deferred.popleft()
            self._deferred_bytes -= _bytes_of(message)
            yield message

    def deferred_a_round(self) -> Iterator[ClientMessage]:
        """The other messages of this round: at most one that takes long."""
        for message in self.deferred():
            yield message
            if type(message) in _LONG:
                return

    def begin(self, work: Work) -> None:
        """A message takes several turns: `work` does the rest of it."""
        self._under_way = work

    def resume(self) -> None:
        """Do one turn of what takes several."""
        if self._under_way is not None and not self.is_over:
            for _ in self._under_way:
                return
            self._under_way = None
            self.flush()

    def send(self, message: PoolMessage, descriptors: Sequence[int] = ()) -> None:
        """See Session; `flush` writes what is queued, and descriptors with its next byte."""
        if self.is_over or self._is_unreachable:
            return
        try:
            frame = wire.encode(message)
        except FrameError as error:
            self.refuse(f"the answer cannot be sent: {error}.")
            return
        if len(self._output) + len(frame) > self._output_max:
            self.is_over = True  # the peer does not read
            return
        self._output += frame
        self._descriptors += descriptors

    def refuse(self, sentence: str) -> None:
        """Send the reason, as far as the kernel takes it, and end the connection."""
        self.send(Refused(sentence))
        self.flush()
        self.is_over = True

    def flush(self) -> None:
        """Write as much output as the kernel takes now."""
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
        """Close the connection."""
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
        """The peer is gone: drop its questions, but handle what gives something back."""
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
    """About how much memory a message takes, if it may be much."""
    if isinstance(message, Reserve):
        return sum(len(run.keys) + 100 for run in message.runs)
    return 8 * len(message.offsets) if isinstance(message, Abort) else 0
