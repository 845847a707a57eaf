"""The servers behind one URL: a single one, or the primaries of a cluster, found by its slots.

Nothing is retried. If a cluster says that a key is elsewhere, it is asked there, once; if one of
its servers cannot be reached, or says so, the next call asks again who has which slots. A server
that is not part of a cluster says so itself. Several threads may call at the same time.
"""

import binascii
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from forebay.sys.clock import Clock
from forebay.tiers.remote.stores.valkey.resp import Reply, RespConnection, ServerError, command
from forebay.urls import RemoteUrl

_SLOTS: Final = 16384  # of every cluster
_IDLE_MAX: Final = 16  # connections that are kept, of each server
_SEEDS_MAX: Final = 16  # servers that are asked for the slots
_PASSWORDS: Final = ("VALKEYCLI_AUTH", "REDISCLI_AUTH")  # as the command-line clients have it
_PASSWORD_CHARACTERS_MAX: Final = 4096
# A server says that it is not the one to ask: its connection is of no use any more.
_WRONG_SERVER: Final = ("READONLY", "CLUSTERDOWN", "MASTERDOWN")


class Server(NamedTuple):
    """Where one server listens."""

    host: str
    port: int


class RefusedError(Exception):
    """A server does not do what it was asked."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.code)
        self.code = error.code


class Keyed(NamedTuple):
    """A connection to the server of a key; a slot may be on its way there."""

    connection: RespConnection
    is_asking: bool = False

    def send(self, buffers: Sequence[memoryview | bytes]) -> None:
        """Send one command that names the key."""
        if not self.is_asking:
            self.connection.send(buffers)
            return
        self.connection.send([command("ASKING"), *buffers])
        self.connection.reply()

    def ask(self, *parts: str | int | bytes) -> Reply:
        """Send one command that names the key, and take its reply."""
        self.send([command(*parts)])
        return self.connection.reply()


class Servers:
    """Connections to all servers of one URL."""

    def __init__(self, url: RemoteUrl, clock: Clock | None = None) -> None:
        """Connects to nothing yet."""
        self._url, self._clock = url, clock or Clock()
        place, self._database, _ = url.path.split("/")
        host, _, port = place.rpartition(":")
        self._seed = Server(host.strip("[]"), int(port))
        self._lock = threading.Lock()  # guards what follows
        self._idle: dict[Server, list[RespConnection]] = {}
        self._slots: list[Server] | None = None  # None: to be asked for
        self._seeds: list[Server] = []  # that were primaries of the cluster

    def until(self, wait_s: float) -> float:
        """The deadline of a call that begins now."""
        return self._clock.monotonic() + wait_s

    def ask(self, key: str, deadline: float, talk: Callable[[Keyed], Reply]) -> Reply:
        """Talk to the server of a key or, if the key has moved, to its new server."""
        slots = self._known_slots(deadline)
        server = slots[binascii.crc_hqx(key.encode(), 0) % len(slots)]
        with self.connected(server, deadline) as connection:
            answer = _sent_away(talk(Keyed(connection)))
        if isinstance(answer, ServerError) and answer.code in ("MOVED", "ASK"):
            is_asking = answer.code == "ASK"
            if not is_asking:
                self._forget_slots()
            with self.connected(_redirected(answer, server), deadline) as connection:
                answer = _sent_away(talk(Keyed(connection, is_asking)))
        if isinstance(answer, ServerError):
            raise RefusedError(answer)
        return answer

    def primaries(self, deadline: float) -> list[Server]:
        """All servers that have keys, each once."""
        return sorted(set(self._known_slots(deadline)))

    @contextmanager
    def connected(self, server: Server, deadline: float) -> Iterator[RespConnection]:
        """A connection to a server, kept for later calls if the block ends without an error."""
        with ExitStack() as undo:
            undo.callback(self._forget_slots)
            connection = self._kept(server) or self._connect(server, deadline)
            undo.callback(connection.close)
            connection.deadline = deadline
            yield connection
            undo.pop_all()
        self._keep(server, connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in (each for some in idle.values() for each in some):
            connection.close()

    def _known_slots(self, deadline: float) -> list[Server]:
        """The server of each slot; a server without a cluster has a single slot."""
        with self._lock:
            slots, seeds = self._slots, [self._seed, *self._seeds]
        if slots is None:
            slots = self._asked_slots(seeds, deadline)
            with self._lock:
                self._slots = slots
                self._seeds = sorted(set(slots) - {self._seed})[: _SEEDS_MAX - 1]
        return slots

    def _asked_slots(self, seeds: Sequence[Server], deadline: float) -> list[Server]:
        """The answer of the first server that gives one."""
        failure: Exception = OSError()
        for seed in seeds:
            try:
                with self.connected(seed, deadline) as connection:
                    return _slots_in(connection.ask("CLUSTER", "SLOTS"), seed)
            except (OSError, ValueError) as error:
                failure = error
        raise failure

    def _forget_slots(self) -> None:
        """Ask the cluster anew before the next call."""
        with self._lock:
            self._slots = None

    def _kept(self, server: Server) -> RespConnection | None:
        """A connection that waits, and is still good."""
        with self._lock:
            idle = self._idle.get(server, [])
            while idle:
                connection = idle.pop()
                if connection.is_quiet:
                    return connection
                connection.close()
        return None

    def _keep(self, server: Server, connection: RespConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(server, [])
            has_room = len(idle) < _IDLE_MAX
            if has_room:
                idle.append(connection)
        if not has_room:
            connection.close()

    def _connect(self, server: Server, deadline: float) -> RespConnection:
        left_s = max(0.001, deadline - self._clock.monotonic())
        connected = socket.create_connection(server, left_s)
        with ExitStack() as undo:
            undo.callback(connected.close)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._url.scheme in ("valkeys", "rediss"):
                connected = self._context().wrap_socket(connected, server_hostname=server.host)
                undo.callback(connected.close)
            connection = RespConnection(connected, self._clock)
            connection.deadline = deadline
            self._introduce(connection)
            undo.pop_all()
        return connection

    def _introduce(self, connection: RespConnection) -> None:
        """Say who we are, and which database is meant."""
        user, password = self._url.option("user"), self._password()
        said = []
        if user or password:
            said.append(connection.ask("AUTH", *([user] if user else []), password))
        if self._database != "0":
            said.append(connection.ask("SELECT", self._database))
        if any(isinstance(answer, ServerError) for answer in said):
            raise RefusedError(ServerError("NOAUTH"))

    def _password(self) -> str:
        """The password, read anew for each connection, so that it can be changed meanwhile."""
        file = self._url.option("password_file")
        if not file:
            return next(filter(None, map(os.environ.get, _PASSWORDS)), "")
        try:
            with Path(file).open(encoding="utf-8") as opened:
                return opened.read(_PASSWORD_CHARACTERS_MAX).rstrip("\r\n")
        except (OSError, ValueError):
            raise RefusedError(ServerError("NOAUTH")) from None

    def _context(self) -> ssl.SSLContext:
        """The TLS context, with certificates that are read anew, too."""
        authorities = self._url.option("ca") or os.environ.get("SSL_CERT_FILE")
        context = ssl.create_default_context(cafile=authorities or None)
        if self._url.option("cert"):
            context.load_cert_chain(self._url.option("cert"), self._url.option("key"))
        return context


def _sent_away(answer: Reply) -> Reply:
    """The answer, unless it says that this server is not the one to ask."""
    if isinstance(answer, ServerError) and answer.code in _WRONG_SERVER:
        raise ConnectionResetError
    return answer


def _redirected(error: ServerError, asked: Server) -> Server:
    """Where `MOVED 3999 HOST:PORT` leads; without a host, to another port of the same one."""
    words = error.text.split(" ")
    host, _, port = words[-1].rpartition(":")
    if len(words) != 3 or not 0 < int(port) < 1 << 16:
        raise ValueError(len(words))
    return Server(host.strip("[]") or asked.host, int(port))


def _slots_in(reply: Reply, asked: Server) -> list[Server]:
    if isinstance(reply, ServerError):
        if reply.code == "ERR":
            return [asked]  # it knows no cluster
        raise RefusedError(reply)
    slots: list[Server | None] = [None] * _SLOTS
    for row in reply if isinstance(reply, list) else []:
        match row:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first <= last < _SLOTS and 0 < port < 1 << 16
            ):
                server = Server((host or b"").decode("ascii") or asked.host, port)
                slots[first : last + 1] = [server] * (last + 1 - first)
            case _:
                raise ValueError(row)
    found = [server for server in slots if server is not None]
    if len(found) < _SLOTS:
        raise ValueError(len(found))  # some keys are nobody's: the cluster is not whole
    return found
