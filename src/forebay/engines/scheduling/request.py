"""One request of the engine, as the scheduler's side follows it."""

from typing import Any, Final

from forebay.engines.copies.contract import Piece
from forebay.engines.geometry import Geometry
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.pool.messages import Found, Promise

OFFER_CHUNKS_MAX: Final = 1 << 16


class TrackedRequest:
    """What is known of a request.

    Chunks [0, stored) are in the pool or will not be stored by us; [stored, offered) have been
    offered and are not answered yet; what follows is not computed yet.
    """

    __slots__ = (
        "asked",
        "asked_at",
        "asked_first",
        "blocks",
        "chain",
        "computed",
        "failed",
        "found",
        "has_missed",
        "is_short",
        "keys",
        "loading",
        "looked_up_at",
        "number",
        "offer_at",
        "offer_chunks",
        "offered",
        "promise",
        "request",
        "root",
        "shape",
        "stored",
        "streamed",
        "wants_load",
        "wants_store",
    )

    def __init__(self, request: Any, shape: Geometry, root: ChainRoot) -> None:
        self.request = request
        self.shape = shape
        self.root = root
        self.chain = KeyChain(root)
        self.keys: list[bytes] = []
        self.blocks: list[int] = []
        self.number = 0  # of its lookup in the pool; 0: none
        self.looked_up_at = 0.0  # monotonic
        self.found: Found | None = None
        self.asked = False
        self.asked_at = 0.0  # monotonic
        self.asked_first = 0  # the chunk from which on it asked
        self.computed = 0  # tokens that the engine had itself when it last asked
        self.promise: Promise | None = None
        self.streamed: dict[int, int] = {}  # chunk → slot, or -1: came after the promise
        self.loading: Loading | None = None
        self.failed = False  # a load failed: recompute, and do not ask again
        self.has_missed = False  # its miss is counted
        self.is_short = False  # too few tokens to ask for
        self.wants_load = True
        self.wants_store = True
        self.stored = 0
        self.offered = 0
        self.offer_at = 0.0  # monotonic; not before, since there was no slot
        self.offer_chunks = OFFER_CHUNKS_MAX  # at once; few where there was no slot

    @property
    def ready(self) -> int:
        """Chunks, from the first, that lay in the pool's DRAM when it was last heard of."""
        return self.found.ready if self.found is not None else 0

    def extend(self) -> None:
        """Make keys of all whole chunks whose tokens are known."""
        size = self.shape.chunk_tokens
        tokens = self.request.all_token_ids
        known, whole = len(self.keys) * size, len(tokens) // size * size
        if whole > known:
            self.keys += self.chain.extend(tokens[known:whole])

    def piece(self, chunk: int, offset: int) -> Piece:
        """A whole chunk, where it lies in the KV cache now."""
        per_chunk = self.shape.chunk_blocks
        return Piece(offset, 0, self.blocks[chunk * per_chunk : (chunk + 1) * per_chunk])

    def forget_lookup(self) -> None:
        """As if it had never been looked up."""
        self.number = 0
        self.found = None
        self.asked = False
        self.promise = None
        self.streamed = {}


class Loading:
    """A load on its way: which blocks of the request each promised chunk fills."""

    __slots__ = (
        "arrived",
        "blocks",
        "deadline",
        "failed",
        "first",
        "from_block",
        "generation",
        "is_told",
        "stop",
        "told",
    )

    def __init__(
        self, promise: Promise, blocks: list[int], from_block: int, deadline: float
    ) -> None:
        self.first = promise.first
        self.stop = promise.first + promise.total
        self.generation = promise.generation
        self.blocks = blocks  # ids of all blocks of the request, to the end of the load
        self.from_block = from_block  # blocks before it are the engine's own
        self.deadline = deadline  # monotonic; what has not arrived by then has failed
        self.arrived: dict[int, int] = {
            promise.first + number: offset for number, offset in enumerate(promise.offsets)
        }  # chunk → slot, not yet told to the workers
        self.told: set[int] = set()  # chunks that the workers know of
        self.failed = False
        self.is_told = False  # the workers know that nothing more will come

    def take(self, streamed: dict[int, int]) -> None:
        """What came after the promise: slots, and chunks that cannot be had."""
        for chunk, offset in streamed.items():
            if offset >= 0:
                self.arrived[chunk] = offset
            else:
                self.fail(chunk)
        streamed.clear()

    def fail(self, chunk: int) -> None:
        """A chunk, and so what follows it, cannot be had."""
        self.failed = True
        self.stop = min(self.stop, chunk)

    def fail_missing(self) -> None:
        """What has not arrived will not."""
        missing = set(range(self.first, self.stop)) - self.told - set(self.arrived)
        if missing:
            self.fail(min(missing))

    def fail_untold(self) -> None:
        """What the workers have not been told of, they will not be."""
        self.arrived.clear()
        self.fail_missing()

    def take_pieces(self, shape: Geometry) -> tuple[list[Piece], list[int]]:
        """What has arrived since the last call, and which chunks of the request these are."""
        per_chunk = shape.chunk_blocks
        pieces = []
        for chunk, offset in sorted(self.arrived.items()):
            start = max(chunk * per_chunk, self.from_block)
            stop = min((chunk + 1) * per_chunk, len(self.blocks))
            if chunk < self.stop and start < stop:
                pieces.append(Piece(offset, start - chunk * per_chunk, self.blocks[start:stop]))
        chunks = sorted(self.arrived)
        self.told.update(chunks)
        self.arrived.clear()
        self.is_told = self.told.issuperset(range(self.first, self.stop))
        return pieces, chunks

    def failed_blocks(self, shape: Geometry) -> list[int]:
        """Blocks that will not be filled."""
        if not self.failed:
            return []
        return self.blocks[max(self.stop * shape.chunk_blocks, self.from_block) :]
