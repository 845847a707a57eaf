"""One load, from lookup to release: what it wants, what it waits for, what it holds.

    ARRIVED    its engine has looked it up and not asked yet; what DRAM has of it is retained there,
               and the rest is read ahead
    ASKED      its engine waits for the promise; chunks are pinned, or being read or hashed
    PROMISED   the promise was sent; of a stream, the rest is handed out as it comes
    OVER       it holds nothing and nobody knows it any more

Only `Acquisition` changes the state. Until the ask only `ReadAhead` changes what is drawn below,
from then on only `Acquisition`; only `Retention` changes `retained`.

`Acquisition` alone changes the state. What is drawn below is changed by `ReadAhead` alone until the
ask, and by `Acquisition` alone from then on; `retained` by `Retention` alone.

Positions are those of the chain; records of local groups that are asked for with it follow the last
chunk that is asked for.

Positions are those of the chain; records of other groups that are asked for with it follow behind
the last chunk that is asked for.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from forebay.pool.core.budget import Budget, Processes
from forebay.pool.core.chunks import Chunk
from forebay.pool.core.recent.requests import LookupNote
from forebay.pool.session import Session
from forebay.record.header import DEFAULT_TENANT

REQUESTS_MAX: Final = 4096  # requests of a session; further lookups are answered, but not followed
KEYS_FOLLOWED: Final = 1 << 19  # keys followed for an engine that is alone; some 200 bytes each


class LoadState(IntEnum):
    """How far a load has come; see the module's docstring."""

    ARRIVED = 0
    ASKED = 1
    PROMISED = 2
    OVER = 3


class Retained:
    """What is kept in DRAM for one request until it has its promise."""

    __slots__ = ("chunks", "early", "keys", "last", "ready")

    def __init__(self) -> None:
        self.chunks = 0  # number of chunks, from the first, retained or on their way
        self.keys: list[bytes] = []  # the keys of these, and others that follow
        self.ready = 0  # number of these, from the first, that are in DRAM
        self.last: Chunk | None = None  # the last of those, pinned, so that what precedes it stays
        self.early: dict[int, Chunk] = {}  # pinned chunks that came before what precedes them

    @property
    def pinned(self) -> list[Chunk]:
        """The chunks that are pinned for it."""
        return [*self.early.values(), *([self.last] if self.last is not None else [])]


class LoadRequest:
    """A chain of keys on its way from lookup to release."""

    __slots__ = (
        "ahead_stop",
        "asked_at",
        "awaited",
        "deadline",
        "engine",
        "first",
        "group",
        "half_time",
        "held",
        "in_dram",
        "keys",
        "keys_counted",
        "local",
        "namespace",
        "next",
        "note",
        "number",
        "promised_at",
        "retained",
        "run",
        "session",
        "state",
        "stop",
        "stream",
        "tenant",
        "told",
        "unknown_keys",
        "waits_since",
    )

    def __init__(
        self, session: Session, number: int, note: LookupNote, group: int, keys: list[bytes]
    ) -> None:
        self.session = session
        self.note = note  # tells later why it got no more
        self.engine = session.engine
        self.number = number
        self.namespace, self.group = note.namespace, group
        self.tenant = DEFAULT_TENANT  # its tenant's id; its keys are masked
        self.keys = keys
        self.local: dict[int, int] = {}  # position → group, for records of local groups
        self.unknown_keys: list[bytes] = []  # further keys; a tier is finding out if it has them
        self.keys_counted = len(keys)  # keys of both, as counted at the lookup
        self.state = LoadState.ARRIVED
        self.first = 0
        self.next = 0
        self.stop = len(keys)
        self.ahead_stop = len(keys)  # until the ask nothing from this position on is read
        self.told = 0  # chunks that its engine was told are in DRAM
        self.run = 0  # end of the held run from `first`, as last computed
        self.in_dram = 0  # chunks that were in DRAM when it wanted them
        self.asked_at = self.promised_at = 0.0  # monotonic, once that has happened
        self.half_time = 0.0  # when half of the time until its deadline is over
        self.deadline = 0.0  # of the ask; before the ask, the end of retention
        self.waits_since: float | None = None  # since when it waits for others' room
        self.stream = False
        self.held: dict[int, Chunk] = {}
        self.awaited: set[int] = set()
        self.retained = Retained()

    def group_at(self, position: int) -> int:
        """The group of the record at a position."""
        return self.local.get(position, self.group)

    def add_local(self, chunks: int, runs: Sequence[tuple[int, list[bytes]]]) -> None:
        """Want these records of local groups after the first `chunks` chunks, and nothing else."""
        self.keys = self.keys[:chunks]
        for group, keys in runs:
            self.local.update(
                dict.fromkeys(range(len(self.keys), len(self.keys) + len(keys)), group)
            )
            self.keys = self.keys + keys

    @property
    def wants_more(self) -> bool:
        """Whether something that it wants is not acquired yet."""
        if self.state is LoadState.ARRIVED:
            return self.next < min(self.stop, self.ahead_stop)
        return self.next < self.stop

    @property
    def is_acquired(self) -> bool:
        """Whether nothing more will be acquired."""
        return self.next >= self.stop and not self.awaited

    def is_its(self, chunk: Chunk, group: int) -> bool:
        """Whether a chunk with a wanted key is the record that the request means."""
        name = chunk.name
        named = (name.namespace, name.group, name.tenant)
        return named == (self.namespace, group, self.tenant)

    def stop_awaiting(self, position: int, key: bytes) -> bool:
        """A chunk has come, or failed; False if the request does not wait for it any more.

        A chunk that was read ahead may not have been asked for, and another one be at its position.
        """
        if position not in self.awaited or self.keys[position] != key:
            return False
        self.awaited.discard(position)
        return True

    def truncate(self, position: int) -> None:
        """A record cannot be loaded: want nothing from its position on."""
        self.stop = min(self.stop, position)
        self.next = min(self.next, self.stop)

    def contiguous(self) -> int:
        """The end of the run of held chunks that begins at `first`."""
        while self.run in self.held:
            self.run += 1
        return self.run


class LoadRequests:
    """Every request that is not over, by session and by its engine's number for it."""

    def __init__(self, processes: Processes) -> None:
        self._by_session: dict[Session, dict[int, LoadRequest]] = {}
        self._keys = Budget(lambda: KEYS_FOLLOWED, processes)  # this budget counts keys, not bytes

    def __iter__(self) -> Iterator[LoadRequest]:
        for mine in self._by_session.values():
            yield from mine.values()

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def get(self, session: Session, number: int) -> LoadRequest | None:
        """One request of a session."""
        return self._by_session.get(session, {}).get(number)

    def of(self, session: Session) -> list[LoadRequest]:
        """All requests of one session."""
        return list(self._by_session.get(session, {}).values())

    def of_engine(self, engine: str) -> list[LoadRequest]:
        """All requests of an engine, on any of its connections."""
        sessions = [each for each in self._by_session if each.engine == engine]
        return [request for session in sessions for request in self.of(session)]

    def admits(self, session: Session, keys: int) -> bool:
        """Whether a session may have one more request, with so many keys."""
        count = len(self._by_session.get(session, {}))
        return count < REQUESTS_MAX and self._keys.fits(session.engine, keys)

    def admits_more(self, request: LoadRequest, keys: int) -> bool:
        """Whether a request may have so many more keys; if so, they are counted."""
        if not self._keys.fits(request.engine, keys):
            return False
        self._keys.take(request.engine, keys)
        request.keys_counted += keys
        return True

    def add(self, request: LoadRequest) -> None:
        """Add a request that was looked up."""
        self._by_session.setdefault(request.session, {})[request.number] = request
        self._keys.take(request.engine, request.keys_counted)

    def remove(self, request: LoadRequest) -> None:
        """A request is over; does nothing if it was removed before."""
        mine = self._by_session.get(request.session, {})
        if mine.get(request.number) is request:
            del mine[request.number]
            self._keys.give(request.engine, request.keys_counted)
            if not mine:
                del self._by_session[request.session]


def unrepeated(keys: list[bytes]) -> list[bytes]:
    """The keys up to the first repeated one; a real chain has none, since keys name prefixes."""
    if len(set(keys)) == len(keys):
        return keys
    seen: set[bytes] = set()
    for at, key in enumerate(keys):
        if key in seen:
            return keys[:at]
        seen.add(key)
    return keys
