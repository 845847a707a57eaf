"""One request of the engine: its keys, its blocks, its load and what it has stored."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from forebay.engines.copies.contract import Piece
from forebay.engines.geometry import Geometry
from forebay.engines.groups import piece_of
from forebay.engines.reporting.attribution import Attribution
from forebay.engines.reporting.hints import NO_HINTS, Hints
from forebay.engines.scheduling.request_load import RequestLoad
from forebay.identity.keys import ChainRoot, KeyChain, group_key

OFFER_CHUNKS_MAX: Final = 1 << 16
# What the keys of tokens [first, end) cover beside the tokens; empty: nothing.
Parts: TypeAlias = Callable[[int, int], bytes]


class EngineRequest(Protocol):
    """The part of an engine's own request that is used here."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int

    @property
    def all_token_ids(self) -> Sequence[int]:
        """The tokens of the prompt and of the answer so far."""
        ...

    def is_finished(self) -> bool:
        """Whether it has ended."""
        ...


class RequestStore:
    """How much of one request is stored. Written by `EngineStores` and by these methods.

    Chunks [0, stored) are in the pool or will not be stored by this engine; [stored, offered) are
    about to be offered; what follows is not computed yet. Records of local groups have a count of
    their own, since each is offered once, with the step that computes its chunk, or never.
    """

    __slots__ = (
        "is_wanted",
        "junction",
        "local_offered",
        "offer_at",
        "offer_chunks",
        "offered",
        "raw",
        "stored",
    )

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted  # False: nothing more of this request is stored
        self.stored = 0
        self.offered = 0
        self.offer_at = 0.0  # monotonic; no offer before, since there was no slot
        self.offer_chunks = OFFER_CHUNKS_MAX  # offered at once; fewer after there was no slot
        self.local_offered = 0  # chunks whose local records were offered, or will not be
        self.raw: set[int] = set()  # chunks that do not fit encoded
        self.junction = 0  # known chunks that could not be used for lack of local records

    def has(self, chunks: int) -> None:
        """The pool has this many chunks of the request."""
        self.stored = max(self.stored, chunks)

    def lacks(self, chunk: int) -> None:
        """The pool lacks this chunk and what follows it: store them again."""
        self.stored = min(self.stored, chunk)
        self.offered = min(self.offered, chunk)
        self.local_offered = 0


class TrackedRequest:
    """One request, as far as it is known. Owned by the scheduler's thread."""

    __slots__ = (
        "arrived_at",
        "attribution",
        "chain",
        "hints",
        "keys",
        "load",
        "looked_up",
        "parts",
        "request",
        "root",
        "shape",
        "store",
        "tables",
    )

    def __init__(
        self,
        request: EngineRequest,
        shape: Geometry,
        root: ChainRoot,
        parts: Parts | None = None,
        *,
        is_shared: bool = True,
        hints: Hints = NO_HINTS,
    ) -> None:
        self.request = request
        self.shape = shape
        self.root = root
        self.parts = parts  # None: its keys cover tokens alone
        self.chain = KeyChain(root)
        self.keys: list[bytes] = []  # of every whole chunk whose tokens are known
        self.tables: list[list[int]] = [[] for _ in range(shape.table_count)]  # its block tables
        self.load = RequestLoad(is_wanted=is_shared)
        self.store = RequestStore(is_wanted=is_shared and hints.store)
        self.attribution = Attribution()
        self.hints = hints
        self.arrived_at = time.monotonic()
        self.looked_up: bytes | None = None  # the last key that the pool was asked for

    def extend(self) -> None:
        """Compute the keys of all whole chunks whose tokens are known."""
        size = self.shape.chunk_tokens
        tokens = self.request.all_token_ids
        known, whole = len(self.keys) * size, len(tokens) // size * size
        if whole > known:
            self.keys += self.chain.extend(tokens[known:whole], self._parts(known, whole))

    def _parts(self, known: int, whole: int) -> dict[int, bytes] | None:
        """What the next chunks' keys cover beside tokens."""
        if self.parts is None:
            return None
        size = self.shape.chunk_tokens
        found = (self.parts(at, at + size) for at in range(known, whole, size))
        return {number: part for number, part in enumerate(found) if part}

    def key_of(self, record: tuple[int, int]) -> bytes:
        """The key of a record, given its group and chunk."""
        group, chunk = record
        return group_key(self.keys[chunk], group) if group else self.keys[chunk]

    def piece(self, record: tuple[int, int], *, is_encoded: bool = False) -> Piece:
        """A whole record, where it lies in the KV cache now; it has no slot yet."""
        piece = piece_of(self.shape, record, self.tables, is_encoded=is_encoded)
        assert piece is not None, "a record has blocks"
        return piece

    @property
    def ends(self) -> tuple[int, ...]:
        """Where hits of other requests may end, in chunks: at the prompt's end, or at a branch."""
        size, prompt = self.shape.chunk_tokens, self.request.num_prompt_tokens
        return (self.store.junction, (prompt - 1) // size, prompt // size)
