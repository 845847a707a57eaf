"""When an engine's slots may be given away: once none of its processes can copy any more.

An engine is known by the name its connections gave in Hello. While one of its processes lives, that
may still be copying into a slot or out of one, connected or not; so the end of a connection frees
no slot. The exit of the last process does, seen through a pidfd, after a second of grace for what
is still in flight on a bus. If a process cannot be seen, a longer time after its last connection
has to do.

A name belongs to its user: another user can neither join under it nor settle what was promised to
it. Of one user's processes only those that joined under a name may settle it.
"""

import errno
import socket
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from forebay.pool.messages import ENGINES_LISTED_MAX
from forebay.pool.server.limits import ServerLimits
from forebay.pool.session import public_id
from forebay.sys import processes, sockets
from forebay.sys.sockets import Peer


@dataclass(slots=True, eq=False)
class _Process:
    number: int  # its pid, or a negative number if the pid is hidden
    pidfd: int
    engines: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """An engine's description of itself; the caller limits the length of texts."""

    model: str = ""
    engine: str = ""  # its name and version
    sharing: str = "unknown"  # a `SharingState`
    why: str = ""  # why it does not share, in a sentence
    gpu_cache_bytes: int = 0  # size of the KV cache on its GPUs; 0: not known


@dataclass(slots=True, eq=False)
class _Engine:
    uid: int
    joined: float = 0.0  # monotonic
    description: EngineDescription = EngineDescription()
    connections: int = 0
    processes: set[int] = field(default_factory=set)  # numbers of its processes that live
    hidden_until: float = 0.0  # when its hidden processes are taken for dead
    has_hidden: bool = False
    due: float | None = None  # when its slots may be given away, if it is ending


class Engines:
    """Who has joined, and which of their processes live. Owned by the server's thread."""

    def __init__(
        self,
        limits: ServerLimits,
        lends: Callable[[str], bool],
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self._limits = limits
        self._lends = lends  # whether an engine has slots; otherwise its end does not matter
        self._watch, self._unwatch = watch, unwatch  # watch pidfds in the server's selector
        self._engines: dict[str, _Engine] = {}
        self._processes: dict[int, _Process] = {}
        self._pidfds: dict[int, _Process] = {}

    def __len__(self) -> int:
        return len(self._engines)

    def refusal(self, name: str, peer: Peer) -> str | None:
        """Why a process may not join under a name, in one sentence; None if it may."""
        engine = self._engines.get(name)
        if engine is not None:
            if engine.uid != peer.uid:  # verify: a name is its user's
                return "an engine of another user has this name."
            return None
        if len(self._engines) >= self._limits.engines_max:
            return f"{len(self._engines)} engines have joined; more are not served."
        process = self._processes.get(peer.pid)
        names = 0 if process is None else len(process.engines)
        if names >= self._limits.names_max:  # verify: names of a process
            return f"this process has joined under {names} names; more are not served."
        return None

    def join(self, name: str, link: socket.socket, peer: Peer, now: float) -> bool:
        """A connection said Hello under this name, which was not refused.

        False: its process may live and cannot be watched now, for lack of a descriptor.
        """
        process = self._find(link, peer, now)
        if process is None:
            return False
        engine = self._engines.setdefault(name, _Engine(peer.uid, now))
        engine.connections += 1
        engine.due = None
        if isinstance(process, _Process):
            process.engines.add(name)
            engine.processes.add(process.number)
        else:
            engine.has_hidden = engine.has_hidden or process
        return True

    def describe(self, name: str, description: EngineDescription) -> None:
        """An engine describes itself; the last description counts."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.description = description

    def sharing(self, other_than: Collection[str]) -> Counter[str]:
        """How many engines are in each sharing state, except the given ones."""
        names = self._engines.keys() - set(other_than)
        return Counter(self._engines[name].description.sharing for name in names)

    def listed(self, now: float, other_than: Collection[str]) -> list[dict[str, Any]]:
        """Engines for `forebay stats` except the given ones, those here longest first.

        `ENGINES_LISTED_MAX` at most. An engine's name is its secret and is not shown.
        """
        names = (name for name in self._engines if name not in other_than)
        found = ((name, self._engines[name]) for name in islice(names, ENGINES_LISTED_MAX))
        return [
            {
                "id": public_id(name),
                "model": engine.description.model,
                "engine": engine.description.engine,
                "sharing": engine.description.sharing,
                "why": engine.description.why,
                "gpu_cache_bytes": engine.description.gpu_cache_bytes,
                "processes": len(engine.processes),
                "joined_s": round(now - engine.joined, 3),
            }
            for name, engine in found
        ]

    def leave(self, name: str, now: float) -> None:
        """One of an engine's connections is over."""
        engine = self._engines[name]
        engine.connections -= 1
        if engine.has_hidden:
            engine.hidden_until = now + self._limits.hidden_s
        self._set_due(name, engine, now)

    def is_member(self, name: str, peer: Peer) -> bool:
        """Whether a process has joined under a name, as far as that can be seen."""
        engine = self._engines.get(name)
        if engine is None or engine.uid != peer.uid:
            return False
        if peer.pid:
            return peer.pid in engine.processes or engine.has_hidden
        return engine.has_hidden or any(number < 0 for number in engine.processes)

    def exit(self, pidfd: int, now: float) -> None:
        """A pidfd became readable: its process is gone."""
        process = self._pidfds.pop(pidfd, None)
        if process is None:
            return
        del self._processes[process.number]
        self._unwatch(pidfd)
        processes.close(pidfd)
        for name in process.engines:
            engine = self._engines.get(name)
            if engine is not None:
                engine.processes.discard(process.number)
                self._set_due(name, engine, now)

    def update_due(self, name: str, now: float) -> None:
        """An engine may have given back what it was lent: then its end does not matter any more."""
        engine = self._engines.get(name)
        if engine is not None:
            self._set_due(name, engine, now)

    def take_due(self, now: float) -> list[str]:
        """Engines that are gone for good, each once."""
        gone = [
            name
            for name, engine in self._engines.items()
            if engine.due is not None and engine.due <= now
        ]
        for name in gone:
            engine = self._engines.pop(name)
            for number in engine.processes:  # it lives on, but has no slot under this name
                self._forget(self._processes[number], name)
        return gone

    def next_due(self) -> float | None:
        """When `take_due` will return something; None if that is not known."""
        return min((e.due for e in self._engines.values() if e.due is not None), default=None)

    def close(self) -> None:
        """Stop watching processes."""
        for pidfd in self._pidfds:
            self._unwatch(pidfd)
            processes.close(pidfd)
        self._pidfds.clear()
        self._processes.clear()
        self._engines.clear()

    def _set_due(self, name: str, engine: _Engine, now: float) -> None:
        if engine.connections:
            engine.due = None
        elif not self._lends(name):
            engine.due = now
        elif engine.processes:
            engine.due = None  # its process may still be copying
        else:
            engine.due = max(now + self._limits.grace_s, engine.hidden_until)

    def _find(self, link: socket.socket, peer: Peer, now: float) -> _Process | bool | None:
        """The process of a new connection, or False if it is gone, True if it is hidden.

        None: it cannot be watched now, for lack of a descriptor.
        """
        known = self._processes.get(peer.pid)
        if known is not None:
            if not processes.has_exited(known.pidfd):
                return known
            self.exit(known.pidfd, now)  # its pid belongs to another process now
        pidfd = _pidfd(link, peer)
        if pidfd < 0:
            return None if pidfd == _NOT_NOW else pidfd == _HIDDEN
        process = _Process(peer.pid or -pidfd, pidfd)
        self._processes[process.number] = process
        self._pidfds[pidfd] = process
        self._watch(pidfd)
        return process

    def _forget(self, process: _Process, name: str) -> None:
        process.engines.discard(name)
        if not process.engines:
            del self._processes[process.number]
            del self._pidfds[process.pidfd]
            self._unwatch(process.pidfd)
            processes.close(process.pidfd)


_HIDDEN = -1
_GONE = -2
_NOT_NOW = -3
_WITHOUT_PIDFD = {errno.ESRCH: _GONE, errno.EMFILE: _NOT_NOW, errno.ENFILE: _NOT_NOW}


def _pidfd(link: socket.socket, peer: Peer) -> int:
    """A pidfd, or one of the three values above."""
    try:
        return sockets.peer_pidfd(link)
    except OSError as error:  # perhaps a kernel before 6.5, or the process is gone
        if peer.pid <= 0:
            return _NOT_NOW if _WITHOUT_PIDFD.get(error.errno or 0) == _NOT_NOW else _HIDDEN
    try:
        return processes.open_pidfd(peer.pid)
    except OSError as error:
        return _WITHOUT_PIDFD.get(error.errno or 0, _HIDDEN)
