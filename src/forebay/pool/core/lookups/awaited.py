"""Lookups whose answers wait for chunks that another engine is storing.

An engine that was told that another one has just computed a prompt looks it up while the last of it
is being copied. It is answered when that is stored, or will not be, and at last by a deadline. Of a
lookup two chunks are watched: the first that is not here, and the last; looking costs nothing else.
Its keys are kept meanwhile, of each session as many as of two of the longest prompts.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from forebay.pool.core.chunks import ChunkTable
from forebay.pool.messages import AWAIT_S, KEYS_MAX, Lookup
from forebay.pool.session import Session
from forebay.record.region import SHORT_KEY_BYTES

_WAITING_MAX: Final = 64  # of one session; more are answered at once
KEYS_BYTES_MAX: Final = 2 * KEYS_MAX * SHORT_KEY_BYTES  # of them; likewise


class _Awaiting(NamedTuple):
    """One lookup."""

    message: Lookup
    keys: tuple[bytes, bytes]  # of the two chunks, as the pool has them
    deadline: float  # monotonic


class AwaitedLookups:
    """Those that wait. Owned by the pool's thread."""

    def __init__(self, chunks: ChunkTable) -> None:
        self._chunks = chunks
        self._waiting: dict[Session, dict[int, _Awaiting]] = {}  # by the request's number

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, session: Session, message: Lookup, keys: list[bytes], now: float) -> bool:
        """Have a lookup wait; False: there is nothing to wait for."""
        ready = self._chunks.ready_prefix(keys)
        wanted = min(message.awaits, len(keys))
        if ready >= wanted:
            return False
        found = _Awaiting(message, (keys[ready], keys[wanted - 1]), now + AWAIT_S)
        mine = self._waiting.get(session, {})
        if not self._is_coming(found) or message.request in mine or len(mine) >= _WAITING_MAX:
            return False
        kept_bytes = sum(_kept_bytes(each.message) for each in mine.values())
        if kept_bytes + _kept_bytes(message) > KEYS_BYTES_MAX:  # verify: keys of who waits
            return False
        self._waiting.setdefault(session, mine)[message.request] = found
        return True

    def take_due(self, now: float) -> Iterator[tuple[Session, Lookup]]:
        """Those that are to be answered now."""
        for session, mine in list(self._waiting.items()):
            for number, each in list(mine.items()):
                if now >= each.deadline or not self._is_coming(each):
                    self.cancel(session, number)
                    yield session, each.message

    def cancel(self, session: Session, number: int) -> None:
        """One is over; nothing happens if it did not wait."""
        mine = self._waiting.get(session, {})
        mine.pop(number, None)
        if not mine:
            self._waiting.pop(session, None)

    def disconnected(self, session: Session) -> None:
        """All of a session's are over."""
        self._waiting.pop(session, None)

    def _is_coming(self, awaiting: _Awaiting) -> bool:
        return any(map(self._chunks.is_filling, awaiting.keys))


def _kept_bytes(message: Lookup) -> int:
    return len(message.keys) + len(message.local)
