"""A store that counts its calls where the caller can see them.

The counts lie in shared memory, so they survive if the process is killed meanwhile. A request
counts when it is made, its bytes when they have arrived.
"""

import threading
from collections.abc import Sequence
from typing import Final

from forebay.tiers.remote.accounting.ledger import COUNTS_BYTES, RequestCounts
from forebay.tiers.remote.store import ObjectStore, StoredObject, StoreFailure

_PAGE: Final = 1000  # objects that a listing of an object store has in one answer


class CountedStore(ObjectStore):
    """Another store, with counts of what it was asked since `begin`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the counts
        self._counts = memoryview(bytearray(COUNTS_BYTES)).cast("Q")

    def begin(self, counts: memoryview) -> None:
        """From now on count in this memory."""
        with self._lock:
            self._counts = counts[:COUNTS_BYTES].cast("Q")

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """See ObjectStore."""
        self._add(RequestCounts(puts=1, sent_bytes=sum(map(len, buffers))))
        return self._store.put(name, buffers)

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """See ObjectStore."""
        self._add(RequestCounts(gets=1))
        found = self._store.get(name, at, buffers)
        if not isinstance(found, StoreFailure):
            self._add(RequestCounts(received_bytes=found))
        return found

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """See ObjectStore."""
        self._add(RequestCounts(lists=1))
        found = self._store.listing(prefix)
        if not isinstance(found, StoreFailure):
            self._add(RequestCounts(lists=max(0, -(-len(found) // _PAGE) - 1)))
        return found

    def delete(self, name: str) -> StoreFailure | None:
        """See ObjectStore."""
        self._add(RequestCounts(deletes=1))
        return self._store.delete(name)

    def _add(self, more: RequestCounts) -> None:
        with self._lock:
            for place, count in enumerate(more):
                self._counts[place] += count
