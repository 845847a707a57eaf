"""One stream: chunk after chunk through the pool's load budget, each released before the next."""

from collections.abc import Iterator
from dataclasses import dataclass

from forebay.pool.client.calls import Calls
from forebay.pool.client.chain import Chain
from forebay.pool.client.slab import MappedSlab, is_ready_for, views_of
from forebay.pool.messages import Ask, Cancel, Promise, Ready, Release
from forebay.tiers.contract import Miss


@dataclass(slots=True)
class StreamCall:
    """A chain that is being streamed."""

    calls: Calls
    chain: Chain
    timeout_s: float  # limit of each step

    def run(self, first: int) -> Iterator[tuple[int, memoryview]]:
        """Yield chunks in order; cancels the rest whenever the caller stops."""
        found = self.calls.look_up(self.chain, self._until())
        slab = self.calls.session.slab
        if isinstance(found, Miss) or slab is None:
            return
        try:
            if found.known > first:
                yield from self._chunks(slab, found.request, first, found.known)
        finally:
            self.calls.session.post(Cancel(found.request))

    def _chunks(
        self, slab: MappedSlab, request: int, first: int, known: int
    ) -> Iterator[tuple[int, memoryview]]:
        session = self.calls.session
        deadline_ms = int(self.timeout_s * 900)  # so that the answer comes before our deadline
        session.post(Ask(request, first, known - first, deadline_ms, stream=True))
        promise = self.calls.wait(
            Promise, lambda promise: promise.request == request, self._until()
        )
        if isinstance(promise, Miss):
            return
        views = views_of(slab, promise, self.chain.keys, session.generation)
        if views is None:
            return
        came = dict(enumerate(views, first))
        for position in range(first, first + promise.total):
            view = came.pop(position, None)
            while view is None:  # chunks come in any order
                ready = self.calls.wait(
                    Ready, lambda ready: ready.request == request, self._until()
                )
                if isinstance(ready, Miss) or not self._take(slab, ready, came):
                    return
                view = came.pop(position, None)
            with view:
                yield position, view
            session.post(Release(request, [position]))

    def _take(self, slab: MappedSlab, ready: Ready, came: dict[int, memoryview]) -> bool:
        """Take one more chunk; False if the stream cannot be trusted, or has failed here."""
        if not is_ready_for(ready, self.chain.keys, self.calls.session.generation):
            return False
        view = slab.view(ready.offset, ready.length)
        if view is None:
            return False
        came[ready.chunk] = view.toreadonly()
        return True

    def _until(self) -> float:
        return self.calls.clock.monotonic() + self.timeout_s
