"""The chunks in DRAM as columns of numbers: a row each, used again when its chunk has left.

Millions of chunks are a dozen objects for the garbage collector, and about 150 bytes each, the key
and its place in the dictionary included.
"""

from array import array
from typing import Final

from forebay.pool.policy.contract import Place

NONE: Final = -1
# Flags of a chunk.
ON_DISK: Final = 1
OFFERED: Final = 2  # to be written: the pool has it in its queue
REFUSED: Final = 4  # not to be written
QUEUED: Final = 8  # to be decided


class Forest:
    """Rows and who continues whom. A row's parent is NONE where it is not in DRAM."""

    def __init__(self) -> None:
        self.row_of: dict[bytes, int] = {}
        self.key: list[bytes] = []
        self.parent = array("i")
        self.children = array("i")  # in DRAM
        self.visit = array("i")  # that touched it last
        self.lane = array("i")
        self.pins = array("i")
        self.flags = bytearray()
        self.places: list[Place] = []  # by lane
        self.queued_bytes = 0  # of chunks that are QUEUED
        self._free: list[int] = []
        # Chunks that came before their parent, which is on disk; almost always empty.
        self._early: dict[bytes, list[bytes]] = {}

    def add(self, key: bytes, parent: bytes | None, lane: int) -> int:
        """A row for a new chunk; its visit is NONE."""
        above = NONE if parent is None else self.row_of.get(parent, NONE)
        if self._free:
            row = self._free.pop()
            self.key[row], self.parent[row], self.lane[row] = key, above, lane
            self.children[row] = self.pins[row] = 0
            self.visit[row] = NONE
        else:
            row = len(self.key)
            self.key.append(key)
            self.parent.append(above)
            self.children.append(0)
            self.visit.append(NONE)
            self.lane.append(lane)
            self.pins.append(0)
            self.flags.append(0)
        self.row_of[key] = row
        if above != NONE:
            self.children[above] += 1
        elif parent is not None:
            self._early.setdefault(parent, []).append(key)
        if self._early:
            self._adopt(key, row)
        return row

    def drop(self, key: bytes) -> tuple[int, int]:
        """Forget a chunk: its old row and its parent's. What continued it has no parent now."""
        row = self.row_of.pop(key)
        above = self.parent[row]
        if self.children[row]:
            self._orphan(row)
        if above != NONE:
            self.children[above] -= 1
        self.mark(row, 0)
        self._free.append(row)
        return row, above

    def mark(self, row: int, flags: int) -> None:
        """Give a chunk other flags."""
        was_queued, is_queued = self.flags[row] & QUEUED, flags & QUEUED
        if was_queued != is_queued:
            size_bytes = self.places[self.lane[row]].size_bytes
            self.queued_bytes += size_bytes if is_queued else -size_bytes
        self.flags[row] = flags

    def is_path(self, rows: list[int]) -> bool:
        """Whether each row's parent is the row before it."""
        return list(map(self.parent.__getitem__, rows[1:])) == rows[:-1]

    def _adopt(self, key: bytes, row: int) -> None:
        for child in self._early.pop(key, ()):
            below = self.row_of.get(child, NONE)
            if below != NONE and self.parent[below] == NONE:
                self.parent[below] = row
                self.children[row] += 1

    def _orphan(self, row: int) -> None:
        """Out of the ordinary (a chunk found damaged): a walk over all rows is fair."""
        key = self.key[row]
        for below in self.row_of.values():
            if self.parent[below] == row:
                self.parent[below] = NONE
                self._early.setdefault(key, []).append(self.key[below])
        self.children[row] = 0
