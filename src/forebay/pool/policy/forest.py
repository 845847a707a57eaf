"""The chunks in DRAM as columns of numbers: one row each, reused after its chunk has left.

So millions of chunks are only a dozen objects for the garbage collector, and take about 150 bytes
each, including the key and its place in the dictionary.
"""

from array import array
from typing import Final

NONE: Final = -1
# A chunk's flag for one lower tier. At most one is set.
HELD: Final = 1  # the tier has it
OFFERED: Final = 2  # being written: the pool has it in its queue
REFUSED: Final = 4  # not to be written
QUEUED: Final = 8  # waits for a decision
# What would be lost if a chunk left DRAM.
UNSAVED: Final = 0  # the chunk: no lower tier has it or will have it
PENDING: Final = 1  # the chunk, which is to be written to the nearest lower tier
SAVED: Final = 2  # nothing: a lower tier has it
SAFETIES: Final = 3


class Forest:
    """Rows, and which continues which, without circles. A parent that is not in DRAM is NONE."""

    def __init__(self, tiers: int) -> None:
        self.row_of: dict[bytes, int] = {}
        self.key: list[bytes] = []
        self.parent = array("i")
        self.children = array("i")  # number of children in DRAM
        self.visit = array("i")  # the visit that touched it last
        self.size_class = array("i")  # index into `slot_bytes`
        self.pins = array("i")
        self.reused = bytearray()  # 1: a request has asked for it since it was computed
        self.flags = [bytearray() for _ in range(tiers)]  # flags, by lower tier
        self.safety = bytearray()  # UNSAVED, PENDING or SAVED, from the flags of all tiers
        self.slot_bytes: list[int] = []  # by size class
        self.queued_bytes = 0  # of chunks waiting for a decision that are in no lower tier
        self._is_queued = bytearray()  # 1: counted there
        self._free: list[int] = []
        # Parent → children that came first, since a lower tier has the parent; almost always empty.
        self._early: dict[bytes, list[bytes]] = {}

    def add(self, key: bytes, parent: bytes | None, size_class: int) -> int:
        """A row for a new chunk, with no visit yet."""
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
        """Forget a chunk; returns its old row and its parent's. Its children have no parent now."""
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
        """Set a chunk's flags for one tier."""
        self.flags[tier][row] = flags
        self._judge(row)

    def size_of(self, row: int) -> int:
        """The size of a chunk's slot."""
        return self.slot_bytes[self.size_class[row]]

    def is_path(self, rows: list[int]) -> bool:
        """Whether each row's parent is the row before it."""
        return list(map(self.parent.__getitem__, rows[1:])) == rows[:-1]

    def _judge(self, row: int) -> None:
        """Set what would be lost with a chunk, from its flags for all tiers."""
        flags = 0
        for column in self.flags:
            flags |= column[row]
        # Only the nearest tier is waited for; a further copy holds up nothing.
        pending = self.flags[0][row] & (OFFERED | QUEUED) if self.flags else 0
        self.safety[row] = SAVED if flags & HELD else PENDING if pending else UNSAVED
        is_queued = pending == QUEUED and not flags & HELD
        if is_queued != self._is_queued[row]:
            self._is_queued[row] = is_queued
            self.queued_bytes += self.size_of(row) if is_queued else -self.size_of(row)

    def _adopt(self, key: bytes, row: int) -> None:
        """Give a chunk its children that came first, unless that would make a circle.

        True records form no circle, but a forged one may name any parent; no chunk of a circle
        could ever leave.
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
        """A row and all its ancestors."""
        path = set()
        while row != NONE:
            path.add(row)
            row = self.parent[row]
        return path

    def _orphan(self, row: int) -> None:
        """Detach a row's children. This is rare (a damaged chunk), so it may walk over all rows."""
        key = self.key[row]
        for below in self.row_of.values():
            if self.parent[below] == row:
                self.parent[below] = NONE
                self._early.setdefault(key, []).append(self.key[below])
        self.children[row] = 0
