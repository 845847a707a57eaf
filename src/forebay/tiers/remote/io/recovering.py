"""Takes over this host's packs at a start: listed ones at once, the others one by one.

The store is used meanwhile. Each call reads some packs; which packs are left is known here, so if a
child is killed only one call's packs are lost, and the next call asks for fewer.
"""

import itertools
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.process.link import Results
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest
from forebay.tiers.remote.process.recovery import (
    PACK_GETS_MAX,
    PacksRead,
    Recovered,
    UnreadPack,
)
from forebay.tiers.remote.store import StoreFailure

PACKS_MAX: Final = 32  # packs read by one call
_SHARE: Final = 0.25  # share of a day's requests for reading packs
_log: Final = logging.getLogger(__name__)


class Recovering:
    """The packs that an earlier process put into one store. Owned by the tier's thread."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self._count = PACKS_MAX  # packs that the next call reads
        self._asked: Sequence[UnreadPack] = ()
        self._at = 0.0  # when the next call may begin
        self.is_listed = False  # the store's packs were listed

    @property
    def is_long(self) -> bool:
        """Whether many packs are left, so that the index is published less often."""
        return len(self._parts.own.unread) > PACKS_MAX

    def listed(self, _answer: Answer, results: Results) -> None:
        """The store's packs were listed, with what the host's index says about them."""
        parts = self._parts
        packs = msgspec.msgpack.decode(results[0], type=Recovered)
        parts.own.expect(packs.unread)
        parts.own.restore(packs.found)
        parts.own.erase_forgotten(parts.forgotten)
        self.is_listed = True
        if packs.unread:
            _log.info("%d packs in %s have to be read", len(packs.unread), parts.path)

    def request(self, now: float) -> StoreRequest | None:
        """The packs to read now, the oldest first; None: nothing to read now."""
        parts, unread = self._parts, self._parts.own.unread
        if not unread or now < self._at or parts.is_over_for_stores:
            return None
        count = min(self._count, parts.room() // PACK_GETS_MAX)
        self._asked = tuple(itertools.islice(unread.values(), max(0, count)))
        return StoreRequest(0, Action.READ_PACKS, packs=self._asked) if self._asked else None

    def read(self, _answer: Answer, results: Results) -> None:
        """Some of these packs were read; the others come last in the queue."""
        parts = self._parts
        now = parts.clock.monotonic()
        parts.own.read(msgspec.msgpack.decode(results[0], type=PacksRead))
        parts.own.erase_forgotten(parts.forgotten)
        self._count = min(PACKS_MAX, 2 * self._count)
        if self._put_off() < len(self._asked):
            self._at = now + parts.apart_s(parts.last_maintenance.requests, _SHARE)
        else:
            parts.failed()
            self._at = now + parts.options.error_window_s
        if not parts.own.unread:
            _log.info("all packs in %s are known", parts.path)
            others = len(parts.own.other_versions)
            if others:
                _log.warning("%d packs in %s have another format version", others, parts.path)

    def not_read(self, _failure: StoreFailure) -> None:
        """None was read, as far as is known: the child was too slow, or died."""
        parts = self._parts
        self._put_off()
        if self._count == 1:  # no call is smaller; let the store be used for a while
            self._at = parts.clock.monotonic() + parts.options.error_window_s
        self._count = max(1, self._count // 2)
        parts.failed()

    def _put_off(self) -> int:
        """Move the packs that are still unread to the end; returns how many."""
        unread = self._parts.own.unread
        left = [pack.sequence for pack in self._asked if pack.sequence in unread]
        for sequence in left:
            unread[sequence] = unread.pop(sequence)
        return len(left)
