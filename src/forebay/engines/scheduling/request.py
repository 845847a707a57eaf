"""One request of the engine: its keys, its blocks, its load and what it has stored."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from forebay.engines.copies.contract import Piece
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.request_load import RequestLoad
from forebay.identity.keys import ChainRoot, KeyChain

OFFER_CHUNKS_MAX: Final = 1 << 16
# What lies in the tokens [first, end) of a request beside them; empty: nothing.
Parts: TypeAlias = Callable[[int, int], bytes]


class EngineRequest(Protocol):
    """What is used of an engine's own request."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Of the prompt and of what was generated."""
        ...

    def is_finished(self) -> bool:
        """Whether it has ended."""
        ...


class RequestStore:
    """How far one request's chunks are stored. Written by `EngineStores` and by these methods.

    Chunks [0, stored) are in the pool or will not be stored by us; [stored, offered) are about to
    be offered; what follows is not computed yet.
    """

    __slots__ = ("is_wanted", "offer_at", "offer_chunks", "offered", "stored")

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted  # False: nothing more of this request is stored
        self.stored = 0
        self.offered = 0
        self.offer_at = 0.0  # monotonic; not before, since there was no slot
        self.offer_chunks = OFFER_CHUNKS_MAX  # at once; few where there was no slot

    def has(self, chunks: int) -> None:
        """The pool has so many chunks, from the first."""
        self.stored = max(self.stored, chunks)

    def lacks(self, chunk: int) -> None:
        """The pool has not this chunk, nor what follows it: they are to be stored again."""
        self.stored = min(self.stored, chunk)
        self.offered = min(self.offered, chunk)


class TrackedRequest:
    """What is known of a request. Owned by the scheduler's thread."""

    __slots__ = ("blocks", "chain", "keys", "load", "parts", "request", "root", "shape", "store")

    def __init__(
        self,
        request: EngineRequest,
        shape: Geometry,
        root: ChainRoot,
        parts: Parts | None = None,
        *,
        is_shared: bool = True,
    ) -> None:
        self.request = request
        self.shape = shape
        self.root = root
        self.parts = parts  # None: it has nothing but tokens
        self.chain = KeyChain(root)
        self.keys: list[bytes] = []  # of the whole chunks whose tokens are known
        self.blocks: list[int] = []  # its block table in the group that is shared
        self.load = RequestLoad(is_wanted=is_shared)
        self.store = RequestStore(is_wanted=is_shared)

    def extend(self) -> None:
        """Make keys of all whole chunks whose tokens are known."""
        size = self.shape.chunk_tokens
        tokens = self.request.all_token_ids
        known, whole = len(self.keys) * size, len(tokens) // size * size
        if whole > known:
            self.keys += self.chain.extend(tokens[known:whole], self._parts(known, whole))

    def _parts(self, known: int, whole: int) -> dict[int, bytes] | None:
        """What the next chunks have beside tokens."""
        if self.parts is None:
            return None
        size = self.shape.chunk_tokens
        found = (self.parts(at, at + size) for at in range(known, whole, size))
        return {number: part for number, part in enumerate(found) if part}

    def piece(self, chunk: int, offset: int) -> Piece:
        """A whole chunk, where it lies in the KV cache now."""
        per_chunk = self.shape.chunk_blocks
        return Piece(offset, 0, self.blocks[chunk * per_chunk : (chunk + 1) * per_chunk])
