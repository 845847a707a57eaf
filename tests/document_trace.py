"""Requests for documents whose popularity follows Zipf's law, and what of them is a prefix hit."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

TOKENS = (200, 1000)  # that a document may have


@dataclass(frozen=True, slots=True)
class ZipfTrace:
    """Requests, the same for the same numbers."""

    documents: int
    each: int  # documents of one request
    topic: int = 0  # documents of one topic, which a request's all are of; 0: there are no topics
    requests: int = 20_000
    seed: int = 1

    def __iter__(self) -> Iterator[list[int]]:
        """The documents of each request, in the order in which they were retrieved."""
        luck = random.Random(self.seed)
        size = self.topic or self.documents
        weights = list(accumulate(1 / rank for rank in range(1, size + 1)))
        topics = list(accumulate(1 / rank for rank in range(1, self.documents // size + 1)))
        for _ in range(self.requests):
            (first,) = luck.choices(range(0, self.documents, size), cum_weights=topics)
            found: dict[int, None] = {}
            while len(found) < self.each:
                found[first + luck.choices(range(size), cum_weights=weights)[0]] = None
            listed = list(found)
            luck.shuffle(listed)
            yield listed


@cache
def tokens_of(document: int) -> int:
    return random.Random(document).randint(*TOKENS)


class HeldPrefixes:
    """All prompts so far, as a cache that forgets nothing, in whole chunks of so many tokens."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._held: dict[int, object] = {}
        self.hit = self.all = 0  # tokens of documents

    @property
    def share(self) -> float:
        return self.hit / self.all

    def ask(self, documents: Sequence[int]) -> None:
        node, is_held, begun = self._held, True, 0
        for each in documents:
            is_held = is_held and each in node
            tokens = tokens_of(each)
            self.all += tokens
            begun += tokens if is_held else 0
            found = node.setdefault(each, {})
            assert isinstance(found, dict)
            node = found
        self.hit += begun - begun % self._chunk
