"""A store whose calls are counted: what takes several of them says afterwards how many."""

import threading
from collections.abc import Sequence
from typing import Final

from forebay.tiers.remote.accounting.ledger import RequestCounts
from forebay.tiers.remote.store import ObjectStore, StoredObject, StoreFailure

_PAGE: Final = 1000  # objects that a listing of an object store has in one answer


class CountedStore(ObjectStore):
    """Another store, and what it was asked since the last look."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the counts
        self._counts = RequestCounts()

    def take(self) -> RequestCounts:
        """What was asked since the last time."""
        with self._lock:
            counts, self._counts = self._counts, RequestCounts()
        return counts

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """See ObjectStore."""
        self._add(RequestCounts(puts=1, sent_bytes=sum(map(len, buffers))))
        return self._store.put(name, buffers)

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """See ObjectStore."""
        found = self._store.get(name, at, buffers)
        received = 0 if isinstance(found, StoreFailure) else found
        self._add(RequestCounts(gets=1, received_bytes=received))
        return found

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """See ObjectStore."""
        found = self._store.listing(prefix)
        pages = 1 if isinstance(found, StoreFailure) else max(1, -(-len(found) // _PAGE))
        self._add(RequestCounts(lists=pages))
        return found

    def delete(self, name: str) -> StoreFailure | None:
        """See ObjectStore."""
        self._add(RequestCounts(deletes=1))
        return self._store.delete(name)

    def _add(self, more: RequestCounts) -> None:
        with self._lock:
            self._counts = RequestCounts(*map(sum, zip(self._counts, more, strict=True)))
