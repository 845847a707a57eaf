"""The chunks in DRAM as columns of numbers: a row each, used again when its chunk has left.

Millions of chunks are a dozen objects for the garbage collector, and about 150 bytes each, the key
and its place in the dictionary included.
"""

from array import array
from typing import Final

NONE: Final = -1
# What is known of a chunk in regard to one lower tier. At most one is set.
HELD: Final = 1  # the tier has it
OFFERED: Final = 2  # to be written: the pool has it in its queue
REFUSED: Final = 4  # not to be written
QUEUED: Final = 8  # to be decided
# What is lost when a chunk leaves DRAM.
UNSAVED: Final = 0  # the chunk: no lower tier has it or will
PENDING: Final = 1  # the chunk, which is to be written to the nearest lower tier
SAVED: Final = 2  # nothing: a lower tier has it
SAFETIES: Final = 3


class Forest:
    """Rows and who continues whom, never in a circle. A parent that is not in DRAM is NONE."""

    def __init__(self, tiers: int) -> None:
        self.row_of: dict[bytes, int] = {}
        self.key: list[bytes] = []
        self.parent = array("i")
        self.children = array("i")  # in DRAM
        self.visit = array("i")  # that touched it last
        self.size_class = array("i")  # index into `slot_bytes`
        self.pins = array("i")
        self.reused = bytearray()  # 1: a request has asked for it since it was computed
        self.flags = [bytearray() for _ in range(tiers)]  # by lower tier
        self.safety = bytearray()  # UNSAVED, PENDING or SAVED, by the flags of all tiers
        self.slot_bytes: list[int] = []  # by size class
        self.queued_bytes = 0  # of chunks that wait for a decision and are in no lower tier
        self._is_queued = bytearray()  # 1: counted there
        self._free: list[int] = []
        # Chunks that came before their parent, which a lower tier has; almost always empty.
        self._early: dict[bytes, list[bytes]] = {}

    def add(self, key: bytes, parent: bytes | None, size_class: int) -> int:
        """A row for a new chunk; its visit is NONE."""
        above = NONE if parent is None else self.row_of.get(parent, NONE)
        if self._free:
            row = self._free.pop()
            self.key[row], self.parent[row], self.size_class[row] = key, above, size_class
            self.children[row] = self.pins[row] = self.reused[row] = 0
            self.visit[row] = NONE
        else:
            row = len(self.key)
            self.key.append(key)
            self.parent.append(above)
            self.children.append(0)
            self.visit.append(NONE)
            self.size_class.append(size_class)
            self.pins.append(0)
            for column in (*self.flags, self.safety, self._is_queued, self.reused):
                column.append(0)
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
        for column in self.flags:
            column[row] = 0
        self._judge(row)
        self._free.append(row)
        return row, above

    def mark(self, tier: int, row: int, flags: int) -> None:
        """Give a chunk other flags in regard to one tier."""
        self.flags[tier][row] = flags
        self._judge(row)

    def size_of(self, row: int) -> int:
        """The bytes of a chunk's slot."""
        return self.slot_bytes[self.size_class[row]]

    def is_path(self, rows: list[int]) -> bool:
        """Whether each row's parent is the row before it."""
        return list(map(self.parent.__getitem__, rows[1:])) == rows[:-1]

    def _judge(self, row: int) -> None:
        """What is lost with a chunk, by its flags in regard to all tiers."""
        flags = 0
        for column in self.flags:
            flags |= column[row]
        # Only the nearest tier is waited for: a further copy holds up nothing.
        pending = self.flags[0][row] & (OFFERED | QUEUED) if self.flags else 0
        self.safety[row] = SAVED if flags & HELD else PENDING if pending else UNSAVED
        is_queued = pending == QUEUED and not flags & HELD
        if is_queued != self._is_queued[row]:
            self._is_queued[row] = is_queued
            self.queued_bytes += self.size_of(row) if is_queued else -self.size_of(row)

    def _adopt(self, key: bytes, row: int) -> None:
        """Give a chunk those that came before it, unless it continues them: no path is a circle.

        True records form none, but a forged one may name any parent; in a circle none could leave.
        """
        early = self._early.pop(key, ())
        above = self._path_to(row) if early else set()
        for child in early:
            below = self.row_of.get(child, NONE)
            if below in above:  # verify: no circle
                continue
            if below != NONE and self.parent[below] == NONE:
                self.parent[below] = row
                self.children[row] += 1

    def _path_to(self, row: int) -> set[int]:
        """A row and all above it."""
        path = set()
        while row != NONE:
            path.add(row)
            row = self.parent[row]
        return path

    def _orphan(self, row: int) -> None:
        """Out of the ordinary (a chunk found damaged): a walk over all rows is fair."""
        key = self.key[row]
        for below in self.row_of.values():
            if self.parent[below] == row:
                self.parent[below] = NONE
                self._early.setdefault(key, []).append(self.key[below])
        self.children[row] = 0
