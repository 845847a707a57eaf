"""The life of one request's load, from lookup to the last byte: states, and who may change them.

    NONE ──look_up──► LOOKED_UP ──Found──► FOUND ──ask──► ASKED ──Promise──► PROMISED
     ▲                    │                  │              │                   │
     ├──── forget (cancelled, or the session is lost) ──────┴───────────────────┤
     │                                                                          │ allocated
     ├──── ended, well ◄──── TOLD ◄── the workers know all of it ── LOADING ◄───┘
     └──x  FAILED ◄── ended, badly (from LOADING or TOLD), or no promise in time

`Lookups` causes the transitions up to PROMISED, `EngineLoads` those behind it. Both call methods of
`RequestLoad`, which alone writes its state.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum, auto

from forebay.engines.copies.contract import Piece
from forebay.engines.geometry import Geometry
from forebay.engines.groups import PrefixHit, needed_blocks, piece_of
from forebay.pool.messages import Found, Promise


class RequestLoadState(IntEnum):
    """How far a request's load has come; from ASKED on the engine waits instead of computing."""

    NONE = auto()  # not looked up, or not any more
    FAILED = auto()  # recompute; this request is not looked up any more
    LOOKED_UP = auto()  # the pool has not said what it knows
    FOUND = auto()  # the pool has said what it knows
    ASKED = auto()  # the pool has not promised yet
    PROMISED = auto()  # promised; the scheduler has not allocated blocks yet
    LOADING = auto()  # blocks are allocated; the workers are told part by part
    TOLD = auto()  # the workers were told of all that will come


# Before Python 3.12, reading a member through its class costs ten times as much.
NONE, FAILED, LOOKED_UP, FOUND, ASKED, PROMISED, LOADING, TOLD = RequestLoadState


class RequestLoad:
    """One request's load. Owned by the scheduler's thread."""

    __slots__ = (
        "asked_at",
        "asked_hit",
        "computed",
        "first",
        "found",
        "has_missed",
        "hit",
        "is_coming",
        "is_short",
        "is_wanted",
        "keys",
        "looked_up_at",
        "number",
        "progress",
        "promise",
        "raw",
        "sources",
        "state",
        "streamed",
    )

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted  # False: this request loads nothing
        self.state = NONE
        self.number = 0  # of its lookup in the pool; 0: none
        self.looked_up_at = 0.0  # monotonic
        self.is_coming = False  # in LOOKED_UP: the pool waits for chunks that are being stored
        self.found: Found | None = None  # from FOUND on
        self.hit = PrefixHit()  # from FOUND on: what all groups can serve of it
        self.asked_at = 0.0  # monotonic
        self.first = 0  # the first chunk that it asked for
        self.asked_hit = PrefixHit()  # the hit it asked for, with the chunks it has itself
        self.keys: Sequence[bytes] = ()  # of the records of that hit
        self.computed = 0  # tokens that the engine had itself when the scheduler last asked
        self.promise: Promise | None = None  # from PROMISED on
        self.streamed: dict[int, int] = {}  # chunk → slot, or -1: came after the promise
        self.sources: dict[int, int] = {}  # position in that hit → lower tier that it came from
        self.raw: set[int] = set()  # positions in that hit whose records are raw
        self.progress: LoadProgress | None = None  # in LOADING and TOLD
        self.has_missed = False  # its miss is counted
        self.is_short = False  # too few tokens to ask for

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a promise or for blocks."""
        return self.state is ASKED or self.state is PROMISED

    @property
    def is_loading(self) -> bool:
        """Whether blocks are being loaded, and the engine waits for that."""
        return self.state is LOADING or self.state is TOLD

    @property
    def known(self) -> int:
        """Chunks, counted from the first, that are in any tier and that all groups can serve."""
        return self.hit.chunks

    @property
    def ready(self) -> int:
        """Chunks, counted from the first, that were in the pool's DRAM by its last answer."""
        return min(self.hit.chunks, self.found.ready) if self.found is not None else 0

    # Lookups.

    def look_up(self, number: int, now: float) -> None:
        """NONE → LOOKED_UP."""
        assert self.state is NONE
        self.state, self.number, self.looked_up_at = LOOKED_UP, number, now
        self.is_coming = False

    @property
    def may_find(self) -> bool:
        """Whether a further Found still matters, since it has not asked yet."""
        return self.state is LOOKED_UP or self.state is FOUND

    def take_found(self, found: Found, hit: PrefixHit) -> None:
        """LOOKED_UP or FOUND → FOUND."""
        assert self.may_find
        self.state, self.found, self.hit = FOUND, found, hit

    def ask(self, first: int, hit: PrefixHit, keys: Sequence[bytes], now: float) -> None:
        """FOUND → ASKED."""
        assert self.state is FOUND
        self.state, self.first, self.asked_at = ASKED, first, now
        self.asked_hit, self.keys = hit, keys
        self.sources, self.raw = {}, set()

    def take_promise(self, promise: Promise) -> None:
        """ASKED → PROMISED; a promise that it does not wait for changes nothing."""
        if self.state is ASKED:
            self.state, self.promise = PROMISED, promise

    def forget(self) -> None:
        """→ NONE, as if it had never been looked up; a load that has begun goes on."""
        if not (self.is_loading or self.state is FAILED):
            self.state = NONE
        self.number = 0
        self.found = self.promise = None
        self.hit = PrefixHit()
        self.streamed = {}

    def fail(self) -> None:
        """→ FAILED."""
        self.state = FAILED

    def session_changed(self) -> None:
        """Another pool, or none: a load that has begun gets only what the workers know of."""
        self.forget()
        if self.progress is not None:
            self.progress.fail_untold()

    # EngineLoads.

    def begin(self, progress: "LoadProgress") -> None:
        """PROMISED → LOADING. From any other state too: the engine waits, if only for a failure."""
        self.state, self.progress = LOADING, progress

    def take_told(self) -> None:
        """LOADING → TOLD."""
        assert self.state is LOADING
        self.state = TOLD

    def end(self, *, failed: bool) -> "LoadProgress":
        """LOADING or TOLD → NONE or FAILED; returns how far the load had come."""
        progress, self.progress = self.progress, None
        assert progress is not None
        self.state = FAILED if failed or progress.failed else NONE
        return progress


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The blocks that a hit is loaded into."""

    shape: Geometry
    hit: PrefixHit
    tables: Sequence[Sequence[int]]  # of the request, by the engine's numbers
    computed: int  # tokens that the engine has itself
    stop: int  # where the load ends, in tokens
    raw: AbstractSet[int] = frozenset()  # positions whose records are raw

    def pieces(self, arrived: Iterable[tuple[int, int]]) -> Iterator[Piece]:
        """The wanted pieces of records that have arrived, given their positions and slots."""
        groups, wanted = self.shape.groups, [*map(self._wanted, range(len(self.shape.groups)))]
        for position, offset in arrived:
            record = self.hit.record_at(position)
            number = record[0]
            is_encoded = groups[number].is_encoded and position not in self.raw
            piece = piece_of(
                self.shape,
                record,
                self.tables,
                wanted[number],
                is_encoded=is_encoded,
                offset=offset,
            )
            if piece is not None:
                yield piece

    def blocks(self, stop: int) -> list[int]:
        """The blocks that stay unfilled if nothing from this position on arrives."""
        found: list[int] = []
        for number, group in enumerate(self.shape.groups):
            wanted = self._wanted(number)
            cut = min(stop, self.hit.chunks) * group.chunk_blocks if number == 0 else 0
            for table in group.tables:
                found += self.tables[table][max(cut, wanted.start) : wanted.stop]
        return found

    def _wanted(self, number: int) -> range:
        """The wanted blocks of a group, counted from the request's first."""
        group = self.shape.groups[number]
        needed = needed_blocks(group, self.hit.chunks)
        own, stop = self.computed // group.block_tokens, self.stop // group.block_tokens
        return range(max(own, needed.start), min(stop, needed.stop))


class LoadProgress:
    """Which records of a promise have arrived, which the workers know, and which are lost."""

    __slots__ = (
        "arrived",
        "deadline",
        "failed",
        "first",
        "generation",
        "stop",
        "target",
        "told",
    )

    def __init__(self, promise: Promise, target: LoadTarget, deadline: float) -> None:
        self.first = promise.first
        self.stop = promise.first + promise.total
        self.generation = promise.generation
        self.target = target
        self.deadline = deadline  # monotonic; what has not arrived by then has failed
        self.arrived: dict[int, int] = {
            promise.first + number: offset for number, offset in enumerate(promise.offsets)
        }  # position in the hit → slot, not yet told to the workers
        self.told: set[int] = set()  # positions that the workers know of
        self.failed = False

    @property
    def is_complete(self) -> bool:
        """Whether the workers know of every chunk that will come."""
        return self.told.issuperset(range(self.first, self.stop))

    def take(self, streamed: dict[int, int]) -> None:
        """Take over what came after the promise: slots, and chunks that failed."""
        for chunk, offset in streamed.items():
            if offset >= 0:
                self.arrived[chunk] = offset
            else:
                self.fail(chunk)
        streamed.clear()

    def fail(self, chunk: int) -> None:
        """A chunk failed, and with it what follows it."""
        self.failed = True
        self.stop = min(self.stop, chunk)

    def fail_missing(self) -> None:
        """Give up every chunk that has not arrived, and what follows the first of them."""
        missing = set(range(self.first, self.stop)) - self.told - set(self.arrived)
        if missing:
            self.fail(min(missing))

    def fail_untold(self) -> None:
        """Give up every chunk that the workers were not told of."""
        self.arrived.clear()
        self.fail_missing()

    def take_pieces(self) -> tuple[list[Piece], list[int]]:
        """The pieces that have arrived since the last call, and the positions of their records."""
        arrived = sorted(self.arrived.items())
        pieces = [*self.target.pieces(each for each in arrived if each[0] < self.stop)]
        positions = [position for position, _ in arrived]
        self.told.update(positions)
        self.arrived.clear()
        return pieces, positions

    def failed_blocks(self) -> list[int]:
        """The blocks that will not be filled."""
        return self.target.blocks(self.stop) if self.failed else []
