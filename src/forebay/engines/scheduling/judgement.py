"""How much of what the pool knows a request asks for: what is here before it would be computed.

What lies in DRAM is always wanted; of what lies on drives and behind them in stores, as much as
`load_or_recompute` says with what is seen here: the GPU's speed, the drives', and what else is to
be done. How fast a store is the pool says with what it found.
"""

import time
from collections.abc import Mapping

from forebay.decisions import Decision
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.load_or_recompute import (
    OtherWork,
    ThroughputEstimate,
    fetching_ms,
    least_read,
    worth_fetching,
    worth_reading,
)
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.scheduling.request_load import ASKED
from forebay.pool.messages import StoreRun


class LoadJudgement:
    """What one engine has seen of its pool and its GPU. Owned by the scheduler's thread."""

    def __init__(
        self, shape: Geometry, min_tokens: int, requests: Mapping[str, TrackedRequest]
    ) -> None:
        self._shape, self._min_tokens, self._requests = shape, min_tokens, requests
        self.estimate = ThroughputEstimate()
        self._fetching: set[int] = set()  # numbers of those that wait for chunks in a store

    @property
    def gpu_bytes_a_s(self) -> float:
        """KV that the GPU computes a second; 0: not known."""
        return self.estimate.tokens_a_s * self._shape.chunk_bytes / self._shape.chunk_tokens

    def wanted(self, tracked: TrackedRequest, first: int) -> int:
        """Chunks, from the first of the prompt, that are here before they would be computed."""
        load = tracked.load
        known, near = load.known, max(first, load.ready)
        if known <= near:
            return known
        store = self._store_behind(tracked, near)
        on_drives = known if store is None else min(known, max(near, store.first))
        wanted = self._worth_reading(tracked, near, on_drives) if on_drives > near else near
        if store is not None and wanted == on_drives < known:
            wanted = self._worth_fetching(tracked, on_drives, known, store)
        # At fewer chunks other local records would be needed.
        return 0 if wanted < known and self._shape.local else wanted

    def why_less(self, tracked: TrackedRequest, first: int, wanted: int) -> Decision:
        """Why a request wants no more than this: what comes next is slower than the GPU."""
        near = max(first, tracked.load.ready)
        store = self._store_behind(tracked, near)
        is_next = store is not None and store.first <= max(near, wanted)
        return Decision.STORE_IS_SLOWER if is_next else Decision.COMPUTING_IS_FASTER

    def asked(self, tracked: TrackedRequest, first: int, wanted: int, now: float) -> None:
        """A request asks for chunks up to this one."""
        near = max(first, tracked.load.ready)
        store = self._store_behind(tracked, near)
        if store is not None and store.first < wanted:
            self._fetching.add(tracked.load.number)  # how long it takes says nothing of drives
        elif wanted > near:
            size_bytes = (wanted - near) * self._shape.chunk_bytes
            self.estimate.reads(now, tracked.load.number, size_bytes)

    def deadline_ms(self, tracked: TrackedRequest, first: int, wanted: int, most: float) -> int:
        """How long a request that asks for chunks up to this one waits for them."""
        near = max(first, tracked.load.ready)
        store = self._store_behind(tracked, near)
        if store is None or store.first >= wanted:
            return int(most)
        return int(fetching_ms((wanted - near) * self._shape.chunk_bytes, store, most))

    def is_reading(self, number: int) -> bool:
        """Whether a request waits for what is not in DRAM."""
        return number in self.estimate or number in self._fetching

    def arrived(self, tracked: TrackedRequest, first: int, count: int) -> None:
        """Chunks have come; those that were not in DRAM say how fast the drives are."""
        self._fetching.discard(tracked.load.number)
        far = max(0, first + count - max(first, tracked.load.ready))
        size_bytes = far * self._shape.chunk_bytes
        self.estimate.arrived(time.monotonic(), tracked.load.number, size_bytes)

    def forget(self, number: int) -> None:
        """Nothing more is waited for by a request."""
        self.estimate.forget(time.monotonic(), number)
        self._fetching.discard(number)

    def _worth_reading(self, tracked: TrackedRequest, near: int, known: int) -> int:
        """Chunks that are worth reading, of those up to `known` that lie on drives."""
        load, size, now = tracked.load, self._shape.chunk_tokens, time.monotonic()
        tokens = known * size - max(load.computed, near * size)
        worth = worth_reading(
            tokens,
            self._shape.chunk_bytes // size,
            self._other_work(tracked, now),
            self.estimate,
            now,
            least=least_read(near * size - load.computed, self._min_tokens, size),
        )
        return known if worth >= tokens else near + worth // size

    def _worth_fetching(
        self, tracked: TrackedRequest, near: int, known: int, store: StoreRun
    ) -> int:
        """Chunks that are worth fetching, of those from `near` on that lie in a store."""
        load, size, now = tracked.load, self._shape.chunk_tokens, time.monotonic()
        tokens = known * size - max(load.computed, near * size)
        worth = worth_fetching(
            tokens,
            self._shape.chunk_bytes // size,
            self._other_work(tracked, now),
            store,
            self.estimate.tokens_a_s,
            is_tried=bool(self._fetching),
        )
        if worth and not store.bytes_a_s:  # a try of less would not be asked for
            worth = max(worth, least_read(near * size - load.computed, self._min_tokens, size))
        return known if worth >= tokens else near + worth // size

    def _store_behind(self, tracked: TrackedRequest, near: int) -> StoreRun | None:
        """The first chunks behind so many that lie in a store; None: none do."""
        found = tracked.load.found
        runs = found.stores if found is not None else []
        return next((run for run in runs if run.first + run.chunks > near), None)

    def _other_work(self, tracked: TrackedRequest, now: float) -> OtherWork:
        """Other requests that the GPU computes, or would if it could, not those that load."""
        others = [
            each
            for each in self._requests.values()
            if each is not tracked and each.load.state < ASKED
        ]
        tokens = sum(map(_uncomputed, others)) + self.estimate.computing(now)
        return OtherWork(tokens, len(others))


def _uncomputed(tracked: TrackedRequest) -> int:
    """Tokens of a prompt that the GPU has still to compute."""
    return max(0, tracked.request.num_prompt_tokens - tracked.request.num_computed_tokens)
