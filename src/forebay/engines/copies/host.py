"""Copies of a KV cache in host memory: each is done when the call returns."""

from collections.abc import Sequence

from forebay.engines.copies.contract import FinishedCopies, LoadPart, Store, WorkerSlab
from forebay.engines.copies.pages import Pages
from forebay.engines.digests.stores import digest_of


class HostCopies:
    """See Copies."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._slab: WorkerSlab | None = None
        self._done = FinishedCopies()

    def attach(self, slab: WorkerSlab) -> None:
        """See Copies."""
        self._slab = slab

    def detach(self) -> bool:
        """See Copies."""
        self._slab = None
        return True

    @property
    def reach_bytes(self) -> int:
        """See Copies."""
        return 0 if self._slab is None else self._slab.cap_bytes

    def begin(self, step: int, stores: Sequence[Store], *, loads: bool, freed: int) -> None:
        """See Copies."""
        del step, loads, freed
        assert self._slab is not None or not stores
        for store in stores:
            assert self._slab is not None
            self._pages.copy_out(store.piece, self._slab)
            digest = digest_of(store, self._slab, self._pages.geometry)
            self._done.stored.append((store, digest))

    def load(self, load: LoadPart) -> None:
        """See Copies."""
        assert self._slab is not None
        if not all(self._pages.copy_in(piece, self._slab) for piece in load.pieces):
            self._done.failed.append(load)
            return
        self._done.coming.append(load)
        self._done.loaded.append(load)

    def await_loads(self, loads: Sequence[LoadPart]) -> None:
        """See Copies."""

    def take_done(self) -> FinishedCopies:
        """See Copies."""
        done, self._done = self._done, FinishedCopies()
        return done

    def close(self) -> None:
        """See Copies."""
        self._slab = None
