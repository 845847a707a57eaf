"""From lookup to promise: how much of a request can be loaded, and whether it is worth waiting.

Everything here happens in the scheduler's own hooks: a pool that has not answered is not waited for
beyond a tiny limit (see `side`), the request is put off instead, and only for so long.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.error_budget import ErrorBudget
from forebay.engines.scheduling.load_or_recompute import (
    OtherWork,
    ThroughputEstimate,
    least_read,
    worth_reading,
)
from forebay.engines.scheduling.request import TrackedRequest
from forebay.pool.client.session import PoolSession
from forebay.pool.client.slab import is_promise_for, is_ready_for
from forebay.pool.messages import Ask, Cancel, Found, Lookup, Promise, Ready
from forebay.record.region import short

_GRACE_S: Final = 0.5
# Requests told to ask again at a time. vLLM redoes its own lookup at each ask, 0.08 µs a token that
# it has itself: many may wait that have nothing, few that have much.
_AGAIN_MAX: Final = 64
_AGAIN_FEW: Final = 8
_AGAIN_TOKENS: Final = 32_768
Matched = tuple[int | None, bool]  # as vLLM wants it: tokens, or None to be asked again; async


class LoadLimits:
    """When a prefix is worth asking for, and how long a promise may take."""

    def __init__(
        self,
        min_tokens: int,
        lookup_deadline_ms: float,
        load_deadline_ms: float,
        *,
        always_load: bool = False,
    ) -> None:
        self.min_tokens = max(1, min_tokens)
        self.always_load = always_load  # whatever is known, however long it takes: to measure it
        self.lookup_s = lookup_deadline_ms / 1000
        self.load_deadline_ms = int(load_deadline_ms)
        # The pool keeps the deadline; only one that hangs lets it pass.
        self.promise_s = load_deadline_ms / 1000 + _GRACE_S


class Lookups:
    """What one engine asks its pool for. Owned by the scheduler's thread."""

    def __init__(
        self,
        pool: PoolSession,
        shape: Geometry,
        limits: LoadLimits,
        *,
        budget: ErrorBudget,
        counts: Counter[str],
        tracked: Mapping[str, TrackedRequest],
    ) -> None:
        self.failed: Callable[[], None] = lambda: None  # told of every failure
        self.wait: Callable[[Callable[[], bool]], None] = lambda _: None  # for the pool, briefly
        self._pool = pool
        self._shape = shape
        self._limits = limits
        self._budget = budget
        self._counts = counts
        self._tracked = tracked
        self._by_number: dict[int, TrackedRequest] = {}
        self._numbers = 0
        self._pace = ThroughputEstimate()

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    @property
    def pace(self) -> ThroughputEstimate:
        """How fast things are, as seen."""
        return self._pace

    def look_up(self, tracked: TrackedRequest) -> None:
        """See how much of a request is known."""
        if not tracked.wants_load or tracked.number or not self._pool.is_joined:
            return
        tracked.extend()
        tracked.is_short = len(tracked.keys) * self._shape.chunk_tokens < self._limits.min_tokens
        if tracked.is_short or not self._budget.allows(time.monotonic()):
            return
        self._numbers += 1
        tracked.number = self._numbers
        tracked.looked_up_at = time.monotonic()
        self._by_number[tracked.number] = tracked
        keys = b"".join(map(short, tracked.keys))
        self._pool.post(Lookup(tracked.number, tracked.root.namespace, 0, keys))
        self._counts["lookups"] += 1

    def matched(
        self, tracked: TrackedRequest, computed: int, copying: Mapping[bytes, str]
    ) -> Matched:
        """How many tokens beyond `computed` can be loaded; `copying` is on its way for requests."""
        if not self._pool.is_joined:
            return self._missed(tracked, "no_pool")
        if tracked.number == 0:
            self.look_up(tracked)
        if tracked.number == 0:
            return self._missed(tracked, "short" if tracked.is_short else "paused")
        if tracked.found is None:
            self.wait(lambda: tracked.found is not None)
        if tracked.found is None:
            return self._unanswered(tracked)
        if tracked.found.known * self._shape.chunk_tokens - computed < self._limits.min_tokens:
            return self._missed(tracked, "not_worth" if tracked.found.known else "unknown")
        tracked.computed = computed
        first = computed // self._shape.chunk_tokens
        if self._is_copied_for_another(tracked, first, copying):
            if tracked.promise is not None:
                self.cancel(tracked)  # the other may need the room
            self._counts["asked_again.copying"] += 1
            return None, False
        if tracked.asked and tracked.asked_first > first:
            # The engine has lost blocks that it had at the first ask: a promise, whether it has
            # come or not, would leave a hole behind what the engine has now.
            self.cancel(tracked)
            return self.matched(tracked, computed, copying)
        return self._promised(tracked, first, computed)

    def cancel(self, tracked: TrackedRequest) -> None:
        """Forget a request's lookup; the pool forgets it too."""
        if tracked.number:
            self._pool.post(Cancel(tracked.number))
            self._forget(tracked)

    def loaded(self, tracked: TrackedRequest) -> int:
        """What was promised is coming, or will not; the lookup that is still to be released."""
        number = tracked.number
        if number:
            self._forget(tracked)
        return number

    def pool_changed(self) -> None:
        """What another pool said means nothing."""
        self._by_number.clear()
        self._pace = ThroughputEstimate()

    def heard(self, message: Found | Promise | Ready) -> None:
        """The pool has answered, or brought something."""
        tracked = self._by_number.get(message.request)
        if tracked is None:
            return
        if isinstance(message, Found):
            self._found(tracked, message)
        elif isinstance(message, Promise):
            tracked.promise = self._checked(tracked, message)
            self._came(tracked, message.first, len(message.offsets))
        else:
            self._came(tracked, message.chunk, 1)
            sound = is_ready_for(message, tracked.keys, self._pool.generation)
            whole = message.length == self._shape.chunk_bytes
            tracked.streamed[message.chunk] = message.offset if sound and whole else -1

    def _found(self, tracked: TrackedRequest, found: Found) -> None:
        if tracked.asked:
            return  # it has asked by what it knew then
        if tracked.found is not None and found.known < tracked.found.known:
            # The pool has lost some: it is stored again.
            tracked.stored = min(tracked.stored, found.known)
            tracked.offered = min(tracked.offered, found.known)
        tracked.found = found
        tracked.stored = max(tracked.stored, found.known)
        if not found.known:
            self._budget.answered()

    def _unanswered(self, tracked: TrackedRequest) -> Matched:
        """The pool has not answered within the limits: wait a little longer, or count a miss.

        It answers within a tenth of a millisecond, so no pure miss comes here on a machine that
        has a core for the pool. Where it has none, a step of an engine that waits costs less than
        a prompt that is computed though it was known.
        """
        if time.monotonic() < tracked.looked_up_at + self._limits.lookup_s:
            self._counts["asked_again.unanswered"] += 1
            return None, False
        self.failed()
        return self._missed(tracked, "unanswered")

    def _missed(self, tracked: TrackedRequest, reason: str) -> Matched:
        """Nothing to load; counted once a request, though the scheduler may ask often."""
        if not tracked.has_missed:
            tracked.has_missed = True
            self._counts[f"misses.{reason}"] += 1
        return 0, False

    def _promised(self, tracked: TrackedRequest, first: int, computed: int) -> Matched:
        if not tracked.asked:
            if not self._may_wait(computed):
                return self._missed(tracked, "too_many_asking")
            known = self._wanted(tracked, first, computed)
            if known * self._shape.chunk_tokens - computed < self._limits.min_tokens:
                return self._missed(tracked, "computed_sooner")
            self._ask(tracked, first, known)
        if tracked.promise is None and tracked.number not in self._pace:
            self.wait(lambda: tracked.promise is not None)  # drives take longer than we may wait
        if tracked.promise is None:
            if time.monotonic() < tracked.asked_at + self._limits.promise_s:
                self._counts["asked_again.reading"] += 1
                return None, False
            self.cancel(tracked)
            tracked.failed = True  # a pool that hangs is not asked again for this request
            self.failed()
            return self._missed(tracked, "no_promise")
        tokens = (tracked.promise.first + tracked.promise.total) * self._shape.chunk_tokens
        if tokens - computed < self._limits.min_tokens:
            return self._missed(tracked, "promise_too_small")
        return tokens - computed, True

    def _ask(self, tracked: TrackedRequest, first: int, known: int) -> None:
        tracked.asked = True
        tracked.asked_at = time.monotonic()
        tracked.asked_first = first
        far = known - max(first, tracked.ready)
        if far > 0:
            self._pace.reads(tracked.asked_at, tracked.number, far * self._shape.chunk_bytes)
        deadline_ms = self._limits.load_deadline_ms
        self._pool.post(Ask(tracked.number, first, known - first, deadline_ms, stream=True))

    def _may_wait(self, computed: int) -> bool:
        """Whether one more request may be told to ask again."""
        asking = [each for each in self._by_number.values() if each.asked and each.promise is None]
        if len(asking) < _AGAIN_FEW:
            return True
        tokens = computed + sum(each.computed for each in asking)
        return len(asking) < _AGAIN_MAX and tokens <= _AGAIN_TOKENS

    def _wanted(self, tracked: TrackedRequest, first: int, computed: int) -> int:
        """Chunks, from the first of the prompt, that are here before they would be computed."""
        assert tracked.found is not None
        known, near = tracked.found.known, max(first, tracked.ready)
        if known > near and not self._limits.always_load:
            size, now = self._shape.chunk_tokens, time.monotonic()
            token_bytes = self._shape.chunk_bytes // size
            far_tokens = known * size - max(computed, near * size)
            beside = self._beside(tracked, now)
            least = least_read(near * size - computed, self._limits.min_tokens, size)
            worth = worth_reading(far_tokens, token_bytes, beside, self._pace, now, least=least)
            known = near + worth // size
        return known

    def _beside(self, tracked: TrackedRequest, now: float) -> OtherWork:
        """Other requests that the GPU computes, or would if it could, not those that load."""
        others = [
            each
            for each in self._tracked.values()
            if each is not tracked and each.loading is None and not each.asked
        ]
        return OtherWork(sum(map(_uncomputed, others)) + self._pace.computing(now), len(others))

    def _is_copied_for_another(
        self, tracked: TrackedRequest, first: int, copying: Mapping[bytes, str]
    ) -> bool:
        """Whether what is missing is on its way into the KV cache: then it is a local hit soon.

        One that has not been promised anything waits for its first chunk; one that has, only where
        it would load nothing but what another loads.
        """
        promise = tracked.promise
        at = first if promise is None else promise.first + promise.total - 1
        if not first <= at < len(tracked.keys):
            return False
        owner = copying.get(short(tracked.keys[at]))
        return owner is not None and owner != tracked.request.request_id

    def _came(self, tracked: TrackedRequest, first: int, count: int) -> None:
        """Chunks have come; those that were not in DRAM say how fast the drives are."""
        far = max(0, first + count - max(first, tracked.ready))
        self._pace.arrived(time.monotonic(), tracked.number, far * self._shape.chunk_bytes)

    def _checked(self, tracked: TrackedRequest, promise: Promise) -> Promise:
        """A promise, cut to nothing if it is not for exactly these chunks."""
        size = self._shape.chunk_bytes
        sound = (
            is_promise_for(promise, tracked.keys, self._pool.generation)
            and promise.first == tracked.asked_first  # verify: promise begins where asked
            and all(length == size for length in promise.lengths)
        )
        if sound:
            return promise
        self._missed(tracked, "wrong_promise")
        self.failed()
        return Promise(promise.request, promise.generation, promise.first, 0, [], [], b"")

    def _forget(self, tracked: TrackedRequest) -> None:
        self._pace.forget(time.monotonic(), tracked.number)
        self._by_number.pop(tracked.number, None)
        tracked.forget_lookup()


def _uncomputed(tracked: TrackedRequest) -> int:
    """Tokens of a prompt that the GPU has still to compute."""
    return max(0, tracked.request.num_prompt_tokens - tracked.request.num_computed_tokens)
