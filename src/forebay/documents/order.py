"""The order of a prompt's documents: the most popular first, so that they are shared prefixes.

For callers that build prompts themselves; the gateway uses the same. Promised: the same documents
in any order, with the same requests before, come in the same order; documents that are equally
popular come by a hash of their text, which is the same in every process. Assumed: a block has
nothing in it that changes from request to request, as its rank or a date; one thread at a time.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import xxhash

from forebay.documents.popularity import DOCUMENTS_MAX, Popularity


class ArrangedDocuments(NamedTuple):
    """Documents in the order in which a prompt should have them."""

    documents: tuple[str, ...]
    ranks: tuple[int, ...]  # of each, as it was given: 1 is the most relevant

    @property
    def note(self) -> str:
        """One line for the prompt, behind the documents; empty if their order is unchanged."""
        return note_of(self.ranks)


def written(text: str) -> bytes:
    """A text as JSON in UTF-8 without quotes, with the fewest escapes."""
    try:
        return msgspec.json.encode(text)[1:-1]
    except UnicodeEncodeError:  # a lone surrogate is no text of UTF-8, and a document all the same
        return text.encode(errors="surrogatepass")


def note_of(ranks: tuple[int, ...]) -> str:
    """The line that tells these ranks; empty if the order is unchanged."""
    if ranks == tuple(range(1, len(ranks) + 1)):
        return ""
    said = ", ".join(map(str, ranks))
    return f"Ranks of the documents above by relevance, in their order: {said}."


class DocumentOrder:
    """Orders the documents of one tenant, and remembers how often each was asked for."""

    def __init__(self, limit: int = DOCUMENTS_MAX) -> None:
        self._popularity = Popularity(limit)

    def __len__(self) -> int:
        """How many documents are remembered, by hashes."""
        return len(self._popularity)

    def arrange(self, documents: Sequence[str], scope: bytes = b"") -> ArrangedDocuments:
        """These, given by relevance, in the order for the prompt; each is counted.

        What was counted in one scope changes nothing in another.
        """
        ranks = self.ranks([written(each) for each in documents], scope)
        return ArrangedDocuments(tuple(documents[rank - 1] for rank in ranks), ranks)

    def ranks(self, documents: Sequence[bytes], scope: bytes = b"") -> tuple[int, ...]:
        """The same of documents as `written` gives them: the rank of each, in its new order."""
        popularity = self._popularity
        # Who makes two documents of one digest has them counted as one, and nobody else's.
        digests = [xxhash.xxh3_128_digest(each) for each in documents]
        scope = blake2b(scope, digest_size=32).digest()  # however long it is
        names = [popularity.name(each, scope) for each in digests]
        places = sorted(
            range(len(documents)),
            key=lambda at: (-popularity.score(names[at]), digests[at], at),
        )
        popularity.count(names)
        return tuple(at + 1 for at in places)
