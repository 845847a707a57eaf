"""How this engine's answers end: which last tokens are markers, and which answer a prompt follows.

Without a tokenizer: an answer that the model ended itself has a class of its own if many answers
end with the same two tokens, as those with a tool call do, or those of a chat. Rare last tokens,
which could tell of a text, have none. Owned by the scheduler's thread.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

from forebay.identity.endings import MARKER_TOKENS, EndingClass, marker_class

_COUNTED_MAX: Final = 512  # endings; counts are halved then
_SHARE: Final = 1 / 32  # of endings that a marker has
_TIMES: Final = 4  # that it was seen
_DIALOGS_MAX: Final = 1 << 14
_REASONS: Final = {
    "STOP": EndingClass.STOP,
    "LENGTH": EndingClass.LENGTH,
    "ABORT": EndingClass.ABORT,
}


class Endings:
    """The classes of one engine's answers."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, ...]] = Counter()  # last tokens → answers
        self._classes: OrderedDict[bytes, int] = OrderedDict()  # last key of a prompt → its answer

    def classify(self, reason: str, answer: Sequence[int]) -> int:
        """The class of an answer that ended for this reason, by the engine's name of it."""
        found = _REASONS.get(reason, EndingClass.OTHER)
        if found is not EndingClass.STOP or not answer:
            return found
        tail = tuple(answer[-MARKER_TOKENS:])
        self._seen[tail] += 1
        total = self._seen.total()
        if total > _COUNTED_MAX:
            self._seen = Counter({each: n // 2 for each, n in self._seen.items() if n > 1})
        seen = self._seen[tail]
        return marker_class(tail) if seen >= max(_TIMES, _SHARE * total) else found

    def remember(self, key: bytes, ending: int) -> None:
        """The answer to the prompt that ends with this key is of this class."""
        self._classes[key] = ending
        self._classes.move_to_end(key)
        if len(self._classes) > _DIALOGS_MAX:
            self._classes.popitem(last=False)

    def before(self, keys: Sequence[bytes]) -> int:
        """The class of the answer that the new part of a prompt follows, if this engine gave it."""
        known = (self._classes.get(key) for key in reversed(keys))
        return next((each for each in known if each is not None), EndingClass.NOT_KNOWN)
