"""What a client's calls return besides `Miss`: values, never exceptions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """How much of a chain the pool has; nothing is pinned for it."""

    chunks: int  # from the first, in any tier
    ready: int  # of these, from the first, in host memory


@dataclass(frozen=True, slots=True)
class Loaded:
    """Verified chunks in the slab, read-only, until the `with` block ends."""

    first: int  # position in the chain of chunks[0]
    chunks: tuple[memoryview, ...]  # payloads; all views of them must be released at the end


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the chunks of a store; the numbers add up to what was given."""

    stored: int = 0  # stored, and can be found
    had: int = 0  # were there already, or are being stored by someone else
    unwanted: int = 0  # refused: too large, the prefix is gone, or no tier would keep it
    late: int = 0  # no slot, or no answer, before the deadline
    lost: int = 0  # there was no pool, or it went away


@dataclass(frozen=True, slots=True)
class AdminOutcome:
    """What became of an operator's `resize` or `clear`."""

    ok: bool
    sentence: str
