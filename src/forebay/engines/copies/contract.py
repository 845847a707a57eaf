"""What is copied, and what every way of copying promises.

The KV cache is written by the engine's forward, step by step; a block that was freed may be
written by the forward of the very step that learns of it. So:

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
DOES_NOT_FIT: Final = b"raw"  # instead of a digest: it was to be encoded, and cannot be


class Piece(NamedTuple):
    """Part of one record: whole blocks that lie in the slab and in the engine's KV cache."""

    offset: int  # of the record's slot in the slab
    first: int  # the first of these blocks, counted in the record
    blocks: list[int]  # ids in the engine's KV cache
    group: int = 0
    size: int = 0  # blocks that the whole record has; 0: those of a chunk
    others: tuple[list[int], ...] = ()  # likewise, in the other block tables of the group
    is_encoded: bool = False  # in its slot each page is (`forebay.record.exponents`)

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
    cap_bytes: int  # what there is of it, from its start, unless segments are added
    given_back: frozenset[int] = frozenset()  # arenas that the pool uses no more; see Welcome
    slot_bytes: int = 0  # of all slots that we use, or a multiple of them all
    shard: int = 0  # the number of this worker's shard in every slot
    widest: tuple[int, ...] = ()  # by group, a block in the largest shard; empty: there is only one
    segments: tuple[Segment, ...] = ()  # of which it is made, where others may map them


@dataclass(slots=True)
class FinishedCopies:
    """What has ended, or is coming, since the last time."""

    stored: list[tuple[Store, bytes]] = field(default_factory=list)  # with their digests
    missed: list[Store] = field(default_factory=list)  # not copied, and not being copied
    coming: list[LoadPart] = field(
        default_factory=list
    )  # each once, at the latest when it is loaded
    loaded: list[LoadPart] = field(default_factory=list)
    failed: list[LoadPart] = field(default_factory=list)
    store_s: float = 0.0  # that the device took for what was stored; 0 where it is not known
    load_s: float = 0.0  # likewise, loaded
    submit_s: float = 0.0  # from being told of what was loaded until it was submitted


class Copies(Protocol):
    """One worker's copies. Called by the thread that drives the model, which never waits for one.

    Between `attach` and a `detach` that answers True there is a slab; stores and loads are of it.
    """

    def attach(self, slab: WorkerSlab) -> None:
        """Copy to and from this slab from now on.

        One that is attached already must have the same memory and slots: what is registered stays.
        Before the first step, another thread may call it, and nobody anything else meanwhile.
        """
        ...

    def detach(self) -> bool:
        """Let go of the slab, so that it can be unmapped; False: not yet, ask again."""
        ...

    @property
    def reach_bytes(self) -> int:
        """Up to here, from its start, all slots of the slab can be copied; 0: none."""
        ...

    def begin(self, step: int, stores: Sequence[Store], *, loads: bool, freed: int) -> None:
        """A step begins, with these stores. Before its forward.

        `loads`: it has loads too. `freed`: up to that step stores may read blocks that were freed
        since the step before this one; 0: none does.
        """
        ...

    def load(self, load: LoadPart) -> None:
        """Copy into blocks that are this load's alone; in a step begun with `loads`."""
        ...

    def await_loads(self, loads: Sequence[LoadPart]) -> None:
        """The next forward begins when these are done, which were coming; it cannot fail."""
        ...

    def take_done(self) -> FinishedCopies:
        """What has ended, or is coming, since the last call."""
        ...

    def close(self) -> None:
        """Let go of everything; waits, a few seconds at most."""
        ...
