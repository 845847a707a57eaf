"""Measures a store's speed: the time of one record, and the bandwidth of all reads together.

Both are means in which recent measurements count most, and both are forgotten after a minute, since
networks change. A read that takes longer than usual counts as soon as it does, so that a store that
hangs is known to be slow before any deadline has passed.

Written by the tier's thread, read by all.
"""

from typing import Final

from forebay.tiers.contract import TierSpeed

FRESH_S: Final = 60.0  # older measurements are not used
_WEIGHT: Final = 0.3  # weight of a new measurement
_WINDOW_S: Final = 0.25  # over which bandwidth is measured while reads never pause


class StoreSpeed:
    """Reads of one store, under way and done."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[float, int]] = {}  # lane → (when begun, bytes)
        self._record_s = self._bytes_a_s = 0.0  # 0: not known
        self._seen_at = 0.0
        self._busy_since = 0.0  # since when reads have been under way without a pause
        self._window_bytes = 0  # bytes that came since then

    def began(self, lane: int, size_bytes: int, now: float) -> None:
        """A read of a record begins."""
        if not self._begun:
            self._busy_since, self._window_bytes = now, 0
        self._begun = {**self._begun, lane: (now, size_bytes)}

    def ended(self, lane: int, now: float, *, is_whole: bool) -> None:
        """A read has ended; `is_whole`: the record came."""
        begun, size_bytes = self._begun[lane]
        self._begun = {each: of for each, of in self._begun.items() if each != lane}
        if not is_whole:
            return
        is_old = now >= self._seen_at + FRESH_S
        self._record_s = _mixed(0.0 if is_old else self._record_s, now - begun)
        self._window_bytes += size_bytes
        busy_s = now - self._busy_since
        if busy_s > 0 and (not self._begun or busy_s >= _WINDOW_S):
            before = 0.0 if is_old else self._bytes_a_s
            self._bytes_a_s = _mixed(before, self._window_bytes / busy_s)
            self._busy_since, self._window_bytes = now, 0
        self._seen_at = now

    def told(self, now: float) -> TierSpeed:
        """The speed as known now; zeros if it is not."""
        reading = self._begun.values()
        is_known = bool(self._bytes_a_s) and now < self._seen_at + FRESH_S
        waited_s = max((now - begun for begun, _ in reading), default=0.0)
        if not is_known:
            return TierSpeed(waited_s, 0.0)
        waiting_s = sum(size_bytes for _, size_bytes in reading) / self._bytes_a_s
        return TierSpeed(max(waited_s, self._record_s + waiting_s), self._bytes_a_s)


def _mixed(before: float, seen: float) -> float:
    return seen if not before else before + _WEIGHT * (seen - before)
