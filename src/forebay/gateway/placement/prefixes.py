"""Which prefixes a medium probably holds: an approximate map that drops the least recently used.

A prompt is a chain of parts (messages, or blocks of text), each named by a hash over all parts up
to it. What an engine was sent, its KV cache likely has, up to its size. Nothing here knows tokens:
sizes are bytes of the prompt, and whoever asks knows how many make a token. Not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

PARTS_MAX: Final = 200_000  # remembered of one medium, whatever its size


class PromptPart(NamedTuple):
    """The prompt up to and with one part."""

    name: int  # the hash of all of it
    end: int  # bytes of all of it


Chain = Sequence[PromptPart]


class LikelyPrefix(NamedTuple):
    """What a medium likely holds of a prompt."""

    size_bytes: int  # from the prompt's start
    visits: int  # how often the last held part was asked for


NOTHING: Final = LikelyPrefix(0, 0)


class PrefixMap:
    """What one medium likely holds."""

    def __init__(self) -> None:
        self._parts: OrderedDict[int, tuple[int, int]] = OrderedDict()  # → bytes, visits
        self._held_bytes = 0

    def likely(self, chain: Chain) -> LikelyPrefix:
        """How much of the prompt is likely held, from its start."""
        parts = self._parts
        low, high = 0, len(chain)  # a part is held only with those before it
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
        """The medium was given this prompt, and holds at most so much."""
        parts = self._parts
        for at in range(len(chain) - 1, -1, -1):  # the first part is the last to be forgotten
            name, end = chain[at]
            size_bytes = end - (chain[at - 1].end if at else 0)
            before, visits = parts.get(name, (0, 0))
            self._held_bytes += size_bytes - before
            parts[name] = (size_bytes, visits + 1)
            parts.move_to_end(name)
        while parts and (self._held_bytes > capacity_bytes or len(parts) > PARTS_MAX):
            self._held_bytes -= parts.popitem(last=False)[1][0]

    def clear(self) -> None:
        """The medium lost everything."""
        self._parts.clear()
        self._held_bytes = 0
