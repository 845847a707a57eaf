"""The order of a prompt's documents: the most popular first, so that they are shared prefixes.

For callers that build prompts themselves; the gateway uses the same code. Promised: after the same
requests, the same documents get the same order, however they are given; equally popular documents
are ordered by a hash of their text, which is the same in every process. Assumed: no block contains
anything that changes from request to request, such as its rank or a date; one thread at a time.
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
    ranks: tuple[int, ...]  # of each one, as given: 1 is the most relevant

    @property
    def note(self) -> str:
        """One line for the prompt, after the documents; empty if their order is unchanged."""
        return note_of(self.ranks)


def written(text: str) -> bytes:
    """A text as JSON in UTF-8, without quotes and with the fewest escapes."""
    try:
        return msgspec.json.encode(text)[1:-1]
    except UnicodeEncodeError:  # a lone surrogate is no valid UTF-8, but may be in a document
        return text.encode(errors="surrogatepass")


def note_of(ranks: tuple[int, ...]) -> str:
    """The line that tells the model these ranks; empty if the order is unchanged."""
    if ranks == tuple(range(1, len(ranks) + 1)):
        return ""
    said = ", ".join(map(str, ranks))
    return f"Ranks of the documents above by relevance, in their order: {said}."


class DocumentOrder:
    """Orders the documents of one tenant, and remembers how often each was asked for."""

    def __init__(self, limit: int = DOCUMENTS_MAX) -> None:
        self._popularity = Popularity(limit)

    def __len__(self) -> int:
        """How many documents are remembered."""
        return len(self._popularity)

    def arrange(self, documents: Sequence[str], scope: bytes = b"") -> ArrangedDocuments:
        """Put documents, given by relevance, in order for the prompt, and count each.

        Counts of one scope do not affect another one.
        """
        ranks = self.ranks([written(each) for each in documents], scope)
        return ArrangedDocuments(tuple(documents[rank - 1] for rank in ranks), ranks)

    def ranks(self, documents: Sequence[bytes], scope: bytes = b"") -> tuple[int, ...]:
        """As `arrange`, for documents as `written` gives them: their ranks in the new order."""
        popularity = self._popularity
        # Two documents with the same digest count as one, which harms only whoever made them.
        digests = [xxhash.xxh3_128_digest(each) for each in documents]
        scope = blake2b(scope, digest_size=32).digest()  # a scope may be of any length
        names = [popularity.name(each, scope) for each in digests]
        places = sorted(
            range(len(documents)),
            key=lambda at: (-popularity.score(names[at]), digests[at], at),
        )
        popularity.count(names)
        return tuple(at + 1 for at in places)
