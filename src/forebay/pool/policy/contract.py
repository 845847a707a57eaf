"""The one interface between a pool and what judges for it.

Promised: no I/O, no clock (`now` is passed in, seconds that never go back), no thread, no exception
for any order of calls with keys it does not know (they are ignored). Assumed: one thread calls.

The policy knows the chunks that lie in DRAM, as a forest: each has a parent or stands alone. Keys
are opaque; the pool owns slots, bytes and the index, and the policy owns nothing but its judgement.

What the pool does, and in which order:

1. A request arrives: `requested(keys, found, now)`, once, with its whole chain.
2. A chunk becomes readable in DRAM, committed by an engine or promoted from NVMe: `stored`. If the
   NVMe tier has it as well: `on_disk(key, True)` right after.
3. A slot is wanted and none is free: for what an engine offers, `declines` first; then `victim`;
   the pool frees that chunk's slot and says `removed`. A victim stays in the policy until then. The
   parent of a chunk that is being copied into a reserved slot is pinned until commit or abort; so
   is what is being loaded, read or written.
4. The write queue has room: `next_write` until it answers None; a write that is done is
   `on_disk(key, True)`, one that failed or was dropped `write_failed(key)`.
5. A region is overwritten: `on_disk(key, False)` for what it held and is in DRAM, then
   `region_evicted` with the sum.

No prefix is left with a hole: a victim never has a child in DRAM, and `next_write` offers a chunk
only after its parent lies on disk or was offered and has not failed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk lies and whose it is; the same object may serve many chunks."""

    size_bytes: int  # of the slot
    size_class: int = 0  # slots of one class replace one another
    tenant: int = 0  # whoever has a floor of their own; small numbers, given by the pool


class Policy(ABC):
    """The judgement of one pool. Every method answers at once; a decision costs microseconds."""

    @abstractmethod
    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        """A request asked for this chain, root first; the first `found` are in some tier."""

    @abstractmethod
    def stored(self, key: bytes, parent: bytes | None, place: Place, now: float) -> None:
        """`key` is readable in DRAM. A parent that is only on disk may come later."""

    @abstractmethod
    def removed(self, key: bytes) -> None:
        """`key` left DRAM, for whatever reason; its pins are forgotten."""

    @abstractmethod
    def pin(self, *keys: bytes) -> None:
        """No victims until as many `unpin` as `pin`."""

    @abstractmethod
    def unpin(self, key: bytes) -> None:
        """One pin less."""

    @abstractmethod
    def declines(self, key: bytes, parent: bytes | None, now: float, size_class: int = 0) -> bool:
        """Whether a newcomer is worth less than whatever would leave for it.

        `key` is the first chunk, of those a request stores at once, that needs a slot, and `parent`
        the one before it; neither need be known. False asks the pool to make room.
        """

    @abstractmethod
    def victim(
        self, now: float, size_class: int = 0, *, spare_unwritten: bool = False
    ) -> bytes | None:
        """The least valuable chunk of this class that is not pinned and has no child in DRAM.

        With `spare_unwritten`, chunks that are meant for the disk and are not there yet are left
        alone; None then asks the pool to write first (`next_write` offers them at once). While the
        policy lets nothing be written, whatever is meant for the disk, they are not.
        """

    @abstractmethod
    def on_disk(self, key: bytes, present: bool) -> None:
        """The NVMe tier has this chunk, or has it no longer."""

    @abstractmethod
    def write_failed(self, key: bytes) -> None:
        """What `next_write` offered was not written; it and what continues it are not offered."""

    @abstractmethod
    def next_write(self, now: float, *, idle: bool = False) -> bytes | None:
        """The chunk to write to NVMe next, parents first; None when nothing is to be written now.

        `idle` says that the drive has nothing better to do: hot chunks are offered as well.
        """

    @property
    @abstractmethod
    def queued_bytes(self) -> int:
        """Slots that `victim` spares because their chunks are to be offered by `next_write`."""

    @abstractmethod
    def region_evicted(self, size_bytes: int, read_bytes: int, now: float) -> None:
        """A region was overwritten: bytes of its records, and of those ever loaded."""
