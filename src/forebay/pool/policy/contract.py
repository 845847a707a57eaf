"""The interface between a pool and the policy that decides what it keeps.

Promised: no I/O, no clock (`now` is passed in, seconds that never go back), no thread, no exception
for any order of calls with keys it does not know (they are ignored). Assumed: one thread calls.

The policy knows the chunks that lie in DRAM, as a forest: each has a parent or stands alone. Keys
are opaque; the pool owns slots, bytes and the index, and the policy owns its estimates alone. The
tiers below DRAM are numbers, 0 for the one right beneath it.

What the pool does, and in which order:

1. A request arrives: `requested(keys, found, now)`, once, with its whole chain. When its answer has
   ended, `ended` with the last key of that chain; where nobody tells, the policy does without.
2. A chunk becomes readable in DRAM, committed by an engine or promoted from a lower tier: `stored`.
   If lower tiers have it as well: `in_tiers` right after.
3. A slot is wanted and none is free: for what an engine offers, `declines` first; then `victim`;
   the pool frees that chunk's slot and says `removed`. A victim stays in the policy until then. The
   parent of a chunk that is being copied into a reserved slot is pinned until commit or abort; so
   is what is being loaded, read or written.
4. A tier's write queue has room: `next_write` of that tier until it answers None; a write that is
   done is told by `in_tiers`, one that failed or was dropped by `write_failed`, one that the tier
   may take later by `write_again`. While a tier takes nothing its writes are held: `hold_writes`.
5. A tier that is read from has nothing to do: `next_read` until it answers None. What is read is
   told as in 2, what cannot be read by `read_failed`; a victim leaves as in 3, or nothing is read.
6. A tier evicts: `in_tiers` for what it held and is in DRAM, then `evicted` with the sum.

No prefix is left with a hole: a victim never has a child in DRAM, and `next_write` offers a chunk
only after its parent is in that tier or was offered to it and has not failed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple


class Ending(NamedTuple):
    """How an answer ended, and what its caller said of the dialog, all within bounds."""

    kind: int = 0  # its class, see `forebay.identity.endings`
    session: bytes = b""  # hash of the caller's name for the dialog
    returns_in_s: float = 0.0  # the caller's hint; 0: none
    keep_s: float = 0.0
    priority: int = 0


class ToRead(NamedTuple):
    """A chunk that is worth reading from a lower tier before it is asked for."""

    key: bytes
    victim: bytes | None  # the chunk to evict for it; None: there is a free slot
    chain: bytes  # the last key of the chain that it belongs to


class Policy(ABC):
    """The decisions of one pool. Every method answers at once; a decision takes microseconds."""

    @abstractmethod
    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        """A request asked for this chain, root first; the first `found` are in some tier."""

    @abstractmethod
    def ended(self, key: bytes, ending: Ending, now: float) -> None:
        """The answer ended to the last request whose chain ends with `key`."""

    @abstractmethod
    def stored(self, key: bytes, parent: bytes | None, slot_bytes: int, now: float) -> None:
        """`key` is readable in DRAM. A parent that only a lower tier has may come later.

        Chunks whose slots have one size replace one another.
        """

    @abstractmethod
    def removed(self, key: bytes) -> None:
        """`key` left DRAM, for any reason; its pins are forgotten."""

    @abstractmethod
    def pin(self, *keys: bytes) -> None:
        """Name these as victims only after as many calls of `unpin` as of `pin`."""

    @abstractmethod
    def unpin(self, key: bytes) -> None:
        """Take back one `pin`."""

    @abstractmethod
    def declines(self, key: bytes, parent: bytes | None, now: float, slot_bytes: int) -> bool:
        """Whether a newcomer is worth less than whatever would be evicted for it.

        `key` is the first chunk that needs a slot, of those that a request stores at once, and
        `parent` the one before it; neither need be known. False asks the pool to make room.
        """

    @abstractmethod
    def victim(self, now: float, slot_bytes: int, *, spare_unwritten: bool = False) -> bytes | None:
        """The least valuable chunk of this size that is not pinned and has no child in DRAM.

        With `spare_unwritten`, chunks that are to be written and that no lower tier has yet are
        left alone; None then asks the pool to write first (`next_write` offers them at once). While
        the policy lets nothing be written, for want of a budget, they are not left alone.
        """

    @abstractmethod
    def in_tiers(self, key: bytes, tiers: Collection[int]) -> None:
        """The lower tiers that have this chunk now, all of them."""

    @abstractmethod
    def write_failed(self, key: bytes, tier: int) -> None:
        """What `next_write` offered was not written: do not offer it, nor what continues it."""

    @abstractmethod
    def write_again(self, key: bytes, tier: int, now: float) -> None:
        """What `next_write` offered was not written: offer it once more."""

    @abstractmethod
    def hold_writes(self, tier: int, *, held: bool) -> None:
        """A tier accepts nothing until told otherwise; what waits for it holds up nothing."""

    @abstractmethod
    def next_write(self, tier: int, now: float, *, idle: bool = False) -> bytes | None:
        """The chunk to write to a tier next, parents first; None if nothing is to be written now.

        `idle` says that the tier has nothing better to do: then recently used chunks are offered,
        too.
        """

    @abstractmethod
    def next_read(self, now: float, has_room: Callable[[int], bool]) -> ToRead | None:
        """The chunk to read from lower tiers before it is asked for, or None.

        `has_room` tells whether there is a free slot of a size, for which nothing need leave.
        """

    @abstractmethod
    def read_failed(self, key: bytes) -> None:
        """What `next_read` offered was not read: do not offer what continues it."""

    @property
    @abstractmethod
    def queued_bytes(self) -> int:
        """Slot bytes that `victim` spares because `next_write` is to offer their chunks."""

    @abstractmethod
    def evicted(self, tier: int, size_bytes: int, read_bytes: int, now: float) -> None:
        """A tier evicted so many bytes, of which `read_bytes` were loaded at least once."""
