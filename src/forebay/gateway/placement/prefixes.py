"""Which prefixes a medium probably holds: an approximate map that drops the least recently used.

A prompt is a chain of parts (messages, or blocks of text), each named by a hash over all parts up
to it. An engine's KV cache likely holds what the engine was sent last, up to its size. Sizes are
bytes of prompts, not tokens: the caller converts them. Not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

PARTS_MAX: Final = 200_000  # remembered per medium, whatever its size


class PromptPart(NamedTuple):
    """A prompt up to the end of one part."""

    name: int  # hash of the prompt up to there
    end: int  # bytes of the prompt up to there


Chain = Sequence[PromptPart]


class LikelyPrefix(NamedTuple):
    """How much of a prompt a medium likely holds."""

    size_bytes: int  # from the prompt's start
    visits: int  # how often the last held part was asked for


NOTHING: Final = LikelyPrefix(0, 0)


class PrefixMap:
    """The parts of prompts that one medium likely holds."""

    def __init__(self) -> None:
        self._parts: OrderedDict[int, tuple[int, int]] = OrderedDict()  # → bytes, visits
        self._held_bytes = 0

    def likely(self, chain: Chain) -> LikelyPrefix:
        """How much of the prompt is likely held, from its start."""
        parts = self._parts
        low, high = 0, len(chain)  # a part is held only together with those before it
        while low < high:
            middle = (low + high) // 2
            if chain[middle].name in parts:
                low = middle + 1
            else:
                high = middle
        if not low:
            return NOTHING
        last = chain[low - 1]
        return LikelyPrefix(last.end, parts[last.name][1])

    def add(self, chain: Chain, capacity_bytes: float) -> None:
        """The medium was given this prompt; it holds `capacity_bytes` at most."""
        parts = self._parts
        for at in range(len(chain) - 1, -1, -1):  # so that the first part is forgotten last
            name, end = chain[at]
            size_bytes = end - (chain[at - 1].end if at else 0)
            before, visits = parts.get(name, (0, 0))
            self._held_bytes += size_bytes - before
            parts[name] = (size_bytes, visits + 1)
            parts.move_to_end(name)
        while parts and (self._held_bytes > capacity_bytes or len(parts) > PARTS_MAX):
            self._held_bytes -= parts.popitem(last=False)[1][0]

    def clear(self) -> None:
        """The medium has lost everything."""
        self._parts.clear()
        self._held_bytes = 0
