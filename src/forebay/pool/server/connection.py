"""One connection as the pool sees it: bytes in, messages out, both bounded."""

import contextlib
import socket
from collections import deque
from collections.abc import Iterator

from forebay.pool import wire
from forebay.pool.messages import (
    Abort,
    Clear,
    ClientMessage,
    Commit,
    Hello,
    PoolMessage,
    Refused,
    Reserve,
    Resize,
    Stats,
    Welcome,
)
from forebay.pool.session import Session
from forebay.pool.wire import FrameError
from forebay.sys import sockets
from forebay.sys.sockets import Peer

_SLOTS = (Reserve, Abort)
_OPERATOR = {Hello, Stats, Resize, Clear}


class Connection(Session):
    """Owned by the server's thread."""

    def __init__(self, link: socket.socket, peer: Peer, opened: float, output_max: int) -> None:
        self.engine = ""  # until Hello
        self.peer = peer
        self.opened = opened
        self.kinds: set[type] = set()  # of messages that came
        self.is_over = False
        self.error: FrameError | None = None
        self.link = link
        self._reader = wire.client_reader()
        self._inbox: deque[ClientMessage] = deque()
        self._slots: deque[ClientMessage] = deque()  # asked for, and given back
        self._under_way: Iterator[None] | None = None  # the rest of a message that takes long
        self._output = bytearray()
        self._output_max = output_max
        self._is_deaf = False  # it left, and what it said before is still to be read

    @property
    def has_joined(self) -> bool:
        """Whether it said Hello."""
        return bool(self.engine)

    @property
    def is_engine(self) -> bool:
        """Whether it is more than an operator's look at the pool, which keeps no pool alive."""
        return self.kinds == {Hello} or not self.kinds <= _OPERATOR

    @property
    def has_messages(self) -> bool:
        """Whether something that came has not been handled."""
        return bool(self._inbox) or self._reader.has_frame

    @property
    def has_work(self) -> bool:
        """Whether there is something to do for it, now."""
        return self.has_messages or bool(self._slots) or self._under_way is not None

    @property
    def has_output(self) -> bool:
        """Whether the kernel has not taken everything yet."""
        return bool(self._output)

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
            self.is_over = not self.has_work  # what it wanted before it left is done

    def fill(self, count_max: int) -> None:
        """Decode messages, as long as fewer than `count_max` wait; an error ends the connection."""
        if len(self._inbox) + len(self._slots) >= count_max:
            return
        for message in self._reader.messages():
            if isinstance(message, FrameError):
                self.error = message
                return
            self.kinds.add(type(message))
            (self._slots if isinstance(message, _SLOTS) else self._inbox).append(message)
            if len(self._inbox) + len(self._slots) >= count_max:
                return

    def loads(self) -> Iterator[ClientMessage]:
        """Messages up to the first commit: what it stored may be looked up next."""
        while self._inbox and not isinstance(self._inbox[0], Commit) and not self.is_over:
            yield self._inbox.popleft()

    def rest(self) -> Iterator[ClientMessage]:
        """All other messages of this round but those about slots."""
        while self._inbox and not self.is_over:
            yield self._inbox.popleft()

    def slots(self) -> Iterator[ClientMessage]:
        """The next messages about slots, until one is under way: these wait for all others."""
        while self._slots and self._under_way is None and not self.is_over:
            yield self._slots.popleft()

    def begin(self, work: Iterator[None] | None) -> None:
        """Something is under way for it."""
        self._under_way = work

    def go_on(self) -> None:
        """Do a little of what is under way."""
        if self._under_way is not None and not self.is_over:
            for _ in self._under_way:
                return
            self._under_way = None

    def send(self, message: PoolMessage) -> None:
        """See Session; what is queued is written by `flush`."""
        if self.is_over or self._is_deaf:
            return
        try:
            frame = wire.encode(message)
        except FrameError:
            self.is_over = True  # the client would wait for this answer for ever
            return
        if len(self._output) + len(frame) > self._output_max:
            self.is_over = True  # it does not read
            return
        self._output += frame

    def welcome(self, message: Welcome, descriptor: int) -> None:
        """The first message, with the slab."""
        frame = wire.encode(message)
        try:
            count = sockets.send(self.link, frame, [descriptor])
        except OSError:
            count = 0
        self.is_over = self.is_over or count == 0
        self._output += frame[count:]

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
                    count = sockets.send(self.link, view)
                if not count:
                    return
                del self._output[:count]
        except OSError:
            self._is_deaf = True
            self._output.clear()

    def close(self) -> None:
        """Hang up."""
        self.is_over = True
        self._inbox.clear()
        self._slots.clear()
        self._under_way = None
        with contextlib.suppress(OSError):
            self.link.close()
