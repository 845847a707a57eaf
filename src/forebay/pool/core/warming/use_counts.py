"""Counts how often chunks were asked for lately, to tell other hosts which are used most.

A chunk counts when a lookup finds it, even if it is not copied: what every prompt begins with may
be in GPU memory all the time. Counts are halved whenever they are published, so that recent use
counts most. Only chunks that lie in DRAM and in the store as well are told.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from forebay.pool.core.parts import CoreParts
from forebay.tiers.contract import USED_RECORDS_MAX, UsedRecord

PUBLISH_S: Final = 600.0
USES_MIN: Final = 2  # chunks with fewer uses are not told
COUNTED_MAX: Final = 1 << 14  # chunks counted; the least used are left out


class UseCounts:
    """Use counts of all chunks of one pool. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts) -> None:
        self._stack, self._chunks = parts.stack, parts.dram.chunks
        self._shared = [tier for tier in range(len(parts.stack)) if parts.stack.comes_back(tier)]
        self._uses: Counter[bytes] = Counter()  # by short key; chains root first
        self._publish_at = parts.clock.monotonic() + PUBLISH_S

    def __len__(self) -> int:
        return len(self._uses)

    def asked_for(self, keys: Sequence[bytes]) -> None:
        """A lookup found these chunks, root first."""
        if not self._shared:
            return
        self._uses.update(keys)
        if len(self._uses) > COUNTED_MAX:
            self._uses = Counter(dict(self._uses.most_common(COUNTED_MAX // 2)))

    def tick(self, now: float) -> None:
        """Now and then, tell the stores which chunks are used most."""
        if now < self._publish_at:
            return
        self._publish_at = now + PUBLISH_S
        if self._uses:
            for tier in self._shared:
                self._publish(tier)
            self._halve()

    def _publish(self, tier: int) -> None:
        records: list[UsedRecord] = []
        for key, uses in self._uses.most_common():
            if uses < USES_MIN or len(records) == USED_RECORDS_MAX:
                break
            chunk = self._chunks.get(key)
            if chunk is not None and self._chunks.is_ready(key) and tier in chunk.tiers:
                name = chunk.name
                records.append(UsedRecord(name.namespace, name.tenant, name.group, key, uses))
        if records:
            self._stack.publish_used(tier, records)

    def _halve(self) -> None:
        self._uses = Counter({key: uses // 2 for key, uses in self._uses.items() if uses > 1})
