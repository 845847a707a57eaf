"""Classes of how answers end, by their last tokens, and the class of the answer before a prompt.

Works without a tokenizer. Answers that the model ended itself form a class of their own if many of
them end with the same two tokens, as answers with a tool call do. Rare last tokens, which could
give away a text, form none. Owned by the scheduler's thread.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

from forebay.identity.endings import MARKER_TOKENS, EndingClass, marker_class

_COUNTED_MAX: Final = 512  # endings counted before all counts are halved
_SHARE: Final = 1 / 32  # share of all endings that makes two last tokens a marker
_TIMES: Final = 4  # times that a marker must have been seen
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
        """The class of an answer, by the engine's name for why it ended and by its last tokens."""
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
        """Remember the class of the answer to the prompt that ends with this key."""
        self._classes[key] = ending
        self._classes.move_to_end(key)
        if len(self._classes) > _DIALOGS_MAX:
            self._classes.popitem(last=False)

    def before(self, keys: Sequence[bytes]) -> int:
        """The class of the answer that a prompt continues, if this engine gave that answer."""
        known = (self._classes.get(key) for key in reversed(keys))
        return next((each for each in known if each is not None), EndingClass.NOT_KNOWN)
