"""One request that looked up its chain: what it may still want, what it waits for, what it holds.

[0, first)        the engine has these itself
[first, next)     acquired: each is held (pinned, verified) or awaited; before it asks nothing is
                  held, but what has come into DRAM is kept there
[next, stop)      promised in a stream, or hoped for; not acquired yet, though what is being read
                  ahead for it is awaited
[stop, …)         unknown, cut off by a deadline, or failed
"""

from forebay.pool.core.chunks import Chunk
from forebay.pool.session import Session


class Request:
    """A chain of keys on its way from lookup to release."""

    __slots__ = (
        "asked",
        "awaited",
        "deadline",
        "early",
        "first",
        "group",
        "half_time",
        "held",
        "kept",
        "kept_chunks",
        "keys",
        "namespace",
        "near",
        "next",
        "number",
        "promised",
        "ready",
        "run",
        "session",
        "slot_bytes",
        "stop",
        "stream",
        "told",
    )

    def __init__(
        self, session: Session, number: int, name: tuple[bytes, int], keys: list[bytes]
    ) -> None:
        self.session = session
        self.number = number
        self.namespace, self.group = name
        self.keys = keys
        self.stop = 0
        self.next = 0
        self.told = 0  # chunks that its engine knows to be in DRAM
        self.kept_chunks = 0  # from the first: kept in DRAM for it, or on their way there
        self.kept: Chunk | None = None  # the last of those here, pinned: what is before it stays
        self.ready = 0  # as many are here
        self.early: dict[int, Chunk] = {}  # pinned: they came before what precedes them
        self.slot_bytes = 0  # of each of its chunks
        self.asked = False
        self.promised = False
        self.first = 0
        self.run = 0  # how far what is held reaches from there, as last seen
        self.near = 0  # chunks that lay in DRAM when it came to them
        self.half_time = 0.0  # of the time until its deadline
        self.deadline = 0.0  # of the ask; before it, how long things are kept for it
        self.stream = False
        self.held: dict[int, Chunk] = {}
        self.awaited: set[int] = set()

    def begin(self, first: int) -> None:
        """It asks, from this chunk on."""
        self.asked = True
        self.first = self.next = self.run = first

    def contiguous(self) -> int:
        """The end of the run of held chunks that begins at `first`; until a promise it grows."""
        while self.run in self.held:
            self.run += 1
        return self.run

    @property
    def pinned_ahead(self) -> list[Chunk]:
        """What is pinned for it though it has not been promised."""
        return [*self.early.values(), *([self.kept] if self.kept is not None else [])]

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be acquired."""
        return self.next >= self.stop and not self.awaited
