"""What a client's calls answer with, beside `Miss`: values, never exceptions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """How much of a chain the pool has; nothing is pinned by knowing it."""

    chunks: int  # from the first, in any tier
    ready: int  # of these, from the first, in host memory


@dataclass(frozen=True, slots=True)
class Loaded:
    """Verified chunks in the slab, read-only, until the `with` block ends."""

    first: int  # position in the chain of chunks[0]
    chunks: tuple[memoryview, ...]  # payloads; every one must have been let go of at the end


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the chunks of a store; they add up to what was given."""

    stored: int = 0  # can be found from now on
    had: int = 0  # were there already, or are just being stored by someone
    unwanted: int = 0  # the pool said no: too large, the prefix is gone, or no tier would keep it
    late: int = 0  # no slot, or no answer, before the deadline
    lost: int = 0  # there is no pool, or it went away


@dataclass(frozen=True, slots=True)
class AdminOutcome:
    """What became of an operator's `resize` or `clear`."""

    ok: bool
    sentence: str
