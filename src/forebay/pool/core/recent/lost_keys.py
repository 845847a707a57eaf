"""Why chunks that the pool once had are gone: remembered of the last `KEYS_MAX` that left it.

A chunk is noted when its last copy leaves, whatever tier that was in, and forgotten when it is
stored again. Which request it belonged to is not known here: keys are hashes.
"""

from typing import Final

from forebay.decisions import Decision
from forebay.tiers.contract import EvictionCause

KEYS_MAX: Final = 1 << 16  # some 10 MB; chunks that left before these are as if never stored
_REASONS: Final = {
    EvictionCause.CLEARED: Decision.CLEARED,
    EvictionCause.DAMAGED: Decision.CORRUPT,
}  # of others: evicted


class LostKeys:
    """Short keys, each with its reason. Owned by the pool's thread."""

    def __init__(self) -> None:
        self._reasons: dict[bytes, Decision] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._reasons)

    def note(self, key: bytes, reason: Decision) -> None:
        """A chunk is gone, or could not be read."""
        self._reasons.pop(key, None)
        self._reasons[key] = reason
        if len(self._reasons) > KEYS_MAX:
            del self._reasons[next(iter(self._reasons))]

    def left(self, key: bytes, cause: EvictionCause) -> None:
        """The last copy of a chunk has left a tier; a reason that was noted before counts more."""
        reason = _REASONS.get(cause, Decision.EVICTED)
        if reason is not Decision.EVICTED or key not in self._reasons:
            self.note(key, reason)

    def forget(self, key: bytes) -> None:
        """A chunk is here."""
        self._reasons.pop(key, None)

    def reason(self, key: bytes) -> Decision | None:
        """Why a chunk is gone; None: it never was here, or left too long ago."""
        return self._reasons.get(key)
