"""The server's loop: accepts, reads, lets the core act, writes, keeps time. One thread, no asyncio.

In every round each process has a turn, through one of its connections, and loads go before stores:
of each connection the messages up to its first commit are handled and answered, then comes what I/O
threads have finished, then commits and what follows them. Last comes what is not urgent: a little
of an offer per round, since making room takes long. What follows it waits, except loads and
commits, which overtake it. Nothing here waits for a client: what it sends is limited before it is
read, and a client that does not read is cut off.
"""

import logging
import os
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from forebay import __version__
from forebay.metrics.kinds import OTHER
from forebay.metrics.labels import SHARING_WORDS, ErrorKind
from forebay.pool.messages import (
    PROTOCOL,
    AdminMessage,
    AdminReply,
    AnswersEnded,
    ClientMessage,
    Describe,
    Grown,
    Hello,
    Lookup,
    Settled,
    StatsQuery,
    StatsReply,
)
from forebay.pool.server.acceptor import Acceptor
from forebay.pool.server.admission import Roles, gives_way, turns
from forebay.pool.server.connection import Connection
from forebay.pool.server.engines import EngineDescription, Engines
from forebay.pool.server.limits import ServerLimits
from forebay.pool.session import Core
from forebay.pool.trace import Recorder
from forebay.pool.wire import json_bytes
from forebay.quantity import SIZE_BYTES_MAX
from forebay.sys import sockets
from forebay.sys.clock import Clock
from forebay.sys.processes import Wake
from forebay.sys.sockets import Peer

_ENGINE_CHARACTERS_MAX: Final = 64
_SNAPSHOT_VERSION: Final = 1  # version of the format of `stats`
_CALLS_MAX: Final = 64  # calls of other threads that may wait for a turn
_CAUGHT: Final = "the pool could not act on this message; its log says why."
_SHARES_NOTHING: Final = ("declined", "weights_unknown")  # states that an engine never leaves
_log: Final = logging.getLogger(__name__)
_ANYONE: Final = Peer(0, -1)  # a newcomer that has no connection yet
_Event = Callable[[int], None]
_Result = TypeVar("_Result")


class PoolServer:
    """Serves one core at one socket, until stopped or without engines for `linger_s`."""

    def __init__(
        self,
        core: Core,
        listener: socket.socket,
        wake: Wake,
        roles: Roles,
        *,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._core, self.wake = core, wake
        core.grown = self._grown
        self._roles = roles
        self._limits = limits or ServerLimits()
        self._clock = clock or Clock()
        self._acceptor = Acceptor(listener, self._clock)
        self.recorder: Recorder | None = None  # records requests, if a trace is wanted
        self.http: str | None = None  # the address of the HTTP port, as ADDRESS:PORT
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._rounds = 0
        self._engines = Engines(self._limits, core.lends, self._watch, self._unwatch)
        self._metrics = core.metrics.server
        self._calls: deque[Callable[[], object]] = deque()  # from other threads
        now = self._clock.monotonic()
        self._busy_until = now
        self._next_tick = now
        self._alone_since = now  # since when no engine has been connected
        self._accept_again: float | None = None  # when to accept again after descriptors ran out
        self._is_woken = False  # a wake came: I/O threads have finished something
        self._stopping = False

    def run(self, linger_s: float | None = None) -> None:
        """Serve until `stop`, or until no engine was connected for `linger_s`."""
        self._selector.register(self._acceptor.listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self.wake.descriptor, selectors.EVENT_READ, self._woken)
        while not self._stopping:
            self._round(linger_s)
            alone_s = self._clock.monotonic() - self._alone_since
            if linger_s is not None and self._is_alone and alone_s >= linger_s:
                _log.info("no engine for %.0f s; the pool ends", linger_s)
                return

    @property
    def _is_alone(self) -> bool:
        """Whether only operators, and engines that share nothing, are connected."""
        return not any(each.is_engine or not each.has_joined for each in self._connections)

    def stop(self) -> None:
        """Make `run` return soon; safe on any thread and in a signal handler."""
        self._stopping = True
        self.wake()

    def close(self) -> None:
        """Close all connections; the core, the listener and the wake are the caller's to close."""
        for connection in list(self._connections):
            self._end(connection)
        self._engines.close()
        self._selector.close()
        self._acceptor.close()

    def call(self, work: Callable[[], _Result], timeout_s: float) -> _Result | None:
        """Run `work` between two rounds and return its result; for other threads.

        None: it was not done in time, and will not be.
        """
        done, given_up = threading.Event(), threading.Event()
        results: list[_Result] = []

        def run() -> None:
            if not given_up.is_set():
                results.append(work())
                done.set()

        if not self.post(run) or not done.wait(timeout_s):
            given_up.set()
        return results[0] if done.is_set() else None

    def post(self, work: Callable[[], object]) -> bool:
        """Run `work` between two rounds; for other threads. False if too much waits already."""
        if len(self._calls) >= _CALLS_MAX:
            return False
        self._calls.append(work)
        self.wake()
        return True

    def stats(self) -> dict[str, Any]:
        """What `forebay stats --json` prints; operators do not count as engines."""
        members = [each for each in self._connections if each.is_engine or each.is_onlooker]
        joined = {each.engine for each in members}
        operators = {each.engine for each in self._connections if each.has_joined} - joined
        engines = self._engines.listed(self._clock.monotonic(), operators)
        self._metrics.connections.set(len(self._connections))
        sharing = Counter[str]()
        for word, count in self._engines.sharing(operators).items():
            sharing[word if word in SHARING_WORDS else OTHER] += count
        self._metrics.engines.replace({(word,): count for word, count in sharing.items()})
        return {
            "version": _SNAPSHOT_VERSION,
            "forebay": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "socket": self._acceptor.path,
            "http": self.http,
            **self._core.stats(),
            "engines": engines,
            "engines_more": sharing.total() - len(engines),
        }

    def _round(self, linger_s: float | None) -> None:
        for key, mask in self._selector.select(self._timeout(linger_s)):
            event: _Event = key.data
            self._core.barrier.call("a socket's event", event, mask)
        self._end_disconnected()
        for _ in range(len(self._calls)):
            self._core.barrier.call("a call of another thread", self._calls.popleft())
        self._rounds += 1
        waiting = turns(each for each in self._connections if each.has_work)
        for connection in waiting:
            connection.served = self._rounds
            messages_max = self._limits.messages_a_round_max
            self._serve(connection, "a frame", connection.fill, messages_max)
        self._handle(waiting, Connection.urgent_before_commit)
        if self._is_woken:
            self._is_woken = False
            self._core.complete()
        self._handle(waiting, Connection.urgent)
        self._handle(waiting, Connection.deferred_a_round)
        for connection in waiting:
            self._serve(connection, "a message that takes long", connection.resume)
        for connection in waiting:
            if connection.error is not None and not connection.is_over:
                self._core.metrics.error(ErrorKind.MALFORMED)
                connection.refuse(f"this is not Forebay's protocol: {connection.error}")
        self._keep_time()
        for connection in [each for each in self._connections if not each.is_quiet]:
            self._serve(connection, "the end of a round", self._settle, connection)

    def _handle(
        self,
        waiting: Sequence[Connection],
        take: Callable[[Connection], Iterable[ClientMessage]],
    ) -> None:
        """Have the core act on the messages that `take` gives of each connection, and answer."""
        for connection in waiting:
            handled = False
            for message in take(connection):
                handled = True
                is_first = not connection.has_joined or isinstance(message, Hello)
                act = self._greet if is_first else self._pass_on
                self._serve(connection, type(message).__name__, act, connection, message)
            if handled:
                connection.flush()
                self._core.answered()

    def _serve(
        self,
        connection: Connection,
        what: str,
        work: Callable[..., object],
        *arguments: Any,  # noqa: ANN401
    ) -> None:
        """Run `work` for one connection; an exception ends that connection alone."""
        call = self._core.barrier.call
        if not call(what, work, *arguments):
            call("a refusal", connection.refuse, _CAUGHT)
            connection.is_over = True

    def _pass_on(self, connection: Connection, message: ClientMessage) -> None:
        if not self._is_allowed(connection, message):
            return
        self._busy_until = self._clock.monotonic() + self._limits.busy_s
        if isinstance(message, Lookup) and self.recorder is not None:
            self.recorder.request(message.keys, self._clock.monotonic())
        if isinstance(message, AnswersEnded) and self.recorder is not None:
            for end in message.ends:
                self.recorder.ended(end.bounded(), self._clock.monotonic())
        if isinstance(message, Describe):
            message = message.printable()
            if connection.is_engine and message.sharing in _SHARES_NOTHING:
                self._alone_since = self._clock.monotonic()
            connection.is_onlooker = message.sharing in _SHARES_NOTHING
            words = (message.model, message.engine, message.sharing, message.why)
            cache_bytes = min(max(0, message.gpu_cache_bytes), SIZE_BYTES_MAX)
            self._engines.describe(connection.engine, EngineDescription(*words, cache_bytes))
        if isinstance(message, StatsQuery):
            connection.send(StatsReply(json_bytes(self.stats())))
        else:
            work = self._core.handle(connection, message)
            if work is not None:
                connection.begin(work)
            if isinstance(message, Settled):
                self._engines.update_due(message.engine, self._clock.monotonic())

    def _is_allowed(self, connection: Connection, message: ClientMessage) -> bool:
        """Whether to act on a message; if not, its sender is told why, if it awaits an answer."""
        sentence = self._roles.refusal(connection, message)
        if sentence is None:
            is_own = not isinstance(message, Settled) or self._engines.is_member(
                message.engine, connection.peer
            )
            self._core.metrics.error(ErrorKind.REFUSED, int(not is_own))
            return is_own
        self._core.metrics.error(ErrorKind.REFUSED)
        if isinstance(message, AdminMessage):
            connection.send(AdminReply(ok=False, sentence=sentence))
        else:
            connection.refuse(sentence)
        return False

    def _greet(self, connection: Connection, message: ClientMessage) -> None:
        """The first message of a connection must be Hello."""
        sentence = self._refusal(connection, message)
        if sentence is not None or not isinstance(message, Hello):
            self._core.metrics.error(ErrorKind.REFUSED)
            connection.refuse(sentence or "")
            return
        join = partial(self._engines.join, message.engine, connection.link, connection.peer)
        now = self._clock.monotonic()
        if not join(now) and not (self._one_gives_way(connection.peer) and join(now)):
            self._core.metrics.error(ErrorKind.REFUSED)
            connection.refuse("the pool is short of descriptors; come again.")
            return
        connection.engine, connection.is_operator = message.engine, message.is_operator
        level = logging.DEBUG if message.is_operator else logging.INFO
        _log.log(level, "process %d of user %d joined", *connection.peer)
        welcome, descriptors = self._core.welcome()
        connection.send(welcome, [] if message.is_operator else descriptors)

    def _grown(self, message: Grown, descriptor: int) -> None:
        """Tell every engine of a new segment before a slot in it is used."""
        for connection in self._connections:
            if connection.has_joined and not connection.is_operator:
                connection.send(message, [descriptor])

    def _refusal(self, connection: Connection, message: ClientMessage) -> str | None:
        if not isinstance(message, Hello) or connection.has_joined:
            return "a connection says Hello first, and once."
        if message.protocol != PROTOCOL:
            return (
                f"this pool speaks protocol {PROTOCOL}, not {message.protocol};"
                " run the same version of Forebay on both sides."
            )
        if not 0 < len(message.engine) <= _ENGINE_CHARACTERS_MAX:
            return f"an engine's name has 1 to {_ENGINE_CHARACTERS_MAX} characters."
        sentence = self._roles.refusal_to_join(connection, message)
        if sentence is not None or message.is_operator:
            return sentence
        return self._engines.refusal(message.engine, connection.peer)

    def _accept(self, _mask: int) -> None:
        for _ in range(self._limits.backlog):
            link = self._acceptor.accept()
            if link is None:
                break
            self._admit(link)
            self._acceptor.keep_spare()
        if self._acceptor.is_exhausted:  # connected clients go on, and new ones wait a little
            self._one_gives_way(_ANYONE)
            self._acceptor.keep_spare()
            self._selector.unregister(self._acceptor.listener)
            self._accept_again = self._clock.monotonic() + self._limits.accept_pause_s

    def _admit(self, link: socket.socket) -> None:
        """Admit a new connection, or tell it why not, before reading a byte from it."""
        self._metrics.accepted.add()
        now = self._clock.monotonic()
        peer = sockets.peer_of(link)
        connection = Connection(link, peer, now, self._limits.output_bytes_max)
        sentence = self._roles.refusal_to_connect(peer.uid)
        if sentence is None and not self._make_place(connection):
            sentence = f"the pool has {len(self._connections)} connections; more are not served."
        if sentence is not None:
            self._core.metrics.error(ErrorKind.REFUSED)
            connection.refuse(sentence)
            connection.close()
            return
        connection.served = self._rounds
        self._selector.register(link, selectors.EVENT_READ, partial(self._ready, connection))
        self._connections.add(connection)

    def _make_place(self, connection: Connection) -> bool:
        """Whether there is a place for a newcomer; another connection may be displaced."""
        in_operator_places = {each for each in self._connections if each.has_operator_place}
        is_short = self._acceptor.is_short  # out of descriptors
        ordinary = len(self._connections) - len(in_operator_places)
        if ordinary < self._limits.connections_max and not is_short:
            return True
        has_given_way = self._one_gives_way(connection.peer)
        if not has_given_way and not is_short and connection.peer.uid in self._roles.operators:
            connection.has_operator_place = True
            if len(in_operator_places) >= self._limits.operators_max:
                self._displace(min(in_operator_places, key=lambda each: each.heard_at))
        return has_given_way or connection.has_operator_place

    def _one_gives_way(self, peer: Peer) -> bool:
        """Displace a connection to make room for another process; whether one was."""
        gone = gives_way(peer, [each for each in self._connections if not each.has_operator_place])
        if gone is not None:
            self._displace(gone)
        return gone is not None

    def _displace(self, connection: Connection) -> None:
        self._core.metrics.error(ErrorKind.DISPLACED)
        connection.refuse("others need this place more; come again.")
        self._end(connection)

    def _ready(self, connection: Connection, mask: int) -> None:
        self._serve(connection, "a socket's event", self._exchange, connection, mask)

    def _exchange(self, connection: Connection, mask: int) -> None:
        """Write and read what is possible; limits what a process has in incomplete messages."""
        if mask & selectors.EVENT_WRITE:
            connection.flush()
        if not mask & selectors.EVENT_READ:
            return
        connection.heard_at = self._clock.monotonic()
        connection.receive()
        if connection.has_large_frame_begun:
            peer = connection.peer
            waiting = sum(each.input_bytes for each in self._connections if each.peer == peer)
            if waiting > self._limits.input_bytes_max:  # verify: unfinished frames
                connection.refuse("this process sends too many large messages at once.")

    def _woken(self, _mask: int) -> None:
        self.wake.clear()
        # Not a sign of activity: an idle pool's scrubber wakes us, too. The core says if it waits.
        self._is_woken = True

    def _watch(self, pidfd: int) -> None:
        self._selector.register(pidfd, selectors.EVENT_READ, partial(self._exited, pidfd))

    def _unwatch(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)

    def _exited(self, pidfd: int, _mask: int) -> None:
        self._engines.exit(pidfd, self._clock.monotonic())

    def _settle(self, connection: Connection) -> None:
        """After a round: write late output, and end connections that are over."""
        if connection.has_output and not connection.is_over:
            connection.flush()
        now = self._clock.monotonic()
        if not connection.has_joined and now - connection.opened > self._limits.hello_s:
            connection.refuse("no Hello came in time.")
        if connection.stalled_s(now) > self._limits.frame_s:  # verify: frame in time
            connection.refuse("the rest of a message did not come in time.")
        if connection.is_over:
            self._end(connection)
            return
        if connection.is_blocked != connection.has_output:
            connection.is_blocked = connection.has_output
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE * connection.is_blocked
            ready = self._selector.get_key(connection.link).data
            self._selector.modify(connection.link, wanted, ready)

    def _end_disconnected(self) -> None:
        """End connections and engines that are gone by now, before this round's requests."""
        for connection in [each for each in self._connections if each.is_over]:
            self._core.barrier.call("the end of a connection", self._end, connection)
        for engine in self._engines.take_due(self._clock.monotonic()):
            self._core.barrier.call("the end of an engine", self._core.exited, engine)

    def _end(self, connection: Connection) -> None:
        now = self._clock.monotonic()
        self._connections.discard(connection)
        self._selector.unregister(connection.link)
        if connection.has_output:
            self._core.metrics.error(ErrorKind.CUT_OFF)
        connection.close()
        if connection.has_joined:
            call = self._core.barrier.call
            call("the end of a session", self._core.disconnected, connection)
            call("the end of a session", self._engines.leave, connection.engine, now)
            self._busy_until = now + self._limits.busy_s
        if connection.is_engine:
            self._alone_since = now
            _log.info("process %d of user %d left", *connection.peer)

    def _keep_time(self) -> None:
        now = self._clock.monotonic()
        if now >= self._next_tick:
            self._core.tick(now)
            self._next_tick = now + self._limits.idle_tick_s
        if self._core.is_waiting:
            self._next_tick = min(self._next_tick, now + self._limits.tick_s)
        elif now < self._busy_until:
            self._next_tick = min(self._next_tick, now + self._limits.busy_tick_s)
        if self._accept_again is not None and now >= self._accept_again:
            self._accept_again = None
            self._selector.register(self._acceptor.listener, selectors.EVENT_READ, self._accept)

    def _timeout(self, linger_s: float | None) -> float:
        """How long the loop may sleep, until something is due."""
        if any(each.has_work for each in self._connections):
            return 0.0
        times = [self._next_tick, self._engines.next_due(), self._accept_again]
        if linger_s is not None and self._is_alone:
            times.append(self._alone_since + linger_s)
        due = min(time for time in times if time is not None)
        return max(0.0, due - self._clock.monotonic())
