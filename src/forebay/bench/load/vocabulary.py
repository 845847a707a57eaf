"""Text as token ids without a tokenizer, for servers with random weights."""

import zlib
from collections.abc import Iterable
from typing import Final

_RESERVED: Final = 16  # low ids mean things to models


class Vocabulary:
    """So many ids: a word that names one (`t17`) is that id, any other has one by its hash."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """A token a word, in order."""
        known = self._known
        words = text.split()
        for word in set(words).difference(known):
            known[word] = self._id(word)
        return [known[word] for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        """Text that `encode` reads as these ids."""
        return " ".join(f"t{number}" for number in ids)

    def _id(self, word: str) -> int:
        if word[0] == "t" and word[1:].isdigit():
            return int(word[1:])
        plain = word.strip(".").lower()
        return _RESERVED + zlib.crc32(plain.encode()) % (self._size - _RESERVED)
