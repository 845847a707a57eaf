"""Why chunks are gone: remembered of the last `KEYS_MAX` that left the pool.

A chunk is noted when its last copy leaves, from whatever tier, and forgotten when it is stored
again. Its request is not known here: keys are hashes.
"""

from typing import Final

from forebay.decisions import Decision
from forebay.tiers.contract import EvictionCause

KEYS_MAX: Final = 1 << 16  # some 10 MB; chunks that left before these are as if never stored
_REASONS: Final = {
    EvictionCause.CLEARED: Decision.CLEARED,
    EvictionCause.DAMAGED: Decision.CORRUPT,
}  # causes that are not listed mean EVICTED


class LostKeys:
    """Short keys, each with its reason. Owned by the pool's thread."""

    def __init__(self) -> None:
        self._reasons: dict[bytes, Decision] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._reasons)

    def note(self, key: bytes, reason: Decision) -> None:
        """Note why a chunk is gone, or could not be read."""
        self._reasons.pop(key, None)
        self._reasons[key] = reason
        if len(self._reasons) > KEYS_MAX:
            del self._reasons[next(iter(self._reasons))]

    def left(self, key: bytes, cause: EvictionCause) -> None:
        """The last copy of a chunk has left; a reason noted before takes precedence."""
        reason = _REASONS.get(cause, Decision.EVICTED)
        if reason is not Decision.EVICTED or key not in self._reasons:
            self.note(key, reason)

    def forget(self, key: bytes) -> None:
        """A chunk is here again."""
        self._reasons.pop(key, None)

    def reason(self, key: bytes) -> Decision | None:
        """Why a chunk is gone; None if it never was here, or left too long ago."""
        return self._reasons.get(key)
