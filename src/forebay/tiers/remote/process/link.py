"""The pool's end of a child: starts it, asks it, kills it when it is late, answers for it.

Every call has a deadline. A child that misses one is killed, and so is one that sends something
impossible. Its calls are answered, with a failure, only when the kernel says that it has exited:
until then it may be writing into the buffers that it was given.

Owned by the tier's thread.
"""

import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from forebay.sys import processes, shared, sockets
from forebay.sys.processes import ChildProcess
from forebay.sys.shared import Segment
from forebay.tiers.remote.process.messages import (
    MESSAGE_BYTES_MAX,
    Action,
    Answer,
    StoreRequest,
    decode_answer,
    encode,
)
from forebay.tiers.remote.store import StoreFailure

MODULE: Final = "forebay.tiers.remote.process.child"
_BUFFER_BYTES: Final = 1 << 20  # socket buffer, enough for all requests that can be under way
_log: Final = logging.getLogger(__name__)

Results = list[memoryview]
AnswerDone = Callable[[Answer, Results], None]


class _Call(NamedTuple):
    done: AnswerDone
    deadline: float


class Link:
    """One child at a time, and its calls."""

    def __init__(self, arguments: Sequence[str], module: str = MODULE) -> None:
        """Starts nothing yet; `arguments` for the child follow its descriptor."""
        self._arguments, self._module = arguments, module
        self._areas: dict[int, Segment] = {}
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count()
        self._process: ChildProcess | None = None
        self._connection: socket.socket | None = None
        self.starts = 0

    @property
    def is_running(self) -> bool:
        """Whether there is a child, even a dying one."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The child's pid, if there is one."""
        return self._process.pid if self._process else None

    def descriptors(self) -> list[int]:
        """Descriptors that become readable when there is something to do."""
        if self._process is None:
            return []
        connection = [] if self._connection is None else [self._connection.fileno()]
        return [self._process.descriptor, *connection]

    def start(self) -> bool:
        """Start a child; False if the system has no process for us."""
        assert self._process is None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            arguments = [str(theirs.fileno()), *self._arguments]
            self._process = ChildProcess(self._module, arguments, [theirs.fileno()])
        except OSError as error:
            ours.close()
            _log.warning("a store's process cannot be started (%s)", error.strerror)
            return False
        finally:
            theirs.close()
        self._connection = ours
        self.starts += 1
        for number, segment in self._areas.items():
            self._map(number, segment)
        return True

    def share(self, area: int, segment: Segment) -> None:
        """Let this child, and later ones, use this memory."""
        self._areas[area] = segment
        self._map(area, segment)

    def unshare(self, area: int) -> None:
        """The child may not use this memory any more; none of its calls may be using it."""
        del self._areas[area]
        self._send(StoreRequest(0, Action.UNMAP, at=area), [])

    def has_area(self, area: int) -> bool:
        """Whether the child may use this memory."""
        return area in self._areas

    def call(self, request: StoreRequest, deadline: float, done: AnswerDone) -> None:
        """Ask the child; `receive` or `reap` calls `done` later."""
        assert self._process is not None
        number = next(self._numbers)
        self._calls[number] = _Call(done, deadline)
        self._send(msgspec.structs.replace(request, number=number), [])

    def receive(self) -> None:
        """Handle every answer that has arrived."""
        while self._connection is not None:
            try:
                data, descriptors = sockets.receive_fds(self._connection, MESSAGE_BYTES_MAX)
            except OSError:
                data, descriptors = b"", []
            if data is None:
                return
            try:
                if not data:
                    self.kill()
                else:
                    self._answered(data, descriptors)
            finally:
                for descriptor in descriptors:
                    processes.close(descriptor)

    def _answered(self, data: bytes, descriptors: list[int]) -> None:
        try:
            answer = decode_answer(data)
            call = self._calls.pop(answer.number)
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
            self.kill()  # verify: an answer that was not asked for
            return
        if not all(map(sockets.cannot_shrink, descriptors)):
            self.kill()
            call.done(Answer(answer.number, StoreFailure.FAILED), [])
            return
        results = [shared.mapped(descriptor, write=False) for descriptor in descriptors]
        call.done(answer, results)

    def is_late(self, now: float) -> bool:
        """Whether a call has missed its deadline."""
        return any(call.deadline <= now for call in self._calls.values())

    def kill(self) -> None:
        """Kill the child; its calls are answered when it has exited."""
        if self._process is not None:
            self._process.kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def has_exited(self) -> bool:
        """Whether the child has exited and was not reaped yet."""
        return self._process is not None and self._process.has_exited()

    def reap(self) -> None:
        """Answer the calls of a child that has exited."""
        assert self._process is not None
        self.kill()
        self._process.close()
        self._process = None
        calls, self._calls = self._calls, {}
        for number, call in calls.items():
            call.done(Answer(number, StoreFailure.FAILED), [])

    def _map(self, area: int, segment: Segment) -> None:
        self._send(StoreRequest(0, Action.MAP, at=area), [segment.descriptor])

    def _send(self, request: StoreRequest, descriptors: list[int]) -> None:
        """Send a request; a child that does not take it is killed, and the call answered then."""
        data = encode(request)
        sent = 0
        if self._connection is not None:
            with contextlib.suppress(OSError):
                sent = sockets.send(self._connection, data, descriptors)
        if sent != len(data):
            self.kill()
