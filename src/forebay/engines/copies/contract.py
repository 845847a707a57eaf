"""What is copied, and what every way of copying promises.

Each forward pass writes the KV cache; a block that was freed may be written by the forward of the
very step that learns of it. So:

* `begin` runs before the forward of every step. A store reads beside forwards: nobody writes the
  whole blocks of a request that lives. In a step built after blocks were *freed*, they may be
  anyone's: they are read, if a step was to store them, before that forward writes anything. Later
  stores, which read other blocks, hold nobody up.
* A store of step N reads what forwards before N wrote, never what N writes. One whose
  blocks are free already (`is_freed`) is read before the forward of N writes.
* A load of step N writes after every forward before N has read, and after every store has read
  whose blocks may have been freed by then: they may be the load's now.
* Loads go before stores. A load or a store is done when its bytes are there, not before; a store
  is told of with the digest of what lies in its slot then.
* The engine hears of a load when it is *coming*, which is soon done, and may give its blocks to a
  forward, or, if its request has ended, to anyone. So the forward of every step that was built
  after the engine heard of it waits for it (`await_loads`): whoever uses or writes these blocks is
  of such a step. Its slots are read until it is done. One that is coming does not fail any more.

On a GPU nobody waits for this but the GPU: streams wait for one another's events. Here blocks were
freed before N that had last been stored in step F:

    compute   ──forward N-1──┬─computed──┬─(waits for stores ≤ F, freed N)──forward N──
    stores                   └──────────►│ wait computed, copy N ─────────────────────► event
    loads                                └ wait computed, stores ≤ F, freed N, copy ──► event

The processor waits only until what must come before the forward has been *submitted*: an event
that is not recorded yet cannot be waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from forebay.sys.shared import Segment

Bytes: TypeAlias = Any  # a numpy array of uint8
DOES_NOT_FIT: Final = b"raw"  # instead of a digest: the record does not fit encoded; store it raw


class Piece(NamedTuple):
    """Part of one record: whole blocks that lie in the slab and in the engine's KV cache."""

    offset: int  # of the record's slot in the slab
    first: int  # the first of these blocks, counted in the record
    blocks: list[int]  # ids in the engine's KV cache
    group: int = 0
    size: int = 0  # blocks of the whole record; 0: all of a chunk
    others: tuple[list[int], ...] = ()  # block ids in the group's other block tables
    is_encoded: bool = False  # its pages are encoded in the slot (`record.exponents`)

    @property
    def tables(self) -> tuple[list[int], ...]:
        """Ids in every block table of the group."""
        return (self.blocks, *self.others)


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Pieces to be copied into the KV cache for one request."""

    request: str
    generation: int  # of the slab that the offsets are of
    pieces: list[Piece]
    is_last: bool  # nothing more will come for this request
    failed: list[int] = field(default_factory=list)  # blocks that cannot be loaded after all
    serial: int = 0  # by which a worker reports it as copied


class Store(NamedTuple):
    """One record to be copied out of the KV cache."""

    generation: int
    piece: Piece
    is_freed: bool = False  # its blocks are free: the next forward may write them
    serial: int = 0  # by which a worker reports it


@dataclass(frozen=True, slots=True)
class WorkerSlab:
    """A slab as this worker sees it."""

    generation: int
    memory: Bytes
    arena_bytes: int  # no slot straddles a multiple of it
    cap_bytes: int  # usable bytes from its start, until segments are added
    given_back: frozenset[int] = frozenset()  # arenas that the pool no longer uses; see Welcome
    slot_bytes: int = 0  # size of our slots, or a multiple of all their sizes
    shard: int = 0  # the number of this worker's shard in every slot
    widest: tuple[int, ...] = ()  # by group, a block's bytes in the largest shard; empty: one shard
    segments: tuple[Segment, ...] = ()  # that it consists of, so that another process can map them


@dataclass(slots=True)
class FinishedCopies:
    """What has ended, or begun to come, since the last call of `take_done`."""

    stored: list[tuple[Store, bytes]] = field(default_factory=list)  # with their digests
    missed: list[Store] = field(default_factory=list)  # not copied, and not being copied
    coming: list[LoadPart] = field(
        default_factory=list
    )  # each once, at the latest when it is loaded
    loaded: list[LoadPart] = field(default_factory=list)
    failed: list[LoadPart] = field(default_factory=list)
    store_s: float = 0.0  # device time of `stored`; 0: not known
    load_s: float = 0.0  # device time of `loaded`; 0: not known
    submit_s: float = 0.0  # time that `loaded` waited before it was submitted


class Copies(Protocol):
    """One worker's copies. Called by the thread that drives the model; no call waits for a copy.

    There is a slab from `attach` until `detach` answers True; stores and loads refer to it.
    """

    def attach(self, slab: WorkerSlab) -> None:
        """Copy to and from this slab from now on.

        If a slab is attached already, it must have the same memory and slots: what is registered
        with the GPU stays so. Before the first step another thread may call this, while nobody
        calls anything else.
        """
        ...

    def detach(self) -> bool:
        """Let go of the slab, so that it can be unmapped; False if it is in use: try again."""
        ...

    @property
    def reach_bytes(self) -> int:
        """All slots below this offset of the slab can be copied; 0: none."""
        ...

    def begin(self, step: int, stores: Sequence[Store], *, loads: bool, freed: int) -> None:
        """Begin a step, with these stores; called before its forward pass.

        `loads`: the step has loads too. `freed`: stores of steps up to this one may read blocks
        that were freed since the step before; 0: none does.
        """
        ...

    def load(self, load: LoadPart) -> None:
        """Copy into blocks that belong to this load alone, in a step begun with `loads`."""
        ...

    def await_loads(self, loads: Sequence[LoadPart]) -> None:
        """Make the next forward pass wait for these loads, which are coming and cannot fail."""
        ...

    def take_done(self) -> FinishedCopies:
        """What has ended, or begun to come, since the last call."""
        ...

    def close(self) -> None:
        """Let go of everything; waits a few seconds at most."""
        ...
