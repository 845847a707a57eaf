"""The plainest policy: evict the leaf that was used longest ago, write everything to every tier."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from forebay.pool.policy.contract import Ending, Policy, ToRead


class OldestFirst(Policy):
    def __init__(self, tiers: int = 1) -> None:
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._parents: dict[bytes, bytes | None] = {}
        self._children: dict[bytes, int] = {}
        self._pins: dict[bytes, int] = {}
        self._saved: set[bytes] = set()  # the nearest lower tier has it
        self._unwritten: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(tiers)]
        self._offered: set[tuple[bytes, int]] = set()

    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        for key in reversed(keys[:found]):
            if key in self._slots:
                self._slots.move_to_end(key)

    def ended(self, key: bytes, ending: Ending, now: float) -> None:
        pass

    def stored(self, key: bytes, parent: bytes | None, slot_bytes: int, now: float) -> None:
        self._slots[key] = slot_bytes
        self._parents[key] = parent
        for unwritten in self._unwritten:
            unwritten[key] = None
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1

    def removed(self, key: bytes) -> None:
        del self._slots[key]
        parent = self._parents.pop(key)
        if parent is not None:
            self._children[parent] -= 1
        self._pins.pop(key, None)
        self._saved.discard(key)
        for unwritten in self._unwritten:
            unwritten.pop(key, None)
        self._offered = {each for each in self._offered if each[0] != key}

    def pin(self, *keys: bytes) -> None:
        for key in keys:
            self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, key: bytes) -> None:
        self._pins[key] -= 1

    def declines(self, key: bytes, parent: bytes | None, now: float, slot_bytes: int) -> bool:
        return False

    def victim(self, now: float, slot_bytes: int, *, spare_unwritten: bool = False) -> bytes | None:
        for key, own_bytes in self._slots.items():
            is_busy = self._pins.get(key) or self._children.get(key)
            is_spared = spare_unwritten and self._is_pending(key)
            if own_bytes == slot_bytes and not is_busy and not is_spared:
                return key
        return None

    def _is_pending(self, key: bytes) -> bool:
        if key in self._saved:
            return False
        waits = any(key in unwritten for unwritten in self._unwritten)
        return waits or any(key == offered for offered, _ in self._offered)

    @property
    def queued_bytes(self) -> int:
        waiting = {key for unwritten in self._unwritten for key in unwritten} - self._saved
        return sum(self._slots[key] for key in waiting)

    def in_tiers(self, key: bytes, tiers: Collection[int]) -> None:
        if key not in self._slots:
            return
        if 0 in tiers:
            self._saved.add(key)
        else:
            self._saved.discard(key)
        for tier in tiers:
            self._unwritten[tier].pop(key, None)
            self._offered.discard((key, tier))

    def write_failed(self, key: bytes, tier: int) -> None:
        self._offered.discard((key, tier))

    def write_again(self, key: bytes, tier: int, now: float) -> None:
        self._offered.discard((key, tier))
        if key in self._slots:
            self._unwritten[tier][key] = None

    def hold_writes(self, tier: int, *, held: bool) -> None:
        pass  # what waits is given to whoever asks, and is evicted last

    def next_write(self, tier: int, now: float, *, idle: bool = False) -> bytes | None:
        if not self._unwritten[tier]:
            return None
        key, _ = self._unwritten[tier].popitem(last=False)
        self._offered.add((key, tier))
        return key

    def evicted(self, tier: int, size_bytes: int, read_bytes: int, now: float) -> None:
        pass

    def next_read(self, now: float, has_room: Callable[[int], bool]) -> ToRead | None:
        return None

    def read_failed(self, key: bytes) -> None:
        pass
