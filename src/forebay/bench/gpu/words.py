"""Words as token ids, one each, so that dialogs need no tokenizer.

A word that stands for an id (`t17`) is that id; any other word has an id of its own by its hash.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from forebay.bench.dialog.script import Message

_RESERVED: Final = 16  # low ids mean things to models


class Words:
    """A vocabulary of so many ids."""

    def __init__(self, vocabulary: int) -> None:
        self._size = vocabulary
        self._known: dict[str, int] = {}

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """All words of all messages, in order."""
        known = self._known
        words = [word for message in messages for word in message["content"].split()]
        for word in set(words).difference(known):
            known[word] = self._id(word)
        return [known[word] for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        """What `encode` reads as these ids."""
        return " ".join(f"t{number}" for number in ids)

    def _id(self, word: str) -> int:
        if word[0] == "t" and word[1:].isdigit():
            return int(word[1:])
        plain = word.strip(".").lower()
        return _RESERVED + zlib.crc32(plain.encode()) % (self._size - _RESERVED)
