"""A policy for tests: evict the leaf that was used longest ago, write everything behind."""

from collections import OrderedDict
from collections.abc import Sequence

from forebay.pool.policy.contract import Place, Policy


class OldestFirst(Policy):
    def __init__(self) -> None:
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        self._parents: dict[bytes, bytes | None] = {}
        self._children: dict[bytes, int] = {}
        self._pins: dict[bytes, int] = {}
        self._unwritten: OrderedDict[bytes, None] = OrderedDict()
        self._offered: set[bytes] = set()

    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        for key in reversed(keys[:found]):
            if key in self._places:
                self._places.move_to_end(key)

    def stored(self, key: bytes, parent: bytes | None, place: Place, now: float) -> None:
        self._places[key] = place
        self._parents[key] = parent
        self._unwritten[key] = None
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1

    def removed(self, key: bytes) -> None:
        del self._places[key]
        parent = self._parents.pop(key)
        if parent is not None:
            self._children[parent] -= 1
        self._pins.pop(key, None)
        self._unwritten.pop(key, None)
        self._offered.discard(key)

    def pin(self, *keys: bytes) -> None:
        for key in keys:
            self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, key: bytes) -> None:
        self._pins[key] -= 1

    def declines(self, key: bytes, parent: bytes | None, now: float, size_class: int = 0) -> bool:
        return False

    def victim(
        self, now: float, size_class: int = 0, *, spare_unwritten: bool = False
    ) -> bytes | None:
        for key, place in self._places.items():
            busy = self._pins.get(key) or self._children.get(key)
            dirty = spare_unwritten and (key in self._unwritten or key in self._offered)
            if place.size_class == size_class and not busy and not dirty:
                return key
        return None

    @property
    def queued_bytes(self) -> int:
        return sum(self._places[key].size_bytes for key in self._unwritten)

    def on_disk(self, key: bytes, present: bool) -> None:
        if present:
            self._unwritten.pop(key, None)
        self._offered.discard(key)

    def write_failed(self, key: bytes) -> None:
        self._offered.discard(key)

    def next_write(self, now: float, *, idle: bool = False) -> bytes | None:
        if not self._unwritten:
            return None
        key, _ = self._unwritten.popitem(last=False)
        self._offered.add(key)
        return key

    def region_evicted(self, size_bytes: int, read_bytes: int, now: float) -> None:
        pass
