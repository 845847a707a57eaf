"""One stream: chunk after chunk through the pool's load budget, each let go before the next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.pool.client.chain import Chain
from forebay.pool.client.link import Link
from forebay.pool.client.promised import views_of
from forebay.pool.messages import Ask, Cancel, Promise, Ready, Release
from forebay.sys.clock import Clock
from forebay.tiers.contract import Miss

if TYPE_CHECKING:
    from forebay.pool.client.client import Client


@dataclass(slots=True)
class Streaming:
    """A chain on its way."""

    client: "Client"
    clock: Clock
    chain: Chain
    timeout_s: float  # for each step

    def run(self, first: int) -> Iterator[tuple[int, memoryview]]:
        """Yield what comes, in order; cancel what is left, whenever the caller stops."""
        looked = self.client.look(self.chain, self._until())
        if isinstance(looked, Miss):
            return
        link, request = looked.link, looked.request
        try:
            if looked.known > first:
                yield from self._chunks(link, request, first, looked.known)
        finally:
            link.line.post(Cancel(request))

    def _chunks(
        self, link: Link, request: int, first: int, known: int
    ) -> Iterator[tuple[int, memoryview]]:
        deadline_ms = int(self.timeout_s * 900)  # the answer is here before our own is over
        link.line.post(Ask(request, first, known - first, deadline_ms, stream=True))
        promise = self.client.wait(
            link, Promise, lambda promise: promise.request == request, self._until()
        )
        if isinstance(promise, Miss):
            return
        views = views_of(link, self.chain, promise)
        if views is None:
            return
        came = dict(enumerate(views, first))
        for position in range(first, first + promise.total):
            view = came.pop(position, None)
            while view is None:  # chunks come in any order
                ready = self.client.wait(
                    link, Ready, lambda ready: ready.request == request, self._until()
                )
                if isinstance(ready, Miss) or not self._take(link, ready, came):
                    return
                view = came.pop(position, None)
            with view:
                yield position, view
            link.line.post(Release(request, [position]))

    def _take(self, link: Link, ready: Ready, came: dict[int, memoryview]) -> bool:
        """One more chunk; False if the stream cannot be trusted, or has failed here."""
        is_ours = 0 <= ready.chunk < len(self.chain.keys) and ready.generation == link.generation
        view = link.view(ready.offset, ready.length) if is_ours and ready.length else None
        if view is None:
            return False
        if ready.key != self.chain.keys[ready.chunk]:  # verify: streamed full key
            return False
        came[ready.chunk] = view.toreadonly()
        return True

    def _until(self) -> float:
        return self.clock.monotonic() + self.timeout_s
