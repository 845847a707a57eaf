"""Lookups whose answer waits for chunks that another engine is storing.

An engine that was told that another one has just computed a prompt looks it up while the last of it
is being copied. It is answered when that is stored or will not be, and at the latest by a deadline.
Of a lookup two chunks are watched: the first that is not here, and the last; nothing else is
checked. The keys are kept meanwhile, per session as many as two of the longest prompts have.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from forebay.pool.core.chunks import ChunkTable
from forebay.pool.messages import AWAIT_S, KEYS_MAX, Lookup
from forebay.pool.session import Session
from forebay.record.region import SHORT_KEY_BYTES

_WAITING_MAX: Final = 64  # waiting lookups of one session; more are answered at once
KEYS_BYTES_MAX: Final = 2 * KEYS_MAX * SHORT_KEY_BYTES  # of their keys; likewise


class _Awaiting(NamedTuple):
    """One waiting lookup."""

    message: Lookup
    keys: tuple[bytes, bytes]  # keys of the two watched chunks, masked
    deadline: float  # monotonic


class AwaitedLookups:
    """Lookups that wait. Owned by the pool's thread."""

    def __init__(self, chunks: ChunkTable) -> None:
        self._chunks = chunks
        self._waiting: dict[Session, dict[int, _Awaiting]] = {}  # by session, and by request

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, session: Session, message: Lookup, keys: list[bytes], now: float) -> bool:
        """Let a lookup wait; False if there is nothing to wait for."""
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
        """Lookups that are to be answered now."""
        for session, mine in list(self._waiting.items()):
            for number, each in list(mine.items()):
                if now >= each.deadline or not self._is_coming(each):
                    self.cancel(session, number)
                    yield session, each.message

    def cancel(self, session: Session, number: int) -> None:
        """Drop a lookup; does nothing if it did not wait."""
        mine = self._waiting.get(session, {})
        mine.pop(number, None)
        if not mine:
            self._waiting.pop(session, None)

    def disconnected(self, session: Session) -> None:
        """Drop all lookups of a session."""
        self._waiting.pop(session, None)

    def _is_coming(self, awaiting: _Awaiting) -> bool:
        return any(map(self._chunks.is_filling, awaiting.keys))


def _kept_bytes(message: Lookup) -> int:
    return len(message.keys) + len(message.local)
