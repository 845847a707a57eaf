"""How much of a known prefix a request asks for: what arrives before it would be computed.

What lies in DRAM is always wanted. What lies on drives, and after that in stores, is wanted as far
as `load_or_recompute` says, given the GPU's speed, the drives' speed and the GPU's other work, all
as seen here. The pool says how fast a store is when it answers the lookup.
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
        self._fetching: set[int] = set()  # lookups that wait for chunks in a store, by number

    @property
    def gpu_bytes_a_s(self) -> float:
        """Bytes of KV that the GPU computes a second; 0: not known."""
        return self.estimate.tokens_a_s * self._shape.chunk_bytes / self._shape.chunk_tokens

    def wanted(self, tracked: TrackedRequest, first: int) -> int:
        """The chunks, from the prompt's first on, that arrive before they would be computed."""
        load = tracked.load
        known, near = load.known, max(first, load.ready)
        if known <= near:
            return known
        store = self._next_store_run(tracked, near)
        on_drives = known if store is None else min(known, max(near, store.first))
        wanted = self._worth_reading(tracked, near, on_drives) if on_drives > near else near
        if store is not None and wanted == on_drives < known:
            wanted = self._worth_fetching(tracked, on_drives, known, store)
        # A shorter hit would need other local records.
        return 0 if wanted < known and self._shape.local else wanted

    def why_less(self, tracked: TrackedRequest, first: int, wanted: int) -> Decision:
        """Why a request asks for no more chunks: a store, or the drives, are too slow."""
        near = max(first, tracked.load.ready)
        store = self._next_store_run(tracked, near)
        is_next = store is not None and store.first <= max(near, wanted)
        return Decision.STORE_IS_SLOWER if is_next else Decision.COMPUTING_IS_FASTER

    def asked(self, tracked: TrackedRequest, first: int, wanted: int, now: float) -> None:
        """Note that a request asks for chunks [first, wanted)."""
        near = max(first, tracked.load.ready)
        store = self._next_store_run(tracked, near)
        if store is not None and store.first < wanted:
            self._fetching.add(tracked.load.number)  # its duration says nothing about drives
        elif wanted > near:
            size_bytes = (wanted - near) * self._shape.chunk_bytes
            self.estimate.reads(now, tracked.load.number, size_bytes)

    def deadline_ms(self, tracked: TrackedRequest, first: int, wanted: int, most: float) -> int:
        """How long a request waits for chunks [first, wanted); `most` at most."""
        near = max(first, tracked.load.ready)
        store = self._next_store_run(tracked, near)
        if store is None or store.first >= wanted:
            return int(most)
        return int(fetching_ms((wanted - near) * self._shape.chunk_bytes, store, most))

    def is_reading(self, number: int) -> bool:
        """Whether a request waits for chunks that are not in DRAM."""
        return number in self.estimate or number in self._fetching

    def arrived(self, tracked: TrackedRequest, first: int, count: int) -> None:
        """Note that chunks arrived; those not from DRAM tell how fast the drives are."""
        self._fetching.discard(tracked.load.number)
        far = max(0, first + count - max(first, tracked.load.ready))
        size_bytes = far * self._shape.chunk_bytes
        self.estimate.arrived(time.monotonic(), tracked.load.number, size_bytes)

    def forget(self, number: int) -> None:
        """Note that a request waits for nothing more."""
        self.estimate.forget(time.monotonic(), number)
        self._fetching.discard(number)

    def _worth_reading(self, tracked: TrackedRequest, near: int, known: int) -> int:
        """Where to stop reading: the chunks up to `known` that drives deliver in time."""
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
        """Where to stop fetching: the chunks up to `known` that a store delivers in time."""
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
        if worth and not store.bytes_a_s:  # a shorter trial would not be asked for
            worth = max(worth, least_read(near * size - load.computed, self._min_tokens, size))
        return known if worth >= tokens else near + worth // size

    def _next_store_run(self, tracked: TrackedRequest, near: int) -> StoreRun | None:
        """The first run of chunks after the first `near` that lies in a store, if any."""
        found = tracked.load.found
        runs = found.stores if found is not None else []
        return next((run for run in runs if run.first + run.chunks > near), None)

    def _other_work(self, tracked: TrackedRequest, now: float) -> OtherWork:
        """Other requests that the GPU computes or has waiting, without those that load."""
        others = [
            each
            for each in self._requests.values()
            if each is not tracked and each.load.state < ASKED
        ]
        tokens = sum(map(_uncomputed, others)) + self.estimate.computing(now)
        return OtherWork(tokens, len(others))


def _uncomputed(tracked: TrackedRequest) -> int:
    """Tokens of a prompt that the GPU has yet to compute."""
    return max(0, tracked.request.num_prompt_tokens - tracked.request.num_computed_tokens)
